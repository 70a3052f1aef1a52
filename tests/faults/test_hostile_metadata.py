"""Metadata that leads to files of other tables, or to metadata: no expiry deletes any of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import CompactordError, UnsupportedTable
from compactord.maintenance.orphan_search import OrphanSearch, TableFolders
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_json
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from compactord.table.opening import OpenTable, open_table
from tests import builders
from tests.builders import FIRST
from tests.lineage import Lineage
from tests.rounds import expire_consumers, expire_snapshots, expire_tags, preview_snapshots
from tests.unit.maintenance.expiring import (
    HOME,
    LATER_MS,
    change,
    make_tag,
    snapshot_of,
    some_table,
)

OTHER = "/warehouse/db.db/other"
ROOT = "/indexes"
OTHERS = {
    f"{OTHER}/schema/schema-0": b"{}",
    f"{OTHER}/snapshot/snapshot-9": b"{}",
    f"{OTHER}/bucket-0/data-1.parquet": b"rows",
    f"{ROOT}/nested/schema/schema-0": b"{}",
    f"{ROOT}/nested/index/i-1": b"index",
    "/warehouse/db.db/t2/index/i-1": b"index",
    "/indexes2/i-1": b"index",
}
# Where an entry says that its file is, its name, and a part of what is said.
CASES = [
    (f"{OTHER}/schema", "schema-0", "outside of the table"),
    (f"{OTHER}/snapshot", "snapshot-9", "outside of the table"),
    (f"{OTHER}/bucket-0", "data-1.parquet", "outside of the table"),
    (f"{HOME}/../other/schema", "schema-0", "in another store"),
    ("/warehouse/db.db/t2/index", "i-1", "outside of the table"),
    ("/indexes2", "i-1", "outside of the table"),
    (f"{ROOT}/nested/index", "i-1", f"in the folder of another table, {ROOT}/nested"),
    (f"{HOME}/schema", "schema-0", "among the table's metadata"),
    (f"{HOME}/snapshot", "snapshot-5", "among the table's metadata"),
    (f"{HOME}/tag", "tag-kept", "among the table's metadata"),
    (f"{HOME}/branch/branch-b/snapshot", "snapshot-1", "among the table's metadata"),
    (f"{HOME}/manifest", "manifest-list-1-0", "among the table's metadata"),
]

TYPES = ["btree", "HASH", "DELETION_VECTORS"]


def _ref(location: str = HOME) -> TableRef:
    return TableRef(database="db", name="t", location=location)


def _opened(storage: Storage, table: TableRef, **options: str) -> OpenTable:
    retained = {"snapshot.num-retained.min": "1", "snapshot.time-retained": "0 ms"}
    return open_table(table_in_folder(storage, table), {**retained, **options})


def _snapshots(opened: OpenTable) -> object:
    return expire_snapshots(opened, opened.options.expire, now_ms=LATER_MS, keep_from=None)


def _tags(opened: OpenTable) -> object:
    return expire_tags(opened, LATER_MS)


KINDS: dict[str, Callable[[OpenTable], object]] = {
    "snapshots": _snapshots,
    "preview of snapshots": lambda opened: preview_snapshots(opened, LATER_MS),
    "tags": _tags,
}


def _table(
    kind: str, folder: str | None, name: str, type_: str = "btree", *, there: str | None = None
) -> Lineage:
    """Snapshot 1, or a tag of it whose time has passed, has an index file of this name there.

    It is `there` under that name.
    """
    table = some_table({"global-index.external-path": f"file:{ROOT}"})
    table.write_index_manifest(
        "index-manifest-1", [name], type_, level=5, folder=folder, there=there
    )
    change(table, 1, index_manifest="index-manifest-1")
    make_tag(table, snapshot_of(table, 5), "kept")
    if kind == "tags":
        first = snapshot_json(snapshot_of(table, 1)).rstrip().removesuffix(b"}")
        times = b', "tagCreateTime": [2023, 11, 14, 12, 0], "tagTimeRetained": 3600.0}'
        for id_ in (1, 2, 3, 4):
            table.storage.delete(paths.snapshot_path(HOME, id_))
        table.storage.overwrite(paths.tag_path(HOME, "old"), first + times)
    for path, data in OTHERS.items():
        table.storage.write_new(path, data)
    return table


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(("folder", "name", "why"), CASES)
def test_an_index_manifest_leads_to_no_file_of_others(
    kind: str, type_: str, folder: str, name: str, why: str
) -> None:
    table = _table(kind, f"file:{folder}", name, type_)
    before = dict(table.storage.objects)
    with pytest.raises(UnsupportedTable, match=why) as refused:
        KINDS[kind](_opened(table.storage, _ref()))
    assert name in str(refused.value)
    assert table.storage.objects == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize(
    ("folder", "there"),
    [
        (f"{ROOT}/own", "i-2"),
        (f"{ROOT}/own", "I-1"),
        (f"{ROOT}/own", "data-1.parquet"),
        (f"{HOME}/index", "i-2"),
        (f"{HOME}/bucket-0", "data-0.parquet"),
    ],
)
def test_a_file_that_has_another_name_than_its_entry_is_not_its_file(
    kind: str, type_: str, folder: str, there: str
) -> None:
    """Wherever it lies: below the table's own external root, or in the table."""
    table = _table(kind, f"file:{folder}", "i-1", type_, there=there)
    for name in ("i-1", there):
        table.storage.objects.setdefault(f"{folder}/{name}", b"of somebody")
    before = dict(table.storage.objects)
    with pytest.raises(UnsupportedTable, match="index file i-1 has another name") as refused:
        KINDS[kind](_opened(table.storage, _ref()))
    assert f"at file:{folder}/{there}" in str(refused.value)
    assert table.storage.objects == before


def test_an_entry_under_another_name_is_refused() -> None:
    table = _table("snapshots", None, "i-1")
    table.storage.delete(paths.manifest_path(HOME, "index-manifest-1"))
    table.write_index_manifest(
        "index-manifest-1", ["../index/i-1"], "btree", level=5, folder=f"file:{ROOT}"
    )
    before = dict(table.storage.objects)
    with pytest.raises(CompactordError, match="is not a plain file name"):
        _snapshots(_opened(table.storage, _ref()))
    assert table.storage.objects == before


def test_its_own_index_files_go_wherever_its_options_say() -> None:
    table = _table("snapshots", f"file:{ROOT}/deep/er", "i-1")
    table.storage.write_new(f"{ROOT}/deep/er/i-1", b"index")
    _snapshots(_opened(table.storage, _ref()))
    assert f"{ROOT}/deep/er/i-1" not in table.storage.objects
    assert OTHERS.items() <= table.storage.objects.items()


# Which folder of a table is a link, and what would delete files through it.
LINKS: list[tuple[str, Callable[[OpenTable], object]]] = [
    ("bucket-0", _snapshots),
    ("index", _snapshots),
    ("manifest", _snapshots),
    ("snapshot", _snapshots),
    ("changelog", _snapshots),
    ("tag", _tags),
    ("consumer", lambda opened: expire_consumers(opened, 1 << 50)),
    ("manifest", lambda opened: _sweep(opened)),
    ("index", lambda opened: _sweep(opened)),
]


def _sweep(opened: OpenTable) -> None:
    folders = TableFolders(location=opened.ref.location, partition_depth=0)
    search = OrphanSearch(opened.storage, folders, builders.later_rule())
    list(search.removed(search.find()))


@pytest.mark.parametrize(("link", "expire"), LINKS)
def test_nothing_goes_that_a_link_leads_to(
    tmp_path: Path, link: str, expire: Callable[[OpenTable], object]
) -> None:
    """The table itself may be behind one."""
    table = _table("tags" if link == "tag" else "snapshots", None, "i-1")
    left = f"{FIRST.unique_name()}-0"
    for name in (f"manifest/manifest-{left}", f"index/index-{left}", "index/i-1"):
        table.storage.overwrite(f"{HOME}/{name}", b"left over")
    table.storage.overwrite(builders.consumer_path(HOME, "idle"), b'{"nextSnapshot": 5}')
    if link == "changelog":
        # One of a snapshot that had the id before.
        data = table.storage.read(paths.snapshot_path(HOME, 2))
        table.storage.overwrite(paths.changelog_path(HOME, 1), data)
    local, real = LocalStorage(), tmp_path / "real" / "t"
    for path, data in table.storage.objects.items():
        if path.startswith(f"{HOME}/"):
            local.write_new(f"{real}{path.removeprefix(HOME)}", data)
    elsewhere, home = tmp_path / "elsewhere", tmp_path / "t"
    home.symlink_to(real)
    (real / link).rename(elsewhere)
    (real / link).symlink_to(elsewhere)
    before = _files(tmp_path)
    options = {"consumer.expiration-time": "1 d"}
    if link == "changelog":
        options["changelog.num-retained.min"] = "100"
    opened = _opened(local, _ref(str(home)), **options)
    with pytest.raises(UnsupportedTable, match="is behind a link, at"):
        expire(opened)
    assert _files(tmp_path) == before
    # Behind the link to the table itself they go.
    (real / link).unlink()
    elsewhere.rename(real / link)
    before = _files(tmp_path)
    expire(opened)
    assert _files(tmp_path) != before


def _files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in found}


def test_a_link_within_the_table_leads_to_none_of_its_metadata(tmp_path: Path) -> None:
    table = _table("snapshots", None, "schema-0")
    local, home = LocalStorage(), tmp_path / "t"
    for path, data in table.storage.objects.items():
        if path.startswith(f"{HOME}/"):
            local.write_new(f"{home}{path.removeprefix(HOME)}", data)
    (home / "index").symlink_to(home / "schema")
    with pytest.raises(UnsupportedTable, match="among the table's metadata"):
        _snapshots(_opened(local, _ref(str(home))))
    assert (home / "schema" / "schema-0").exists()
