"""Metadata names files by names, never by paths: what is named is read, rewritten or deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compactord.errors import FormatError
from compactord.paimon import paths
from compactord.paimon.data_file import EMPTY_ROW
from compactord.paimon.manifest.index_manifest import read_index_entries
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    encode_manifest_list,
    read_entries,
    read_manifest_list,
)
from compactord.paimon.manifest.schemas import INDEX_MANIFEST
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    branch_names,
    parse_snapshot,
    read_changelogs,
    read_consumers,
    read_tags,
    snapshot_json,
)
from compactord.state.loading import load_live_files
from tests.containers import encode_container
from tests.unit.paimon.table_builder import CODEC, History, MemoryStorage, data_file, entry

ROOT = "/warehouse/db.db/t"
LONG = "data-01234567-89ab-cdef-0123-456789abcdef-0.parquet"
# What would lead elsewhere, at every place within a name, and what is no name anywhere.
PATHS = ["", ".", "..", "../../../x", "/etc/x", "..\\x", "\\", f"{LONG[:-1]}/", f"/{LONG}"]
PATHS += [f"{LONG[:n]}{separator}{LONG[n:]}" for n in (7, 8, 15, 40) for separator in "/\\"]
PATHS += [f"ü{LONG}/..", "ü/", "\u672c\\"]
CONTROLS = ["x\0y", "x\ny", "\x7f"]
GOOD = [
    LONG,
    "a",
    "ab",
    "...",
    "..x",
    "ü",
    "本" * 9,
    "a b",
    "data-1.0~x%2F.parquet",
    "a:b",
    "x" * 99,
]
SNAPSHOT = Snapshot(
    id=7,
    schema_id=2,
    base_manifest_list="base",
    delta_manifest_list="delta",
    changelog_manifest_list="changelog",
    index_manifest="index",
    statistics="statistics",
    commit_user="user",
    commit_identifier=1,
    commit_kind=CommitKind.APPEND,
    time_ms=1,
    total_record_count=10,
    delta_record_count=5,
)


def _said(name: str) -> str:
    return f"{name!r} is not a plain file name"


def _table(names: list[str]) -> History:
    """A manifest for each name, which holds a plain file before and behind it."""
    history = History()
    for number, name in enumerate(names):
        before, behind = f"{number}-before.parquet", f"{number}-behind.parquet"
        history.commit([entry(data_file(one)) for one in (before, name, behind)])
    return history


def _manifests(history: History) -> tuple[ManifestFile, ...]:
    assert history.snapshot is not None
    return history._manifests(history.snapshot)


def _live_names(history: History, cursors: int) -> set[str]:
    live = load_live_files(history.storage, ROOT, _manifests(history), min_cursors=cursors)
    return {file.file_name for bucket in live.bucket_ids() for file in live.files_in(bucket)}


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
@pytest.mark.parametrize("name", PATHS)
def test_a_live_file_is_named_within_its_bucket(name: str, cursors: int) -> None:
    history = _table(["first.parquet", name, "last.parquet"])
    manifests = _manifests(history)
    with pytest.raises(FormatError) as caught:
        load_live_files(history.storage, ROOT, manifests, min_cursors=cursors)
    assert _said(name) in str(caught.value)
    path = paths.manifest_path(ROOT, manifests[1].file_name)
    assert caught.value.path == path
    with pytest.raises(FormatError, match="is not a plain file name") as caught:
        read_entries(history.storage, ROOT, manifests[1])
    assert caught.value.path == path


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
def test_every_other_name_is_taken(cursors: int) -> None:
    history = _table(GOOD)
    assert _live_names(history, cursors) > set(GOOD)


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
@pytest.mark.parametrize("name", CONTROLS)
def test_a_file_whose_name_no_store_takes_is_refused_when_it_is_looked_at(
    name: str, cursors: int
) -> None:
    history = _table([name])
    with pytest.raises(FormatError, match="is not a plain file name") as caught:
        _live_names(history, cursors)
    assert _said(name) in str(caught.value)


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
@pytest.mark.parametrize("name", [*PATHS, *CONTROLS])
def test_an_extra_file_is_named_within_the_bucket_of_its_file(name: str, cursors: int) -> None:
    history = History()
    file = data_file("data-0.parquet", extra_files=("data-0.parquet.index", name))
    history.commit([entry(file)])
    manifests = _manifests(history)
    with pytest.raises(FormatError, match="is not a plain file name") as caught:
        read_entries(history.storage, ROOT, manifests[0])
    assert _said(name) in str(caught.value)
    with pytest.raises(FormatError, match="is not a plain file name"):
        _live_names(history, cursors)


@pytest.mark.parametrize("name", [*PATHS, *CONTROLS])
def test_a_manifest_is_named_within_its_folder(name: str) -> None:
    history = _table([LONG])
    (manifest,) = _manifests(history)
    data = encode_manifest_list([manifest, replace(manifest, file_name=name)], CODEC)
    with pytest.raises(FormatError) as caught:
        read_manifest_list(MemoryStorage({"/m/list": data}), "/m/list")
    assert str(caught.value) == f"{_said(name)}: /m/list"


@pytest.mark.parametrize("name", [*PATHS, *CONTROLS])
def test_an_index_file_is_named_within_its_folder(name: str) -> None:
    record = {
        "_VERSION": 1,
        "_KIND": 0,
        "_PARTITION": EMPTY_ROW,
        "_BUCKET": 3,
        "_INDEX_TYPE": "HASH",
        "_FILE_NAME": name,
        "_FILE_SIZE": 12,
        "_ROW_COUNT": 3,
    }
    path = paths.manifest_path(ROOT, "i")
    storage = MemoryStorage({path: encode_container(INDEX_MANIFEST, [record], CODEC)})
    with pytest.raises(FormatError, match="is not a plain file name") as caught:
        read_index_entries(storage, ROOT, "i")
    assert (caught.value.path, _said(name) in str(caught.value)) == (path, True)


@pytest.mark.parametrize("name", [*PATHS, *CONTROLS])
@pytest.mark.parametrize(
    "key",
    [
        "base_manifest_list",
        "delta_manifest_list",
        "changelog_manifest_list",
        "index_manifest",
        "statistics",
    ],
)
def test_a_snapshot_names_files_within_their_folders(key: str, name: str) -> None:
    path = f"{ROOT}/snapshot/snapshot-7"
    assert parse_snapshot(snapshot_json(SNAPSHOT), path) == SNAPSHOT
    damaged = replace(SNAPSHOT, **{key: name})  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="is not a plain file name") as caught:
        parse_snapshot(snapshot_json(damaged), path)
    assert (caught.value.path, _said(name) in str(caught.value)) == (path, True)


@pytest.mark.parametrize(
    ("path", "read"),
    [
        (paths.tag_path(ROOT, "v1"), read_tags),
        (f"{paths.changelog_folder(ROOT)}/changelog-7", read_changelogs),
    ],
    ids=["tag", "changelog"],
)
def test_tags_and_changelogs_are_read_as_snapshots_are(
    path: str, read: Callable[[MemoryStorage, str], object]
) -> None:
    damaged = snapshot_json(replace(SNAPSHOT, base_manifest_list="../../x"))
    with pytest.raises(FormatError, match="is not a plain file name"):
        read(MemoryStorage({path: damaged}), ROOT)


def test_a_branch_tag_or_consumer_called_like_the_folder_above_is_a_name_behind_a_prefix() -> None:
    storage = MemoryStorage(
        {
            f"{ROOT}/branch/branch-../snapshot/snapshot-7": b"",
            f"{ROOT}/tag/tag-..": snapshot_json(SNAPSHOT),
            f"{ROOT}/consumer/consumer-..": b'{"nextSnapshot": 1}',
        }
    )
    assert branch_names(storage, ROOT) == ("..",)
    assert paths.branch_root(ROOT, "..") == f"{ROOT}/branch/branch-.."
    assert read_tags(storage, ROOT) == {"..": SNAPSHOT}
    assert read_consumers(storage, ROOT) == {"..": 1}
