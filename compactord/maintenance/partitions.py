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

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import NamedTuple

import structlog

from compactord.clock import epoch_ms, local_ms
from compactord.commit.changes import Committed, Replaced
from compactord.errors import FormatError
from compactord.maintenance.copied_files import watched
from compactord.maintenance.kind import OpenedTable, RuledKind, UnderWay
from compactord.maintenance.planned_deletion import TableChanged
from compactord.maintenance.rounds import Plan, PlannedKind, RoundResult
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
class ExpirePartitions(RuledKind[RoundResult[str]], PlannedKind[str]):
    """Due in windows of expiry, at the longer of `interval_ms` and the interval in options.

    Items are names of folders. The figure `left` counts those left for the next round.
    """

    name = choice = key = "partitions"
    noun = "partition"
    figures = ("files", "rows", "left")
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

    def plan(self, table: OpenedTable, under_way: UnderWay | None) -> Plan[str]:
        """The partitions of `due_partitions`, within the limits in the table's options."""
        state, values, now_ms = table.newest_state(), table.table, table.clock.now_ms()
        options = values.options.maintenance
        expiry, why_not = options.expire_partitions, options.why_none_expires(values.entries)
        if expiry is None or why_not is not None:
            return Plan(why_not=why_not)
        found = due_partitions(values, state, now_ms=now_ms, zone=table.clock.time_zone)
        if found.unknown:
            named = found.unknown[:_NAMED]
            _log.warning("partitions_without_time", count=len(found.unknown), partitions=named)
        if found.due:
            why_not = text_of(table.why_held())
            why_not = why_not or watched(table, self.grace_ms).why_wait(values, now_ms)
            if why_not is not None:
                return Plan(why_not=why_not)
        due = found.due[: expiry.most]
        batches = [due[at : at + expiry.at_once] for at in range(0, len(due), expiry.at_once)]
        expiring = frozenset(due)
        buckets = [each for each in state.files.bucket_ids() if each.partition in expiring]
        summaries = [state.files.summary(each) for each in buckets if each.bucket >= 0]
        return Plan(
            items=[values.partition_path(each) for each in due],
            figures={
                "files": sum(each.file_count for each in summaries),
                "rows": sum(each.row_count for each in summaries),
                "left": len(found.due) - len(due),
            },
            context=(now_ms, batches),
        )

    def apply(self, table: OpenedTable, plan: Plan[str], result: RoundResult[str]) -> None:
        """Remove a batch in each snapshot, of the partitions that still expire at that moment.

        A partition with new rows stays by `update-time`; by its values it expires with these rows,
        as in Java. Entries in the catalog are dropped first.

        Raises what the commit and the catalog raise; the next round continues.
        """
        now_ms, batches = plan.context
        result.figures["left"] = plan.figures["left"]
        for batch in batches:
            if table.is_stopping:
                return
            entries = ExpiringEntries()
            outcome = table.drop_partitions(_still_due(table, batch, entries, now_ms))
            removed = frozenset[bytes]()
            if isinstance(outcome, Committed):
                removed = frozenset(change.bucket.partition for change in outcome.published)
                _record(result, table.table, outcome)
            entries.restore(removed)
            if isinstance(outcome, Replaced):
                raise TableChanged(outcome.why)

    def counted(self, result: RoundResult[str]) -> Mapping[str, int]:
        files = result.figures["files"]
        return {"expired_partitions": len(result.items), "expired_partition_files": files}

    def note(self, table: OpenTable) -> str | None:
        return "with their entries in the catalog" if has_entries(table) else None


def _still_due(
    table: OpenedTable, batch: Collection[bytes], entries: ExpiringEntries, now_ms: int
) -> ChosenPartitions:
    """Chooses the partitions of `batch` that still expire, and drops their `entries`."""

    def still_due(newest: OpenTable, state: TableState) -> Collection[bytes]:
        # The process may have started to stop while this call waited for the table's job.
        if table.is_stopping:
            return ()
        zone = table.clock.time_zone
        found = due_partitions(newest, state, now_ms=now_ms, zone=zone, among=batch).due
        entries.drop(newest, found)
        return found

    return still_due


def _record(result: RoundResult[str], table: OpenTable, outcome: Committed) -> None:
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
    result.items += folders
    result.figures.update(files=files, rows=rows)
