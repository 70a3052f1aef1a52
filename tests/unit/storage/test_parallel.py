"""Several calls at once."""

from __future__ import annotations

import pytest

from compactord.errors import TransientStorageError
from compactord.storage.parallel import AT_ONCE, delete_all
from tests.storages import Fault, FaultyStorage, MemoryStorage


@pytest.mark.parametrize("files", [0, 1, AT_ONCE, 5 * AT_ONCE + 3])
@pytest.mark.parametrize(("at", "lasts"), [(1_000, False), (1, False), (10, True)])
def test_what_was_deleted_is_counted_and_an_error_told(files: int, at: int, lasts: bool) -> None:
    names = [f"/w/{number}" for number in range(files)]
    inner = MemoryStorage(dict.fromkeys([*names, "/w/kept"], b""))
    storage = FaultyStorage(inner, Fault(at=at, error=TransientStorageError, lasts=lasts))
    done, error = delete_all(storage, names)
    assert done == files + 1 - len(inner.objects)
    assert "/w/kept" in inner.objects
    assert (error is None) == (not storage.failed)
    assert len(storage.failed) <= AT_ONCE
    if not storage.failed:
        assert done == files
