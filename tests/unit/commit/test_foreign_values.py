"""What newer releases say of files and manifests outlives commits of ours; sidecars go in time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compactord.commit.changes import BucketChange, Committed
from compactord.commit.metadata import MetadataFiles
from compactord.errors import UnsupportedTable
from compactord.ids import Liveness
from compactord.maintenance.orphan_search import OwnerRule, remove_orphans
from compactord.paimon import paths
from compactord.paimon.avro.container import open_container
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import DataFile, EntryKind
from compactord.paimon.manifest.foreign import ForeignValue
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.paimon.manifest.schemas import MANIFEST_LIST
from compactord.paimon.snapshot import CommitKind, Snapshot, snapshot_json
from compactord.state.table_state import data_manifests, delta_entries
from tests.builders import FIRST, NOW_MS
from tests.lineage import Lineage
from tests.unit.maintenance.expiring import (
    HOME,
    change,
    check,
    expire,
    make_tag,
    merged_table,
    snapshots_of,
    with_data,
)
from tests.unit.paimon.foreign_files import sequences
from tests.unit.paimon.table_builder import data_file, deleted, entry

VALUES = (sequences(1, 2), ForeignValue("_OF_ENTRY", '["null","int"]', b"\x02\x0a"))


def _valued(file: DataFile) -> DataFile:
    return replace(file, foreign=VALUES)


def _append(table: Lineage) -> DataFile:
    file = _valued(table.new_file())
    table._foreign([table._entry(file, 0)], CommitKind.APPEND)
    return file


def _commit(table: Lineage, change_: BucketChange) -> Snapshot:
    outcome, state = table.committer(FIRST).commit(table.state(), [change_], table.settings)
    assert isinstance(outcome, Committed)
    assert state.snapshot is not None
    return state.snapshot


@pytest.mark.parametrize("drop_stats", ["false", "true"])
def test_deleting_a_file_says_the_same_of_it(drop_stats: str) -> None:
    table = Lineage(options={"manifest.delete-file-drop-stats": drop_stats})
    files = [_append(table), *table.append(1)]
    snapshot = _commit(table, table.change(files, owner=FIRST))
    found = {
        one.file.file_name: (one.kind, one.file.foreign)
        for one in delta_entries(table.storage, HOME, snapshot)
    }
    assert found.pop(files[0].file_name) == (EntryKind.DELETE, VALUES)
    assert found.pop(files[1].file_name) == (EntryKind.DELETE, ())
    assert [foreign for _, foreign in found.values()] == [()]


def test_a_file_that_moves_to_another_level_keeps_what_is_said_of_it() -> None:
    table = Lineage()
    file = _append(table)
    change = table.change([file], owner=FIRST, level=5)
    upgrade = replace(change, upgraded=(replace(file, level=5),), outputs=())
    _commit(table, upgrade)
    assert table.files() == (replace(file, level=5),)
    assert table.files()[0].foreign == VALUES


@pytest.mark.parametrize(
    "options",
    [{"manifest.merge-min-count": "2"}, {"manifest.full-compaction-threshold-size": "1 b"}],
    ids=["neighbours", "in full"],
)
def test_merged_manifests_say_the_same(options: dict[str, str]) -> None:
    table = Lineage(options=options)
    kept = [_append(table), *table.append(2), _append(table)]
    gone = [_append(table), *table.append(1, bucket=1)]
    table._foreign([deleted(table._entry(gone[0], 0))], CommitKind.OVERWRITE)
    before = table.state().snapshot
    snapshot = _commit(table, table.change(gone[1:], owner=FIRST, bucket=1))
    assert before is not None
    names = {one.file_name for one in data_manifests(table.storage, HOME, before)}
    after = data_manifests(table.storage, HOME, snapshot)
    assert not names & {one.file_name for one in after}, "all were merged"
    assert {file.file_name: file for file in table.files()} == {
        file.file_name: file for file in kept
    }


def _with_sidecars(
    table: Lineage,
    name: Callable[[ManifestFile], str] = lambda one: f"{one.file_name}.avro.sidecar",
) -> Lineage:
    """Lists of all snapshots as release 2.1 writes them, with a sidecar for each manifest."""
    buckets = ForeignValue("_TOTAL_BUCKETS", '["null","int"]', b"\x02\x08")
    for snapshot in snapshots_of(table):
        base = data_manifests(table.storage, HOME, snapshot)
        delta = [one for one in base if one.file_name in _delta_names(table, snapshot)]
        base = tuple(one for one in base if one not in delta)
        changed: dict[str, object] = {}
        for key, rows in (("base", base), ("delta", delta)):
            rows = [replace(one, extra_files=(name(one),), foreign=(buckets,)) for one in rows]
            written, size = table.history._write_list(rows)
            changed |= {f"{key}_manifest_list": written, f"{key}_manifest_list_size": size}
            for row in rows:
                path = paths.manifest_path(HOME, row.extra_files[0])
                table.storage.objects.setdefault(path, b"PMSC")
        change(table, snapshot.id, **changed)
    return table


def _delta_names(table: Lineage, snapshot: Snapshot) -> set[str]:
    without_base = replace(
        snapshot,
        base_manifest_list=snapshot.delta_manifest_list,
        base_manifest_list_size=snapshot.delta_manifest_list_size,
    )
    return {one.file_name for one in data_manifests(table.storage, HOME, without_base)}


def _sidecars(table: Lineage) -> set[str]:
    return {path.rsplit("/", 1)[1] for path in table.storage.objects if "sidecar" in path}


def _manifest_folder(table: Lineage) -> set[str]:
    return {path for path in table.storage.objects if f"{HOME}/manifest/" in path}


def _wanted(table: Lineage, *snapshots: Snapshot) -> set[str]:
    manifests = [one for s in snapshots for one in data_manifests(table.storage, HOME, s)]
    return {f"{one.file_name}.avro.sidecar" for one in manifests}


def test_rows_of_manifests_are_carried_to_the_next_list_as_they_are() -> None:
    table = Lineage()
    files = table.append(2, commits=2)
    _with_sidecars(table)
    before = table.state().snapshot
    assert before is not None
    rows = data_manifests(table.storage, HOME, before)
    snapshot = _commit(table, table.change(files, owner=FIRST))
    after = data_manifests(table.storage, HOME, snapshot)
    assert after[: len(rows)] == rows
    assert [(row.extra_files, row.foreign) for row in after[len(rows) :]] == [((), ())]
    path = paths.manifest_path(HOME, snapshot.delta_manifest_list)
    assert open_container(table.storage.read(path), path).schema.json == MANIFEST_LIST.json


@pytest.mark.parametrize("tagged", [False, True])
def test_sidecars_go_with_their_manifests(tagged: bool) -> None:
    table = _with_sidecars(merged_table())
    kept = [snapshots_of(table)[-1]]
    if tagged:
        kept.append(snapshots_of(table)[1])
        make_tag(table, kept[1])
    assert _sidecars(table) > _wanted(table, *kept)
    before = _manifest_folder(table)
    done = expire(table)
    assert _sidecars(table) == _wanted(table, *kept)
    assert done.manifests == len(before) - len(_manifest_folder(table))
    check(table)


def test_a_branch_keeps_sidecars() -> None:
    table = _with_sidecars(merged_table())
    kept, newest = snapshots_of(table)[1], snapshots_of(table)[-1]
    root = paths.branch_root(HOME, "dev")
    table.storage.write_new(paths.snapshot_path(root, 2), snapshot_json(kept))
    expire(table)
    assert _sidecars(table) == _wanted(table, kept, newest)


def test_a_sidecar_that_a_kept_manifest_names_stays() -> None:
    table = _with_sidecars(merged_table(), lambda one: "shared.avro.sidecar")
    expire(table)
    assert _sidecars(table) == {"shared.avro.sidecar"}


def test_sidecars_that_older_lists_name_alone_go_with_these() -> None:
    """Java 2.0.0 has committed: its list has the manifests without what belongs to them."""
    table = Lineage()
    table.append(1, commits=2)
    _with_sidecars(table)
    table.append(1)
    newest = snapshots_of(table)[-1]
    manifests = data_manifests(table.storage, HOME, newest)
    rows = [replace(one, extra_files=()) for one in manifests[:-1]]
    written, size = table.history._write_list(rows)
    change(table, newest.id, base_manifest_list=written, base_manifest_list_size=size)
    with_data(table)
    expire(table)
    assert data_manifests(table.storage, HOME, snapshots_of(table)[-1]) == (*rows, manifests[-1])
    assert _sidecars(table) == set()
    check(table)


def test_the_sidecar_of_a_manifest_is_no_orphan_whoever_made_it() -> None:
    names = iter(f"manifest-{FIRST.unique_name()}-0.avro.sidecar" for _ in range(9))
    table = Lineage()
    table.append(1)
    _with_sidecars(table, lambda one: next(names))
    left = f"{HOME}/manifest/manifest-{FIRST.unique_name()}-1.avro.sidecar"
    table.storage.write_new(left, b"PMSC")
    rule = OwnerRule(
        myself=FIRST,
        liveness=lambda owner: Liveness.DEAD,
        now_ms=NOW_MS,
        grace_ms=0,
        own_before_ms=NOW_MS * 2,
    )
    removed = remove_orphans(table.storage, HOME, partition_depth=0, rule=rule)
    assert [orphan.path for orphan in removed.orphans] == [left]


@pytest.mark.parametrize("what", ["manifest", "list"])
def test_one_column_of_two_types_refuses_the_table(what: str) -> None:
    table = Lineage()
    files = MetadataFiles(
        table.storage,
        HOME,
        unique_name=FIRST.unique_name(),
        codec=codec_of("zstd", 1),
        manifest_target_size=1 << 20,
        partition_types=(),
    )
    values = [ForeignValue("_X", f'["null","{type_}"]', b"\x02\x02") for type_ in ("int", "long")]
    entries = [entry(data_file(f"f-{v.type}", foreign=(v,))) for v in values]
    if what == "manifest":
        with pytest.raises(UnsupportedTable, match="column _X") as caught:
            files.write_manifests(entries)
    else:
        (row,) = files.write_manifests([entry(data_file("f"))])
        with pytest.raises(UnsupportedTable, match="column _X") as caught:
            files.write_list([replace(row, foreign=(value,)) for value in values])
    assert caught.value.table == HOME
