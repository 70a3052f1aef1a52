"""How stores are opened: by each process for itself, with errors that say what to do."""

from __future__ import annotations

import dataclasses
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compactord.errors import AccessDenied, StorageError, StoreMissing, TransientStorageError
from compactord.storage.calls import Breaker, RetryPolicy
from compactord.storage.objects.connection import REQUESTS_AT_ONCE, connection_of, forget
from compactord.storage.objects.spec import ObjectSpec
from compactord.storage.objects.store import ObjectStorage
from compactord.storage.open import STORES
from tests.builders import VirtualClock
from tests.store_servers import StoreServer, free_port, s3
from tests.tools.store_faults import Fault, How, Request
from tests.tools.store_proxy import StoreProxy

KEY = "s3same-secret"


def changed(spec: ObjectSpec, **options: str) -> ObjectSpec:
    return dataclasses.replace(spec, options=tuple({**dict(spec.options), **options}.items()))


def opened(spec: ObjectSpec) -> ObjectStorage:
    return ObjectStorage(spec, RetryPolicy(clock=VirtualClock()))


def calls_of(storage: ObjectStorage) -> tuple[Callable[[], object], ...]:
    path = f"{storage.spec.root}/x"
    return (
        lambda: storage.read(path),
        lambda: list(storage.list(path)),
        lambda: storage.create_if_absent(path, b"x", temporary=""),
        lambda: storage.delete(path),
    )


def test_keys_are_in_no_spec_and_are_found_where_it_is_opened(moto: StoreServer) -> None:
    storage, path = STORES.open(f"{moto.root}/keys", moto.options)
    assert not any(key in repr(storage.spec) for key in moto.options.values() if "test" in key)
    payload = pickle.dumps(storage.spec)
    assert b"test-secret" not in payload
    storage.write_new(f"{path}/x", b"1")
    assert pickle.loads(payload).open().read(f"{path}/x") == b"1"


@pytest.mark.parametrize("server", ["minio", "azurite"])
def test_a_wrong_key_is_named_as_such(server: str, started: Callable[[str], StoreServer]) -> None:
    spec = started(server).spec
    name = "account_key" if server == "azurite" else "secret_access_key"
    for call in calls_of(opened(changed(spec, **{name: "c2VjcmV0LXMzc2FtZQ=="}))):
        with pytest.raises(AccessDenied, match=r"check the credentials|check them") as denied:
            call()
        assert "c2Vj" not in str(denied.value)


@pytest.mark.parametrize("server", ["moto", "minio", "azurite", "fake_oss", "fake_gcs"])
def test_a_bucket_that_does_not_exist_is_named_as_such(
    server: str, started: Callable[[str], StoreServer]
) -> None:
    spec = started(server).spec
    name = "container" if server == "azurite" else "bucket"
    other = dataclasses.replace(
        changed(spec, **{name: "nosuch"}), root=spec.root.replace("lake", "nosuch")
    )
    _, listing, create, _ = calls_of(opened(other))
    for call in (listing, create):
        with pytest.raises(StoreMissing, match="check its name"):
            call()


def test_an_endpoint_where_nobody_listens_is_named_after_all_attempts() -> None:
    spec = changed(s3(free_port()).spec, secret_access_key=KEY)
    read, _, create, delete = calls_of(opened(spec))
    for call in (read, create, delete):
        with pytest.raises(TransientStorageError, match="check the endpoint") as failed:
            call()
        assert KEY not in str(failed.value)
        assert failed.value.path == "s3://lake/x"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("s3://other/x", "outside the store"),
        ("s3a://lake/x", "outside the store"),
        ("s3://lake2/x", "outside the store"),
        ("/lake/x", "outside the store"),
        ("s3://lake/a//b", "cannot address"),
        ("s3://lake/a/", "cannot address"),
        ("s3://lake/ a", "cannot address"),
        ("s3://lake/a ", "cannot address"),
    ],
)
def test_names_that_would_become_others_are_refused(path: str, why: str, moto: StoreServer) -> None:
    storage = moto.spec.open()
    calls: tuple[Callable[[], object], ...] = (
        lambda: storage.read(path),
        lambda: storage.status(path),
        lambda: list(storage.list(path)),
        lambda: storage.delete(path),
        lambda: storage.overwrite(path, b""),
        lambda: storage.open_output(path).__enter__(),
    )
    for call in calls:
        with pytest.raises(StorageError, match=why):
            call()


@pytest.mark.parametrize("at", ["PUT", "GET"])
def test_keys_that_vanish_after_an_unknown_outcome_do_not_make_it_a_refusal(
    at: str, moto: StoreServer, tmp_path: Path
) -> None:
    """The first creation gets no answer; it, or the look at what it did, finds no keys any more."""
    key = tmp_path / "key"
    key.write_text(dict(moto.options)["s3.secret-key"])

    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        storage = opened(
            changed(s3(proxy.port).spec, secret_access_key=f"${{file:{key}}}", region="eu-west-1")
        )

        def lose(request: Request) -> Fault | None:
            if request.method == at and key.exists():
                forget(storage.spec, connection_of(storage.spec))
                key.unlink()
            return Fault(how=How.CLOSE) if request.method == "PUT" else None

        proxy.fail(lose)
        with pytest.raises(TransientStorageError, match="expected a file"):
            storage.create_if_absent(f"{moto.root}/vanished", b"x", temporary="")


@pytest.mark.parametrize("kind", ["upload_part", "complete_upload", "list"])
def test_keys_that_expire_within_a_long_request_are_read_again(
    kind: str, moto: StoreServer
) -> None:
    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        storage = opened(s3(proxy.port).spec)
        folder = f"{moto.root}/{uuid.uuid4().hex}"
        path = f"{folder}/large"

        def call() -> object:
            if kind == "list":
                return list(storage.list(folder))
            with storage.open_output(path) as stream:
                for _ in range(20):
                    stream.write(bytes(1 << 20))
            return None

        def expire(request: Request) -> Fault | None:
            is_it = request.kind == kind
            return Fault(how=How.ANSWER, status=400) if is_it else None

        proxy.fail(expire)
        before = connection_of(storage.spec)
        with pytest.raises(TransientStorageError, match=r"ExpiredToken: .* renew them"):
            call()
        assert connection_of(storage.spec) is not before
        proxy.fail(lambda _: None)
        call()
        assert (storage.status(path) is not None) == (kind != "list")


class Locked:
    """A bucket behind a proxy that refuses all keys but `accepted`; ours stands in a file."""

    def __init__(self, proxy: StoreProxy, key: Path, status: int = 403) -> None:
        self.accepted, self.clock = "first", VirtualClock()
        self._proxy, self._status, self.key = proxy, status, key
        key.write_text("first")
        spec = changed(s3(proxy.port).spec, access_key_id=f"${{file:{key}}}")
        self.storage = ObjectStorage(spec, RetryPolicy(clock=self.clock))
        self.path = f"{spec.root}/{uuid.uuid4().hex}"
        self.storage.write_new(f"{self.path}/there", b"x")
        proxy.fail(self._decide)

    def _decide(self, request: Request) -> Fault | None:
        is_known = f"Credential={self.accepted}/" in request.authorization
        return None if is_known else Fault(how=How.ANSWER, status=self._status)

    def upload(self) -> None:
        with self.storage.open_output(f"{self.path}/large") as stream:
            for _ in range(9):
                stream.write(bytes(1 << 20))

    def requests(self, call: Callable[[], object]) -> int:
        """How many a call that is refused makes."""
        self._proxy.reset()
        with pytest.raises(AccessDenied):
            call()
        return len(self._proxy.log)


@pytest.fixture(params=[401, 403])
def locked(request: pytest.FixtureRequest, moto: StoreServer, tmp_path: Path) -> Iterator[Locked]:
    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        yield Locked(proxy, tmp_path / "key", request.param)


def test_a_key_that_was_replaced_is_used_at_the_next_refusal(locked: Locked) -> None:
    storage, there = locked.storage, f"{locked.path}/there"
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: storage.read(there),
        "range": lambda: storage.read_range(there, 0, 1),
        "status": lambda: storage.status(there),
        "list": lambda: list(storage.list(locked.path)),
        "folder": lambda: storage.folder_exists(locked.path),
        "publish": lambda: storage.create_if_absent(f"{locked.path}/new", b"x", temporary=""),
        "write": lambda: storage.write_new(f"{locked.path}/other", b"x"),
        "overwrite": lambda: storage.overwrite(there, b"y"),
        "delete": lambda: storage.delete(there),
        "uploads": lambda: list(storage.unfinished_uploads(locked.path)),
    }
    calls["uploads"]()
    for name, call in calls.items():
        locked.accepted = f"key-for-{name}"
        locked.key.write_text(locked.accepted)
        locked.clock.sleep(61)
        call()
    assert storage.status(there) is None
    assert storage.read(f"{locked.path}/new") == b"x"


def test_an_upload_that_a_replaced_key_cut_may_be_begun_again(locked: Locked) -> None:
    locked.accepted = "second"
    locked.key.write_text("second")
    with pytest.raises(TransientStorageError):
        locked.upload()
    assert [each.name for each in locked.storage.list(locked.path)] == ["there"]
    locked.upload()


def test_a_refusal_for_another_reason_costs_one_request_and_no_connection(locked: Locked) -> None:
    storage, before = locked.storage, connection_of(locked.storage.spec)
    locked.accepted = "of somebody else"
    for _ in range(3):
        assert locked.requests(lambda: storage.read(f"{locked.path}/there")) == 1
        locked.clock.sleep(61)
    locked.key.unlink()
    assert locked.requests(lambda: storage.read(f"{locked.path}/there")) == 1
    assert connection_of(storage.spec) is before


class _Asked(Breaker):
    """Counts what it lets through."""

    count = 0

    def require(self, path: str) -> None:
        super().require(path)
        self.count += 1


@pytest.mark.parametrize("attempts_max", [1, 2])
def test_a_request_with_another_key_is_an_attempt_that_a_breaker_lets_through(
    locked: Locked, attempts_max: int
) -> None:
    breaker, there = _Asked("s3://", locked.clock.steady_ms), f"{locked.path}/there"
    policy = RetryPolicy(clock=locked.clock, attempts_max=attempts_max)
    storage = ObjectStorage(locked.storage.spec, policy).behind(breaker)
    locked.accepted = "second"
    locked.key.write_text("second")
    if attempts_max == 1:
        assert locked.requests(lambda: storage.read(there)) == 1
    assert storage.read(there) == b"x"
    assert breaker.count == 2


def test_uploads_wait_for_a_key_that_is_not_there(locked: Locked) -> None:
    locked.key.unlink()
    with pytest.raises(TransientStorageError, match=r"connect failed .*a file that can be read"):
        list(locked.storage.unfinished_uploads(locked.path))


def test_a_key_is_read_again_once_a_minute_at_most(locked: Locked) -> None:
    storage, there = locked.storage, f"{locked.path}/there"
    locked.accepted = "third"
    locked.key.write_text("second, and wrong")
    assert locked.requests(lambda: storage.read(there)) == 2
    locked.key.write_text("third")
    assert locked.requests(lambda: storage.read(there)) == 1
    locked.clock.sleep(61)
    assert storage.read(there) == b"x"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_gets_an_error_instead_of_waiting_for_ever(moto: StoreServer) -> None:
    storage = moto.spec.open()
    storage.write_new(f"{moto.root}/forked", b"1")
    child = os.fork()
    if not child:
        signal.alarm(20)
        code = 1
        try:
            storage.read(f"{moto.root}/forked")
        except StorageError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert storage.read(f"{moto.root}/forked") == b"1"


def test_without_the_extra_all_else_works_and_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["opendal"] = None
import compactord.cli.command
from compactord.errors import UsageError
from compactord.storage.objects.spec import INSTALL_STORES
from compactord.storage.open import STORES
STORES.open("/tmp", {})
try:
    STORES.open("s3://lake/wh", {"s3.endpoint": "http://127.0.0.1:9"})
except UsageError as error:
    assert INSTALL_STORES in str(error), error
    sys.exit(42)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 42, done.stderr


def test_a_process_that_ends_right_after_a_listing_does_not_abort(moto: StoreServer) -> None:
    moto.spec.open().overwrite(f"{moto.root}/lister/x", b"1")
    command = (sys.executable, "-m", "tests.stores.lister", str(moto.port))
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_requests_at_once_are_bounded(moto: StoreServer) -> None:
    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        storage = s3(proxy.port).spec.open()
        storage.write_new(f"{moto.root}/bounded", b"1")
        slots = connection_of(storage.spec).slots
        taken = [slots.acquire(timeout=180) for _ in range(REQUESTS_AT_ONCE)]
        assert all(taken)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(storage.read, f"{moto.root}/bounded")
            time.sleep(0.2)
            assert not waiting.done()
            assert proxy.counts["get"] == 0
            for _ in taken:
                slots.release()
            assert waiting.result(180) == b"1"
