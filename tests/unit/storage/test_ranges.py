"""Which requests are planned for the columns of a file, and what is in memory of them."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import Future

import pytest

from compactord.storage.ranges import (
    GAP_BYTES,
    MIN_PIECE_BYTES,
    REQUEST_BYTES,
    Extent,
    RangedFile,
    held_limits,
    planned,
)

MIB = 1 << 20


def extents(*sizes: list[int], gap: int = 0) -> list[Extent]:
    """Columns of these sizes in each group, one after the other."""
    found, at = [], 4
    for group, columns in enumerate(sizes):
        for leaf, size in enumerate(columns):
            found.append(Extent(group, leaf, at, at + size))
            at += size + gap
    return found


CASES = {
    "columns_side_by_side_are_one_request": ([[MIB, MIB, 10]], 0, 8 * MIB, 1),
    "small_gaps_are_fetched_too": ([[100, 100]], GAP_BYTES, 8 * MIB, 1),
    "large_gaps_are_not": ([[100, 100]], GAP_BYTES + 1, 8 * MIB, 2),
    "long_ones_are_several_requests": ([[2 * REQUEST_BYTES + 1]], 0, 64 * MIB, 3),
    "groups_are_fetched_one_by_one": ([[MIB], [MIB], [MIB]], 0, 2 * MIB, 3),
    "what_does_not_fit_comes_in_pieces": ([[MIB, MIB]], 0, MIB, 8),
    "never_in_smaller_ones_than_the_least": ([[MIB]], 0, 1, MIB // MIN_PIECE_BYTES),
    "small_columns_are_no_pieces": ([[100, 100, MIB]], 0, 6 * MIN_PIECE_BYTES, 17),
    "empty_columns_are_not_asked_for": ([[0, 10, 0]], 0, MIB, 1),
}


@pytest.mark.parametrize(("groups", "gap", "held", "requests"), CASES.values(), ids=CASES)
def test_as_few_requests_as_the_memory_allows(
    groups: list[list[int]], gap: int, held: int, requests: int
) -> None:
    assert len(planned(extents(*groups, gap=gap), held)) == requests


def test_each_byte_is_planned_once_and_in_bounds() -> None:
    seeded = random.Random()
    for _ in range(300):
        groups = [
            [seeded.choice([0, 1, 5_000, 300_000, 3_000_000]) for _ in range(3)]
            for _ in range(seeded.randint(1, 4))
        ]
        wanted = extents(*groups, gap=seeded.choice([0, 0, 10]))
        held = seeded.choice([1, 500_000, 5_000_000, 1 << 30])
        spans = sorted(planned(wanted, held))
        assert all(a.end <= b.start for a, b in itertools.pairwise(spans))
        assert all(0 < span.end - span.start <= REQUEST_BYTES for span in spans)
        for extent in wanted:
            inside = [(max(s.start, extent.start), min(s.end, extent.end)) for s in spans]
            assert sum(max(0, end - start) for start, end in inside) == extent.size


def test_what_a_file_needs_is_bounded_by_its_columns_and_its_size() -> None:
    assert held_limits([]) == (0, 0)
    assert held_limits(extents([100, 100])) == (200, 200)
    least, most = held_limits(extents([50 * MIB, 50 * MIB]))
    assert least == 4 * MIN_PIECE_BYTES
    assert least < most < 50 * MIB


class Fetched:
    """Answers at once; knows how many bytes of its answers were not given back."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[tuple[int, int]] = []

    def __call__(self, start: int, size: int) -> Future[bytes]:
        self.asked.append((start, size))
        found: Future[bytes] = Future()
        found.set_result(self.content[start : start + size])
        return found


@pytest.mark.parametrize("held", [1, MIB, 64 * MIB])
def test_columns_read_side_by_side_hold_no_more_than_they_may(held: int) -> None:
    wanted = extents([MIB, 10_000, 2 * MIB], [MIB, 10_000, 2 * MIB])
    content = random.Random(1).randbytes(wanted[-1].end)
    fetch = Fetched(content)
    file = RangedFile(fetch, wanted, size_bytes=len(content), held_bytes=held)
    read = 0
    for group in (0, 1):
        positions = {extent: extent.start for extent in wanted if extent.group == group}
        while positions:
            for extent in list(positions):
                step = max(1, extent.size // 40)
                file.seek(positions[extent])
                found = bytes(file.read(step))
                assert found == content[positions[extent] : positions[extent] + len(found)]
                read += len(found)
                positions[extent] += len(found)
                if positions[extent] == extent.end:
                    del positions[extent]
                asked = sum(size for _, size in fetch.asked)
                # What is asked for on demand comes on top: a piece of each column.
                assert asked - read <= max(held, 0) + 6 * MIN_PIECE_BYTES + MIB
        file.finish(group)
    assert read == sum(extent.size for extent in wanted)
    assert len(fetch.asked) == len(set(fetch.asked))
