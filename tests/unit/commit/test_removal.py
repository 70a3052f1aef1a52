"""Partitions go whole: what their snapshot says, whoever commits meanwhile, whatever call fails."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from compactord.commit.changes import CommitOutcome, Committed, NothingCommitted, Removal
from compactord.errors import CommitUnknown, CompactordError, StorageError
from compactord.model import Conflict
from compactord.paimon import paths
from compactord.paimon.avro.container import open_container
from compactord.paimon.avro.types import codec_of
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import BucketId
from compactord.paimon.manifest.index_manifest import read_index_entries
from compactord.paimon.manifest.schemas import INDEX_MANIFEST
from compactord.paimon.snapshot import CommitKind, Snapshot, snapshot_json
from compactord.paimon.types import AtomicType, TypeRoot
from compactord.state.table_state import TableState, refresh_state
from compactord.storage.base import Storage
from tests.builders import FIRST, SECOND
from tests.containers import encode_container
from tests.lineage import APPENDED, DYNAMIC, KEYED, TABLE, Kind, Lineage
from tests.storages import Call, Fault, FaultyStorage, HookedStorage
from tests.unit.maintenance.expiring import FAULTS
from tests.unit.paimon.table_builder import UNPARTITIONED

ALL = Removal(lambda state: [UNPARTITIONED])


def _remove(
    table: Lineage, removal: Removal = ALL, storage: Storage | None = None
) -> CommitOutcome:
    return table.committer(FIRST, storage).commit(table.state(), removal, table.settings)[0]


def _newest(table: Lineage) -> Snapshot:
    snapshot = table.state().snapshot
    assert snapshot is not None
    return snapshot


def _gone(table: Lineage) -> None:
    """All rows are, and nothing is left of the way there."""
    table.expected.clear()
    assert not table.rows_now()
    assert table.leftovers(FIRST, SECOND) == set()


@pytest.mark.parametrize("kind", [KEYED, DYNAMIC, APPENDED])
def test_all_files_go_in_an_overwrite_and_the_rest_is_inherited(kind: Kind) -> None:
    table = Lineage(**kind)
    files = [*table.append(2), *table.append(1, commits=2)]
    before = replace(
        _newest(table), watermark=77, statistics=None, next_row_id=5, properties={"some": "words"}
    )
    path = paths.snapshot_path(TABLE.location, before.id)
    table.storage.overwrite(path, snapshot_json(before))
    done = _remove(table)
    assert isinstance(done, Committed)
    assert (done.attempts, done.dropped) == (1, ())
    assert [f.file_name for c in done.published for f in c.before] == [f.file_name for f in files]
    found = _newest(table)
    assert (found.id, found.commit_kind, found.operation) == (4, CommitKind.OVERWRITE, None)
    assert (found.total_record_count, found.delta_record_count) == (0, -40)
    assert found.changelog_manifest_list is None
    assert (found.watermark, found.next_row_id, found.properties) == (77, 5, None)
    _gone(table)
    assert isinstance(_remove(table), NothingCommitted), "nothing is left"
    assert _newest(table) == found


def test_the_largest_sequence_number_is_handed_on() -> None:
    table = Lineage(options={"write.sequence-number-init-mode": "snapshot"})
    largest = max(file.max_sequence_number for file in table.append(3))
    _remove(table)
    name = "sequence.generation.max-sequence-number"
    assert _newest(table).properties == {name: str(largest)}


def test_index_files_of_every_kind_go_and_those_of_other_partitions_stay() -> None:
    table = Lineage()
    table.append(1)
    kinds = {"HASH": None, "DELETION_VECTORS": None, "btree": 5, "bitmap": 1, "of a later kind": 1}
    records = []
    for kind, level in kinds.items():
        table.write_index_manifest(f"im-{kind}", [f"index-{kind}"], kind, level=level)
        records += _records(table, f"im-{kind}")
    day = encode_row([7], [AtomicType(root=TypeRoot.INT, nullable=False)])
    stays = {**records[0], "_PARTITION": day, "_FILE_NAME": "stays"}
    name = _with_index(table, [*records, stays])
    _remove(table)
    found = _newest(table).index_manifest
    assert found not in (None, name)
    assert found is not None
    [entry] = read_index_entries(table.storage, TABLE.location, found)
    assert (entry.bucket, entry.file_name) == (BucketId(day, 0), "stays")
    # Where none goes the manifest stays.
    table.append(1)
    _remove(table)
    assert _newest(table).index_manifest == found
    _gone(table)


def _records(table: Lineage, name: str) -> list[dict[str, object]]:
    path = paths.manifest_path(TABLE.location, name)
    return [
        record for record, _ in open_container(table.storage.read(path), path).encoded_records()
    ]


def _with_index(table: Lineage, records: list[dict[str, object]]) -> str:
    name = "index-manifest-all"
    data = encode_container(INDEX_MANIFEST, records, codec_of("zstd", 1))
    table.storage.write_new(paths.manifest_path(TABLE.location, name), data)
    newest = replace(_newest(table), index_manifest=name)
    table.storage.overwrite(paths.snapshot_path(TABLE.location, newest.id), snapshot_json(newest))
    return name


def _first(table: Lineage, *happenings: Callable[[], object]) -> Storage:
    """Before each attempt to publish one of these happens, while there are any."""
    left = iter(happenings)

    def happen(call: Call) -> None:
        if call.method == "create_if_absent":
            next(left, lambda: None)()

    return HookedStorage(table.storage, before=happen)


@pytest.mark.parametrize("has_late_rows", [True, False], ids=["rows go, too", "rows keep it"])
def test_each_attempt_decides_anew_on_the_newest_state(*, has_late_rows: bool) -> None:
    table = Lineage()
    table.append(2)
    seen: list[int] = []

    def chosen(state: TableState) -> Collection[bytes]:
        assert state.snapshot is not None
        seen.append(state.snapshot.id)
        return [UNPARTITIONED] if has_late_rows or state.snapshot.id == 1 else ()

    racing = _first(table, lambda: table.append(1), lambda: table.append(1, bucket=3))
    done = _remove(table, Removal(chosen), racing)
    if has_late_rows:
        assert isinstance(done, Committed)
        assert (seen, done.snapshot_id, done.attempts) == ([1, 2, 3], 4, 3)
        assert _newest(table).delta_record_count == -40
        _gone(table)
    else:
        assert done == NothingCommitted(dropped=())
        assert seen == [1, 2]
        table.check()
        assert table.leftovers(FIRST) == set()


def test_a_compaction_under_way_in_an_expired_partition_is_dropped_as_such() -> None:
    table = Lineage()
    change = table.change(table.append(2), owner=SECOND)
    state = table.state()
    _remove(table)
    outcome, _ = table.committer(SECOND).commit(state, [change], table.settings)
    assert isinstance(outcome, NothingCommitted)
    assert [drop.conflict for drop in outcome.dropped] == [Conflict.PARTITION_EXPIRED]
    # And the other way round: what it has just published goes.
    other = table.change(table.append(2), owner=SECOND)

    def publish() -> None:
        table.committer(SECOND).commit(table.state(), [other], table.settings)

    done = _remove(table, storage=_first(table, publish))
    assert isinstance(done, Committed)
    assert [c.before for c in done.published] == [other.after]


@pytest.mark.parametrize(("error", "concerns", "after_effect", "lasts"), FAULTS)
def test_whatever_call_fails_all_files_go_or_none(
    error: type[StorageError],
    concerns: Callable[[Call], bool],
    after_effect: bool,
    lasts: bool,
) -> None:
    template = Lineage(options={"manifest.merge-min-count": "2"})
    template.append(2, commits=3)
    template.write_index_manifest("im", ["index-1", "index-2"])
    _with_index(template, _records(template, "im"))
    before = _newest(template)
    for at in itertools.count(1):
        table = template.fork()
        fault = Fault(at=at, error=error, after_effect=after_effect, lasts=lasts, concerns=concerns)
        faulty = FaultyStorage(table.storage, fault)
        try:
            _remove(table, storage=faulty)
        except CommitUnknown:
            assert faulty.failed
        except CompactordError:
            assert _newest(table) == before, "or its outcome is unknown"
        if _newest(table) == before:
            table.check()
        else:
            _all_gone(table, before)
        _remove(table)
        _all_gone(table, before)
        if not faulty.failed:
            break
    assert at > 5


def _all_gone(table: Lineage, before: Snapshot) -> None:
    newest = _newest(table)
    assert (newest.id, newest.commit_kind) == (before.id + 1, CommitKind.OVERWRITE)
    assert newest.total_record_count == 0
    assert newest.index_manifest is not None
    assert not read_index_entries(table.storage, TABLE.location, newest.index_manifest)
    assert not table.rows_now()


def test_it_is_followed_without_reading_the_table_anew() -> None:
    table = Lineage()
    table.append(3)
    state = table.state()
    _remove(table)
    refreshed = refresh_state(table.storage, state)
    assert refreshed.changed == {BucketId(UNPARTITIONED, 0)}
    assert not refreshed.state.files.bucket_ids()
    # Another's may replace the base without saying so.
    state = refreshed.state
    table.append(1)
    table.overwrite()
    assert refresh_state(table.storage, state).changed is None
