"""What a COMPACT snapshot inherits from the one before, and what is counted anew."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from compactord.catalog.access import table_in_folder
from compactord.commit import attempt
from compactord.commit.attempt import CommitIdentity, CommitSettings, prepare
from compactord.commit.changes import BucketChange
from compactord.commit.index_files import NextIndex
from compactord.commit.manifest_merge import ManifestMerge
from compactord.commit.metadata import MetadataFiles
from compactord.errors import FormatError, TableNotFound
from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import EMPTY_STATS, ColumnStats, EntryKind
from compactord.paimon.manifest.manifest_files import ManifestFile, describe_entries
from compactord.paimon.options.table_options import SequenceInit
from compactord.paimon.schema import latest_schema
from compactord.paimon.snapshot import CommitKind, Snapshot
from compactord.paimon.types import AtomicType, TypeRoot
from compactord.state.table_state import TableState, data_manifests, delta_entries
from compactord_demo.schema_files import schema_json
from tests.builders import FIRST, NOW_MS, data_outputs
from tests.lineage import TABLE, Lineage
from tests.unit.paimon.table_builder import data_file, entry

STAMP = CommitIdentity(uuid="snapshot-uuid", user="me", identifier=7, time_ms=NOW_MS)


def _files(table: Lineage, settings: CommitSettings) -> MetadataFiles:
    return MetadataFiles(
        table.storage,
        TABLE.location,
        unique_name=FIRST.unique_name(),
        codec=codec_of("zstd", 1),
        manifest_target_size=settings.options.manifests.target_size,
        partition_types=(),
    )


def _manifests(table: Lineage, state: TableState) -> tuple[ManifestFile, ...]:
    assert state.snapshot is not None
    return data_manifests(table.storage, TABLE.location, state.snapshot)


def _prepare(
    table: Lineage,
    change: BucketChange,
    *,
    state: TableState | None = None,
    settings: CommitSettings | None = None,
    merge: ManifestMerge | None = None,
) -> tuple[Snapshot, ManifestMerge]:
    settings = settings or table.settings
    state = state or table.state()
    return prepare(
        table.storage,
        state,
        [change],
        settings,
        manifests=_manifests(table, state),
        files=_files(table, settings),
        merge=merge,
        index=NextIndex(state.snapshot and state.snapshot.index_manifest, [change]),
        newest_schema_id=table_in_folder(table.storage, TABLE).newest_schema_id,
        stamp=STAMP,
    )


def _table(**options: str) -> tuple[Lineage, BucketChange]:
    table = Lineage(options=options)
    return table, table.change(table.append(2), owner=FIRST)


def _on(state: TableState, **inherited: object) -> TableState:
    assert state.snapshot is not None
    return replace(state, snapshot=replace(state.snapshot, **inherited))  # type: ignore[arg-type]


def test_a_snapshot_follows_the_one_before_and_bears_the_stamp() -> None:
    table, change = _table()
    snapshot, _ = _prepare(table, change)
    assert (snapshot.id, snapshot.version, snapshot.commit_kind) == (2, 3, CommitKind.COMPACT)
    assert (snapshot.uuid, snapshot.commit_user) == ("snapshot-uuid", "me")
    assert (snapshot.commit_identifier, snapshot.time_ms) == (7, NOW_MS)
    assert (snapshot.schema_id, snapshot.operation) == (0, None)
    assert snapshot.changelog_manifest_list is snapshot.changelog_record_count is None


def test_rows_are_counted_from_the_change() -> None:
    table, change = _table()
    fewer = replace(change, outputs=data_outputs(replace(change.after[0], row_count=13)))
    snapshot, _ = _prepare(table, fewer)
    assert (snapshot.delta_record_count, snapshot.total_record_count) == (-7, 13)


def test_deletes_come_before_adds_and_keep_the_whole_record() -> None:
    table, change = _table()
    snapshot, _ = _prepare(table, change)
    entries = delta_entries(table.storage, TABLE.location, snapshot)
    assert [(one.kind, one.file) for one in entries] == [
        (EntryKind.DELETE, change.before[0]),
        (EntryKind.DELETE, change.before[1]),
        (EntryKind.ADD, change.after[0]),
    ]
    assert {one.total_buckets for one in entries} == {4}


def test_statistics_of_deleted_files_are_dropped_when_the_table_says_so() -> None:
    table, change = _table(**{"manifest.delete-file-drop-stats": "true"})
    change = replace(
        change, before=tuple(replace(f, value_stats_columns=None) for f in change.before)
    )
    snapshot, _ = _prepare(table, change)
    entries = delta_entries(table.storage, TABLE.location, snapshot)
    assert [one.file.value_stats for one in entries[:2]] == [EMPTY_STATS] * 2
    assert [one.file.value_stats_columns for one in entries] == [(), (), None]


@pytest.mark.parametrize("watermark", [None, -5, 1_700_000_000_000])
@pytest.mark.parametrize("index_manifest", [None, "index-manifest-x-0"])
def test_watermark_and_index_manifest_are_carried(
    watermark: int | None, index_manifest: str | None
) -> None:
    table, change = _table()
    state = _on(table.state(), watermark=watermark, index_manifest=index_manifest)
    snapshot, _ = _prepare(table, change, state=state)
    assert (snapshot.watermark, snapshot.index_manifest) == (watermark, index_manifest)


@pytest.mark.parametrize(("before", "after"), [(None, 0), (0, 0), (41, 41)])
def test_the_next_row_id_is_carried_and_starts_at_0(before: int | None, after: int) -> None:
    table, change = _table()
    snapshot, _ = _prepare(table, change, state=_on(table.state(), next_row_id=before))
    assert snapshot.next_row_id == after


def test_properties_are_not_inherited() -> None:
    table, change = _table()
    state = _on(table.state(), properties={"some": "thing"})
    assert _prepare(table, change, state=state)[0].properties is None


@pytest.mark.parametrize(
    ("known", "added", "expected"), [("50", 9, "50"), ("50", 60, "60"), (None, 60, "60")]
)
def test_the_largest_sequence_number_is_carried_where_writers_start_from_it(
    known: str | None, added: int, expected: str
) -> None:
    table, change = _table(**{"write.sequence-number-init-mode": "snapshot"})
    assert table.settings.options.sequence_init is SequenceInit.SNAPSHOT
    key = "sequence.generation.max-sequence-number"
    properties = {"other": "gone"} if known is None else {key: known, "other": "gone"}
    change = replace(
        change, outputs=data_outputs(replace(change.after[0], max_sequence_number=added))
    )
    snapshot, _ = _prepare(table, change, state=_on(table.state(), properties=properties))
    assert snapshot.properties == {key: expected}


def test_a_property_that_is_no_number_is_an_error_of_its_snapshot() -> None:
    table, change = _table(**{"write.sequence-number-init-mode": "snapshot"})
    properties = {"sequence.generation.max-sequence-number": "many"}
    with pytest.raises(FormatError, match=r"is 'many', expected a whole number: .*/snapshot-1$"):
        _prepare(table, change, state=_on(table.state(), properties=properties))


def test_without_the_property_the_largest_number_is_that_of_the_live_files() -> None:
    table = Lineage(options={"write.sequence-number-init-mode": "snapshot"})
    files = table.append(2)
    change = table.change(files, owner=FIRST)
    change = replace(change, outputs=data_outputs(replace(change.after[0], max_sequence_number=3)))
    snapshot, _ = _prepare(table, change)
    assert snapshot.properties == {"sequence.generation.max-sequence-number": "19"}


@pytest.mark.parametrize(("schema_id", "kept"), [(0, True), (1, False)])
def test_statistics_are_inherited_while_they_speak_of_the_latest_schema(
    schema_id: int, kept: bool
) -> None:
    table, change = _table()
    path = paths.statistics_path(TABLE.location, "stat-x-0")
    table.storage.write_new(path, json.dumps({"schemaId": schema_id}).encode())
    snapshot, _ = _prepare(table, change, state=_on(table.state(), statistics="stat-x-0"))
    assert snapshot.statistics == ("stat-x-0" if kept else None)


@pytest.mark.parametrize("damaged", [b"{", b"[" * 100_000 + b"]" * 100_000], ids=["cut", "deep"])
def test_statistics_that_are_gone_are_not_inherited_and_damaged_ones_stop_the_commit(
    damaged: bytes,
) -> None:
    table, change = _table()
    state = _on(table.state(), statistics="stat-x-0")
    assert _prepare(table, change, state=state)[0].statistics is None
    table.storage.write_new(paths.statistics_path(TABLE.location, "stat-x-0"), damaged)
    with pytest.raises(FormatError, match="stat-x-0"):
        _prepare(table, change, state=state)


def test_the_schema_id_is_the_latest_at_each_attempt() -> None:
    table, change = _table()
    schema = replace(latest_schema(table.storage, TABLE.location), id=3)
    table.storage.write_new(paths.schema_path(TABLE.location, 3), schema_json(schema))
    assert _prepare(table, change)[0].schema_id == 3


def test_a_table_that_was_dropped_meanwhile_is_named() -> None:
    table, change = _table()
    settings, state = table.settings, table.state()
    table.storage.delete(paths.schema_path(TABLE.location, 0))
    with pytest.raises(TableNotFound, match=r"db\.t was dropped"):
        _prepare(table, change, state=state, settings=settings)


def test_a_merge_is_used_again_while_it_fits_and_its_files_go_when_it_does_not() -> None:
    table = Lineage(options={"manifest.merge-min-count": "2"})
    files = table.append(1, commits=2)
    change = table.change(files, owner=FIRST)
    settings = table.settings
    metadata = _files(table, settings)

    def again(merge: ManifestMerge | None) -> tuple[Snapshot, ManifestMerge]:
        return prepare(
            table.storage,
            table.state(),
            [change],
            settings,
            manifests=_manifests(table, table.state()),
            files=metadata,
            merge=merge,
            index=NextIndex(None, [change]),
            newest_schema_id=table_in_folder(table.storage, TABLE).newest_schema_id,
            stamp=STAMP,
        )

    _, merge = again(None)
    (merged,) = merge.written
    table.append(1)
    second, kept = again(merge)
    base = data_manifests(table.storage, TABLE.location, second)
    assert kept is merge
    assert base[0].file_name == merged.file_name
    # Someone else merges: ours fits no more, and its file goes.
    table.history.snapshot = table.state().snapshot
    table.history.merge_manifests()
    third, nothing = again(merge)
    assert nothing.written == ()
    assert table.storage.status(paths.manifest_path(TABLE.location, merged.file_name)) is None
    names = [m.file_name for m in data_manifests(table.storage, TABLE.location, third)]
    assert merged.file_name not in names


_INT = AtomicType(root=TypeRoot.INT)
_FIVE, _NULL = encode_row([5], [_INT]), encode_row([None], [_INT])


def test_a_partition_of_nulls_is_where_nulls_are_counted() -> None:
    mixed = describe_entries(
        "m", 1, [entry(data_file("f"), partition=row) for row in (_FIVE, _NULL)], [_INT]
    )
    without = describe_entries("m", 1, [entry(data_file("f"), partition=_FIVE)], [_INT])
    assert attempt._may_contain(mixed, frozenset({_NULL}), [_INT])
    assert not attempt._may_contain(without, frozenset({_NULL}), [_INT])


@pytest.mark.parametrize(
    ("low", "high", "null_counts", "expected"),
    [
        (_FIVE, _FIVE, (0,), True),
        (encode_row([6], [_INT]), encode_row([7], [_INT]), (0,), False),
        (_NULL, _NULL, (1,), False),
        (_FIVE, _NULL, (0,), False),
        (_FIVE, _FIVE, (0, 0), True),
        (_FIVE, _FIVE, (), True),
        (_FIVE, b"\x00", (0,), True),
        (b"", _FIVE, (0,), True),
    ],
    ids=["in", "out", "nulls", "half", "counts of two", "no counts", "cut", "empty"],
)
def test_ranges_that_are_none_rule_nothing_out(
    low: bytes, high: bytes, null_counts: tuple[int, ...], expected: bool
) -> None:
    manifest = replace(
        describe_entries("m", 1, [entry(data_file("f"))], []),
        partition_stats=ColumnStats(min_values=low, max_values=high, null_counts=null_counts),
    )
    assert attempt._may_contain(manifest, frozenset({_FIVE}), [_INT]) is expected
