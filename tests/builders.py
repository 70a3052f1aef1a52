"""Small real tables without Java, runs over them, and what must hold of a table at any time."""

from __future__ import annotations

import datetime
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from compactord import ids
from compactord.catalog.access import TableAccess, table_in_folder
from compactord.clock import Clock, SystemClock
from compactord.commit.publish import SnapshotPublisher, StorePublisher
from compactord.config.model import Limits
from compactord.engine.base import Engine
from compactord.formats.registry import FORMATS, Formats
from compactord.ids import Liveness, Owner, owner_of
from compactord.kernels.functions.registry import MERGE_FUNCTIONS, MergeFunctions
from compactord.maintenance.orphan_search import Orphan, OwnerRule, remove_orphans
from compactord.model import DATA, Compaction, Output, PickRule
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.deletion_vectors import read_deleted_rows
from compactord.paimon.manifest.index_manifest import read_index_entries
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    read_entries,
    read_manifest_list,
)
from compactord.paimon.schema import TableRef, branch_of
from compactord.paimon.snapshot import Snapshot, read_snapshot, snapshot_ids
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.plan.table import Strategy
from compactord.rewrite.subcompaction import run_subcompaction
from compactord.service.one_shot import OneShot
from compactord.state.table_state import TableState, data_manifests, load_state
from compactord.storage.base import Storage
from compactord.table.jobs import CompactTotals, InFlight, Progress
from compactord.table.opening import OpenTable, TableRegistries, describe_table
from compactord.table.planning import CompactRequest
from compactord.table.subcompactions import WorkerSpec
from compactord_demo.writer import WriteOnlyWriter, create_table
from tests.inline_engine import InlineEngine

# Actors of tests; none of them is a process that runs.
WRITER = Owner(host=0x111111, start_ticks=1, pid=1)
FIRST = Owner(host=0x222222, start_ticks=1, pid=1)
SECOND = Owner(host=0x333333, start_ticks=1, pid=1)
DAY_MS = 86_400_000
NOW_MS = 1_700_000_000_000


class VirtualClock:
    """Time that passes only when someone sleeps; `sleeps` are seconds.

    `set_by_ms` is by how much the wall clock has been set since.
    """

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self._start_ms = now_ms
        self.set_by_ms = 0
        self.sleeps: list[float] = []
        self.time_zone: datetime.tzinfo = datetime.timezone.utc

    def now_ms(self) -> int:
        return self.steady_ms() + self.set_by_ms

    def steady_ms(self) -> int:
        return self._start_ms + int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        return sum(self.sleeps)

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)


FIELDS = (
    DataField(id=0, name="k", type=AtomicType(root=TypeRoot.BIGINT, nullable=False)),
    DataField(id=1, name="v", type=AtomicType(root=TypeRoot.BIGINT)),
)


def keyed_table(
    storage: Storage, location: str, *, buckets: int = 2, options: Mapping[str, str] | None = None
) -> TableRef:
    """An empty table with the primary key `k` and a value `v`."""
    table = TableRef(database="db", name="t", location=location)
    base = {"bucket": str(buckets), "write-only": "true"}
    create_table(storage, table, FIELDS, primary_keys=["k"], options={**base, **(options or {})})
    return table


def append_table(
    storage: Storage, location: str, *, options: Mapping[str, str] | None = None
) -> TableRef:
    """An empty append table without buckets."""
    table = TableRef(database="db", name="t", location=location)
    create_table(storage, table, FIELDS, options={"bucket": "-1", **(options or {})})
    return table


def set_options(storage: Storage, table: TableRef, options: Mapping[str, str]) -> None:
    """As if the table had been made with these options, too."""
    path = paths.schema_path(table.root, 0)
    schema = json.loads(storage.read(path))
    storage.overwrite(path, json.dumps({**schema, "options": schema["options"] | options}).encode())


def writer(
    storage: Storage, table: TableRef, *, owner: Owner = WRITER, clock: Clock | None = None
) -> WriteOnlyWriter:
    """Commits at `NOW_MS` unless a clock says when: expiry takes such files of disks for copies."""
    return WriteOnlyWriter(storage, table, owner=owner, clock=clock or VirtualClock())


def data_outputs(*files: DataFile) -> tuple[Output, ...]:
    """New files with rows of the table."""
    return tuple(Output(DATA, file) for file in files)


def rows_of(pairs: Iterable[tuple[int, int | None]]) -> pa.Table:
    """Rows (k, v)."""
    keys, values = zip(*pairs, strict=True)
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
    return pa.table({"k": pa.array(keys, pa.int64()), "v": pa.array(values, pa.int64())}, schema)


def kinds_of(kinds: Sequence[int]) -> pa.Array:
    return pa.array(kinds, pa.int8())


INSERT, DELETE = 0, 3


def fill_keyed(
    target: WriteOnlyWriter,
    *,
    commits: int,
    keys: int = 40,
    before: Mapping[int, int] | None = None,
) -> dict[int, int]:
    """Commits of upserts and deletes that overlap; the rows that must be read afterwards."""
    expected = dict(before or {})
    for commit in range(commits):
        pairs, kinds = [], []
        for key in range(commit, keys, 1 + commit % 3):
            is_delete = (key + commit) % 7 == 0
            pairs.append((key, 1000 * commit + key))
            kinds.append(DELETE if is_delete else INSERT)
            if is_delete:
                expected.pop(key, None)
            else:
                expected[key] = 1000 * commit + key
        target.write(rows_of(pairs), kinds=kinds_of(kinds))
    return expected


def told_table(storage: Storage, location: str, producer: str) -> tuple[TableRef, dict[int, int]]:
    """A table of one bucket, whose changes `producer` tells, and the rows that must be read.

    Its next compaction looks up what is above its output, if that is how it is told; "vectors":
    it marks that, too.
    """
    options = {"changelog-producer": producer}
    if producer == "vectors":
        options = {"changelog-producer": "lookup", "deletion-vectors.enabled": "true"}
    table = keyed_table(storage, location, buckets=1, options=options)
    above: dict[int, int] = {}
    if producer != "full-compaction":
        # Of such a size that files of a few rows do not merge with them.
        above = {key: key * 2654435761 % 2**40 for key in range(1000)}
        writer(storage, table).write(rows_of(above.items()))
        compact(storage, table, owner=WRITER)
    return table, fill_keyed(writer(storage, table), commits=5, keys=20, before=above)


class Silent:
    """A `Progress` that shows nothing."""

    def planned(self, table: OpenTable, compaction: Compaction) -> None: ...

    def finished(self, in_flight: InFlight) -> None: ...

    def committed(self, snapshot_id: int) -> None: ...

    def waiting(self, wait_ms: int) -> None: ...


def one_shot(
    storage: Storage,
    table: TableRef,
    *,
    publisher: SnapshotPublisher | None = None,
    access: TableAccess | None = None,
    owner: Owner = FIRST,
    strategy: Strategy = Strategy.MINOR,
    overrides: Mapping[str, str] | None = None,
    partitions: tuple[Mapping[str, str], ...] = (),
    start_engine: Callable[[], Engine] | None = None,
    stop: threading.Event | None = None,
    clock: Clock | None = None,
    quiet_for_ms: int = 0,
    pick: PickRule = PickRule.RELEASE_2_1,
    progress: Progress | None = None,
    max_commit_delay_ms: int = 5000,
    formats: Formats = FORMATS,
    functions: MergeFunctions = MERGE_FUNCTIONS,
) -> OneShot:
    """A run with the inline engine, which knows `formats` and `functions`, and virtual time."""
    clock = clock or VirtualClock()
    run = partial(run_subcompaction, formats=formats, functions=functions)
    return OneShot(
        access
        or TableAccess(ref=table, storage=storage, publisher=publisher or StorePublisher(storage)),
        CompactRequest(
            strategy=strategy,
            overrides=overrides or {},
            partitions=partitions,
            quiet_for_ms=quiet_for_ms,
            pick=pick,
        ),
        start_engine=start_engine or partial(InlineEngine, run),
        clock=clock,
        worker=WorkerSpec(
            owner=owner,
            memory_bytes=64 << 20,
            zone=clock.time_zone,
            registries=TableRegistries(formats=formats, functions=functions),
        ),
        progress=progress or Silent(),
        stop=stop or threading.Event(),
        limits=Limits().model_copy(update={"max_commit_delay_ms": max_commit_delay_ms}),
    )


def compact(storage: Storage, table: TableRef, **how: object) -> CompactTotals:
    return one_shot(storage, table, **how).run()  # type: ignore[arg-type]


def remove_leftovers(
    storage: Storage, table: TableRef, *, myself: Owner, dead: Sequence[Owner] = (FIRST,)
) -> None:
    """What a sweep does once it can prove that the `dead` are gone, and their files are old."""
    rule = OwnerRule(
        myself=myself,
        liveness=lambda owner: Liveness.DEAD if owner in dead else Liveness.ALIVE,
        now_ms=NOW_MS + 50 * 365 * DAY_MS,
        grace_ms=DAY_MS,
    )
    remove_orphans(storage, table.location, partition_depth=0, rule=rule)


def sweep_later(
    storage: Storage, location: str, *, partition_depth: int = 0, grace_ms: int = 10 * 60_000
) -> Sequence[Orphan]:
    """A sweep by this process when what the dead left just now has waited long enough.

    With a longer grace, tables whose snapshots have the times of a virtual clock pass for restored.
    """
    rule = later_rule(grace_ms)
    return remove_orphans(storage, location, partition_depth=partition_depth, rule=rule).orphans


def later_rule(grace_ms: int = 10 * 60_000, *, others_grace_ms: int | None = None) -> OwnerRule:
    """That of `sweep_later`."""
    return OwnerRule(
        myself=ids.this_process(),
        liveness=ids.liveness,
        now_ms=SystemClock().now_ms() + 11 * 60_000,
        grace_ms=grace_ms,
        others_grace_ms=others_grace_ms,
    )


def consumer_path(root: str, name: str) -> str:
    """Where a table or branch keeps what a consumer reads next."""
    return paths.join(paths.consumer_folder(root), paths.CONSUMER_PREFIX + name)


def live_paths(storage: Storage, table: TableRef, state: TableState) -> Iterator[str]:
    access = table_in_folder(storage, table)
    opened = describe_table(access, access.newest_schema(), {})
    for bucket in state.files.bucket_ids():
        for file in state.files.files_in(bucket):
            yield paths.join(opened.bucket_folder(bucket), file.file_name)


def read_keyed(
    storage: Storage, table: TableRef, state: TableState | None = None
) -> dict[int, int]:
    """The rows of a primary-key table: of each key the record with the largest sequence number.

    Those of a state that is not the newest, if it is given. What deletion vectors delete is left
    out.
    """
    newest: dict[int, tuple[int, int, int]] = {}
    for row in _live_rows(storage, table, state or load_state(storage, table)):
        sequence = row["_SEQUENCE_NUMBER"]
        known = newest.get(row["k"])
        assert known is None or known[0] != sequence, f"two records with sequence {sequence}"
        if known is None or known[0] < sequence:
            newest[row["k"]] = (sequence, row["_VALUE_KIND"], row["v"])
    return {key: value for key, (_, kind, value) in newest.items() if kind not in (1, DELETE)}


def read_changes(storage: Storage, table: TableRef) -> list[tuple[int, int, int]]:
    """What streaming readers are told, snapshot by snapshot: kind, key and value of each change."""
    access = table_in_folder(storage, table)
    opened = describe_table(access, access.newest_schema(), {})
    found: list[tuple[int, int, int]] = []
    for number in sorted(snapshot_ids(storage, table.root)):
        snapshot = read_snapshot(storage, table.root, number)
        rows = list(_told(storage, table, snapshot, opened.bucket_folder))
        assert len(rows) == (snapshot.changelog_record_count or 0), f"snapshot {number}"
        found += rows
    return found


def _told(
    storage: Storage,
    table: TableRef,
    snapshot: Snapshot,
    bucket_folder: Callable[[BucketId], str],
) -> Iterator[tuple[int, int, int]]:
    for manifest in _changelog(storage, table, snapshot):
        for entry in read_entries(storage, table.location, manifest):
            path = paths.join(bucket_folder(entry.bucket_id), entry.file.file_name)
            for row in _records(storage, path):
                yield row["_VALUE_KIND"], row["k"], row["v"]


def _changelog(storage: Storage, table: TableRef, snapshot: Snapshot) -> tuple[ManifestFile, ...]:
    name, size = snapshot.changelog_manifest_list, snapshot.changelog_manifest_list_size
    if name is None:
        return ()
    return read_manifest_list(storage, paths.manifest_path(table.location, name), size)


def replayed(changes: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """The rows after these changes, each of which must fit those before."""
    rows: dict[int, int] = {}
    for kind, key, value in changes:
        if kind in (0, 2):
            assert key not in rows, f"key {key} is told twice"
            rows[key] = value
        else:
            assert rows.pop(key, None) == value, f"key {key} has not been {value}"
    return rows


def read_appended(storage: Storage, table: TableRef) -> Counter[tuple[int, int]]:
    """The rows of an append table that no vector deletes, with how often each is there."""
    rows = _live_rows(storage, table, load_state(storage, table))
    return Counter((row["k"], row["v"]) for row in rows)


def _live_rows(storage: Storage, table: TableRef, state: TableState) -> Iterator[dict[str, int]]:
    """All records but those that deletion vectors delete."""
    vectors = {
        name: ref
        for bucket in state.indexes.buckets
        for name, ref in state.indexes.vectors(bucket).items()
    }
    for path in live_paths(storage, table, state):
        rows = _records(storage, path)
        if (ref := vectors.get(path.rpartition("/")[2])) is not None:
            kept = read_deleted_rows(storage, ref, len(rows)).keeps(0, len(rows))
            rows = [row for row, is_kept in zip(rows, kept, strict=True) if is_kept]
        yield from rows


def _records(storage: Storage, path: str) -> list[dict[str, int]]:
    content = pa.BufferReader(storage.read(path))
    reads: dict[str, Callable[[pa.BufferReader], pa.Table]] = {
        "arrow": lambda content: pa.ipc.open_file(content).read_all(),
        "orc": lambda content: orc.ORCFile(content).read(),
        "parquet": pq.read_table,
    }
    found: list[dict[str, int]] = reads[path.rpartition(".")[2]](content).to_pylist()
    return found


def make_branch(
    storage: Storage, table: TableRef, name: str, snapshot_id: int | None = None
) -> TableRef:
    """A branch as Java makes it (utils/FileSystemBranchManager.java): empty, or from a tag.

    The tag is of this snapshot, `v5` of 5; the branch has no hints.
    """
    branch = branch_of(table, name)
    copies = {paths.schema_path(branch.root, 0): paths.schema_path(table.root, 0)}
    if snapshot_id is not None:
        snapshot, tag = paths.snapshot_path(table.root, snapshot_id), f"v{snapshot_id}"
        if storage.status(paths.tag_path(table.root, tag)) is None:
            storage.write_new(paths.tag_path(table.root, tag), storage.read(snapshot))
        copies[paths.snapshot_path(branch.root, snapshot_id)] = snapshot
        copies[paths.tag_path(branch.root, tag)] = snapshot
    for path, source in copies.items():
        storage.write_new(path, storage.read(source))
    return branch


def check_chain(storage: Storage, table: TableRef) -> None:
    """Snapshot ids without a hole, each snapshot readable, and all its data files there."""
    found = snapshot_ids(storage, table.location)
    assert found == tuple(range(1, len(found) + 1))
    access = table_in_folder(storage, table)
    opened = describe_table(access, access.newest_schema(), {})
    total = 0
    for snapshot_id in found:
        snapshot = read_snapshot(storage, table.location, snapshot_id)
        total += snapshot.delta_record_count
        assert snapshot.total_record_count == total
        for bucket, file in live_files(storage, table, snapshot_id):
            path = paths.join(opened.bucket_folder(bucket), file.file_name)
            assert storage.status(path) is not None, f"snapshot {snapshot_id} lacks {path}"


def live_files(storage: Storage, table: TableRef, snapshot_id: int) -> list:
    """(bucket, file) of one snapshot, counted by a dict: another way than that of the product."""
    snapshot = read_snapshot(storage, table.location, snapshot_id)
    live: dict = {}
    for manifest in data_manifests(storage, table.location, snapshot):
        for entry in read_entries(storage, table.location, manifest):
            if entry.kind == 0:
                assert entry.identity not in live, f"{entry.file.file_name} is there twice"
                live[entry.identity] = (entry.bucket_id, entry.file)
            else:
                live.pop(entry.identity)
    return list(live.values())


def named_files(storage: Storage, table: TableRef) -> set[str]:
    """Names of all metadata and data files that some snapshot leads to."""
    named: set[str] = set()
    for snapshot_id in snapshot_ids(storage, table.location):
        snapshot = read_snapshot(storage, table.location, snapshot_id)
        named |= {f"snapshot-{snapshot_id}"}
        named |= {snapshot.base_manifest_list, snapshot.delta_manifest_list}
        named.add(snapshot.changelog_manifest_list or "")
        told = _changelog(storage, table, snapshot)
        if snapshot.index_manifest is not None:
            indexes = read_index_entries(storage, table.location, snapshot.index_manifest)
            named |= {snapshot.index_manifest, *(index.file_name for index in indexes)}
        for manifest in (*data_manifests(storage, table.location, snapshot), *told):
            named.add(manifest.file_name)
            entries = read_entries(storage, table.location, manifest)
            for entry in entries:
                named |= {entry.file.file_name, *entry.file.extra_files}
    return named


def leftovers(storage: Storage, table: TableRef, owners: Sequence[Owner]) -> set[str]:
    """Names of files of these owners that no snapshot leads to."""
    folders = ["manifest", "snapshot", "index"]
    folders += [
        child.name for child in storage.list(table.location) if child.name.startswith("bucket-")
    ]
    there = {
        child.name
        for folder in folders
        for child in storage.list(f"{table.location}/{folder}")
        if owner_of(child.name) in owners
    }
    return there - named_files(storage, table)
