"""Entries whose partition cannot be read: a bucket without a folder, and nobody else's trouble."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from compactord.catalog.access import table_in_folder
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import BucketId
from compactord.paimon.manifest.manifest_files import read_entries
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.state.table_state import data_manifests, load_state
from compactord.table import report
from compactord.table.explain import bucket_details
from compactord.table.opening import open_table
from compactord_demo.writer import create_table
from tests import builders
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.paimon.table_builder import SoundStatistics, deleted
from tests.unit.table.compacting import Driver, compactor_of

JUNK = b"\0\0\0\1junk"
PARTITION = DataField(id=2, name="p", type=AtomicType(root=TypeRoot.BIGINT, nullable=False))


_history = partial(
    SoundStatistics, sound=encode_row([1], [PARTITION.type]), partition_types=[PARTITION.type]
)


def _write(storage: MemoryStorage, table: TableRef, *, commits: int) -> None:
    """So many files in each of three partitions."""
    target = builders.writer(storage, table)
    for commit in range(commits):
        rows = builders.rows_of([(n, commit) for n in range(9)])
        partitions = pa.array([n % 3 for n in range(9)], pa.int64())
        field = pa.field("p", pa.int64(), nullable=False)
        target.write(rows.append_column(field, partitions))


def _sound(**options: str) -> tuple[MemoryStorage, TableRef]:
    """A table of three partitions that are due."""
    storage = MemoryStorage()
    table = TableRef(database="db", name="t", location="/w/db.db/t")
    create_table(
        storage,
        table,
        [*builders.FIELDS, PARTITION],
        primary_keys=["p", "k"],
        partition_keys=["p"],
        options={"bucket": "1", "write-only": "true", **options},
    )
    _write(storage, table, commits=6)
    return storage, table


def _damaged(**options: str) -> tuple[MemoryStorage, TableRef]:
    """As `_sound`, but the entries of the second partition have another row."""
    storage, table = _sound(**options)
    state = load_state(storage, table)
    found = state.files.entries(sorted(state.files.bucket_ids())[1])
    history = _history(storage, table, snapshot=state.snapshot, written=1000)  # type: ignore[arg-type]
    junk = [replace(entry, partition=JUNK) for entry in found]
    history.commit([*map(deleted, found), *junk], CommitKind.OVERWRITE)
    return storage, table


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"manifest.merge-min-count": "2"},
        {"manifest.full-compaction-threshold-size": "1 b"},
    ],
    ids=["few manifests", "neighbours are merged", "all are merged"],
)
def test_the_other_partitions_are_compacted(options: dict[str, str]) -> None:
    storage, table = _damaged(**options)
    compactor = compactor_of(storage, table)
    driver = Driver(compactor)
    planned = driver.run(cycles=3)
    assert driver.errors == []
    assert planned is not None
    (damaged,) = planned.damaged
    assert damaged.bucket == BucketId(JUNK, 0)
    assert damaged.partition == f"0x{JUNK.hex()}"
    assert "8 bytes are not a row of 1 fields" in damaged.message
    state = load_state(storage, table)
    counts = {b.partition: state.files.summary(b).file_count for b in state.files.bucket_ids()}
    assert counts.pop(JUNK) == 6
    assert set(counts.values()) == {1}
    assert compactor.last_plan is not None
    assert {each.partition for each in bucket_details(compactor.last_plan)} == {
        f"0x{JUNK.hex()}",
        "p=0",
        "p=2",
    }


def test_a_run_over_other_partitions_does_not_ask_for_it() -> None:
    storage, table = _damaged()
    totals = builders.compact(storage, table, partitions=({"p": "2"},))
    assert (totals.compactions, totals.failures) == (1, [])


def test_a_run_over_some_partitions_leaves_the_others_though_they_change_meanwhile() -> None:
    storage, table = _sound()
    acts = iter([True])

    def rival(call: Call) -> None:
        if call.method == "close_output" and next(acts, False):
            _write(storage, table, commits=1)

    hooked = HookedStorage(storage, after=rival)
    totals = builders.compact(hooked, table, partitions=({"p": "2"},))
    assert (totals.compactions, totals.failures) == (1, [])
    files = load_state(storage, table).files
    assert [files.summary(b).file_count for b in sorted(files.bucket_ids())] == [7, 7, 2]


def test_a_run_over_all_names_it() -> None:
    storage, table = _damaged()
    totals = builders.compact(storage, table)
    assert totals.compactions == 2
    (failure,) = totals.failures
    assert failure.startswith(f"partition 0x{JUNK.hex()} bucket 0: ")


def test_it_is_shown_with_its_bytes() -> None:
    storage, table = _damaged()
    opened, state = open_table(table_in_folder(storage, table), {}), load_state(storage, table)
    shapes = report.bucket_shapes(opened, state)
    text = "\n".join(report.inspect_text(opened, state, shapes, ()))
    assert f"0x{JUNK.hex()} bucket 0" in text


def test_the_bucket_is_released_when_its_files_are_gone_and_manifests_are_merged_again() -> None:
    sizes = ("manifest.full-compaction-threshold-size", "manifest.target-file-size")
    storage, table = _damaged(**dict.fromkeys(sizes, "1 b"))
    compactor = compactor_of(storage, table)
    driver = Driver(compactor)
    driver.run(cycles=3)
    state = load_state(storage, table)
    junk = state.files.entries(BucketId(JUNK, 0))
    history = _history(storage, table, snapshot=state.snapshot, written=2000)  # type: ignore[arg-type]
    history.commit([deleted(each) for each in junk], CommitKind.OVERWRITE)
    _write(storage, table, commits=6)
    planned = Driver(compactor, after=10).run(cycles=3)
    assert planned is not None
    assert planned.damaged == ()
    snapshot = load_state(storage, table).snapshot
    assert snapshot is not None
    manifests = data_manifests(storage, table.location, snapshot)
    entries = [each for one in manifests for each in read_entries(storage, table.location, one)]
    assert JUNK not in {each.partition for each in entries}
