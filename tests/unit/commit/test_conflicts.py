from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from compactord.commit.changes import BucketChange
from compactord.commit.conflicts import already_live, conflict
from compactord.errors import FormatError
from compactord.model import Conflict
from compactord.paimon.binary_row import comparable_key, encode_row
from compactord.paimon.data_file import DataFile
from compactord.paimon.deletion_vectors import VectorRef
from tests.builders import data_outputs
from tests.lineage import KEY_TYPES, bucket_id
from tests.unit.paimon.table_builder import data_file

KEY_OF = partial(comparable_key, types=KEY_TYPES)


def _file(name: str, *, level: int = 0, keys: tuple[int, int] = (0, 9)) -> DataFile:
    low, high = (encode_row([key], KEY_TYPES) for key in keys)
    return data_file(name, level=level, min_key=low, max_key=high)


VECTOR = VectorRef(path="index-1", offset=1, length=22, cardinality=1)
MOVED = replace(VECTOR, path="index-2")
Are = Callable[[VectorRef, VectorRef], bool]


def _differ(*_: VectorRef) -> bool:
    return False


JUNK = b"\0\0\0\1junk"
A, B = _file("a"), _file("b")
OUTPUT = _file("out", level=5)
CHANGE = BucketChange(
    bucket=bucket_id(0),
    total_buckets=4,
    output_level=5,
    before=(A, B),
    upgraded=(),
    outputs=data_outputs(OUTPUT),
    files_above=frozenset(),
    vectors={"a": VECTOR},
)


def _found(change: BucketChange = CHANGE, **now: Any) -> tuple[Conflict, str] | None:
    known: dict[str, Any] = {
        "live": [A, B],
        "total_buckets": 4,
        "vectors": {"a": VECTOR, "elsewhere": VECTOR},
        "key_of": KEY_OF,
        "are_same": _differ,
    }
    return conflict(change, **{**known, **now})


def _why(change: BucketChange = CHANGE, **now: Any) -> str | None:
    found = _found(change, **now)
    return found and found[1]


@pytest.mark.parametrize(
    ("now", "kind"),
    [
        ({"live": [A]}, Conflict.FILE_REMOVED),
        ({"live": [], "total_buckets": None}, Conflict.PARTITION_EXPIRED),
        ({"total_buckets": 8}, Conflict.BUCKET_COUNT_CHANGED),
        ({"vectors": {}}, Conflict.DV_CHANGED),
        ({"live": [A, B, _file("stranger", level=5, keys=(50, 60))]}, Conflict.OTHER),
    ],
)
def test_a_conflict_says_which_kind_it_is(now: dict[str, Any], kind: Conflict) -> None:
    found = _found(**now)
    assert found is not None
    assert found[0] is kind


def test_a_bucket_as_it_was_has_no_conflict() -> None:
    assert _why() is None


def test_new_level_0_files_are_no_conflict_whatever_their_keys() -> None:
    assert _why(live=[A, B, _file("new"), _file("newer", keys=(-5, 100))]) is None


def test_an_input_that_is_gone_is_a_conflict() -> None:
    assert _why(live=[A]) == "input b of level 0 is no longer live"


def test_a_bucket_without_files_is_a_conflict() -> None:
    assert _why(live=[], total_buckets=None) == "input a of level 0 is no longer live"


def test_an_input_that_moved_to_another_level_is_a_conflict() -> None:
    assert _why(live=[A, replace(B, level=3)]) == "input b of level 0 is no longer live"


@pytest.mark.parametrize(
    "other", [{"extra_files": ("b.index",)}, {"embedded_file_index": b"x"}], ids=["extra", "index"]
)
def test_an_input_is_known_by_its_whole_identity(other: dict[str, Any]) -> None:
    assert "input b" in str(_why(live=[A, replace(B, **other)]))


def test_another_number_of_buckets_is_a_conflict() -> None:
    assert _why(total_buckets=8) == "the bucket count is now 8, not 4"


def _same(*_: VectorRef) -> bool:
    return True


def _damaged(*_: VectorRef) -> bool:
    raise FormatError("index-1", "the checksum of a vector does not hold")


CHANGED = (Conflict.DV_CHANGED, "other rows of {} are deleted than when it was read")
DAMAGED = (Conflict.BUCKET_DAMAGED, "the checksum of a vector does not hold: index-1")
SEEN = _file("seen", level=5, keys=(50, 60))


@pytest.mark.parametrize(
    ("now", "are_same", "found"),
    [
        ({"a": VECTOR}, _differ, None),
        ({"a": VECTOR, "elsewhere": MOVED}, _differ, None),
        ({"a": MOVED}, _same, None),
        ({"a": MOVED}, _differ, CHANGED),
        ({"a": MOVED}, _damaged, DAMAGED),
        ({}, _same, CHANGED),
        ({"a": VECTOR, "b": VECTOR}, _same, CHANGED),
        ({"a": VECTOR, "seen": VECTOR}, _same, CHANGED),
        ({"a": VECTOR, "upgraded": VECTOR}, _same, None),
    ],
)
def test_what_was_read_must_have_the_vectors_with_which_it_was_read(
    now: Mapping[str, VectorRef], are_same: Are, found: tuple[Conflict, str] | None
) -> None:
    """Nobody read the rows of `elsewhere` and of `upgraded`."""
    upgraded = _file("upgraded", keys=(20, 30))
    change = replace(
        CHANGE,
        before=(A, B, upgraded),
        upgraded=(replace(upgraded, level=5),),
        files_above=frozenset({"seen"}),
        only_read=frozenset({"seen"}),
    )
    live = [A, B, upgraded, SEEN]
    why = _found(change, live=live, vectors=now, are_same=are_same)
    name = next((each for each in ("b", "seen") if each in now), "a")
    assert why == (found and (found[0], found[1].format(name)))


@pytest.mark.parametrize("level", [5, 6])
def test_a_stranger_on_the_output_level_or_above_is_a_conflict(level: int) -> None:
    stranger = _file("stranger", level=level, keys=(50, 60))
    assert _why(live=[A, B, stranger]) == f"stranger appeared on level {level}"


def test_a_stranger_below_the_output_level_is_none() -> None:
    assert _why(live=[A, B, _file("stranger", level=4)]) is None


def test_files_that_were_above_when_it_was_planned_are_no_strangers() -> None:
    above = _file("above", level=5, keys=(50, 60))
    change = replace(CHANGE, files_above=frozenset({"above"}))
    assert _why(change, live=[A, B, above]) is None


@pytest.mark.parametrize("level", [1, 5])
def test_key_ranges_that_meet_on_one_level_are_a_conflict(level: int) -> None:
    above = _file("above", level=level, keys=(9, 60))
    output = replace(OUTPUT, level=level)
    change = replace(CHANGE, output_level=level, outputs=data_outputs(output))
    change = replace(change, files_above=frozenset({"above"}))
    assert _why(change, live=[A, B, above]) == f"out and above would overlap on level {level}"


def test_key_ranges_of_different_levels_may_meet() -> None:
    above = _file("above", level=6, keys=(0, 60))
    change = replace(CHANGE, files_above=frozenset({"above"}))
    assert _why(change, live=[A, B, above]) is None


def test_inputs_on_the_output_level_are_neither_strangers_nor_in_the_way() -> None:
    old = _file("old", level=5)
    change = replace(CHANGE, before=(A, B, old), files_above=frozenset({"old"}))
    assert _why(change, live=[A, B, old]) is None


def test_an_upgrade_is_no_conflict_with_itself() -> None:
    change = replace(CHANGE, before=(A,), upgraded=(replace(A, level=5),), outputs=())
    assert _why(change, live=[A, B]) is None


def test_files_of_append_tables_have_no_key_ranges_to_overlap() -> None:
    change = replace(CHANGE, output_level=0, outputs=data_outputs(_file("out")))
    assert _why(change, live=[A, B, _file("c")], key_of=None) is None
    assert "input a" in str(_why(change, live=[B], key_of=None))


def test_an_output_that_is_live_is_found_but_an_upgraded_file_is_no_output() -> None:
    upgrade = replace(CHANGE, before=(A, B), upgraded=(replace(A, level=5),))
    assert already_live(upgrade, [A, B]) is None
    assert already_live(upgrade, [A, B, OUTPUT]) == "out"


@pytest.mark.parametrize("bound", ["min_key", "max_key"])
def test_a_key_that_cannot_be_read_is_told_with_its_file(bound: str) -> None:
    damaged = replace(_file("c", level=3), **{bound: JUNK})  # type: ignore[arg-type]
    found = _found(live=[A, B, damaged])
    assert found is not None
    assert found[0] is Conflict.BUCKET_DAMAGED
    assert found[1].startswith("the keys of the file cannot be read (8 bytes are not a row")
    assert found[1].endswith(": c")
    assert _found(live=[A, B, replace(damaged, level=0)]) is None, "it is compared with nothing"


def test_a_stranger_below_the_output_level_hides_what_was_looked_up() -> None:
    change = replace(CHANGE, looks_up=True)
    assert _why(change, live=[A, B, _file("stranger", level=4)]) == "stranger appeared on level 4"
    assert _why(change, live=[A, B, _file("stranger", level=0)]) is None


@pytest.mark.parametrize(("live", "is_valid"), [(("seen",), True), ((), False)])
def test_a_file_in_which_rows_were_looked_up_must_still_be_live(live, is_valid) -> None:
    above = [_file(name, level=5, keys=(20, 30)) for name in live]
    change = replace(
        CHANGE,
        output_level=4,
        outputs=data_outputs(_file("out", level=4)),
        files_above=frozenset({"seen"}),
        only_read=frozenset({"seen"}),
    )
    found = _found(change, live=[A, B, *above])
    assert (found is None) == is_valid
    assert is_valid or found == (
        Conflict.FILE_REMOVED,
        "seen, in which rows were looked up, is gone",
    )
