"""Tags that are made by themselves: their periods and names, and the options that ask for them.

A tag stands for the local time at which its period begins. As CoreOptions.java,
tag/TagPeriodHandler.java and tag/TagAutoCreation.java.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo

from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)
LENGTH_MAX_MS = 100 * 366 * 86_400_000
# Of four digits, also a period earlier or later.
_YEARS = range(1200, 9800)
# Each tag has a partition in the catalog.
TAG_PARTITIONS = "metastore.tag-to-partition"
_MODE = "tag.automatic-creation"
_DURATION, _DELAY = "tag.creation-period-duration", "tag.creation-delay"
_HOUR_MS = 3_600_000
_DAYS = {"with_dashes": "%Y-%m-%d"}
_HOURS = {"with_dashes": "%Y-%m-%d %H", "without_dashes": "%Y%m%d %H"}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCreationOptions:
    """When tags are made, and what becomes of them. Durations in milliseconds.

    Time is that of snapshots, or with `by_watermark` their watermark, in `zone` (None: the
    machine's). A tag is made `delay_ms` after its period has ended. `completes`: periods that were
    missed get tags from later snapshots. More than `retained_max` do not stay; the files of tags
    say that they are retained for `retained_ms`.
    """

    period: TagPeriod
    by_watermark: bool = False
    zone: tzinfo | None = None
    delay_ms: int = 0
    completes: bool = False
    retained_max: int | None = None
    retained_ms: int | None = None


def tag_creation_options(texts: OptionTexts) -> TagCreationOptions | None:
    """None: no tags are asked for, or the jobs that end make them.

    Raises `ValueError` that names the option that is wrong, or that is not served.
    """
    mode = texts.strictly(_MODE, "none")
    if mode in ("none", "batch"):
        return None
    if texts.merged.get(TAG_PARTITIONS):
        raise ValueError(f"option {TAG_PARTITIONS}={texts.merged[TAG_PARTITIONS]}")
    period, by_watermark = _period(texts), mode == "watermark"
    delay_ms = texts.strictly(_DELAY, 0)
    if delay_ms >= period.length_ms:
        raise ValueError(f"option {_DELAY}={texts.merged[_DELAY]}: as long as the period or longer")
    zone_key = "sink.watermark-time-zone" if by_watermark else "sink.process-time-zone"
    zone = texts.strictly(zone_key, None, option_values.zone)
    at_least_one = option_values.positive(option_values.integer)
    return TagCreationOptions(
        period=period,
        by_watermark=by_watermark,
        zone=zone or (timezone.utc if by_watermark else None),
        delay_ms=delay_ms,
        completes=texts.strictly("tag.automatic-completion", False),
        retained_max=texts.strictly("tag.num-retained-max", None, at_least_one),
        retained_ms=texts.strictly("tag.default-time-retained", None),
    )


def _period(texts: OptionTexts) -> TagPeriod:
    length_ms = texts.strictly(_DURATION, None, _length_ms)
    if length_ms is not None:
        return TagPeriod(length_ms=length_ms, form="%Y%m%d%H%M")
    name = texts.strictly("tag.creation-period", "daily")
    if name == "two-hours":
        return TagPeriod(length_ms=2 * _HOUR_MS, form=_HOURS["with_dashes"])
    formatter = texts.strictly("tag.period-formatter", "with_dashes")
    if name == "hourly":
        return TagPeriod(length_ms=_HOUR_MS, form=_HOURS.get(formatter, "%Y%m%d%H"))
    form = _DAYS.get(formatter, "%Y%m%d")
    return TagPeriod(length_ms=24 * _HOUR_MS, form=form, ends_at_blank=True)


def _length_ms(text: str) -> int:
    length_ms = option_values.duration_ms(text)
    if not 0 < length_ms <= LENGTH_MAX_MS:
        raise ValueError("a duration from 1 ms to 36600 d")
    return length_ms
