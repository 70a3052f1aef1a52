"""Where vectors are in an index file, and what is said of those that are not there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compactord.errors import FormatError
from compactord.paimon.deletion_vectors import (
    VERSION,
    DeletionVector,
    VectorKind,
    VectorRef,
    decode_vector,
    encode_vector,
    read_stored,
    stored_in,
)
from tests.deletions import read_vector
from tests.storages import MemoryStorage

PATH = "/w/db.db/t/index/index-a-0"
KINDS = (VectorKind.BITS_32, VectorKind.BITS_64)


def _vector(kind: VectorKind, *positions: int) -> DeletionVector:
    return DeletionVector(kind, np.array(positions, np.int64))


@pytest.mark.parametrize("last", KINDS)
@pytest.mark.parametrize("first", KINDS)
def test_vectors_are_found_where_their_entry_says_the_last_one_too(
    first: VectorKind, last: VectorKind
) -> None:
    vectors = [_vector(first, 1, 5), _vector(last, *range(0, 3000, 7))]
    data, refs = VERSION, []
    for vector in vectors:
        stored, length = encode_vector(vector)
        refs.append(
            VectorRef(path=PATH, offset=len(data), length=length, cardinality=len(vector.positions))
        )
        data += stored
    storage = MemoryStorage({PATH: data})
    for ref, vector in zip(refs, vectors, strict=True):
        assert read_stored(storage, ref) == stored_in(data, ref) == encode_vector(vector)[0]
        found = read_vector(storage, ref, 3000)
        assert (found.kind, found.positions.tolist()) == (vector.kind, vector.positions.tolist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "elsewhere",
    [{"offset": 0}, {"offset": 2}, {"offset": 500}, {"length": 3}, {"length": 21}, {"length": -1}],
    ids=str,
)
def test_an_entry_that_names_another_place_is_damage(
    kind: VectorKind, elsewhere: dict[str, int]
) -> None:
    stored, length = encode_vector(_vector(kind, 1))
    data = VERSION + stored
    ref = VectorRef(path=PATH, offset=1, length=length, cardinality=1)
    assert stored_in(data, ref) == stored
    with pytest.raises(FormatError, match="index-a-0"):
        stored_in(data, replace(ref, **elsewhere))


@pytest.mark.parametrize("kind", KINDS)
def test_every_bit_of_a_vector_is_checked(kind: VectorKind) -> None:
    stored, length = encode_vector(_vector(kind, 1, 9))
    ref = VectorRef(path=PATH, offset=1, length=length, cardinality=2)
    for at in range(len(stored)):
        damaged = VERSION + stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :]
        with pytest.raises(FormatError):
            decode_vector(stored_in(damaged, ref), PATH)
