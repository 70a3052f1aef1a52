"""What every store has to do, whichever it is (`compactord/storage/base.py`)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.errors import ObjectNotFound, StorageError, TransientStorageError
from compactord.storage.base import Creation, ObjectStatus
from tests.store_servers import StoreServer
from tests.stores.racing import race_of_processes, race_of_threads
from tests.stores.subjects import PARAMETERS, Subject, subject

# More than a page of any store's listing; HDFS is told to have smaller ones.
MANY, MANY_IN_HDFS = 1100, 110
# More than two parts of an upload.
LARGE = 20 << 20
ODD_NAMES = ("a b", "50%", "1+1", "x%20y", "k=v&w", "é漢", "~'()*!", "a:b", "#?;,@$", "[x]{y}|^`")


@pytest.fixture(params=PARAMETERS)
def store(
    request: pytest.FixtureRequest, started: Callable[[str], StoreServer], tmp_path: Path
) -> Subject:
    return subject(request.param, started, uuid.uuid4().hex, tmp_path)


def put(store: Subject, name: str, data: bytes = b"data") -> str:
    path = f"{store.folder}/{name}"
    store.storage.write_new(path, data)
    return path


def write(stream: pa.NativeFile, size: int) -> None:
    for start in range(0, size, 1 << 20):
        stream.write(bytes(min(size - start, 1 << 20)))


def listed(store: Subject, folder: str) -> dict[str, bool]:
    """Names below a folder, and whether each is a folder."""
    found = list(store.storage.list(folder))
    assert len(found) == len({status.name for status in found})
    return {status.name: status.is_folder for status in found}


def test_what_is_written_is_read_whatever_its_name(store: Subject) -> None:
    # HDFS refuses names with a colon, as Hadoop's paths do.
    names = [name for name in ODD_NAMES if store.name != "hdfs" or ":" not in name]
    for name in names:
        path = put(store, f"{name}/{name}.parquet", name.encode())
        assert store.storage.read(path) == name.encode()
        found = store.storage.status(path)
        assert found is not None
        assert (found.name, found.size_bytes) == (f"{name}.parquet", len(name.encode()))
        assert listed(store, f"{store.folder}/{name}") == {f"{name}.parquet": False}
    assert listed(store, store.folder) == dict.fromkeys(names, True)
    for name in names:
        store.storage.delete(f"{store.folder}/{name}/{name}.parquet")
        assert listed(store, f"{store.folder}/{name}") == {}


def test_an_object_that_is_missing_is_told_from_a_failure(store: Subject) -> None:
    path = f"{store.folder}/none"
    calls: tuple[Callable[[], object], ...] = (
        lambda: store.storage.read(path),
        lambda: store.storage.read_range(path, 0, 1),
        lambda: store.storage.open_input(path),
    )
    # fake-gcs-server says "Not Found", as a gateway might; GCS itself says "No such object".
    expected = TransientStorageError if store.name == "fake_gcs" else ObjectNotFound
    for call in calls[:1] if store.name == "fake_gcs" else calls:
        with pytest.raises(expected) as missing:
            call()
        assert missing.value.path == path
        assert path in str(missing.value)
    assert store.storage.status(path) is None
    assert not store.storage.folder_exists(path)
    assert list(store.storage.list(path)) == []
    store.storage.delete(path)


def test_ranges_are_exact(store: Subject) -> None:
    data = bytes(range(256)) * 400
    path = put(store, "ranges", data)
    for start, size in ((0, 1), (0, len(data)), (255, 2), (len(data) - 3, 3), (70_000, 30_000)):
        assert store.storage.read_range(path, start, size) == data[start : start + size]
    for start, size in ((len(data) - 3, 4), (0, len(data) + 1), (len(data), 1), (1 << 40, 8)):
        with pytest.raises(StorageError, match="ranges"):
            store.storage.read_range(path, start, size)
    starts = range(0, len(data) - 100, 997)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda start: store.storage.read_range(path, start, 100), starts)
        assert all(piece == data[s : s + 100] for s, piece in zip(starts, found, strict=True))


def test_a_status_says_size_and_time(store: Subject) -> None:
    before_ms = time.time() * 1000
    path = put(store, "folder/object", b"12345")
    expected = store.storage.status(path)
    assert expected is not None
    assert (expected.name, expected.is_folder, expected.size_bytes) == ("object", False, 5)
    (found,) = store.storage.list(f"{store.folder}/folder")
    assert (found.name, found.is_folder, found.size_bytes) == ("object", False, 5)
    if store.name != "memory":
        # Some stores know whole seconds only.
        for status in (expected, found):
            assert before_ms - 2000 < status.changed_ms < time.time() * 1000 + 2000


def test_a_listing_has_the_direct_children(store: Subject) -> None:
    for name in ("t/a", "t/b/c/d", "t/b/e", "t2/f", "t.g"):
        put(store, name)
    assert listed(store, f"{store.folder}/t") == {"a": False, "b": True}
    assert listed(store, f"{store.folder}/t/b") == {"c": True, "e": False}
    assert listed(store, store.folder) == {"t": True, "t2": True, "t.g": False}
    assert store.storage.folder_exists(f"{store.folder}/t/b/c")
    assert not store.storage.folder_exists(f"{store.folder}/t/b/x")


def test_a_folder_may_have_more_objects_than_a_page(store: Subject) -> None:
    names = {f"file-{n}" for n in range(MANY_IN_HDFS if store.name == "hdfs" else MANY)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: put(store, f"many/{name}"), names))
        list(pool.map(lambda number: put(store, f"many/folder-{number}/x"), range(30)))
    found = listed(store, f"{store.folder}/many")
    assert {name for name, is_folder in found.items() if not is_folder} == names
    assert sum(found.values()) == 30
    listing = store.storage.list(f"{store.folder}/many")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(next, listing).result()
    assert {first.name, *(status.name for status in listing)} == found.keys()
    # A listing that is given up leaves nothing behind.
    assert isinstance(next(iter(store.storage.list(f"{store.folder}/many"))), ObjectStatus)


def test_a_name_is_created_once(store: Subject) -> None:
    path, temporary = f"{store.folder}/snapshot/snapshot-1", f"{store.folder}/snapshot/.tmp"
    create = store.storage.create_if_absent
    assert create(path, b"mine", temporary=temporary) is Creation.CREATED
    assert create(path, b"another's", temporary=temporary) is Creation.EXISTS
    # fsspec repeats requests itself: what has our content is taken for ours.
    again = Creation.CREATED if store.name == "fsspec" else Creation.EXISTS
    assert create(path, b"mine", temporary=temporary) is again
    assert store.storage.read(path) == b"mine"
    assert listed(store, f"{store.folder}/snapshot") == {"snapshot-1": False}


def test_of_eight_that_create_one_name_exactly_one_wins(store: Subject) -> None:
    if store.spec is None:
        winners = race_of_threads(store.storage, store.folder)
    else:
        winners = race_of_processes(store.spec, store.folder)
    assert [len(each) for each in winners] == [1] * 20
    for number, (winner,) in enumerate(winners):
        found = store.storage.read(f"{store.folder}/race-{number}")
        assert found == f"{winner} ".encode() * 500


def test_a_new_object_does_not_replace_another(store: Subject) -> None:
    path = put(store, "manifest", b"first")
    with pytest.raises(StorageError, match="exists"):
        store.storage.write_new(path, b"second")
    assert store.storage.read(path) == b"first"
    store.storage.overwrite(path, b"third, longer")
    assert store.storage.read(path) == b"third, longer"


@pytest.mark.parametrize("size", [0, 1, LARGE])
def test_an_output_is_there_once_it_is_whole(store: Subject, size: int) -> None:
    path, folder = f"{store.folder}/out/data.parquet", f"{store.folder}/out"
    piece = bytes(range(251)) * 4001
    data = (piece * (size // len(piece) + 1))[:size]
    with store.storage.open_output(path) as stream:
        for start in range(0, size, len(piece)):
            stream.write(data[start : start + len(piece)])
        if not store.storage.capabilities.has_folders and store.name != "memory":
            assert listed(store, folder) == {}
    assert listed(store, folder) == {"data.parquet": False}
    found = store.storage.status(path)
    assert found is not None
    assert found.size_bytes == size
    assert store.storage.read(path) == data


@pytest.mark.parametrize("size", [1, LARGE])
def test_an_output_that_fails_is_not_there(store: Subject, size: int) -> None:
    path = f"{store.folder}/out/data.parquet"

    def fail() -> None:
        with store.storage.open_output(path) as stream:
            write(stream, size)
            raise KeyError("of the writer")

    with pytest.raises(KeyError, match="of the writer"):
        fail()
    assert store.storage.status(path) is None
    assert listed(store, f"{store.folder}/out") == {}


@pytest.mark.parametrize("size", [3, LARGE])
def test_an_output_does_not_replace_another(store: Subject, size: int) -> None:
    path = put(store, "out", b"first")

    def replace() -> None:
        with store.storage.open_output(path) as stream:
            write(stream, size)

    with pytest.raises(StorageError) as refused:
        replace()
    assert refused.value.path == path
    assert store.storage.read(path) == b"first"


def test_arrow_reads_and_writes_through_streams(store: Subject) -> None:
    table = pa.table({"k": range(200_000), "v": [f"value {n % 977}" for n in range(200_000)]})
    path = f"{store.folder}/t.parquet"
    with store.storage.open_output(path) as stream:
        pq.write_table(table, stream, row_group_size=30_000)
    status = store.storage.status(path)
    assert status is not None
    for size_bytes in (None, status.size_bytes):
        with store.storage.open_input(path, size_bytes) as stream:
            file = pq.ParquetFile(stream)
            assert file.read_row_groups([1, 5], columns=["v"]).num_rows == 60_000
            assert file.read() == table
    with store.storage.open_input(path) as stream:
        assert stream.size() == status.size_bytes
        stream.seek(-4, 2)
        assert stream.read(100) == b"PAR1"
        assert stream.read(1) == b""
        stream.seek(0)
        assert stream.read(4) == b"PAR1"


def test_a_folder_that_is_empty_is_removed(store: Subject) -> None:
    path = put(store, "p=1/bucket-0/file")
    store.storage.delete(path)
    for folder in (f"{store.folder}/p=1/bucket-0", f"{store.folder}/p=1"):
        is_gone = store.storage.remove_empty_folder(folder)
        assert is_gone is not store.storage.folder_exists(folder)
        # fsspec's folders stay, as some implementations take a folder for its bucket.
        assert is_gone is (store.name != "fsspec")


def test_it_says_whether_it_may_write(store: Subject) -> None:
    put(store, "any")
    assert store.storage.may_write(store.folder) in (True, None)
