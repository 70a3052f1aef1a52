"""Several calls at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from compactord.errors import CompactordError, TransientStorageError
from compactord.storage.base import Storage
from compactord.storage.calls import AT_ONCE, for_each_concurrently
from compactord.storage.local import LocalStorage
from tests.storages import Fault, FaultyStorage, MemoryStorage


def _deleted(storage: Storage, names: Sequence[str]) -> tuple[int, CompactordError | None]:
    """How many were deleted, and the error that was told."""
    done = []
    try:
        for name in for_each_concurrently(storage, storage.delete, names, on_disks=True):
            done.append(name)  # noqa: PERF402 - what came before an error stays
    except CompactordError as error:
        return len(done), error
    return len(done), None


@pytest.mark.parametrize("files", [0, 1, AT_ONCE, 5 * AT_ONCE + 3])
@pytest.mark.parametrize(("at", "lasts"), [(1_000, False), (1, False), (10, True)])
def test_what_was_deleted_is_counted_and_an_error_told(files: int, at: int, lasts: bool) -> None:
    names = [f"/w/{number}" for number in range(files)]
    inner = MemoryStorage(dict.fromkeys([*names, "/w/kept"], b""))
    storage = FaultyStorage(inner, Fault(at=at, error=TransientStorageError, lasts=lasts))
    done, error = _deleted(storage, names)
    assert done == files + 1 - len(inner.objects)
    assert "/w/kept" in inner.objects
    assert (error is None) == (not storage.failed)
    assert len(storage.failed) <= AT_ONCE
    if not storage.failed:
        assert done == files


class _Waiting:
    """Deletions take 5 ms, on a disk or over a network; `threads` have made them."""

    def __init__(self, *, behind_network: bool) -> None:
        self.capabilities = replace(LocalStorage().capabilities, behind_network=behind_network)
        self.threads: set[str] = set()

    def delete(self, path: str) -> None:
        self.threads.add(threading.current_thread().name)
        time.sleep(0.005)
        os.unlink(path)


@pytest.mark.parametrize("behind_network", [False, True])
def test_deletions_that_wait_are_made_at_once(tmp_path: Path, *, behind_network: bool) -> None:
    storage = _Waiting(behind_network=behind_network)
    files = [tmp_path / f"f{number}" for number in range(6 * AT_ONCE)]
    for file in files:
        file.touch()
    done = _deleted(cast(Storage, storage), [str(file) for file in files])
    assert done == (len(files), None)
    assert not any(tmp_path.iterdir())
    assert len(storage.threads) > 1
