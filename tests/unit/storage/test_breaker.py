"""A store that does not answer is asked no more, but for a probe now and then."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.errors import ObjectNotFound, StorageError, StoreSilent, TransientStorageError
from compactord.storage.calls import (
    FAILURES_MAX,
    PATIENCE_MS,
    PROBE_MS,
    Breaker,
    Breakers,
    RetryPolicy,
)
from compactord.storage.fsspec import FsspecStorage, Opened
from compactord.storage.local import LocalStorage
from compactord.storage.objects.spec import ObjectSpec
from compactord.storage.objects.store import ObjectStorage
from tests.builders import VirtualClock
from tests.fsspec_files import Exclusive, fsspec_at
from tests.silent_servers import serving, silence

STORE = "s3://bucket"
_LONG_S = PATIENCE_MS / 1000


def _is_open(breaker: Breaker) -> bool:
    return breaker.open_since_ms > 0


@pytest.mark.parametrize(
    ("attempts", "is_open"),
    [
        # Each attempt: the pause before it, how long it took, and whether it was answered.
        ([(0, 30, False)] * (FAILURES_MAX - 1), False),
        ([(0, 30, False)] * FAILURES_MAX, True),
        # At once: a moment without the store is what calls are repeated for.
        ([(0, 0, False)] * 1000, False),
        ([(_LONG_S / 4, 0, False)] * FAILURES_MAX, True),
        ([*[(0, 30, False)] * 4, (0, 0, True), *[(0, 30, False)] * 4], False),
        ([*[(0, 30, False)] * 6, (0, 0, True)], False),
        # The first of those in a row counts, not one before an answer.
        ([(0, 30, False), (20, 0, True), *[(1, 0, False)] * FAILURES_MAX], False),
    ],
)
def test_it_opens_after_failures_in_a_row_over_some_time(
    attempts: list[tuple[float, float, bool]], is_open: bool
) -> None:
    clock = VirtualClock()
    breaker = Breaker(STORE, clock.steady_ms)
    for pause_s, seconds, has_answer in attempts:
        clock.sleep(pause_s)
        breaker.require("p")
        clock.sleep(seconds / 1000)
        if has_answer:
            breaker.answered()
        else:
            breaker.failed(seconds)
        if _is_open(breaker):
            clock.sleep(PROBE_MS / 1000)
    assert _is_open(breaker) == is_open


def test_while_it_is_open_one_attempt_goes_through_each_30_s() -> None:
    clock = VirtualClock()
    breaker = Breaker(STORE, clock.steady_ms)
    for _ in range(FAILURES_MAX):
        breaker.failed(_LONG_S)
    let_through = 0
    for _ in range(300):
        clock.sleep(1)
        if breaker.is_probe_due:
            breaker.require("s3://bucket/x")
            let_through += 1
            breaker.failed(0)
        what = r"s3://bucket has not answered for \d.*: next attempt in \d+ s: s3://bucket/x"
        with pytest.raises(StoreSilent, match=what):
            breaker.require("s3://bucket/x")
    assert let_through == 300_000 // PROBE_MS
    clock.sleep(PROBE_MS / 1000)
    breaker.require("x")
    breaker.answered()
    assert (breaker.open_since_ms, breaker.why, breaker.is_probe_due) == (0, "", False)
    breaker.require("x")


def test_a_store_has_one_breaker_whoever_opens_it_and_file_systems_have_none(
    tmp_path: Path,
) -> None:
    breakers = Breakers(VirtualClock().steady_ms)
    spec, _ = fsspec_at(f"exclusive://{tmp_path}", {"fsspec.mark": "one"})
    other, _ = fsspec_at(f"exclusive://{tmp_path}", {"fsspec.mark": "other"})
    found = [breakers.of(breakers.behind(each.open(), each.root)) for each in (spec, spec, other)]
    assert found[0] is not None
    assert found[0] is found[1]
    assert found[0] is not found[2]
    local = LocalStorage()
    assert breakers.behind(local, "file") is local
    assert breakers.of(local) is None


def test_an_object_store_that_is_silent_is_asked_no_more() -> None:
    with serving(silence) as port:
        clock, breaker, storage = _object_store(f"http://127.0.0.1:{port}", timeout_s=0.05)
        for _ in range(4):
            with pytest.raises(TransientStorageError):
                storage.read(f"{STORE}/x")
        assert _is_open(breaker)
        for call in (
            lambda: storage.read(f"{STORE}/x"),
            lambda: list(storage.list(f"{STORE}/x")),
            lambda: storage.create_if_absent(f"{STORE}/x", b"", temporary=f"{STORE}/t"),
            lambda: storage.open_output(f"{STORE}/x").__enter__(),
        ):
            slept = len(clock.sleeps)
            with pytest.raises(StoreSilent, match="has not answered for"):
                call()
            assert len(clock.sleeps) == slept, "no attempt follows"


@pytest.mark.parametrize("answer", ["403 Forbidden", "404 Not Found", "412 Precondition Failed"])
def test_a_refusal_is_an_answer(answer: str) -> None:
    def refuse(connection: object) -> None:
        connection.recv(1 << 16)  # type: ignore[attr-defined]
        # A 404 without the store's own word would be a gateway's.
        body = "<Error><Code>NoSuchKey</Code></Error>" if "404" in answer else ""
        head = f"HTTP/1.1 {answer}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall((head + body).encode())  # type: ignore[attr-defined]

    with serving(refuse) as port:
        _, breaker, storage = _object_store(f"http://127.0.0.1:{port}", timeout_s=30)
        for _ in range(FAILURES_MAX):
            breaker.failed(_LONG_S)
        breaker._next_ms = 0
        with pytest.raises(StorageError):
            storage.read(f"{STORE}/x")
        assert not _is_open(breaker)


def _object_store(endpoint: str, timeout_s: float) -> tuple[VirtualClock, Breaker, ObjectStorage]:
    options = {
        "bucket": "bucket",
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "a",
        "secret_access_key": "b",
    }
    spec = ObjectSpec(
        root=STORE, service="s3", options=tuple(sorted(options.items())), timeout_s=timeout_s
    )
    clock = VirtualClock()
    breaker = Breaker(STORE, clock.steady_ms)
    return clock, breaker, ObjectStorage(spec, RetryPolicy(clock=clock)).behind(breaker)


class _Failing(Exclusive):
    """Raises what it is told to."""

    error: Exception = TimeoutError("no answer")

    def cat_file(self, *_: object, **__: object) -> bytes:
        raise self.error


def test_a_store_of_fsspec_that_is_silent_is_asked_no_more(tmp_path: Path) -> None:
    clock, files = VirtualClock(), _Failing(skip_instance_cache=True)
    spec, root = fsspec_at(f"exclusive://{tmp_path}", {})
    breaker = Breaker(root, clock.steady_ms)
    storage = FsspecStorage(spec, Opened(files), RetryPolicy(clock=clock)).behind(breaker)
    for _ in range(4):
        with pytest.raises(TransientStorageError):
            storage.read(f"{root}/x")
    assert _is_open(breaker)
    with pytest.raises(StoreSilent):
        storage.read(f"{root}/x")
    clock.sleep(PROBE_MS / 1000)
    files.error = FileNotFoundError()
    with pytest.raises(ObjectNotFound):
        storage.read(f"{root}/x")
    assert not _is_open(breaker)
