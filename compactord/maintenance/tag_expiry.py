"""Expiry of tags whose time has passed, with the files that only they need.

A tag expires once more time than it is to be retained for (`tagTimeRetained` in its file) has
passed since it was made, by the writers' wall clock. As tag/TagTimeExpire.java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import tzinfo
from typing import Any

import structlog

from compactord.clock import local_ms
from compactord.errors import CompactordError, ObjectNotFound
from compactord.maintenance.copied_files import NO_WATCH, CopyWatch, watched
from compactord.maintenance.kind import (
    Done,
    OpenedTable,
    Round,
    RuledKind,
    ShownTable,
    TableValues,
    Told,
    UnderWay,
    because,
)
from compactord.maintenance.planned_deletion import TableChanged
from compactord.maintenance.tag_deletion import DueTag, TagDeletion
from compactord.paimon import paths
from compactord.paimon.schema import parse_object
from compactord.paimon.snapshot import parse_snapshot, tag_times
from compactord.storage.base import require_gone
from compactord.text import count_text

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredTags:
    """What one round deleted; counts are of files. `why_not`: nothing (more) went for this reason.

    `metadata` are manifests, lists, index files and statistics.
    """

    tags: Sequence[str] = ()
    data_files: int = 0
    metadata: int = 0
    why_not: str | None = None


def due_tags(table: TableValues, now_ms: int, zone: tzinfo) -> tuple[DueTag, ...]:
    """The tags of the branch that expire now, the oldest snapshot's first.

    Raises what reading raises, and `FormatError` for one that cannot be understood.
    """
    if not table.options.maintenance.expires_tags:
        return ()
    found = []
    folder, prefix = paths.tag_folder(table.ref.root), paths.TAG_PREFIX
    for status in table.storage.list(folder):
        if status.is_folder or not status.name.startswith(prefix):
            continue
        path = paths.join(folder, status.name)
        try:
            data = table.storage.read(path)
        except ObjectNotFound:
            require_gone(table.storage, path)
            continue
        end_ms = _end_ms(data, path)
        if end_ms is not None and local_ms(now_ms, zone) > end_ms:
            found.append(
                DueTag(
                    name=status.name[len(prefix) :],
                    path=path,
                    snapshot=parse_snapshot(data, path),
                    changed_ms=status.changed_ms,
                )
            )
    return tuple(sorted(found, key=lambda tag: (tag.snapshot.id, tag.name)))


def _end_ms(data: bytes, path: str) -> int | None:
    """Until when a tag is retained, by local wall clock as if it were UTC; None: for good."""
    times = tag_times(parse_object(data, path, "a tag"), path)
    return None if times is None else times.made_ms + times.retained_ms


def expire_tags(
    table: TableValues, now_ms: int, zone: tzinfo, copies: CopyWatch = NO_WATCH
) -> ExpiredTags:
    """Delete the tags that expire now. Raises what `due_tags` and `delete_tags` raise."""
    return delete_tags(table, due_tags(table, now_ms, zone), now_ms, copies)


def delete_tags(
    table: TableValues, tags: Iterable[DueTag], now_ms: int, copies: CopyWatch = NO_WATCH
) -> ExpiredTags:
    """Delete tags, one after the other. `copies` tells whether the table may be being restored.

    Raises what `TagDeletion` raises; the next round continues with the other tags. What has gone
    is logged in any case.
    """
    counts: Counter[str] = Counter()
    gone: list[str] = []
    why_not = None
    try:
        for tag in _unless_restored(table, tags, now_ms, copies):
            deletion = TagDeletion(table, tag, now_ms)
            try:
                deletion.delete(counts)
            finally:
                if counts["tags"] > len(gone):
                    gone.append(tag.name)
    except TableChanged as kept:
        why_not = str(kept)
    finally:
        files = {"data_files": counts["data_files"], "metadata": counts["metadata"]}
        if gone:
            _log.info("tags_expired", tags=gone, **files)
    return ExpiredTags(tags=gone, why_not=why_not, **files)


def _unless_restored(
    table: TableValues, tags: Iterable[DueTag], now_ms: int, copies: CopyWatch
) -> Iterator[DueTag]:
    """Raises `TableChanged` in place of the first tag where the table may be being restored."""
    for number, tag in enumerate(tags):
        trouble = None if number else copies.why_wait(table, now_ms)
        if trouble is not None:
            raise TableChanged(trouble)
        yield tag


def preview_tags(
    table: TableValues, tags: Iterable[DueTag], now_ms: int, copies: CopyWatch = NO_WATCH
) -> Done[ExpiredTags]:
    """What `delete_tags` would delete, tag by tag, if each expired alone; changes nothing.

    Raises what `TagDeletion` raises.
    """
    going: list[ExpiredTags] = []
    files: list[str] = []
    try:
        for tag in _unless_restored(table, tags, now_ms, copies):
            plan = TagDeletion(table, tag, now_ms).plan
            data_files, metadata = len(plan.data_files), len(plan.metadata)
            going.append(ExpiredTags(tags=[tag.name], data_files=data_files, metadata=metadata))
            files += [*plan.data_files, tag.path, *plan.metadata]
    except TableChanged as kept:
        going.append(ExpiredTags(why_not=str(kept)))
    return Done(rounds=going, files=files)


def joined(rounds: Sequence[ExpiredTags], why_not: str | None = None) -> ExpiredTags:
    """What several rounds deleted; `why_not` comes before their own reasons."""
    reasons = [each.why_not for each in rounds if each.why_not is not None]
    return ExpiredTags(
        tags=[name for each in rounds for name in each.tags],
        data_files=sum(each.data_files for each in rounds),
        metadata=sum(each.metadata for each in rounds),
        why_not=why_not or next(iter(reasons), None),
    )


def expired_told(shown: ShownTable, expired: ExpiredTags) -> Told:
    """The data are the fields of `ExpiredTags`."""
    lines = [f"{shown.name}: no tag {shown.expired}"]
    if expired.tags:
        names = f"{count_text(len(expired.tags), 'tag')} ({', '.join(expired.tags)})"
        files = count_text(expired.data_files, "data file")
        others = count_text(expired.metadata, "other file")
        lines = [f"{shown.name}: {shown.expired} {names}: {files}, {others}"]
    lines += because(expired.why_not, has_some=expired.tags)
    return Told(lines=lines, found=asdict(expired))


def expired_counts(done: ExpiredTags) -> dict[str, int]:
    """By the counters of `ExpireTags`."""
    return {"expired_tags": len(done.tags), "expired_tag_files": done.data_files + done.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireTags(RuledKind[ExpiredTags]):
    """Due after a plan, `interval_ms` after the last round, in the windows of expiry."""

    name = choice = "tags"
    rule = "expire_tags"
    after_plans = True
    unasked = "the table's options say so"
    counters = (
        ("expired_tags", "Tags that expired, or were too many."),
        ("expired_tag_files", "Files deleted with expired tags."),
    )

    def preview(self, table: OpenedTable) -> Done[ExpiredTags]:
        why_keep = table.why_keep()
        if why_keep is not None:
            return Done(why_not=why_keep)
        now_ms = table.clock.now_ms()
        due = due_tags(table.table, now_ms, table.clock.time_zone)
        return preview_tags(table.table, due, now_ms, watched(table, self.grace_ms))

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> ExpiredTags:
        why_keep = table.why_keep()
        if why_keep is not None:
            return ExpiredTags(why_not=why_keep)
        copies = watched(table, self.grace_ms)
        return expire_tags(table.table, table.clock.now_ms(), table.clock.time_zone, copies)

    def ended(self, result: ExpiredTags | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("tags_kept", error=str(result))
            return Round(has_failed=True)
        if result.why_not is not None:
            _log.warning("tags_kept", error=result.why_not)
        return Round(counts=expired_counts(result))

    def told(self, shown: ShownTable, done: Done[ExpiredTags], *others: Done[Any]) -> Told:
        return expired_told(shown, joined(done.rounds, done.why_not))
