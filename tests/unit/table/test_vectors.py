"""Tables with deletion vectors: which are refused, what is planned, and what is said of it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from compactord.catalog.access import table_in_folder
from compactord.model import CompactReason
from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import EMPTY_ROW, BucketId
from compactord.paimon.manifest.index_manifest import IndexEntry, VectorRange
from compactord.paimon.manifest.schemas import INDEX_MANIFEST
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import read_snapshot, snapshot_json
from compactord.plan.table import Strategy
from compactord.state.columns import FileTimes
from compactord.state.index_files import IndexFiles
from compactord.state.table_state import TableState, load_state
from compactord.storage.base import Storage
from compactord.table import report
from compactord.table.explain import explain
from compactord.table.opening import OpenTable, live_reasons, open_table
from compactord.table.planning import CompactRequest, PlanContext, StatePlanner
from compactord.table.shapes import table_shape
from tests import builders
from tests.builders import NOW_MS, append_table, keyed_table, rows_of, set_options, writer
from tests.containers import encode_container
from tests.storages import MemoryStorage

WHERE = "/warehouse/db.db/t"
VECTORS = {"deletion-vectors.enabled": "true"}
SUM = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}
BUCKET = BucketId(EMPTY_ROW, 0)


def _with_vectors(
    state: TableState,
    cardinality: Mapping[str, int | None],
    index_type: str = "DELETION_VECTORS",
    level: int | None = None,
) -> TableState:
    """The state with one index file, in which these data files have so many deleted rows."""
    entry = IndexEntry(
        bucket=BUCKET,
        index_type=index_type,
        file_name="index-0",
        file_size=99,
        row_count=len(cardinality),
        canonical=b"",
        vectors=tuple(VectorRange(name, 1, 9, count) for name, count in cardinality.items()),
        level=level,
    )
    return replace(state, indexes=IndexFiles(WHERE, (entry,)))


def _context(strategy: Strategy) -> PlanContext:
    return PlanContext(
        request=CompactRequest(strategy=strategy),
        now_ms=NOW_MS,
        steady_ms=0,
        zone=datetime.timezone.utc,
    )


def _planner(
    storage: Storage, ref: TableRef, state: TableState, strategy: Strategy = Strategy.MINOR
) -> tuple[OpenTable, StatePlanner]:
    table = open_table(table_in_folder(storage, ref), {})
    return table, StatePlanner(table, state, _context(strategy))


def _names(state: TableState) -> list[str]:
    return [file.file_name for file in state.files.files_in(BUCKET)]


@pytest.mark.parametrize(
    ("options", "index_type", "level", "cardinality", "reason"),
    [
        (VECTORS, "DELETION_VECTORS", None, {"f": 1}, ""),
        ({}, "DELETION_VECTORS", None, {}, ""),
        ({}, "DELETION_VECTORS", None, {"f": 1}, "exist and deletion-vectors.enabled is not true"),
        (VECTORS, "btree", None, {}, "index files of type btree exist"),
        (VECTORS, "btree", 5, {}, ""),
        ({}, "btree", 5, {}, "index files of type btree exist"),
    ],
)
def test_index_files_are_fine_where_readers_use_them(
    options, index_type, level, cardinality, reason
):
    storage = MemoryStorage()
    ref = append_table(storage, WHERE, options=options)
    table, state = open_table(table_in_folder(storage, ref), {}), load_state(storage, ref)
    found = live_reasons(table, _with_vectors(state, cardinality, index_type, level))
    assert [reason in each for each in found] == ([True] if reason else [])


def test_a_large_file_is_planned_for_its_deleted_rows_alone():
    storage = MemoryStorage()
    ref = append_table(storage, WHERE, options=VECTORS)
    writer(storage, ref).write(rows_of([(key, key) for key in range(100)]))
    set_options(storage, ref, {"target-file-size": "512 b"})
    state = load_state(storage, ref)
    (name,) = _names(state)
    for count, reasons in ((20, []), (21, ["deleted_rows"]), (None, ["deleted_rows"])):
        _, planner = _planner(storage, ref, known := _with_vectors(state, {name: count}))
        assert planner.candidates() == [BUCKET], "though it has one file"
        _, plan = planner.decided(BUCKET)
        assert [each.reason.value for each in plan.compactions] == reasons
    assert planner.decided(BUCKET, frozenset({name}))[1].compactions == ()
    files = known.files.bucket(BUCKET)
    text = explain(planner, files, plan).why
    assert text.startswith("0 rows of 100 are deleted"), "none is known of"
    assert "above 0.2 of a file's rows (compaction.delete-ratio-threshold)" in text
    _, planner = _planner(storage, ref, state)
    assert planner.candidates() == []


def test_a_full_compaction_of_one_run_takes_the_files_with_deleted_rows():
    storage = MemoryStorage()
    ref = keyed_table(storage, WHERE, buckets=1, options=VECTORS)
    writer(storage, ref).write(rows_of([(key, key) for key in range(100)]))
    builders.compact(storage, ref, strategy=Strategy.FULL)
    state = load_state(storage, ref)
    (name,) = _names(state)
    assert _planner(storage, ref, state, Strategy.FULL)[1].candidates() == []
    having = _with_vectors(state, {name: 7, "gone": 9})
    assert _planner(storage, ref, having)[1].candidates() == []
    table, planner = _planner(storage, ref, having, Strategy.FULL)
    assert planner.candidates() == [BUCKET]
    found, plan = planner.decided(BUCKET)
    (compaction,) = plan.compactions
    assert compaction.reason is CompactReason.DELETED_ROWS
    told = explain(planner, found, plan)
    assert told.why == "7 rows of 100 are deleted (deletion vectors)"
    summaries, times = having.files.summaries(), FileTimes.of(having.files, small=0)
    shape = table_shape(
        planner,
        summaries,
        times,
        snapshots=1,
        small_files=0,
        stop_trigger=8,
    )
    assert shape.deleted_rows_ratio_max == 0.16, "files that are gone count, too"
    shapes = report.bucket_shapes(table, having)
    assert any(
        "100 (7 deleted in 1 file)" in line
        for line in report.inspect_text(table, having, shapes, ())
    )
    (progress_reporter,) = report.inspect_json(table, having, shapes, ())["buckets"]
    assert (progress_reporter["files_with_deleted_rows"], progress_reporter["deleted_rows"]) == (
        1,
        7,
    )


def test_levels_of_before_a_table_had_vectors_are_merged_without_anything_new():
    storage = MemoryStorage()
    ref = keyed_table(storage, WHERE, buckets=1, options={"compaction.force-up-level-0": "true"})
    for keys in (200, 5):
        writer(storage, ref).write(rows_of([(key, keys) for key in range(keys)]))
        builders.compact(storage, ref)
    state = load_state(storage, ref)
    assert sorted(file.level for file in state.files.files_in(BUCKET)) == [4, 5]
    assert _planner(storage, ref, state)[1].candidates() == []
    older = json.loads(storage.read(paths.schema_path(ref.root, 0)))
    newer = {**older, "id": 1, "options": older["options"] | VECTORS}
    storage.overwrite(paths.schema_path(ref.root, 1), json.dumps(newer).encode())
    table, planner = _planner(storage, ref, state)
    assert (table.unmarked_schemas, table.partial_schemas) == ({0}, frozenset())
    assert planner.candidates() == [BUCKET]
    found, plan = planner.decided(BUCKET)
    told = explain(planner, found, plan)
    assert told.reason is CompactReason.LOOKUP_BEGINS
    assert told.why.startswith("the table marks rows that others replace (deletion-vectors")
    builders.compact(storage, ref)
    state = load_state(storage, ref)
    assert [file.level for file in state.files.files_in(BUCKET)] == [5]
    assert _planner(storage, ref, state)[1].candidates() == []
    assert builders.read_keyed(storage, ref) == dict.fromkeys(range(200), 200) | dict.fromkeys(
        range(5), 5
    )


@pytest.mark.parametrize(
    ("options", "partial"),
    [
        ({}, set()),
        ({"sequence.field": "v"}, {0, 1}),
        (SUM, {0, 1}),
        ({"sequence.field": "v", "force-lookup": "true"}, set()),
    ],
)
def test_files_of_before_a_time_without_vectors_may_have_been_moved_then(options, partial):
    """On a level above 0, to which a compaction brought them that marked nothing."""
    storage = MemoryStorage()
    ref = keyed_table(storage, WHERE, buckets=1, options=options | VECTORS)
    first = json.loads(storage.read(paths.schema_path(ref.root, 0)))
    for number, vectors in ((1, {}), (2, VECTORS), (3, VECTORS | {"num-levels": "7"})):
        newer = {**first, "id": number, "options": options | {"bucket": "1"} | vectors}
        storage.overwrite(paths.schema_path(ref.root, number), json.dumps(newer).encode())
    table = open_table(table_in_folder(storage, ref), {})
    assert table.unmarked_schemas == {0, 1}
    assert table.partial_schemas == partial


def test_a_writer_keeps_the_vectors_of_the_table():
    storage = MemoryStorage()
    ref = keyed_table(storage, WHERE, buckets=1, options=VECTORS)
    writer(storage, ref).write(rows_of([(1, 1)]))
    manifest = encode_container(INDEX_MANIFEST, [], codec_of("zstd", 1))
    storage.write_new(paths.manifest_path(WHERE, "index-manifest-0"), manifest)
    first = replace(read_snapshot(storage, ref.root, 1), index_manifest="index-manifest-0")
    storage.overwrite(paths.snapshot_path(ref.root, 1), snapshot_json(first))
    writer(storage, ref).write(rows_of([(2, 2)]))
    assert read_snapshot(storage, ref.root, 2).index_manifest == "index-manifest-0"
