from __future__ import annotations

import itertools
import threading

import pytest

from compactord.commit.metadata import MetadataFiles
from compactord.errors import StorageError, TransientStorageError
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import BucketId
from compactord.paimon.manifest.index_manifest import VectorsFile
from compactord.storage.base import Storage
from tests.builders import FIRST
from tests.storages import Fault, FaultyStorage, MemoryStorage, RequestCounter
from tests.unit.paimon.table_builder import data_file, entry

LOCATION = "/w/db.db/t"
ENTRY = entry(data_file("a"))


def _files(storage: object, *, unique_name: str | None = None, **more: object) -> MetadataFiles:
    return MetadataFiles(
        storage,  # type: ignore[arg-type]
        LOCATION,
        unique_name=unique_name or FIRST.unique_name(),
        codec=codec_of("zstd", 1),
        manifest_target_size=1 << 20,
        partition_types=(),
        **more,  # type: ignore[arg-type]
    )


def _names(storage: MemoryStorage) -> set[str]:
    return {path.rsplit("/", 1)[1] for path in storage.objects}


def test_files_are_written_into_their_folders_and_taken_back_again() -> None:
    storage = MemoryStorage()
    files = _files(storage, unique_name="u")
    (manifest,) = files.write_manifests([ENTRY])
    name, size = files.write_list([manifest])
    index = files.write_index_file(b"\x01")
    vectors = VectorsFile(BucketId(b"", 0), index, 1, ())
    files.write_index_manifest(None, without=(), added=[vectors])
    files.wait()
    assert set(storage.objects) == {
        f"{LOCATION}/manifest/manifest-u-0",
        f"{LOCATION}/manifest/manifest-list-u-1",
        f"{LOCATION}/index/index-u-2",
        f"{LOCATION}/manifest/index-manifest-u-3",
    }
    assert (name, size) == ("manifest-list-u-1", len(storage.read(f"{LOCATION}/manifest/{name}")))
    files.delete_written()
    assert storage.objects == {}


def test_only_some_or_all_but_some_can_be_taken_back() -> None:
    storage = MemoryStorage()
    files = _files(storage)
    first, second, third = (files.write_list([])[0] for _ in range(3))
    files.delete_written(only=[second])
    assert _names(storage) == {first, third}
    files.delete_written(keep=[first])
    assert _names(storage) == {first}
    files.delete_written()
    assert _names(storage) == set()


def test_what_was_let_go_stays() -> None:
    storage = MemoryStorage()
    files = _files(storage)
    name, _ = files.write_list([])
    files.wait()
    files.keep_written()
    files.delete_written()
    assert _names(storage) == {name}


def test_what_cannot_be_deleted_does_not_stop_the_rest() -> None:
    storage = MemoryStorage()
    faulty = FaultyStorage(
        storage,
        Fault(at=1, error=TransientStorageError, concerns=lambda call: call.method == "delete"),
    )
    files = _files(faulty)
    first, _ = files.write_list([])
    files.write_list([])
    files.delete_written()
    assert _names(storage) == {first}


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_write_in_doubt_is_taken_back(after_effect: bool) -> None:
    storage = MemoryStorage()
    fault = Fault(
        at=1,
        error=TransientStorageError,
        after_effect=after_effect,
        concerns=lambda call: call.method == "write_new",
    )
    files = _files(FaultyStorage(storage, fault))
    files.write_list([])
    with pytest.raises(TransientStorageError):
        files.wait()
    assert len(storage.objects) == int(after_effect)
    files.delete_written()
    assert storage.objects == {}


def test_a_file_that_was_there_before_is_never_taken_back() -> None:
    storage = MemoryStorage()
    files = _files(storage, unique_name="same")
    files.write_list([])
    files.wait()
    (path,) = storage.objects
    rival = _files(storage, unique_name="same")
    rival.write_list([])
    with pytest.raises(StorageError):
        rival.wait()
    rival.delete_written()
    assert set(storage.objects) == {path}


def test_commits_that_share_a_name_and_numbers_never_share_a_name() -> None:
    storage = MemoryStorage()
    numbers = itertools.count()
    for _ in range(3):
        files = _files(storage, unique_name="u", numbers=numbers)
        files.write_list(files.write_manifests([ENTRY]))
        files.wait()
    assert len(storage.objects) == 6


class _Meeting(RequestCounter):
    """Lets a file be written once another one is."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._both = threading.Barrier(2, timeout=180)

    def write_new(self, path: str, data: bytes) -> None:
        self._both.wait()
        super().write_new(path, data)


def test_files_of_an_object_store_are_written_at_once() -> None:
    storage = _Meeting(MemoryStorage())
    files = _files(storage)
    files.write_list(files.write_manifests([ENTRY]))
    files.wait()
    assert len(storage.requests) == 2


@pytest.mark.parametrize("spared", [{"only": ["another"]}, {"keep": ["another"]}])
def test_a_file_that_failed_is_heard_of_when_others_are_taken_back(
    spared: dict[str, list[str]],
) -> None:
    fault = Fault(
        at=1, error=TransientStorageError, concerns=lambda call: call.method == "write_new"
    )
    storage = MemoryStorage()
    files = _files(FaultyStorage(storage, fault))
    files.write_list([])
    with pytest.raises(TransientStorageError):
        files.delete_written(**spared)  # type: ignore[arg-type]
    files.delete_written()
    assert storage.objects == {}
