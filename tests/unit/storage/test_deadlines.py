"""Calls into fsspec end by our own clock, and one store that hangs is no matter of another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactord.errors import TransientStorageError
from compactord.storage.base import Creation
from compactord.storage.calls import RetryPolicy, TimedCalls
from compactord.storage.fsspec import FsspecSpec, FsspecStorage, Opened
from tests.builders import VirtualClock
from tests.fsspec_files import Exclusive, fsspec_at


class _Hanging(Exclusive):
    """Answers nothing until it is let go."""

    def __init__(self, **options: bool) -> None:
        super().__init__(**options)
        self.is_asked, self.goes_on = threading.Event(), threading.Event()

    def _hang(self, *_: object, **__: object) -> None:
        self.is_asked.set()
        assert self.goes_on.wait(60)

    cat_file = info = ls = isdir = rm_file = makedirs = put_file = pipe_file = _hang


@pytest.fixture
def hanging() -> Iterator[_Hanging]:
    files = _Hanging(skip_instance_cache=True)
    yield files
    files.goes_on.set()


def _spec(folder: Path) -> tuple[FsspecSpec, str]:
    """A store of its own for each folder."""
    return fsspec_at(f"exclusive://{folder}", {"fsspec.mark": str(folder)})


@pytest.mark.parametrize(
    "call",
    [
        lambda storage, path: storage.read(path),
        lambda storage, path: storage.read_range(path, 0, 1),
        lambda storage, path: storage.status(path),
        lambda storage, path: storage.folder_exists(path),
        lambda storage, path: list(storage.list(path)),
        lambda storage, path: storage.write_new(path, b"x"),
        lambda storage, path: storage.overwrite(path, b"x"),
        lambda storage, path: storage.delete(path),
        lambda storage, path: storage.remove_empty_folder(path),
    ],
    ids=["read", "range", "status", "folder", "list", "write", "overwrite", "delete", "remove"],
)
def test_a_call_that_does_not_return_fails_in_time(
    tmp_path: Path, hanging: _Hanging, call: Callable[[FsspecStorage, str], object]
) -> None:
    spec, root = _spec(tmp_path)
    policy = RetryPolicy(clock=VirtualClock(), attempts_max=2)
    storage = FsspecStorage(spec, Opened(hanging), policy, answer_seconds=0.02)
    start_s = time.monotonic()
    with pytest.raises(TransientStorageError, match="no answer within"):
        call(storage, f"{root}/x")
    assert time.monotonic() - start_s < 20


def test_calls_that_never_return_take_a_bounded_number_of_threads() -> None:
    calls, goes_on = TimedCalls(2), threading.Event()
    for text in ("within", "within", "to earlier calls", "to earlier calls"):
        with pytest.raises(TimeoutError, match=f"no answer {text}"):
            calls.within(0.01, lambda: goes_on.wait(60))
    goes_on.set()
    assert calls.within(60, lambda: 1) == 1


def test_a_call_raises_what_it_raises_and_gives_its_place_back() -> None:
    calls = TimedCalls(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            calls.within(60, lambda: 1 // 0)


def test_a_store_that_hangs_while_it_is_proved_keeps_no_other_store_waiting(
    tmp_path: Path, hanging: _Hanging
) -> None:
    spec, root = _spec(tmp_path / "hangs")
    slow = FsspecStorage(spec, Opened(hanging), answer_seconds=60)
    # Proving it is not over while its names are removed.
    thread = threading.Thread(target=_publish, args=(slow, root), daemon=True)
    thread.start()
    assert hanging.is_asked.wait(60)
    other, other_root = _spec(tmp_path / "other")
    done = threading.Event()

    def publish() -> None:
        assert _publish(other.open(), other_root) is Creation.CREATED
        done.set()

    threading.Thread(target=publish, daemon=True).start()
    assert done.wait(30)
    hanging.goes_on.set()
    thread.join(60)


def _publish(storage: FsspecStorage, root: str) -> Creation:
    return storage.create_if_absent(f"{root}/name", b"x", temporary=f"{root}/t")
