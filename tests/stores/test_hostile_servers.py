"""Every call of every store against servers that hang up, fall silent, drip, or answer nonsense.

Each ends in time, in an error of ours or in an answer, and the breaker hears of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from compactord.errors import StorageError, TransientStorageError
from compactord.storage.base import Storage, UnfinishedUpload
from compactord.storage.calls import Breaker, RetryPolicy
from compactord.storage.fsspec import FsspecSpec, FsspecStorage, Opened, connected
from compactord.storage.hdfs.spec import HdfsSpec
from compactord.storage.hdfs.store import HdfsStorage
from compactord.storage.objects.store import ObjectStorage
from compactord.text import LateValues
from tests.builders import VirtualClock
from tests.silent_servers import HTTP_SERVERS, serving
from tests.store_servers import StoreServer, azure, gcs, oss, s3

# What nobody waits for any more leaves sockets to the collector of garbage.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
_TIMEOUT_S = 0.5
# Two attempts of ours, or seven of the library's with its pauses; and a machine that does other
# things as well.
_DEADLINE_S = 60.0
_LARGE = 20 << 20
# They answer nothing that anybody can take for an answer.
_WITHOUT_ANSWER = ("hangs up", "silent", "drips a head")

Call = Callable[[Storage, str], object]


def _output(storage: Storage, path: str, size: int) -> None:
    with storage.open_output(path) as stream:
        for _ in range(0, size, 1 << 20):
            stream.write(bytes(min(size, 1 << 20)))


def _abort(storage: Storage, path: str) -> None:
    storage.abort_upload(UnfinishedUpload(path=path, upload_id="1", started_ms=0))


# By the name of the method, in several ways where that makes a difference.
CALLS: Mapping[str, tuple[Call, ...]] = {
    "read": (lambda storage, path: storage.read(path),),
    "read_range": (lambda storage, path: storage.read_range(path, 5, 10),),
    "open_input": (
        lambda storage, path: storage.open_input(path).read(10),
        lambda storage, path: storage.open_input(path, 100).read(10),
    ),
    "open_output": (
        lambda storage, path: _output(storage, path, 1),
        lambda storage, path: _output(storage, path, _LARGE),
    ),
    "status": (lambda storage, path: storage.status(path),),
    "folder_exists": (lambda storage, path: storage.folder_exists(path),),
    "list": (lambda storage, path: list(storage.list(path)),),
    "list_some": (lambda storage, path: list(storage.list_some(path, lambda name: True)),),
    "create_if_absent": (
        lambda storage, path: storage.create_if_absent(path, b"x", temporary=f"{path}.tmp"),
    ),
    "write_new": (lambda storage, path: storage.write_new(path, b"x"),),
    "overwrite": (lambda storage, path: storage.overwrite(path, b"x"),),
    "delete": (lambda storage, path: storage.delete(path),),
    "remove_empty_folder": (lambda storage, path: storage.remove_empty_folder(path),),
    "unfinished_uploads": (lambda storage, path: list(storage.unfinished_uploads(path)),),
    "abort_upload": (_abort,),
    "may_write": (lambda storage, path: storage.may_write(path),),
    "real_folder": (lambda storage, path: storage.real_folder(path),),
}


class _Remote(AbstractFileSystem):  # type: ignore[misc]
    """A file system of fsspec that knows nothing of deadlines, and raises what it is built upon."""

    protocol = "remote"

    def __init__(self, port: int, **options: Any) -> None:
        super().__init__(**options)
        self._port = port

    def _ask(self, *_: object, **__: object) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        with contextlib.closing(connection):
            connection.request("GET", "/")
            with contextlib.closing(connection.getresponse()) as answer:
                return json.loads(answer.read())["items"][0]["name"]

    cat_file = info = ls = isdir = exists = rm_file = makedirs = put_file = pipe_file = mv = _ask


fsspec.register_implementation(_Remote.protocol, _Remote, clobber=True)


def _opened(kind: str, port: int) -> tuple[Storage, str]:
    """A store whose server is at a port, and a path in it."""
    policy = RetryPolicy(clock=VirtualClock(), attempts_max=2)
    if kind == "hdfs":
        service = HdfsSpec(root=f"hdfs://127.0.0.1:{port}", answer_s=_TIMEOUT_S)
        return HdfsStorage(service, policy), f"{service.root}/t/x"
    if kind == "fsspec":
        files = FsspecSpec(root="remote://host", options=(("port", str(port)),))
        opened = Opened(connected(files.root, LateValues(dict(files.options))))
        return FsspecStorage(files, opened, policy, _TIMEOUT_S), f"{files.root}/t/x"
    servers: dict[str, Callable[[int], StoreServer]] = {
        "s3": s3,
        "gcs": gcs,
        "azure": azure,
        "oss": oss,
    }
    spec = dataclasses.replace(servers[kind](port).spec, timeout_s=_TIMEOUT_S)
    return ObjectStorage(spec, policy), f"{spec.root}/t/x"  # type: ignore[arg-type]


STORES = ("s3", "gcs", "azure", "oss", "hdfs", "fsspec")


def _asks(kind: str, method: str) -> bool:
    """Whether a store makes a request for it."""
    if method in ("unfinished_uploads", "abort_upload"):
        return kind == "s3"
    if method == "remove_empty_folder":
        return kind in ("hdfs", "fsspec")
    return method not in ("may_write", "real_folder")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    error: BaseException | None
    seconds: float
    # Of each attempt whether it had an answer.
    reports: tuple[bool, ...]


def _outcome(kind: str, port: int, call: Call) -> _Outcome:
    reports: list[bool] = []
    storage, path = _opened(kind, port)
    breaker = Breaker("store", VirtualClock().steady_ms, report=reports.append)
    error: BaseException | None = None
    began_s = time.monotonic()
    try:
        call(storage.behind(breaker), path)  # type: ignore[attr-defined]
    except BaseException as raised:  # noqa: BLE001 - what is tested
        error = raised
    seconds = time.monotonic() - began_s
    return _Outcome(error=error, seconds=seconds, reports=tuple(reports))


CASES = [
    (kind, method, number)
    for kind in STORES
    for method, calls in CALLS.items()
    for number in range(len(calls))
    if _asks(kind, method)
]


def test_every_call_of_the_contract_is_made() -> None:
    contract = {
        name
        for name, value in vars(Storage).items()
        if not name.startswith("_") and not isinstance(value, property)
    }
    assert set(CALLS) == contract


@pytest.mark.parametrize("server", HTTP_SERVERS)
def test_every_call_ends_in_time_in_an_error_of_ours(server: str) -> None:
    """The calls mostly wait, so they are made at the same time."""
    with serving(HTTP_SERVERS[server]) as port, ThreadPoolExecutor(len(CASES)) as pool:
        outcomes = list(
            pool.map(lambda case: _outcome(case[0], port, CALLS[case[1]][case[2]]), CASES)
        )
    # None that goes on may be in a library's code when the interpreter ends.
    for thread in threading.enumerate():
        if thread.name == "timed-call":
            thread.join(_DEADLINE_S)
    wrong = []
    for case, found in zip(CASES, outcomes, strict=True):
        is_ours = found.error is None or isinstance(found.error, StorageError)
        is_heard = bool(found.reports)
        if server in _WITHOUT_ANSWER:
            is_ours = isinstance(found.error, TransientStorageError)
            is_heard = False in found.reports
        if not (is_ours and is_heard and found.seconds < _DEADLINE_S):
            wrong.append(f"{case} {found.seconds:.1f} s {found.reports} {found.error!r}")
    # Here its warnings about sockets are ignored, in other tests they are errors.
    del outcomes, found
    gc.collect()
    assert not wrong, "\n".join(wrong)
