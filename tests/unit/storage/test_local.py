from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest

from compactord.errors import (
    AccessDenied,
    ObjectNotFound,
    ReadOnlyFileSystem,
    StorageError,
    StoreFull,
    TransientStorageError,
)
from compactord.storage.base import Creation
from compactord.storage.local import LocalStorage, _require_absent


def _race(folder: str, name: str, start: Any, results: Any) -> None:
    storage = LocalStorage()
    start.wait()
    for n in range(200):
        data = f"{name}-{n}".encode() * 100
        temporary = f"{folder}/.tmp-{name}-{n}"
        if storage.create_if_absent(f"{folder}/target-{n}", data, temporary=temporary) is (
            Creation.CREATED
        ):
            results.put((n, name))
    results.put(None)


def test_of_racing_creators_exactly_one_wins_and_its_bytes_stay(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    names = ("a", "b", "c")
    racers = [
        context.Process(target=_race, args=(str(tmp_path), name, start, results)) for name in names
    ]
    for racer in racers:
        racer.start()
    start.set()
    winners: dict[int, list[str]] = {}
    for _ in names:
        while (found := results.get(timeout=180)) is not None:
            winners.setdefault(found[0], []).append(found[1])
    for racer in racers:
        racer.join()
    assert sorted(winners) == list(range(200))
    for n, names_won in winners.items():
        (name,) = names_won
        assert (tmp_path / f"target-{n}").read_bytes() == f"{name}-{n}".encode() * 100
    assert not list(tmp_path.glob(".tmp*"))


def test_a_copy_that_keeps_times_counts_as_changed_now(tmp_path: Path) -> None:
    storage = LocalStorage()
    path = tmp_path / "data.parquet"
    path.write_bytes(b"x")
    before = storage.status(str(path))
    assert before is not None
    os.utime(path, (0, 0))
    after = storage.status(str(path))
    assert after is not None
    assert after.changed_ms >= before.changed_ms > 0


def test_a_failed_output_is_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "bucket-0" / "data.parquet")
    with pytest.raises(ZeroDivisionError), LocalStorage().open_output(path) as stream:
        stream.write(bytes(1 // 0))
    assert not os.path.exists(path)


def test_an_output_never_replaces_a_file(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    path.write_bytes(b"live")
    with (
        pytest.raises(StorageError, match="File exists"),
        LocalStorage().open_output(str(path)) as s,
    ):
        s.write(b"x")
    with pytest.raises(StorageError, match="File exists"):
        LocalStorage().write_new(str(path), b"x")
    assert path.read_bytes() == b"live"


def test_a_hint_that_cannot_be_replaced_stays_whole_and_nothing_stays_beside_it(
    tmp_path: Path,
) -> None:
    """A disk that is full, by the limit of a file's size: what is truncated first is empty then."""
    hint = tmp_path / "LATEST"
    hint.write_bytes(b"17")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(StoreFull, match="overwrite failed"):
            LocalStorage().overwrite(str(hint), b"18")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert hint.read_bytes() == b"17"
    LocalStorage().overwrite(str(hint), b"18")
    assert hint.read_bytes() == b"18"
    assert os.listdir(tmp_path) == ["LATEST"]


@pytest.mark.parametrize(("uid", "mode"), [(os.geteuid(), 0o664), (4321, 0o640)])
def test_a_hint_keeps_its_owner_and_its_rights(uid: int, mode: int, tmp_path: Path) -> None:
    """Writers of other users overwrite it as well."""
    if uid != os.geteuid() != 0:
        pytest.skip("only root gives a file another owner")
    hint = tmp_path / "LATEST"
    hint.write_bytes(b"17")
    os.chown(hint, uid, -1)
    hint.chmod(mode)
    LocalStorage().overwrite(str(hint), b"18")
    found = hint.stat()
    assert (hint.read_bytes(), found.st_uid, found.st_mode & 0o777) == (b"18", uid, mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as another user")
@pytest.mark.parametrize(("mode", "found"), [(0o666, b"9"), (0o644, b"100")])
def test_a_hint_whose_owner_could_not_be_kept_is_written_in_place_or_not_at_all(
    mode: int, found: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        hint = Path(folder, "LATEST")
        hint.write_bytes(b"100")
        hint.chmod(mode)
        os.seteuid(4321)
        try:
            with contextlib.nullcontext() if found == b"9" else pytest.raises(AccessDenied):
                LocalStorage().overwrite(str(hint), b"9")
        finally:
            os.seteuid(0)
        assert (hint.read_bytes(), hint.stat().st_uid) == (found, 0)
        assert os.listdir(folder) == ["LATEST"]


def test_errors_name_path_and_action(tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    with pytest.raises(ObjectNotFound, match=missing):
        LocalStorage().read(missing)
    assert LocalStorage().status(missing) is None
    assert list(LocalStorage().list(missing)) == []
    LocalStorage().delete(missing)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EROFS, ReadOnlyFileSystem),
        (errno.EACCES, AccessDenied),
        (errno.ENOSPC, StoreFull),
        (errno.EIO, TransientStorageError),
        (errno.ENAMETOOLONG, StorageError),
    ],
)
def test_an_error_of_the_system_while_writing_has_its_kind(
    number: int, kind: type[StorageError], tmp_path: Path
) -> None:
    path = str(tmp_path / "x")
    with pytest.raises(kind) as caught, LocalStorage().open_output(path):
        raise OSError(number, os.strerror(number))
    assert caught.value.path == path
    assert not os.path.exists(path)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_neither_waited_for_nor_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot-1"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    for read in (LocalStorage().read, LocalStorage().open_input):
        with pytest.raises(StorageError, match=r"not a regular file\): .*snapshot-1"):
            read(str(path))


def test_a_file_that_does_not_fit_into_memory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "snapshot-1"
    with path.open("wb") as file:
        file.truncate(1 << 42)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 41, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"do not fit into memory\): .*snapshot-1"):
            LocalStorage().read(str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_listing_tells_folders_from_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    (tmp_path / "d").mkdir()
    found = {status.name: status for status in LocalStorage().list(str(tmp_path))}
    assert (found["f"].is_folder, found["f"].size_bytes) == (False, 3)
    assert found["d"].is_folder
    assert list(LocalStorage().list_some(str(tmp_path), "f".__eq__)) == [found["f"]]


def test_only_an_empty_folder_is_removed(tmp_path: Path) -> None:
    storage, folder = LocalStorage(), tmp_path / "bucket-0"
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    assert not storage.remove_empty_folder(str(folder))
    (folder / "file").unlink()
    assert storage.remove_empty_folder(str(folder))
    assert not folder.exists()
    assert storage.remove_empty_folder(str(folder)), "gone is gone"


def test_folders_that_may_be_written_are_told_apart_from_those_that_may_not(tmp_path: Path) -> None:
    storage = LocalStorage()
    assert storage.may_write(str(tmp_path)) is True
    assert storage.may_write(str(tmp_path / "none")) is False
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        assert storage.may_write(str(tmp_path)) is False


def test_a_folder_that_was_not_found_is_gone_only_if_the_folder_above_it_lacks_it(
    tmp_path: Path,
) -> None:
    """No system here answers ENOENT falsely, so what follows such an answer is called by itself."""
    (tmp_path / "tag").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(OSError, match="lists it") as raised:
        _require_absent(str(tmp_path / "tag"))
    assert raised.value.errno == errno.ESTALE
    for name in ("link", "branch", "branch/deeper"):
        _require_absent(str(tmp_path / name))
        assert list(LocalStorage().list(str(tmp_path / name))) == []
