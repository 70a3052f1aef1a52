"""Stores through fsspec: which may publish snapshots, how they are opened, what errors say."""

from __future__ import annotations

import errno
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.catalog.trouble import check_catalogs
from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
    UnsafeStore,
    UsageError,
)
from compactord.storage.base import Creation
from compactord.storage.calls import Breaker, RetryPolicy
from compactord.storage.fsspec import (
    RACERS,
    Create,
    FsspecStorage,
    Opened,
    connected,
    named_errors,
    prove_create_if_absent,
)
from compactord.storage.open import STORES
from compactord.text import LateValues
from tests.builders import VirtualClock
from tests.fsspec_files import Exclusive, fsspec_at
from tests.storages import MemoryStorage


def opened(scheme: str, folder: Path) -> tuple[FsspecStorage, str]:
    spec, path = fsspec_at(f"{scheme}://{folder}/wh", {})
    return spec.open(), path


def test_a_store_that_creates_a_name_once_may_publish(tmp_path: Path) -> None:
    storage, path = opened("exclusive", tmp_path)
    outcomes = [
        storage.create_if_absent(f"{path}/snapshot-1", data, temporary="")
        for data in (b"mine", b"another's")
    ]
    assert outcomes == [Creation.CREATED, Creation.EXISTS]
    assert [status.name for status in storage.list(path)] == ["snapshot-1"]


class _Full(Exclusive):
    """Its disk is full once a hint is written: half of what is written gets there."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if "LATEST" in path and value == b"18":
            Path(path).write_bytes(value[:1])
            raise OSError(errno.ENOSPC, "no space left")
        super().pipe_file(path, value, mode)


class _RenamesOntoNothing(Exclusive):
    """As the web interface of HDFS: a rename onto a file is refused without an error."""

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        assert os.path.exists(path2)


class _RefusesRenames(Exclusive):
    def mv(self, path1: str, path2: str, **_: Any) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Exclusive, b"18"), (_RenamesOntoNothing, b"18"), (_RefusesRenames, b"18"), (_Full, b"17")],
)
def test_a_hint_is_replaced_whole_or_not_at_all(
    kind: type[Exclusive], expected: bytes, tmp_path: Path
) -> None:
    spec, path = fsspec_at(f"exclusive://{tmp_path}/wh", {})
    storage, hint = FsspecStorage(spec, Opened(kind())), f"{path}/t/snapshot/LATEST"
    storage.overwrite(hint, b"17")
    if expected == b"17":
        with pytest.raises(StorageError, match="no space left"):
            storage.overwrite(hint, b"18")
    else:
        storage.overwrite(hint, b"18")
    assert storage.read(hint) == expected
    assert [status.name for status in storage.list(f"{path}/t/snapshot")] == ["LATEST"]


@pytest.mark.parametrize(
    ("scheme", "why"),
    [("racy", "concurrent creations of one name"), ("looking", "cannot create a name only once")],
)
def test_one_that_does_not_is_refused_before_it_publishes_anything(
    scheme: str, why: str, tmp_path: Path
) -> None:
    storage, path = opened(scheme, tmp_path)
    for _ in range(2):
        with pytest.raises(StorageError, match=why):
            storage.create_if_absent(f"{path}/snapshot-1", b"mine", temporary="")
    assert storage.status(f"{path}/snapshot-1") is None


def test_a_creation_without_an_answer_may_take_effect_later(tmp_path: Path) -> None:
    storage, path = opened("silent", tmp_path)
    with pytest.raises(TransientStorageError, match=r"no answer.*it may appear yet"):
        storage.create_if_absent(f"{path}/snapshot-1", b"mine", temporary="")


def test_a_race_needs_exactly_one_winner_for_each_name() -> None:
    def nobody(path: str, data: bytes) -> Creation:
        return Creation.EXISTS

    def all_of_them(path: str, data: bytes) -> Creation:
        return Creation.CREATED

    def broken(path: str, data: bytes) -> Creation:
        raise AccessDenied(path, "publish failed")

    memory = MemoryStorage()

    def right(path: str, data: bytes) -> Creation:
        return memory.create_if_absent(path, data, temporary="")

    cases: list[tuple[Create, str]] = [
        (nobody, f"0 of {RACERS} concurrent"),
        (all_of_them, f"{RACERS} of {RACERS} concurrent"),
        (broken, "publish failed"),
    ]
    for create, why in cases:
        with pytest.raises(StorageError, match=why):
            prove_create_if_absent(lambda create=create: create, memory.delete, "/wh")  # type: ignore[misc]
    prove_create_if_absent(lambda: right, memory.delete, "/wh")
    assert memory.objects == {}


@pytest.mark.parametrize("options", [{}, {"fsspec.enabled": "true"}])
def test_it_is_opened_where_the_operator_named_its_scheme(
    options: dict[str, str], tmp_path: Path
) -> None:
    url = f"exclusive://{tmp_path}/wh"
    with pytest.raises(UsageError, match="does not open exclusive: locations"):
        STORES.limited(["s3://b/wh"], ()).open(url, options)
    STORES.limited(["s3://b/wh"], ["exclusive"]).open(url, options)
    storage, path = STORES.open(f"{url}/", options)
    assert isinstance(storage, FsspecStorage)
    assert path == url
    assert pickle.loads(pickle.dumps(storage.spec)) == storage.spec


def test_options_are_handed_over_unseen(tmp_path: Path) -> None:
    options = {"fsspec.auto_mkdir": "true", "fsspec.token": "s3same"}
    spec, _ = fsspec_at(f"exclusive://{tmp_path}/wh", options)
    assert "s3same" not in repr(spec)
    assert b"s3same" not in pickle.dumps(spec)
    assert [name for name, _ in spec.options] == ["auto_mkdir", "token"]
    assert spec.open()._files.auto_mkdir is True
    assert spec.open()._files is not spec.open()._files


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("nosuchscheme://h/wh", "nosuchscheme"),
        ("exclusive://", "expected a URL"),
        ("exclusive:/wh", "expected a URL"),
    ],
)
def test_what_cannot_be_opened_is_named(url: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        fsspec_at(url, {})[0].open()


class _Locked:
    """A store that takes one key alone, whose object `path` has been written."""

    def __init__(self, folder: Path) -> None:
        self.key, self.accepted, self.clock = folder / "key", folder / "accepted", VirtualClock()
        self.replace("first")
        options = {"fsspec.key": f"${{file:{self.key}}}", "fsspec.accepted": str(self.accepted)}
        spec, root = fsspec_at(f"keyed://{folder}/wh", options)
        late = LateValues(dict(spec.options))
        opened = Opened(connected(spec.root, late), late)
        policy = RetryPolicy(clock=self.clock, attempts_max=2)
        self.storage, self.path = FsspecStorage(spec, opened, policy), f"{root}/x"
        self.storage.overwrite(self.path, b"1")

    def replace(self, text: str) -> None:
        self.key.write_text(text)
        self.accepted.write_text(text)


@pytest.mark.parametrize("call", ["read", "overwrite", "write_new"])
def test_a_key_that_was_replaced_is_used_at_the_next_refusal(call: str, tmp_path: Path) -> None:
    locked = _Locked(tmp_path)
    storage, path = locked.storage, locked.path
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: storage.read(path),
        "overwrite": lambda: storage.overwrite(path, b"2"),
        "write_new": lambda: storage.write_new(f"{path}y", b"1"),
    }
    locked.replace("second")
    calls[call]()
    locked.replace("third")
    with pytest.raises(AccessDenied):
        calls[call]()


def test_a_store_that_cannot_be_opened_with_another_key_says_nothing_of_its_objects(
    tmp_path: Path,
) -> None:
    """It is tried again a minute later; whoever shares the store has the new key then."""
    locked = _Locked(tmp_path)
    guarded = locked.storage.behind(Breaker("keyed://", locked.clock.steady_ms))
    locked.key.write_text("second")
    locked.accepted.write_text("")
    with pytest.raises(TransientStorageError, match=r"connect failed .*no such object"):
        guarded.read(locked.path)
    with pytest.raises(AccessDenied):
        guarded.read(locked.path)
    locked.accepted.write_text("second")
    locked.clock.sleep(60)
    assert guarded.read(locked.path) == locked.storage.read(locked.path) == b"1"


def test_a_refusal_of_a_key_that_is_still_the_same_is_asked_once(tmp_path: Path) -> None:
    locked = _Locked(tmp_path)
    locked.accepted.write_text("of somebody else")
    before = locked.storage._files
    for _ in range(2):
        with pytest.raises(AccessDenied):
            locked.storage.read(locked.path)
        locked.clock.sleep(60)
    assert locked.storage._files is before
    assert locked.clock.sleeps == [60, 60], "no attempt follows"


def test_a_store_that_does_not_answer_when_it_is_opened_is_an_error_of_ours() -> None:
    with pytest.raises(TransientStorageError, match=r"open failed .*refused.*: unreachable://h"):
        fsspec_at("unreachable://h/wh", {})[0].open()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), ObjectNotFound),
        (PermissionError("denied"), AccessDenied),
        (TimeoutError(), TransientStorageError),
        (ConnectionResetError("gone"), TransientStorageError),
        (RuntimeError("token=s3same https://u:s3same@h/?sig=s3same"), StorageError),
        (AccessDenied("s3://b/x", "read failed"), AccessDenied),
    ],
)
def test_errors_of_implementations_become_ours(
    error: Exception, kind: type[CompactordError]
) -> None:
    def fail() -> None:
        with named_errors("x://h/path", "read"):
            raise error

    with pytest.raises(StorageError) as raised:
        fail()
    assert type(raised.value) is kind
    assert "s3same" not in str(raised.value)
    assert raised.value.path in ("x://h/path", "s3://b/x")


def test_paths_of_other_stores_are_refused(tmp_path: Path) -> None:
    storage, _ = opened("exclusive", tmp_path)
    calls: tuple[Callable[[], object], ...] = (
        lambda: storage.read("s3://b/x"),
        lambda: list(storage.list("/etc")),
        lambda: storage.overwrite("racy:///x", b""),
    )
    for call in calls:
        with pytest.raises(StorageError, match="outside the store"):
            call()


def test_a_catalog_without_a_lock_is_refused_or_guarded_and_its_store_proves_itself(
    tmp_path: Path,
) -> None:
    (tmp_path / "wh" / "d.db" / "t").mkdir(parents=True)

    def catalog(scheme: str, *, is_guarded: bool = True) -> Catalog:
        options = {"fsspec.auto_mkdir": "true"}
        return open_catalog(f"{scheme}://{tmp_path}/wh", options=options, is_guarded=is_guarded)

    with pytest.raises(UsageError, match="is refused"):
        catalog("exclusive", is_guarded=False).check_access()
    exclusive = catalog("exclusive")
    (trouble,) = check_catalogs(
        {"exclusive": exclusive, "racy": catalog("racy")}, VirtualClock(), commits=True
    )
    assert (trouble.catalog, type(trouble.error)) == ("racy", UnsafeStore)
    exclusive.check_commits()


def _archive(folder: Path, suffix: str) -> str:
    path, name = folder / f"lake.{suffix}", "wh/d.db/t/schema/schema-0"
    if suffix == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.write(folder / name, name)
    else:
        with tarfile.open(path, "w") as archive:
            archive.add(folder / "wh", "wh")
    return str(path)


@pytest.mark.parametrize(
    ("location", "options", "tables", "why"),
    [
        pytest.param("memory://NEW/wh", {}, 0, "", id="memory"),
        pytest.param("local://FOLDER/wh", {}, 1, "cannot create a name only once", id="local"),
        pytest.param(
            "dir://wh",
            {"path": "FOLDER", "target_protocol": "file"},
            1,
            "cannot create a name only once",
            id="dir",
        ),
        pytest.param("zip://wh", {"fo": "zip"}, 1, "cannot create a name only once", id="zip"),
        pytest.param("tar://wh", {"fo": "tar"}, 1, "cannot create a name only once", id="tar"),
    ],
)
def test_own_file_systems_of_fsspec_are_read_and_publish_only_if_they_create_exclusively(
    location: str, options: dict[str, str], tables: int, why: str, tmp_path: Path
) -> None:
    (tmp_path / "wh/d.db/t/schema").mkdir(parents=True)
    (tmp_path / "wh/d.db/t/schema/schema-0").write_text("{}")
    archives = {suffix: _archive(tmp_path, suffix) for suffix in ("zip", "tar")}
    given = {
        f"fsspec.{name}": archives.get(text, text).replace("FOLDER", str(tmp_path))
        for name, text in options.items()
    }
    place = location.replace("FOLDER", str(tmp_path)).replace("NEW", tmp_path.name)
    catalog = open_catalog(place, options=given, is_guarded=True)
    catalog.check_access()
    assert len(catalog.list_tables().tables) == tables
    if not why:
        catalog.check_commits()
        return
    with pytest.raises(UnsafeStore, match=why):
        catalog.check_commits()


def test_no_value_of_an_option_of_fsspec_stands_in_a_spec_but_for_flags() -> None:
    options = {"fsspec.enabled": "true", "fsspec.auth": "hunter2", "fsspec.anon": "true"}
    spec, _ = fsspec_at("ftp://host/wh", options)
    found = dict(spec.options)
    assert found["anon"] == "true"
    assert found["auth"].startswith("${env:")
    assert b"hunter2" not in pickle.dumps(spec)
    assert STORES.literal_secrets("ftp://host/wh", options) == ("fsspec.auth",)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("connection_string", "AccountName=a;AccountKey=hunter2==;EndpointSuffix=x"),
        ("client_kwargs", '{"aws_secret_access_key": "hunter2"}'),
        ("endpoint_url", "http://user:hunter2@host/"),
    ],
)
def test_a_secret_within_an_option_of_fsspec_is_one(name: str, text: str) -> None:
    options = {f"fsspec.{name}": text, "fsspec.use_ssl": "true"}
    spec, _ = fsspec_at("ftp://host/wh", options)
    assert b"hunter2" not in pickle.dumps(spec)
    asked = {"fsspec.enabled": "true"}
    assert STORES.literal_secrets("ftp://host/wh", options | asked) == (f"fsspec.{name}",)
    hidden = {f"fsspec.{name}": "${file:/run/key}"}
    assert STORES.literal_secrets("ftp://host/wh", hidden | asked) == ()
