"""A part of an object is an object of its own for readers."""

from __future__ import annotations

import pytest

from compactord.errors import StorageError
from compactord.storage.ranges import with_part
from tests.storages import MemoryStorage

PATH = "t/bucket-1/compacted-changelog-1$0-3-3-5.cc-parquet"


def test_only_its_bytes_are_read() -> None:
    inner = MemoryStorage()
    inner.write_new("t/bucket-0/whole", b"abcDEFGHij")
    storage = with_part(inner, "t/bucket-0/whole", 3, 5)
    assert storage.capabilities == inner.capabilities
    assert storage.read(PATH) == b"DEFGH"
    assert storage.read_range(PATH, 1, 3) == b"EFG"
    with storage.open_input(PATH, 5) as stream:
        assert stream.size() == 5
        assert stream.read() == b"DEFGH"
        assert (stream.read_at(2, 3), stream.read_at(9, 3)) == (b"GH", b"GH")
        stream.seek(4)
        assert (stream.read(4), stream.read(4)) == (b"H", b"")


def test_a_whole_that_ends_too_early_is_an_error() -> None:
    inner = MemoryStorage()
    inner.write_new("t/bucket-0/whole", b"abcDE")
    with pytest.raises(StorageError, match="t/bucket-0/whole"):
        with_part(inner, "t/bucket-0/whole", 3, 5).read(PATH)
