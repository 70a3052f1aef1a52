"""Files are found under the names that manifests record, or they are not made."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compactord.errors import StorageError
from compactord.model import Subcompaction
from compactord.rewrite.subcompaction import rewrite
from compactord.storage.base import ObjectStatus
from compactord.storage.local import LocalStorage
from tests.unit.rewrite.builders import (
    KEY_VALUE,
    concat_subcompaction,
    merge_subcompaction,
    row,
    write_append,
    write_run,
)


def _merge(folder: Path, prefix: str, storage: LocalStorage | None = None) -> Subcompaction:
    files = [
        write_run(folder / f"{number}.parquet", KEY_VALUE, ["k"], [row(1, "a", number)])
        for number in range(2)
    ]
    runs = [[file] for file in files]
    return merge_subcompaction(folder, KEY_VALUE, ["k"], runs, storage=storage, file_prefix=prefix)


def _concat(folder: Path, prefix: str, storage: LocalStorage | None = None) -> Subcompaction:
    files = [
        write_append(folder / f"{number}.parquet", KEY_VALUE, [{"k": 1, "v": "a"}])
        for number in range(2)
    ]
    return concat_subcompaction(folder, KEY_VALUE, files, storage=storage, file_prefix=prefix)


def _files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("make", [_merge, _concat])
@pytest.mark.parametrize("prefix", ["x/y-", "../y-", "x/"])
def test_a_file_in_another_folder_is_an_error_and_removed(make, prefix, tmp_path):
    subcompaction = make(tmp_path, prefix)
    before = _files(tmp_path)
    with pytest.raises(StorageError, match=r"the file has the name .*, not "):
        rewrite(subcompaction)
    assert _files(tmp_path) == before


@dataclass(frozen=True)
class _RenamingStorage(LocalStorage):
    """Keeps objects under names in lower case."""

    def status(self, path: str) -> ObjectStatus | None:
        found = super().status(path)
        return found and replace(found, name=found.name.lower())


@pytest.mark.parametrize("make", [_merge, _concat])
def test_a_store_that_gives_another_name_is_an_error(make, tmp_path):
    assert rewrite(make(tmp_path, "data-", _RenamingStorage())).after
    with pytest.raises(StorageError, match=r"the file has the name data-.*, not DATA-"):
        rewrite(make(tmp_path, "DATA-", _RenamingStorage()))
