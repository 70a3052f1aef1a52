"""Which snapshots get tags by themselves, one for each period that has ended. Pure.

As tag/TagAutoCreation.java: the first snapshot whose time is `delay_ms` or more past the end of the
period after that of the last tag gets the tag of the last period that has ended by then; the first
snapshot of all gets one at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo

from compactord.clock import local_ms
from compactord.paimon.options.maintenance import TagCreationOptions, has_name
from compactord.paimon.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTag:
    """A tag that is due."""

    name: str
    snapshot: Snapshot


@dataclass(slots=True, kw_only=True)
class TagProgress:
    """How far the creation of a table's tags is, by `options`; None: nothing is known.

    `next_ms`: the period after that of the last tag, by its local time; None: there was no tag.
    `next_id`: the first snapshot that has not been looked at. `tagged`: snapshots with such tags.
    """

    options: TagCreationOptions | None = None
    next_ms: int | None = None
    next_id: int = 0
    tagged: set[int] = field(default_factory=set)

    def reset(self) -> None:
        """Forget all."""
        self.options, self.next_ms, self.next_id = None, None, 0
        self.tagged.clear()

    def take_in(self, options: TagCreationOptions, tags: Mapping[str, Snapshot]) -> None:
        """Go on after the last of these tags, unless that is a step back."""
        made = options.period.times(tags)
        self.options, self.tagged = options, {tags[name].id for name in made}
        if made:
            last = max(made, key=lambda name: (made[name], tags[name].id))
            next_ms = made[last] + options.period.length_ms
            self.next_ms = next_ms if self.next_ms is None else max(self.next_ms, next_ms)
            self.next_id = max(self.next_id, tags[last].id + 1)


def may_be_due(
    newest: Snapshot,
    progress: TagProgress,
    options: TagCreationOptions,
    *,
    now_ms: int,
    zone: tzinfo,
) -> bool:
    """Whether a tag may be due by the newest snapshot: times of snapshots rise."""
    moment_ms = newest.watermark if options.by_watermark else min(newest.time_ms, now_ms)
    time_ms = _local_ms(moment_ms, options, zone)
    return newest.id >= progress.next_id and (
        time_ms is None or _is_due(time_ms, progress, options)
    )


def new_tags(
    snapshots: Iterable[Snapshot],
    progress: TagProgress,
    options: TagCreationOptions,
    *,
    now_ms: int,
    zone: tzinfo,
) -> Iterator[NewTag]:
    """The tags that are due, the oldest first, of snapshots in the order of their ids.

    `progress` moves on as the next one is asked for. A snapshot from after `now_ms` waits: the
    clock of its writer is ahead, or ours is behind. `zone` is the machine's.
    """
    has_waiting = False
    for snapshot in snapshots:
        if not options.by_watermark and snapshot.time_ms > now_ms:
            has_waiting = True
            continue
        moment_ms = snapshot.watermark if options.by_watermark else snapshot.time_ms
        time_ms = _local_ms(moment_ms, options, zone)
        is_free = snapshot.id not in progress.tagged
        if time_ms is not None and is_free and _is_due(time_ms, progress, options):
            tag_ms = options.period.last_before(time_ms)
            if options.completes and progress.next_ms is not None:
                tag_ms = progress.next_ms
            yield NewTag(name=options.period.name(tag_ms), snapshot=snapshot)
            progress.next_ms = tag_ms + options.period.length_ms
            progress.tagged.add(snapshot.id)
            has_waiting = False
        if not has_waiting:
            progress.next_id = snapshot.id + 1


def surplus_tags(tags: Mapping[str, Snapshot], options: TagCreationOptions) -> Sequence[str]:
    """Of all tags those that were made by themselves and are too many, the oldest first."""
    if options.retained_max is None:
        return ()
    made = sorted(options.period.times(tags), key=lambda name: (tags[name].id, name))
    return made[: max(0, len(made) - options.retained_max)]


def _is_due(time_ms: int, progress: TagProgress, options: TagCreationOptions) -> bool:
    if progress.next_ms is None:
        return True
    return time_ms - options.delay_ms >= progress.next_ms + options.period.length_ms


def _local_ms(moment_ms: int | None, options: TagCreationOptions, zone: tzinfo) -> int | None:
    """The local time at a moment; None: there is none, or not in a calendar.

    An input that ends may set the greatest of all watermarks.
    """
    if moment_ms is None or not has_name(moment_ms):
        return None
    return local_ms(moment_ms, options.zone or zone)
