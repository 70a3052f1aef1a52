"""Deletion vectors of both kinds: Java's bytes, and what is damage."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactord.errors import FormatError, ObjectNotFound, TransientStorageError
from compactord.paimon.deletion_vectors import (
    VERSION,
    DeletedRows,
    VectorKind,
    VectorRef,
    bitmap_in,
    deleted_rows_in,
    encode_vector,
    kind_of,
    read_deleted_rows,
    stored_in,
)
from compactord.storage.base import Storage
from tests.deletions import bitmap_of, numbers_in, rows_deleted
from tests.storages import Fault, FaultyStorage, MemoryStorage


def read_by_commit(storage: Storage, ref: VectorRef, rows: int) -> DeletedRows:
    """From the whole index file, where a worker reads the vector alone."""
    return deleted_rows_in(stored_in(storage.read(ref.path), ref), ref, rows)


READS = (read_by_commit, read_deleted_rows)
BITS_32, BITS_64 = VectorKind.BITS_32, VectorKind.BITS_64
PATH = "/w/index/index-1"
FEW = [1, 2, 3, 100, 70_000]
BITMAP = "3a300000020000000000030001000000180000002000000001000200030064007011"
# As Java writes them.
STORED = [
    (BITS_32, FEW, f"00000026 5e43f2d0 {BITMAP} 27224727"),
    (BITS_64, FEW, f"00000032 d1d33964 0100000000000000 00000000 {BITMAP} 6e2d86da"),
    (BITS_32, range(1000), "00000013 5e43f2d0 3b300000010000e70301000000e703 5d08589f"),
    (BITS_32, [1], "00000016 5e43f2d0 3a3000000100000000000000100000000100 fa2b5192"),
]


def stored(
    *vectors: tuple[VectorKind, Collection[int]],
) -> tuple[MemoryStorage, list[VectorRef]]:
    """An index file of these vectors."""
    content, refs = VERSION, []
    for kind, positions in vectors:
        data, length = encode_vector(kind, rows_deleted(positions))
        refs.append(
            VectorRef(path=PATH, offset=len(content), length=length, cardinality=len(positions))
        )
        content += data
    return MemoryStorage({PATH: content}), refs


@pytest.mark.parametrize(("kind", "positions", "text"), STORED)
def test_bytes_are_those_of_java(kind, positions, text):
    whole = bytes.fromhex(text)
    data, length = encode_vector(kind, rows_deleted(positions))
    assert data == whole
    assert length == (len(whole) - 8 if kind is BITS_32 else len(whole))
    assert kind_of(whole) is kind
    assert numbers_in(bitmap_in(whole, PATH)) == list(positions)


@given(st.lists(st.tuples(st.sampled_from(VectorKind), st.sets(st.integers(0, 300_000)))))
def test_each_vector_of_a_file_is_read_where_it_is(drawn):
    storage, refs = stored(*drawn)
    for ref, (kind, positions) in zip(refs, drawn, strict=True):
        bitmap = bitmap_of(positions)
        for read in READS:
            for cardinality in (ref.cardinality, None):
                found = read(storage, replace(ref, cardinality=cardinality), 300_001)
                kept = found.keeps(0, 300_001)
                assert np.flatnonzero(~kept).tolist() == sorted(positions)
                assert (found.count(), found.bitmap()) == (len(positions), bitmap)
        assert kind_of(stored_in(storage.read(PATH), ref)) is kind
        assert bitmap_in(stored_in(storage.read(PATH), ref), PATH) == bitmap


@given(
    st.sets(st.integers(0, 40)), st.integers(0, 30), st.integers(0, 20), st.sets(st.integers(0, 50))
)
def test_rows_count_that_are_not_deleted(deleted, first, count, marks):
    storage, (ref,) = stored((BITS_32, deleted))
    found = read_deleted_rows(storage, ref, 51)
    kept = found.keeps(first, count).tolist()
    assert kept == [row not in deleted for row in range(first, first + count)]
    asked = np.array(list(marks), np.int64)
    assert found.deletes(asked).tolist() == [row in deleted for row in marks]
    again = read_deleted_rows(storage, ref, 51)
    assert again.add_bitmap(bitmap_of(marks)) == (len(marks), max(marks, default=-1))
    found.add(asked)
    for each in (found, again):
        assert numbers_in(each.bitmap()) == sorted(deleted | marks)


def test_a_vector_of_32_bits_has_no_rows_from_2_to_the_31st_on():
    with pytest.raises(ValueError, match="too large"):
        encode_vector(BITS_32, rows_deleted([1 << 31]))


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def bitmap_64(count: int, upper: int) -> bytes:
    return bytes.fromhex("d1d33964") + struct.pack("<qi", count, upper) + bytes.fromhex(BITMAP)


# What the index file has from the vector on, which is the last one, and what its entry says.
Damage = Callable[[bytes, VectorRef], tuple[bytes, VectorRef]]
# What is read there is no size, or is one beyond the end.
_EITHER = "not|ends within"
DAMAGE: dict[str, tuple[Damage, str]] = {
    "no bytes": (lambda data, ref: (b"", ref), "ends within"),
    "cut in its size": (lambda data, ref: (data[:3], ref), "ends within"),
    "cut in its bitmap": (lambda data, ref: (data[:-9], ref), "ends within"),
    "cut in its checksum": (lambda data, ref: (data[:-1], ref), "ends within"),
    "another magic number": (
        lambda data, ref: (framed(b"\1" + data[5:-4]), replace(ref, length=len(data) - 8)),
        "begins with 01",
    ),
    "another size": (lambda data, ref: (data[:3] + b"\1" + data[4:], ref), "has 1 bytes"),
    "a negative size": (lambda data, ref: (b"\xff" + data[1:], ref), "has -"),
    "a longer entry": (
        lambda data, ref: (data + b"\0", replace(ref, length=ref.length + 1)),
        _EITHER,
    ),
    "a shorter entry": (
        lambda data, ref: (data, replace(ref, length=ref.length - 1)),
        _EITHER,
    ),
    "an entry of nothing": (lambda data, ref: (data, replace(ref, length=0)), "0 bytes"),
    "a negative entry": (lambda data, ref: (data, replace(ref, length=-9)), "-9 bytes"),
    "an offset before it": (
        lambda data, ref: (data, replace(ref, offset=ref.offset - 1)),
        _EITHER,
    ),
    "an offset in the version": (lambda data, ref: (data, replace(ref, offset=0)), "at 0"),
    "an offset beyond the end": (lambda data, ref: (data, replace(ref, offset=999)), "ends within"),
    "fewer rows": (lambda data, ref: (data, replace(ref, cardinality=4)), "deletes 5 rows, its"),
    "more rows": (lambda data, ref: (data, replace(ref, cardinality=6)), "deletes 5 rows, its"),
    "bitmaps for two upper halves": (
        lambda data, ref: (framed(bitmap_64(2, 0)), replace(ref, length=len(bitmap_64(2, 0)) + 8)),
        "2 bitmaps",
    ),
    "a bitmap for another upper half": (
        lambda data, ref: (framed(bitmap_64(1, 1)), replace(ref, length=len(bitmap_64(1, 1)) + 8)),
        "for 1",
    ),
    "a bitmap that is cut": (
        lambda data, ref: (framed(data[4:-6]), replace(ref, length=ref.length - 2)),
        "cannot be read",
    ),
    "no bitmap": (
        lambda data, ref: (
            framed(data[4:8]),
            replace(ref, length=4 + 8 * (data[4:8] != b"\x5e\x43\xf2\xd0")),
        ),
        "too few|cannot be read",
    ),
}


@pytest.mark.parametrize("kind", VectorKind)
@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("read", READS)
def test_damage_names_the_index_file(read, kind, how):
    spoil, why = DAMAGE[how]
    storage, (_, ref) = stored((BITS_32, [7]), (kind, FEW))
    content = storage.read(PATH)
    data, spoilt = spoil(content[ref.offset :], ref)
    storage.overwrite(PATH, content[: ref.offset] + data)
    with pytest.raises(FormatError, match=why) as caught:
        read(storage, spoilt, 100_000)
    assert caught.value.path == PATH


@pytest.mark.parametrize("kind", VectorKind)
@pytest.mark.parametrize("read", READS)
def test_a_flipped_bit_is_found(read, kind):
    storage, (ref,) = stored((kind, FEW))
    content = storage.read(PATH)
    for place in range(8 * ref.offset, 8 * len(content)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << place % 8
        storage.overwrite(PATH, bytes(flipped))
        with pytest.raises(FormatError):
            read(storage, ref, 100_000)


@pytest.mark.parametrize("rows", [70_000, 3, 0])
@pytest.mark.parametrize("read", READS)
def test_a_row_that_the_file_lacks_is_damage(read, rows):
    storage, (ref,) = stored((BITS_32, FEW))
    assert read(storage, ref, 70_001).count() == len(FEW)
    with pytest.raises(FormatError, match=f"row 70000 of a file that has {rows}"):
        read(storage, ref, rows)


def test_deleted_rows_take_a_bit_for_each_row_while_they_are_read():
    storage, (ref,) = stored((BITS_64, range(0, 8_000_000, 2)))
    tracemalloc.start()
    try:
        found = read_deleted_rows(storage, ref, 8_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.bits.nbytes == 1_000_000
    # The vector as it is stored, the bits, and the numbers of one container.
    assert peak < 4_000_000


def test_a_store_that_fails_is_not_damage():
    storage, (ref,) = stored((BITS_32, FEW))
    failing = FaultyStorage(
        storage,
        Fault(at=1, error=TransientStorageError, concerns=lambda call: call.method == "read_range"),
    )
    with pytest.raises(TransientStorageError):
        read_deleted_rows(failing, ref, 100_000)
    storage.delete(PATH)
    with pytest.raises(ObjectNotFound):
        read_deleted_rows(storage, ref, 100_000)
