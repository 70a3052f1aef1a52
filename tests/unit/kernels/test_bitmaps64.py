"""Bitmaps of 64 bits have Java's tree; tests/oracle/test_sets.py compares the bytes with Java."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.kernels.aggregators.bitmaps import (
    Bitmap64,
    Branch,
    contents,
    parsed,
    serialised,
    union,
)
from compactord.paimon.deletion_vectors import Container, Kind
from tests.sampling import examples

# Few different bytes, so that keys share some.
keys = st.lists(st.sampled_from([0, 1, 127, 255]), min_size=6, max_size=6).map(bytes)
numbers = st.sets(st.integers(0, 65535), min_size=1, max_size=20)
sets = st.dictionaries(keys, numbers, max_size=40)


def bitmap(found: dict[bytes, Iterable[int]], kind: Kind = Kind.ARRAY) -> Bitmap64:
    made = Bitmap64()
    for key, low in found.items():
        made.put(key, Container(kind, np.array(sorted(low), np.uint16)))
    return made


def values(found: Bitmap64) -> dict[bytes, set[int]]:
    return {key: set(container.numbers.tolist()) for key, container in contents(found)}


@settings(max_examples=examples(200), deadline=None)
@given(sets, sets)
def test_a_union_has_the_numbers_of_both_and_survives_its_bytes(left, right):
    data = serialised(union(parsed(serialised(bitmap(left))), parsed(serialised(bitmap(right)))))
    found = parsed(data)
    expected = {key: left.get(key, set()) | right.get(key, set()) for key in {**left, **right}}
    assert values(found) == expected
    assert list(values(found)) == sorted(expected)
    assert serialised(found) == data


@pytest.mark.parametrize(
    ("count", "room"), [(4, 0), (5, 1), (16, 1), (17, 2), (48, 2), (49, 3), (256, 3)]
)
def test_a_node_grows_when_it_is_full(count, room):
    found = bitmap({bytes([0, 0, 0, 0, 0, n * 5 % 256]): [1] for n in range(count)})
    assert isinstance(found.root, Branch)
    assert (found.root.room, found.root.prefix) == (room, bytes(5))
    assert serialised(parsed(serialised(found))) == serialised(found)


def test_the_list_of_containers_grows_by_half():
    rooms = []
    found = Bitmap64()
    for n in range(8):
        found.put(bytes([0, 0, 0, 0, 0, n]), Container(Kind.ARRAY, np.array([1], np.uint16)))
        rooms.append(len(found.containers))
    assert rooms == [1, 2, 3, 4, 6, 6, 9, 9]


def test_runs_stay_runs_unless_they_meet_others():
    low = range(0, 60, 2)
    key, other = bytes(6), bytes([9] * 6)
    alone = union(bitmap({key: low}, Kind.RUNS), bitmap({other: [1]}))
    met = union(bitmap({key: low}, Kind.RUNS), bitmap({key: [1000]}))
    assert [container.kind for _, container in contents(alone)] == [Kind.RUNS, Kind.ARRAY]
    assert [container.kind for _, container in contents(met)] == [Kind.ARRAY]


def test_the_bytes_of_a_small_union():
    found = union(bitmap({bytes(6): [1]}), bitmap({bytes([0, 0, 0, 0, 0, 2]): [7]}))
    leaf = "0400000000000000000{}0{}00000000000000"
    assert serialised(found).hex() == (
        "01" + "0200000000000000"
        "000200050000000000" + "00000200"
        + leaf.format(0, 0) + leaf.format(2, 1)
        + "01000000fe02000000"
        "0102010000000100" + "0102010000000700"
        "0200000000000000" + "00000000" + "01000000"
    )  # fmt: skip


def test_a_bitmap_without_numbers():
    assert serialised(parsed(b"\0")) == b"\0"


def whole() -> bytes:
    found = bitmap({bytes([0, 0, 0, 0, n % 3, n]): range(9) for n in range(60)})
    found.put(bytes([1] * 6), Container(Kind.RUNS, np.arange(9, dtype=np.uint16)))
    found.put(bytes([2] * 6), Container(Kind.BITS, np.arange(0, 65535, 2, dtype=np.uint16)))
    return serialised(found)


def test_every_cut_of_a_bitmap_is_an_error():
    data = whole()
    for end in [*range(300), 1000, len(data) - 1]:
        with pytest.raises(ValueError, match="not a roaring bitmap of 64 bits"):
            parsed(data[:end])


@pytest.mark.parametrize(
    "text",
    ["3a30000000000000", "02", "01" + "00" * 40, "01" + "ff" * 40, "0101000000000000000400000000"],
)
def test_other_bytes_are_an_error(text):
    with pytest.raises(ValueError, match="not a roaring bitmap of 64 bits"):
        parsed(bytes.fromhex(text))


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2000), st.integers(0, 255))
def test_damaged_bytes_are_an_error_or_a_bitmap(at, byte):
    data = bytearray(whole())
    data[at % len(data)] = byte
    try:
        found = parsed(bytes(data))
    except ValueError as error:
        assert "not a roaring bitmap of 64 bits" in str(error)  # noqa: PT017
    else:
        serialised(union(found, parsed(whole())))
