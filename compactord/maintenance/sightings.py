"""Since when left-over files have been seen, for stores in which new files may look old."""

from __future__ import annotations

from collections.abc import Sequence

from compactord.maintenance.orphan_files import Orphan


class Sightings:
    """What the sweeps of one table have seen, one sweep after the other; each start knows nothing.

    A file that is copied with its times looks old at once, and what names it may follow: it is
    young until it has been seen unchanged, and named by nothing, for the grace.
    """

    def __init__(self) -> None:
        self._since_ms: dict[Orphan, int] = {}

    def aged(self, found: Sequence[Orphan], *, now_ms: int, grace_ms: int) -> tuple[Orphan, ...]:
        """Those that were first seen `grace_ms` ago. Others than `found` are forgotten.

        `now_ms` is steady time.
        """
        self._since_ms = {orphan: self._since_ms.get(orphan, now_ms) for orphan in found}
        return tuple(each for each in found if now_ms - self._since_ms[each] >= grace_ms)
