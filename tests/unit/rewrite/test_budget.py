from __future__ import annotations

import pytest

from compactord.errors import SubcompactionError
from compactord.rewrite.budget import MAX_GROUP_ROWS, MAX_WINDOW_ROWS, Load, budget

LOAD = Load(
    runs=10,
    row_bytes=70,
    open_bytes=(18 << 20) + 9 * (32 << 10),
    largest_file=20 << 20,
    decodes_ahead=True,
    needs_all=False,
)


def load(**changes):
    values = {name: getattr(LOAD, name) for name in Load.__slots__}
    return Load(**values | changes)


def test_enough_memory_gives_the_useful_sizes():
    sizes = budget(1 << 30, LOAD)
    assert (sizes.window_rows, sizes.group_rows) == (MAX_WINDOW_ROWS, MAX_GROUP_ROWS)
    assert sizes.fan_in == 10


def test_less_memory_gives_smaller_sizes():
    sizes = budget(260 << 20, LOAD)
    assert sizes.window_rows < MAX_WINDOW_ROWS
    assert sizes.group_rows < MAX_GROUP_ROWS
    assert sizes.fan_in == 10


def test_wider_rows_give_fewer_of_them():
    narrow, wide = budget(512 << 20, LOAD), budget(512 << 20, load(row_bytes=2000))
    assert wide.window_rows < narrow.window_rows
    assert wide.batch_rows < narrow.batch_rows


def test_rows_of_tens_of_kilobytes_are_merged_and_looked_up():
    wide = load(runs=5, row_bytes=30_000, needs_all=True, has_changelog=True, above=3)
    sizes = budget(512 << 20, wide)
    assert sizes.fan_in == 5
    assert 64 <= sizes.window_rows < 4_096


@pytest.mark.parametrize(
    ("row_bytes", "batch", "window", "group"),
    [(70, 21_845, 131_072, 262_144), (2_000, 5_904, 20_665, 40_441), (30_000, 394, 1_380, 2_692)],
)
def test_rows_that_are_not_wide_come_in_batches_as_large_as_ever(row_bytes, batch, window, group):
    usual = load(runs=10 if row_bytes == 70 else 5, row_bytes=row_bytes, open_bytes=2 << 20)
    sizes = budget(512 << 20, usual)
    assert (sizes.batch_rows, sizes.window_rows, sizes.group_rows) == (batch, window, group)


def test_runs_beyond_the_memory_are_merged_in_passes():
    sizes = budget(512 << 20, load(runs=300))
    assert 2 <= sizes.fan_in < 300


def test_small_pages_let_many_runs_be_open_at_once():
    sizes = budget(512 << 20, load(runs=100, row_bytes=100, open_bytes=(3 << 20) + 9 * (32 << 10)))
    assert sizes.fan_in == 100


def test_small_files_do_not_count_as_large_readers():
    assert budget(512 << 20, load(runs=300, largest_file=50_000)).fan_in == 300


def test_too_little_for_two_runs_is_an_error_that_names_the_need():
    with pytest.raises(SubcompactionError, match=r"10 runs .* needs at least [\d,]+ bytes"):
        budget(1 << 20, LOAD)


def test_fetched_bytes_of_open_files_take_memory():
    fetched = load(held_bytes=(1 << 20, 16 << 20))
    assert budget(1 << 30, fetched).held_bytes == 16 << 20
    less = budget(300 << 20, fetched)
    assert 1 << 20 <= less.held_bytes < 16 << 20
    assert less.window_rows < budget(300 << 20, LOAD).window_rows


def test_vectors_of_open_files_take_memory():
    marked = load(vector_rows=50_000_000)
    assert budget(1 << 30, marked).window_rows == MAX_WINDOW_ROWS
    # 10 times 12.5 MB.
    assert budget(385 << 20, marked).window_rows < budget(385 << 20, LOAD).window_rows
    assert budget(512 << 20, load(vector_rows=500_000_000)).fan_in < 10


def test_few_fetched_bytes_come_before_large_windows():
    sizes = budget(300 << 20, load(held_bytes=(1 << 20, 7 << 20)))
    assert sizes.held_bytes == 7 << 20
    assert sizes.window_rows < budget(300 << 20, LOAD).window_rows


def test_runs_whose_fetched_bytes_do_not_fit_are_merged_in_passes():
    sizes = budget(512 << 20, load(runs=100, open_bytes=1 << 20, held_bytes=(8 << 20, 9 << 20)))
    assert 2 <= sizes.fan_in < 100
    assert sizes.held_bytes >= 8 << 20


def test_one_run_needs_no_window():
    assert budget(64 << 20, load(runs=1)).fan_in == 1
