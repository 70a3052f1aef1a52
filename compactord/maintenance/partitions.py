"""Partition expiry: removes partitions in OVERWRITE snapshots, and their catalog entries.

A partition expires once more than `partition.expiration-time` has passed since the time encoded in
its values. The strategy `update-time` counts from the creation of its newest file. Both compare
local time. Values are read in the text form of Java's internal objects: a DATE is a number of days,
which encodes no time. As operation/NormalPartitionExpire.java and
partition/Partition*ExpireStrategy.java, which also count deleted files that manifests still name.

Catalog entries are dropped before the files, as in Java (hive/HiveCatalog.java, `dropPartitions`):
after an interruption in between, the next round finds the partition by its files and continues.
Done entries are dropped then as well. Java drops them last: an interruption leaves them forever.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import tzinfo
from itertools import islice
from typing import Any, NamedTuple

import structlog

from compactord.clock import epoch_ms, local_ms
from compactord.commit.changes import CommitOutcome, Committed, Replaced
from compactord.errors import CompactordError, FormatError
from compactord.maintenance.copied_files import watched
from compactord.maintenance.kind import (
    Done,
    OpenedTable,
    Report,
    Round,
    RuledKind,
    ShownTable,
    UnderWay,
    because,
)
from compactord.paimon import paths
from compactord.paimon.binary_row import decode_row
from compactord.paimon.catalog_partitions import PartitionEntries, PartitionSpec, done_spec
from compactord.paimon.java_text import partition_time_ms, to_string
from compactord.paimon.options.maintenance import EXPIRATION_TIME, PartitionExpiryOptions
from compactord.paimon.snapshot import branch_names
from compactord.state.columns import newest_files
from compactord.state.live_files import LiveFiles
from compactord.state.table_state import TableState, load_newest
from compactord.table.opening import OpenTable
from compactord.table.session import ChosenPartitions
from compactord.text import count_text
from compactord.verify.holds import text_of

_log = structlog.get_logger()


def has_entries(table: OpenTable) -> bool:
    """Whether the table's catalog has entries for its partitions."""
    return table.entries is not None and table.options.maintenance.in_catalog


class ExpiringEntries:
    """Catalog entries of the partitions that one snapshot removes."""

    def __init__(self) -> None:
        self._dropped: dict[bytes, PartitionSpec] = {}
        self._entries: PartitionEntries | None = None

    def drop(self, table: OpenTable, partitions: Collection[bytes]) -> None:
        """Drop the entries of partitions that exist in no other branch, once each.

        Raises what reading the branches raises, before the first drop, and errors of the catalog.
        """
        new = [each for each in partitions if each not in self._dropped]
        if table.entries is None or not has_entries(table) or not new:
            return
        kept = frozenset[bytes]().union(*_partitions_of_other_branches(table))
        specs = {each: table.partition_spec(each) for each in new if each not in kept}
        self._entries = table.entries
        self._entries.drop([*map(done_spec, specs.values()), *specs.values()])
        self._dropped |= specs
        folders = sorted(map(paths.spec_path, specs.values()))
        if folders:
            _log.info("partition_entries_dropped", partitions=folders)

    def restore(self, removed: Collection[bytes]) -> None:
        """Add dropped entries again unless `removed`. Raises errors of the catalog."""
        kept = [spec for each, spec in self._dropped.items() if each not in removed]
        if kept and self._entries is not None:
            self._entries.add(kept)


def _partitions_of_other_branches(table: OpenTable) -> Iterator[frozenset[bytes]]:
    for branch in (paths.MAIN_BRANCH, *branch_names(table.storage, table.ref.location)):
        if branch != table.ref.branch:
            state = load_newest(table.storage, replace(table.ref, branch=branch)).state
            yield frozenset(bucket.partition for bucket in state.files.bucket_ids())


# Partitions listed in a warning about unknown times.
_NAMED = 10


class DuePartitions(NamedTuple):
    """Partitions that expire, in order, and the texts of partitions whose time is unknown.

    The latter never expire. Reasons: a value is null or encodes no time, the row cannot be read, or
    a file has no creation time.
    """

    due: tuple[bytes, ...]
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredPartitions:
    """Partitions removed in one round, by the names of their folders.

    `left` counts the expired partitions left for the next round. `why_not`: the reason why no
    partition, or no further one, was removed.
    """

    partitions: Sequence[str] = ()
    files: int = 0
    rows: int = 0
    left: int = 0
    why_not: str | None = None


def due_partitions(
    table: OpenTable,
    state: TableState,
    *,
    now_ms: int,
    zone: tzinfo,
    among: Collection[bytes] | None = None,
) -> DuePartitions:
    """The partitions of `state`, or `among` some of them, that expire at `now_ms`. Pure.

    `zone` is the writers' time zone. A partition with only postponed files does not expire.
    """
    options = table.options.maintenance
    expiry = options.expire_partitions
    why_not = options.why_none_expires(table.entries)
    if expiry is None or why_not is not None:
        return DuePartitions(())
    found = {bucket.partition for bucket in state.files.bucket_ids() if bucket.bucket >= 0}
    found = found if among is None else found.intersection(among)
    end_ms = local_ms(now_ms, zone) - expiry.time_ms
    if expiry.by_update:
        # Java compares moments. Local times differ from them when clocks change.
        end_ms = epoch_ms(end_ms, zone)
        known = _updated_ms(state.files, found, zone, end_ms)
    else:
        known = {partition: _encoded_ms(table, partition, expiry) for partition in found}
    due: list[tuple[bytes, bytes]] = []
    unknown: list[str] = []
    for partition, time_ms in known.items():
        order = _order(table, partition)
        if time_ms is None or order is None:
            unknown.append(table.partition_text(partition))
        elif end_ms > time_ms:
            due.append((order, partition))
    return DuePartitions(tuple(partition for _, partition in sorted(due)), tuple(sorted(unknown)))


def expire_partitions(
    table: OpenTable,
    state: TableState,
    drop: Callable[[ChosenPartitions], CommitOutcome],
    *,
    now_ms: int,
    zone: tzinfo,
    goes_on: Callable[[], bool] = lambda: True,
    why_wait: Callable[[], str | None] = lambda: None,
) -> ExpiredPartitions:
    """Remove the partitions of `due_partitions`, within the limits in the table's options.

    `drop` removes the partitions of the newest state that still expire at `now_ms`. A partition
    with new rows stays by `update-time`; by its values it expires with these rows, as in Java. The
    round stops once `goes_on` returns False, and removes no partition if `why_wait` returns a
    reason. Entries in the catalog are dropped first.

    Raises what `drop` and the catalog raise; the next round continues. Logs the removed partitions
    in any case.
    """
    expiry = table.options.maintenance.expire_partitions
    why_not = table.options.maintenance.why_none_expires(table.entries)
    done = ExpiredPartitions(why_not=why_not)
    if expiry is None or why_not is not None:
        return done
    found = due_partitions(table, state, now_ms=now_ms, zone=zone)
    if found.unknown:
        named = found.unknown[:_NAMED]
        _log.warning("partitions_without_time", count=len(found.unknown), partitions=named)
    done = replace(done, left=max(0, len(found.due) - expiry.most))
    if found.due and (why_not := why_wait()) is not None:
        return replace(done, why_not=why_not)
    due = iter(found.due[: expiry.most])
    while (batch := frozenset(islice(due, expiry.at_once))) and goes_on():
        entries = ExpiringEntries()

        def still_due(
            newest: OpenTable,
            state: TableState,
            among: Collection[bytes] = batch,
            entries: ExpiringEntries = entries,
        ) -> Collection[bytes]:
            # The process may have started to stop while this call waited for the table's job.
            if not goes_on():
                return ()
            found = due_partitions(newest, state, now_ms=now_ms, zone=zone, among=among).due
            entries.drop(newest, found)
            return found

        outcome = drop(still_due)
        removed = frozenset[bytes]()
        if isinstance(outcome, Committed):
            removed = frozenset(change.bucket.partition for change in outcome.published)
            done = _with(done, table, outcome)
        entries.restore(removed)
        if isinstance(outcome, Replaced):
            return replace(done, why_not=outcome.why)
    return done


def _with(done: ExpiredPartitions, table: OpenTable, outcome: Committed) -> ExpiredPartitions:
    """Log what a snapshot removed, and add it to the result."""
    partitions = {change.bucket.partition for change in outcome.published}
    folders = sorted(table.partition_path(each) for each in partitions)
    removed = [file for change in outcome.published for file in change.before]
    files, rows = len(removed), sum(file.row_count for file in removed)
    _log.info(
        "partitions_expired",
        snapshot_id=outcome.snapshot_id,
        partitions=folders,
        files=files,
        rows=rows,
    )
    return replace(
        done,
        partitions=[*done.partitions, *folders],
        files=done.files + files,
        rows=done.rows + rows,
    )


def _encoded_ms(table: OpenTable, partition: bytes, expiry: PartitionExpiryOptions) -> int | None:
    """Local time encoded in the partition values, or None."""
    texts = _texts(table, partition)
    if texts is None:
        return None
    # Java reads the text of each column if a pattern is set, otherwise only of the first one.
    needed = texts if expiry.pattern is not None else texts[:1]
    spec = dict(zip(table.schema.partition_keys, needed, strict=False))
    known = {name: text for name, text in spec.items() if text is not None}
    if len(known) < len(spec):
        return None
    return partition_time_ms(known, expiry.pattern, expiry.formatter)


def _updated_ms(
    files: LiveFiles, partitions: Collection[bytes], zone: tzinfo, end_ms: int
) -> dict[bytes, int | None]:
    """Moment of each last change, or None if a file has no time and all other files are old."""
    newest = newest_files(files, waits=False)
    found: dict[bytes, int | None] = {}
    for partition in partitions:
        known = newest.get(partition)
        found[partition] = (
            epoch_ms(known.created_ms, zone) if known and known.created_ms >= 0 else None
        )
    old = {partition for partition, ms in found.items() if ms is not None and end_ms > ms}
    for bucket in files.bucket_ids() if old else ():
        if bucket.partition in old and any(ms < 0 for ms, *_ in files.facts(bucket)):
            found[bucket.partition] = None
    return found


def _order(table: OpenTable, partition: bytes) -> bytes | None:
    """Sort key in the order in which Java sorts the joined texts, or None if one is unknown."""
    texts = _texts(table, partition)
    if texts is None:
        return None
    default = table.options.partition_default_name
    return ",".join(default if text is None else text for text in texts).encode("utf-16-be")


def _texts(table: OpenTable, partition: bytes) -> list[str | None] | None:
    """Texts of the values, or None if the row cannot be read or a value has no text."""
    fields = table.schema.partition_fields
    try:
        values = decode_row(partition, [field.type for field in fields])
        return [to_string(value, field.type) for value, field in zip(values, fields, strict=True)]
    except FormatError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpirePartitions(RuledKind[ExpiredPartitions]):
    """Due in windows of expiry, at the longer of `interval_ms` and the interval in options."""

    name = choice = "partitions"
    rule = "expire_partitions"
    not_requested = f"{EXPIRATION_TIME} is not set for partitions of the table"
    counters = (
        ("expired_partitions", "Expired partitions removed."),
        (
            "expired_partition_files",
            "Data files of expired partitions; snapshot expiry deletes them.",
        ),
    )

    def not_configured(self, table: OpenTable) -> str | None:
        why_not = table.options.maintenance.why_none_expires(table.entries)
        return why_not or RuledKind.not_configured(self, table)

    def preview(self, table: OpenedTable) -> Done[ExpiredPartitions]:
        values, state = table.table, table.newest_state()
        expiry = values.options.maintenance.expire_partitions
        assert expiry is not None, "checked by the caller"
        now_ms, zone = table.clock.now_ms(), table.clock.time_zone
        found = due_partitions(values, state, now_ms=now_ms, zone=zone).due
        if found and (why_not := self._why_wait(table)) is not None:
            return Done(why_not=why_not)
        due = dict.fromkeys(found[: expiry.most])
        buckets = [each for each in state.files.bucket_ids() if each.partition in due]
        summaries = [state.files.summary(bucket) for bucket in buckets if bucket.bucket >= 0]
        expired = ExpiredPartitions(
            partitions=[values.partition_path(each) for each in due],
            files=sum(each.file_count for each in summaries),
            rows=sum(each.row_count for each in summaries),
            left=len(found) - len(due),
        )
        return Done(rounds=[expired])

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> ExpiredPartitions:
        return expire_partitions(
            table.table,
            table.newest_state(),
            table.drop_partitions,
            now_ms=table.clock.now_ms(),
            zone=table.clock.time_zone,
            goes_on=lambda: not table.is_stopping,
            why_wait=lambda: self._why_wait(table),
        )

    def _why_wait(self, table: OpenedTable) -> str | None:
        copies, now_ms = watched(table, self.grace_ms), table.clock.now_ms()
        return text_of(table.why_held()) or copies.why_wait(table.table, now_ms)

    def ended(self, result: ExpiredPartitions | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("partitions_failed", error=str(result))
            return Round(has_failed=True)
        if result.why_not is not None:
            _log.warning("partitions_failed", error=result.why_not)
        counts = {
            "expired_partitions": len(result.partitions),
            "expired_partition_files": result.files,
        }
        return Round(counts=counts)

    def report(
        self, shown: ShownTable, done: Done[ExpiredPartitions], *others: Done[Any]
    ) -> Report:
        (expired,) = done.rounds or [ExpiredPartitions(why_not=done.why_not)]
        lines = [f"{shown.name}: no partition {shown.expired}"]
        if expired.partitions:
            counts = count_text(expired.files, "data file"), count_text(expired.rows, "row")
            partitions = count_text(len(expired.partitions), "partition")
            lines = [f"{shown.name}: {shown.expired} {partitions}: {', '.join(counts)}"]
            lines += [f"  {folder}" for folder in expired.partitions]
            if shown.table is not None and has_entries(shown.table):
                lines.append("  with their entries in the catalog")
        lines += because(expired.why_not, has_some=expired.partitions)
        if expired.left:
            lines.append(f"  {count_text(expired.left, 'partition')} more by the next check")
        return Report(lines=lines, found=asdict(expired))
