from __future__ import annotations

import pytest

from compactord.errors import FormatError, UsageError
from compactord.plan.picks import bucket_runs, level_count
from tests.unit.plan.builders import data_file, key_of, names


def test_level_0_is_newest_first_with_the_documented_ties() -> None:
    files = [
        data_file("min-later", sequences=(3, 9)),
        data_file("older", sequences=(1, 2)),
        data_file("created-later", sequences=(0, 9), created_ms=2),
        data_file("name-b", sequences=(0, 9), created_ms=1),
        data_file("name-a", sequences=(0, 9), created_ms=1),
        data_file("created-unknown", sequences=(0, 9), created_ms=None),
        data_file("newest", sequences=(10, 19)),
    ]
    runs = bucket_runs(files, key_of)
    assert [name for run in runs for name in names(run.files)] == [
        "newest",
        "created-unknown",
        "name-a",
        "name-b",
        "created-later",
        "min-later",
        "older",
    ]
    assert {(run.level, len(run.files)) for run in runs} == {(0, 1)}


def test_higher_levels_follow_in_ascending_order_each_in_key_order() -> None:
    files = [
        data_file("f5", level=5),
        data_file("f2-b", level=2, keys=(5, 9), size=3),
        data_file("f2-a", level=2, keys=(-2, 4), size=4),
        data_file("f0"),
    ]
    runs = bucket_runs(files, key_of)
    assert [(run.level, names(run.files), run.size_bytes) for run in runs] == [
        (0, ["f0"], 1 << 20),
        (2, ["f2-a", "f2-b"], 7),
        (5, ["f5"], 1 << 20),
    ]


def test_an_empty_bucket_has_no_runs() -> None:
    assert bucket_runs([], key_of) == ()


@pytest.mark.parametrize("touching", [(4, 9), (0, 2), (5, 5)])
def test_overlap_within_a_level_is_refused_by_name(touching: tuple[int, int]) -> None:
    files = [data_file("a", level=3, keys=(1, 5)), data_file("b", level=3, keys=touching)]
    with pytest.raises(FormatError, match=r"overlaps with . on level 3") as caught:
        bucket_runs(files, key_of)
    assert caught.value.path in ("a", "b")


def test_overlap_between_levels_is_normal() -> None:
    files = [data_file("a", level=3, keys=(1, 5)), data_file("b", level=4, keys=(1, 5))]
    assert len(bucket_runs(files, key_of)) == 2


def test_a_negative_level_is_refused() -> None:
    with pytest.raises(FormatError, match="level -1"):
        bucket_runs([data_file("a", level=-1)], key_of)


def test_keys_of_level_0_are_not_decoded() -> None:
    def unreadable(data: bytes) -> object:
        raise AssertionError(data)

    assert len(bucket_runs([data_file("a"), data_file("b")], unreadable)) == 2


def test_level_count_is_configured_unless_files_sit_higher() -> None:
    assert [level_count(highest, 6) for highest in (-1, 5, 7)] == [6, 6, 8]


def test_fewer_than_two_levels_are_refused() -> None:
    with pytest.raises(UsageError, match="num-levels is 1"):
        level_count(0, 1)
    assert level_count(1, 1) == 2
