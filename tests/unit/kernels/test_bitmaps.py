"""Unions of roaring bitmaps are stored by Java's rules; tests/oracle compares the bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.paimon.deletion_vectors import Container, Kind, parsed, serialised, union
from tests.sampling import examples

containers = st.dictionaries(
    st.sampled_from([0, 1, 7, 65535]),
    st.builds(
        lambda kind, numbers: Container(kind, np.array(sorted(numbers), np.uint16)),
        st.sampled_from([Kind.ARRAY, Kind.RUNS]),
        st.sets(st.integers(0, 65535), min_size=1, max_size=50),
    ),
).map(lambda found: dict(sorted(found.items())))


def values(found: dict[int, Container]) -> set[int]:
    return {key << 16 | int(n) for key, each in found.items() for n in each.numbers}


def bitmap(kind: Kind, numbers: range, key: int = 0) -> dict[int, Container]:
    return {key: Container(kind, np.array(numbers).astype(np.uint16))}


@settings(max_examples=examples(200), deadline=None)
@given(containers, containers)
def test_a_union_has_the_numbers_of_both_and_survives_its_bytes(left, right):
    found = parsed(serialised(union(parsed(serialised(left)), parsed(serialised(right)))))
    assert values(found) == values(left) | values(right)


ARRAY, BITS, RUNS = Kind.ARRAY, Kind.BITS, Kind.RUNS


@pytest.mark.parametrize(
    ("left", "right", "kind"),
    [
        # Three numbers in one run: an array of them is not larger than a run, to Java.
        (bitmap(ARRAY, range(2)), bitmap(ARRAY, range(2, 3)), ARRAY),
        (bitmap(RUNS, range(2)), bitmap(ARRAY, range(2, 3)), RUNS),
        (bitmap(ARRAY, range(2)), bitmap(ARRAY, range(2, 4)), RUNS),
        (bitmap(RUNS, range(2)), bitmap(ARRAY, range(10, 60, 2)), ARRAY),
        (bitmap(ARRAY, range(0, 8000, 2)), bitmap(ARRAY, range(8001, 9000, 2)), BITS),
        (bitmap(BITS, range(0, 60000, 2)), bitmap(RUNS, range(9)), BITS),
        (bitmap(BITS, range(0, 65536, 2)), bitmap(BITS, range(1, 65536, 2)), RUNS),
        (bitmap(ARRAY, range(2)), bitmap(RUNS, range(9), key=1), ARRAY),
    ],
)
def test_a_union_is_stored_as_java_stores_it(left, right, kind):
    assert union(left, right)[0].kind is kind


def test_the_bytes_of_a_small_union():
    found = union(bitmap(ARRAY, range(5)), bitmap(ARRAY, range(7, 8), key=2))
    assert serialised(found).hex() == "3b300100010000040002000000" + "0100000004000700"


def test_a_bitmap_without_numbers():
    assert serialised(parsed(bytes.fromhex("3a30000000000000"))).hex() == "3a30000000000000"


@pytest.mark.parametrize(
    "text", ["", "00", "0000000000000000", "3a30000001000000", "3a300000ffffffff"]
)
def test_other_bytes_are_an_error(text):
    with pytest.raises(ValueError, match="not a roaring bitmap"):
        parsed(bytes.fromhex(text))


def test_every_cut_of_a_bitmap_is_an_error():
    whole = serialised(
        {
            0: Container(ARRAY, np.arange(9, dtype=np.uint16)),
            1: Container(RUNS, np.arange(9, dtype=np.uint16)),
            2: Container(BITS, np.arange(0, 65535, 2, dtype=np.uint16)),
        }
    )
    for end in [*range(40), 100, len(whole) - 1]:
        with pytest.raises(ValueError, match="not a roaring bitmap"):
            parsed(whole[:end])
