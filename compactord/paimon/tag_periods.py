"""Periods for which tags are made by themselves, and the names of such tags.

A tag stands for the local time at which its period begins. As tag/TagPeriodHandler.java.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)
LENGTH_MAX_MS = 100 * 366 * 86_400_000
# Of four digits, also a period earlier or later.
_YEARS = range(1200, 9800)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPeriod:
    """Periods of `length_ms` (`LENGTH_MAX_MS` at most), and `form` of their names (`strftime`).

    Times are local, in ms as if they were UTC. `ends_at_blank`: what follows a blank does not
    count.
    """

    length_ms: int
    form: str
    ends_at_blank: bool = False

    def name(self, time_ms: int) -> str:
        """The name of the tag for this time."""
        return (_EPOCH + timedelta(milliseconds=time_ms)).strftime(self.form)

    def time_ms(self, name: str) -> int | None:
        """What a tag of this name stands for; None: it was not made by itself."""
        text = name.partition(" ")[0] if self.ends_at_blank else name
        try:
            moment = datetime.strptime(text, self.form).replace(tzinfo=timezone.utc)
        except ValueError:
            return None
        # Java takes no digit less, and no blank more.
        return (moment - _EPOCH) // _MS if moment.strftime(self.form) == text else None

    def times(self, names: Iterable[str]) -> dict[str, int]:
        """What tags stand for by their names; of those that were made by themselves."""
        found = {name: self.time_ms(name) for name in names}
        return {name: time_ms for name, time_ms in found.items() if time_ms is not None}

    def last_before(self, time_ms: int) -> int:
        """When the last period began that has ended by then."""
        return time_ms // self.length_ms * self.length_ms - self.length_ms


def has_name(time_ms: int) -> bool:
    """Whether tags of all periods can be named for this moment, in any time zone."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).year in _YEARS
    except OverflowError:
        return False
