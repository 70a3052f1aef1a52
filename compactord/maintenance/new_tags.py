"""Automatic tags: creation and retention.

A tag's file is created exclusively: one of several concurrent writers of a tag succeeds, and an
existing tag is kept. Java checks first and overwrites (utils/TagManager.java). The snapshot must
still exist once the tag does. If it does not, an expiry may have deleted its files before, and the
tag is withdrawn.

As tag/TagAutoCreation.java: a tag is due at the first snapshot whose time is `delay_ms` or more
after the end of the period that follows the last tag's. It is named by the last period that has
ended at that time. The table's first snapshot gets a tag at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone, tzinfo
from typing import Any

import structlog

from compactord.clock import WallTime, local_ms
from compactord.errors import CompactordError, ObjectNotFound, StorageError
from compactord.maintenance.done import SuccessTimes, read_success
from compactord.maintenance.kind import (
    Done,
    DueTable,
    MaintenanceRecord,
    OpenedTable,
    Report,
    Round,
    RuledKind,
    ShownTable,
    UnderWay,
    because,
)
from compactord.maintenance.rounds import Plan, RoundResult, joined
from compactord.maintenance.tags import DueTag, ExpireTags, success_path
from compactord.paimon import paths
from compactord.paimon.options.maintenance import TagCreationOptions, has_name
from compactord.paimon.schema import parse_object
from compactord.paimon.snapshot import (
    Snapshot,
    latest_snapshot_id,
    parse_snapshot,
    read_tags,
    snapshot_ids,
    snapshot_unless_absent,
    still_stands,
)
from compactord.storage.base import Creation, read_back, require_absent
from compactord.text import count_text


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTag:
    name: str
    snapshot: Snapshot


@dataclass(slots=True, kw_only=True)
class TagProgress:
    """Progress of tag creation under `options`, which are None at first.

    `next_ms`: local start of the period after the last tag, or None without a tag. `next_id`: the
    first unchecked snapshot. `tagged`: snapshots with automatic tags.
    """

    options: TagCreationOptions | None = None
    next_ms: int | None = None
    next_id: int = 0
    tagged: set[int] = field(default_factory=set)

    def reset(self) -> None:
        self.options, self.next_ms, self.next_id = None, None, 0
        self.tagged.clear()

    def advance(self, options: TagCreationOptions, tags: Mapping[str, Snapshot]) -> None:
        """Continue after the last of these tags; never moves back."""
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
    """Whether a tag may be due by the newest snapshot: times of snapshots rise. Pure."""
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
    """The tags that are due, the oldest first. `snapshots` are in the order of their ids.

    Reading the next tag advances `progress`; otherwise pure. A snapshot later than `now_ms` waits:
    its writer's clock is ahead, or ours is behind. `zone` is the machine's.
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
    """The automatic tags in excess of `retained_max`, the oldest first. Pure."""
    if options.retained_max is None:
        return ()
    made = sorted(options.period.times(tags), key=lambda name: (tags[name].id, name))
    return made[: max(0, len(made) - options.retained_max)]


def _is_due(time_ms: int, progress: TagProgress, options: TagCreationOptions) -> bool:
    if progress.next_ms is None:
        return True
    return time_ms - options.delay_ms >= progress.next_ms + options.period.length_ms


def _local_ms(moment_ms: int | None, options: TagCreationOptions, zone: tzinfo) -> int | None:
    """The local time at a moment, or None if it is None or outside of the calendar.

    An input that ends may set the greatest possible watermark.
    """
    if moment_ms is None or not has_name(moment_ms):
        return None
    return local_ms(moment_ms, options.zone or zone)


_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTags:
    """Tags created in one round, with their snapshots, and the `surplus` tags deleted for them.

    `why_not`: the reason why no tag, or no further tag, was created.
    """

    tags: Mapping[str, int] = field(default_factory=dict)
    surplus: RoundResult[DueTag] = field(default_factory=RoundResult)
    why_not: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExpireSurplus(ExpireTags):
    """Deletes surplus `tags`."""

    tags: Sequence[DueTag]
    now_ms: int

    def plan(self, table: OpenedTable, under_way: UnderWay | None) -> Plan[DueTag]:
        return self.plan_of(table, self.tags, self.now_ms)


class _TagWithdrawn(Exception):
    """The snapshot was deleted or replaced. The text is a message for operators."""


class _Creation:
    """Creates a table's tags at one moment."""

    def __init__(self, table: OpenedTable, options: TagCreationOptions, grace_ms: int) -> None:
        self._opened, self._table, self._options = table, table.table, options
        self._storage, self._root = table.table.storage, table.table.ref.root
        self._progress, self._grace_ms = table.memory(TagProgress), grace_ms
        self._now_ms, self._zone = table.clock.now_ms(), table.clock.time_zone
        self._tags: dict[str, Snapshot] = {}

    def preview(self) -> Done[CreatedTags]:
        newest = self._start()
        due = () if newest is None else self._due(newest)
        new = {each.name: each.snapshot for each in due if each.name not in self._tags}
        self._tags |= new
        surplus = self._expiry().preview(self._opened) if new else Done()
        made = {name: snapshot.id for name, snapshot in new.items()}
        created = CreatedTags(tags=made, surplus=joined(surplus.rounds))
        return Done(rounds=[created], files=surplus.files)

    def create(self) -> CreatedTags:
        """Raises what reading raises, and `FormatError` for a broken tag, before it creates a tag.

        Raises `StorageError` if a file cannot be written, and what `TagDeletion` raises: the next
        round continues there. Logs the created tags in any case.
        """
        newest = self._start()
        if newest is None:
            return CreatedTags()
        self._complete_last()
        made: dict[str, int] = {}
        why_not = None
        try:
            for new in self._due(newest):
                if new.name in self._tags:
                    continue
                if self._make(new):
                    made[new.name] = new.snapshot.id
                    self._write_success(new.name)
        except _TagWithdrawn as withdrawn:
            why_not = str(withdrawn)
        finally:
            if made:
                _log.info("tags_created", tags=list(made), snapshot_ids=list(made.values()))
        surplus = RoundResult[DueTag]()
        if made:
            self._tags = dict(read_tags(self._storage, self._root))
            surplus = self._expiry().run(self._opened, None)
        return CreatedTags(tags=made, surplus=surplus, why_not=why_not)

    def _expiry(self) -> ExpireTags:
        """The expiry of the surplus tags of `self._tags`."""
        tags, now_ms = tuple(self._surplus()), self._now_ms
        return _ExpireSurplus(interval_ms=0, grace_ms=self._grace_ms, tags=tags, now_ms=now_ms)

    def _start(self) -> Snapshot | None:
        """The newest snapshot, or None if no tag is due; most rounds read only this snapshot."""
        newest_id = latest_snapshot_id(self._storage, self._root)
        if newest_id is None:
            return None
        newest = snapshot_unless_absent(self._storage, self._root, newest_id)
        progress = self._progress
        if newest is None:
            return None
        if progress.options != self._options or progress.next_id > newest.id + 1:
            # Options have changed, or snapshots were rolled back.
            progress.reset()
        elif not self._may_be_due(newest):
            return None
        self._tags = dict(read_tags(self._storage, self._root))
        progress.advance(self._options, self._tags)
        return newest

    def _may_be_due(self, newest: Snapshot) -> bool:
        return may_be_due(
            newest, self._progress, self._options, now_ms=self._now_ms, zone=self._zone
        )

    def _due(self, newest: Snapshot) -> Iterator[NewTag]:
        """The tags that are due. Some may exist already."""
        if not self._may_be_due(newest):
            return
        first = self._progress.next_id
        ids = [id_ for id_ in snapshot_ids(self._storage, self._root) if first <= id_ <= newest.id]
        read = (snapshot_unless_absent(self._storage, self._root, id_) for id_ in ids)
        yield from new_tags(
            (each for each in read if each is not None),
            self._progress,
            self._options,
            now_ms=self._now_ms,
            zone=self._zone,
        )

    def _make(self, new: NewTag) -> bool:
        """Whether this call created the tag. Raises `_TagWithdrawn`."""
        path, data = paths.tag_path(self._root, new.name), self._content(new)
        unique = self._opened.owner.unique_name()
        temporary = paths.join(paths.tag_folder(self._root), f".tag-{new.name}.{unique}.tmp")
        try:
            creation = self._storage.create_if_absent(path, data, temporary=temporary)
        except StorageError as error:
            if read_back(self._storage, path, error) != data:
                raise
            creation = Creation.CREATED
        if creation is Creation.EXISTS:
            return False
        is_valid = False
        try:
            is_valid = still_stands(self._storage, self._root, new.snapshot)
        finally:
            if not is_valid:
                self._storage.delete(path)
        if not is_valid:
            raise _withdrawn(new)
        return True

    def _content(self, new: NewTag) -> bytes:
        """Bytes of the snapshot's file, with the tag's times if its retention is limited."""
        path = paths.snapshot_path(self._root, new.snapshot.id)
        try:
            data = self._storage.read(path)
        except ObjectNotFound:
            require_absent(self._storage, path)
            raise _withdrawn(new) from None
        if parse_snapshot(data, path).identity != new.snapshot.identity:
            raise _withdrawn(new)
        retained_ms = self._options.retained_ms
        if retained_ms is None:
            return data
        created = _array(local_ms(self._now_ms, self._zone))
        times = {"tagCreateTime": created, "tagTimeRetained": retained_ms / 1000}
        content = parse_object(data, path, "a snapshot") | times
        return json.dumps(content, indent=2, ensure_ascii=False).encode()

    def _complete_last(self) -> None:
        """Write the last tag's success file if a crash prevented it."""
        made = self._options.period.times(self._tags)
        if made:
            self._write_success(max(made, key=lambda name: made[name]))

    def _write_success(self, name: str) -> None:
        path = success_path(self._root, name)
        if not self._table.options.maintenance.tags_succeed:
            return
        if read_success(self._storage, path) is not None:
            return
        data = SuccessTimes(created_ms=self._now_ms, changed_ms=self._now_ms).to_json()
        if self._storage.status(path) is None:
            self._storage.write_new(path, data)
        else:
            self._storage.overwrite(path, data)

    def _surplus(self) -> Iterator[DueTag]:
        """The surplus tags of `self._tags` that still exist."""
        for name in surplus_tags(self._tags, self._options):
            path = paths.tag_path(self._root, name)
            status = self._storage.status(path)
            if status is not None:
                snapshot = parse_snapshot(self._storage.read(path), path)
                yield DueTag(name=name, path=path, snapshot=snapshot, changed_ms=status.changed_ms)


def _withdrawn(new: NewTag) -> _TagWithdrawn:
    why = f"snapshot {new.snapshot.id} was deleted or replaced before tag {new.name} was complete"
    return _TagWithdrawn(why)


def _array(local: int) -> list[int]:
    """A local time as Java writes it, without zeros at the end."""
    moment = datetime.fromtimestamp(local // 1000, timezone.utc)
    found = [*moment.timetuple()[:6], local % 1000 * 1_000_000]
    while len(found) > 5 and not found[-1]:
        found.pop()
    return found


_EXPIRY = ExpireTags(interval_ms=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTags(RuledKind[CreatedTags]):
    """Due after new snapshots, `interval_ms` after the last round, at any time of the week."""

    name = "create_tags"
    choice = "tags"
    rule = "create_tags"
    is_short = True
    at_any_time = True
    counters = (("new_tags", "Tags created."),)

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        is_new = table.snapshot_id != record.snapshot_id
        return is_new and RuledKind.is_due(self, table, record, now_ms, wall)

    def preview(self, table: OpenedTable) -> Done[CreatedTags]:
        created = self._start(table)
        if isinstance(created, _Creation):
            return created.preview()
        return Done(rounds=[created])

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> CreatedTags:
        created = self._start(table)
        return created.create() if isinstance(created, _Creation) else created

    def _start(self, table: OpenedTable) -> _Creation | CreatedTags:
        """A round's work, or the result of a round without any."""
        expiry_blocker, options = table.expiry_blocker(), table.table.options.maintenance
        if expiry_blocker is not None or options.tag_creation is None:
            return CreatedTags(why_not=expiry_blocker)
        return _Creation(table, options.tag_creation, self.grace_ms)

    def ended(self, result: CreatedTags | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("tags_not_created", error=str(result))
            return Round(has_failed=True, why_not=str(result))
        if result.why_not is not None:
            _log.warning("tags_not_created", error=result.why_not)
        expired = _EXPIRY.ended(result.surplus, seconds)
        counts = {"new_tags": len(result.tags), **expired.counts}
        has_failed = result.why_not is not None
        return Round(counts=counts, has_failed=has_failed, why_not=result.why_not)

    def report(self, shown: ShownTable, done: Done[CreatedTags], *others: Done[Any]) -> Report:
        """`others` has the result of `ExpireTags`: surplus and expired tags share one line."""
        (created,) = done.rounds or [CreatedTags(why_not=done.why_not)]
        options = None if shown.table is None else shown.table.options.maintenance
        if options is not None and options.tag_creation is None:
            created = CreatedTags(why_not=options.tag_creation_refusal)
        lines = []
        if created.tags:
            verb = "would create" if shown.is_dry else "created"
            names = f"{count_text(len(created.tags), 'tag')} ({', '.join(created.tags)})"
            lines.append(f"{shown.name}: {verb} {names}")
        if created.why_not is not None:
            lines.append(f"{shown.name}: no {'more ' if created.tags else ''}tags created")
            lines += because(created.why_not, has_some=False)
        expired, surplus = [created.surplus], {each.name for each in created.surplus.items}
        for other in others:
            # In a dry run a tag may be both surplus and expired.
            expired += [each for each in other.rounds if surplus.isdisjoint(map(str, each.items))]
        why_not = next((other.why_not for other in others if other.why_not is not None), None)
        deleted = _EXPIRY.report(shown, Done(rounds=expired, why_not=why_not))
        found = {"created": dict(created.tags), "created_why_not": created.why_not, **deleted.found}
        if shown.is_dry and shown.table is not None:
            files = (path for each in (done, *others) for path in each.files or ())
            found["files"] = [*dict.fromkeys(files)]
        return Report(lines=[*lines, *deleted.lines], found=found)
