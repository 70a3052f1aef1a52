"""Requests that fail before or after their effect: retries, read-backs and their reports."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator

import pytest

from compactord.errors import AccessDenied, StorageError, TransientStorageError
from compactord.storage.base import Creation
from compactord.storage.calls import RetryPolicy
from compactord.storage.objects.spec import ObjectSpec
from compactord.storage.objects.store import ObjectStorage
from compactord.storage.requests import StorageOutcome, StorageRequest
from tests.builders import VirtualClock
from tests.store_servers import SECRET_KEY, StoreServer, s3
from tests.tools.store_faults import Fault, How, every_nth, from_nth, nth
from tests.tools.store_proxy import StoreProxy

LARGE = 20 << 20
PASSING = (
    *(Fault(how=how, after=after) for how in (How.CLOSE, How.HANG) for after in (False, True)),
    *(Fault(how=How.ANSWER, status=status) for status in (429, 500, 503)),
    *(Fault(how=How.ANSWER, status=status, after=True) for status in (500, 503)),
)
HALF = Fault(how=How.HALF, after=True)
# Another conditional request for the same name is under way.
CONFLICT = Fault(how=How.ANSWER, status=409)
LASTING = (Fault(how=How.CLOSE), Fault(how=How.ANSWER, status=503))


class Faulty:
    """A store behind a proxy; pauses between attempts take no time."""

    def __init__(self, proxy: StoreProxy, root: str, spec: ObjectSpec) -> None:
        self.proxy, self.spec = proxy, spec
        self.clock = VirtualClock()
        self.reports: list[StorageRequest] = []
        policy = RetryPolicy(clock=self.clock, jitter=lambda: 1.0)
        self.storage = ObjectStorage(spec, policy, self.reports.append)
        self.folder = f"{root}/{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def proxy(started: Callable[[str], StoreServer]) -> Iterator[StoreProxy]:
    with StoreProxy(("127.0.0.1", started("moto").port)) as proxy:
        yield proxy


@pytest.fixture
def faulty(proxy: StoreProxy) -> Iterator[Faulty]:
    spec = dataclasses.replace(s3(proxy.port).spec, timeout_s=0.5)
    yield Faulty(proxy, spec.root, spec)
    proxy.fail(None)
    proxy.reset()


def read(faulty: Faulty, path: str) -> object:
    return faulty.storage.read(path)


def read_range(faulty: Faulty, path: str) -> object:
    return faulty.storage.read_range(path, 2, 3)


def status(faulty: Faulty, path: str) -> object:
    found = faulty.storage.status(path)
    return found and found.size_bytes


def list_folder(faulty: Faulty, path: str) -> object:
    return [found.name for found in faulty.storage.list(faulty.folder)]


def has_folder(faulty: Faulty, path: str) -> object:
    return faulty.storage.folder_exists(faulty.folder)


def overwrite(faulty: Faulty, path: str) -> object:
    faulty.storage.overwrite(path, b"other")
    return None


def delete(faulty: Faulty, path: str) -> object:
    faulty.storage.delete(path)
    return None


def write_new(faulty: Faulty, path: str) -> object:
    faulty.storage.write_new(path + "-new", b"new")
    return None


def create(faulty: Faulty, path: str) -> object:
    return faulty.storage.create_if_absent(path + "-new", b"new", temporary="")


def create_taken(faulty: Faulty, path: str) -> object:
    return faulty.storage.create_if_absent(path, b"late", temporary="")


def output(faulty: Faulty, path: str) -> object:
    with faulty.storage.open_output(path + "-new") as stream:
        stream.write(b"new")
    return None


CALLS = {
    # What is called, what it returns, and what is there afterwards.
    "read": (read, b"content", {"it": b"content"}),
    "read_range": (read_range, b"nte", {"it": b"content"}),
    "status": (status, 7, {"it": b"content"}),
    "list": (list_folder, ["it"], {"it": b"content"}),
    "folder_exists": (has_folder, True, {"it": b"content"}),
    "overwrite": (overwrite, None, {"it": b"other"}),
    "delete": (delete, None, {}),
    "write_new": (write_new, None, {"it": b"content", "it-new": b"new"}),
    "create": (create, Creation.CREATED, {"it": b"content", "it-new": b"new"}),
    "create_taken": (create_taken, Creation.EXISTS, {"it": b"content"}),
    "output": (output, None, {"it": b"content", "it-new": b"new"}),
}


@pytest.mark.parametrize("fault", [*PASSING, HALF], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_first_request_fails_does_what_it_should(
    name: str, fault: Fault, faulty: Faulty
) -> None:
    call, expected, afterwards = CALLS[name]
    path = f"{faulty.folder}/it"
    faulty.storage.write_new(path, b"content")
    faulty.reports.clear()
    faulty.proxy.fail(nth(1, fault))
    assert call(faulty, path) == expected
    assert len(faulty.proxy.failed) == 1
    faulty.proxy.fail(None)
    found = {
        each.name: faulty.storage.read(f"{faulty.folder}/{each.name}")
        for each in faulty.storage.list(faulty.folder)
    }
    assert found == afterwards


@pytest.mark.parametrize("name", ["write_new", "create", "create_taken"])
def test_a_creation_that_conflicts_with_another_is_tried_again(name: str, faulty: Faulty) -> None:
    call, expected, _ = CALLS[name]
    path = f"{faulty.folder}/it"
    faulty.storage.write_new(path, b"content")
    faulty.proxy.fail(nth(1, CONFLICT))
    assert call(faulty, path) == expected


# The library's own pauses, of `list` and `output`, are real ones and the same for all faults.
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, fault, id=f"{name}-{fault}")
        for name in CALLS
        for fault in (LASTING[:1] if name in ("list", "output") else LASTING)
    ],
)
def test_a_store_that_fails_for_ever_is_an_error_that_names_the_object(
    name: str, fault: Fault, faulty: Faulty
) -> None:
    call, _, _ = CALLS[name]
    path = f"{faulty.folder}/it"
    faulty.storage.write_new(path, b"content")
    faulty.proxy.fail(from_nth(1, fault))
    with pytest.raises(TransientStorageError) as failed:
        call(faulty, path)
    assert failed.value.path.startswith(faulty.folder)
    assert SECRET_KEY not in str(failed.value)


# What hangs, takes time.
@pytest.mark.parametrize(
    ("fault", "n"),
    [(fault, n) for fault in PASSING for n in ((3,) if fault.how is How.HANG else (2, 3))],
    ids=str,
)
def test_every_nth_request_of_an_upload_may_fail(fault: Fault, n: int, faulty: Faulty) -> None:
    path = f"{faulty.folder}/large"
    faulty.proxy.fail(every_nth(n, fault))
    with faulty.storage.open_output(path) as stream:
        for number in range(20):
            stream.write(bytes([number]) * (LARGE // 20))
    assert faulty.proxy.failed
    faulty.proxy.fail(None)
    data = faulty.storage.read(path)
    assert data == b"".join(bytes([number]) * (LARGE // 20) for number in range(20))


def test_throttling_and_retries_are_reported(faulty: Faulty) -> None:
    path = f"{faulty.folder}/it"
    faulty.storage.write_new(path, b"content")
    faulty.reports.clear()
    faulty.proxy.fail(every_nth(1, Fault(how=How.ANSWER, status=503), lambda r: r.number < 4))
    faulty.proxy.reset()
    assert faulty.storage.read(path) == b"content"
    assert [(r.outcome, r.is_repeated, r.size_bytes) for r in faulty.reports] == [
        *[(StorageOutcome.THROTTLED, True, 0)] * 3,
        (StorageOutcome.OK, False, 7),
    ]
    assert {(r.store, r.op.value) for r in faulty.reports} == {("s3", "get")}
    assert faulty.clock.sleeps == [0.1, 0.2, 0.4]


def test_a_creation_that_nobody_confirms_is_unknown(faulty: Faulty) -> None:
    """Neither its request nor the look at what became of it is answered."""
    path = f"{faulty.folder}/snapshot-1"
    faulty.proxy.fail(from_nth(1, Fault(how=How.CLOSE, after=True)))
    with pytest.raises(TransientStorageError, match="whether it exists is unknown"):
        faulty.storage.create_if_absent(path, b"mine", temporary="")
    faulty.proxy.fail(None)
    assert faulty.storage.read(path) == b"mine"


def test_a_creation_that_is_refused_is_not_looked_at_again(faulty: Faulty) -> None:
    path = f"{faulty.folder}/snapshot-1"
    faulty.proxy.fail(from_nth(1, Fault(how=How.ANSWER, status=403)))
    with pytest.raises(AccessDenied, match="AccessDenied"):
        faulty.storage.create_if_absent(path, b"mine", temporary="")
    assert len(faulty.proxy.log) == 1


def test_a_refusal_after_an_unknown_attempt_does_not_say_that_nothing_happened(
    faulty: Faulty,
) -> None:
    path = f"{faulty.folder}/snapshot-1"
    requests = iter([Fault(how=How.CLOSE), None, *[Fault(how=How.ANSWER, status=403)] * 9])
    faulty.proxy.fail(lambda request: next(requests))
    with pytest.raises(TransientStorageError, match="unknown"):
        faulty.storage.create_if_absent(path, b"mine", temporary="")


def test_an_upload_of_the_same_size_by_another_is_not_taken_for_ours(faulty: Faulty) -> None:
    """The completion is refused because the name is taken, whatever the size."""
    path = f"{faulty.folder}/large"
    other = ObjectStorage(faulty.spec)

    def write(storage: ObjectStorage, byte: bytes) -> None:
        with storage.open_output(path) as stream:
            for _ in range(3):
                stream.write(byte * (LARGE // 3))

    write(other, b"a")
    with pytest.raises(StorageError, match="write failed"):
        write(faulty.storage, b"b")
    assert faulty.storage.read_range(path, 0, 3) == b"aaa"


def test_no_call_stops_the_other_threads_while_it_waits(faulty: Faulty) -> None:
    """The proxy answers in a thread of this process: a call that held Python's lock would fail."""
    path = f"{faulty.folder}/it"
    faulty.storage.write_new(path, b"content")
    for call, expected, _ in CALLS.values():
        if call is not create_taken:
            assert call(faulty, path) == expected
            faulty.storage.overwrite(path, b"content")
            faulty.storage.delete(path + "-new")
