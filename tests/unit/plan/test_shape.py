from __future__ import annotations

from compactord.table.shapes import LevelShape, bucket_shape
from compactord.table.status import run_state
from tests.unit.plan.builders import BUCKET, MB, bucket_of, compaction_options, data_file


def test_levels_are_summed_in_order() -> None:
    files = [
        data_file("top-b", level=5, size=100 * MB, rows=7, keys=(5, 9)),
        data_file("new", size=2 * MB, rows=3, deletes=1),
        data_file("top-a", level=5, size=90 * MB, rows=5, deletes=None),
        data_file("newer", size=1 * MB, rows=2, deletes=2),
    ]
    shape = bucket_shape(bucket_of(files), compaction_options())
    assert shape.bucket_id == BUCKET
    assert shape.levels == (
        LevelShape(level=0, file_count=2, row_count=5, delete_row_count=3, size_bytes=3 * MB),
        LevelShape(level=5, file_count=2, row_count=12, delete_row_count=0, size_bytes=190 * MB),
    )
    assert shape.sorted_runs == 3
    assert (shape.files, shape.rows, shape.size_bytes) == (4, 17, 193 * MB)
    assert shape.small_files == 2


def test_an_empty_bucket_has_no_levels() -> None:
    shape = bucket_shape(bucket_of([]), compaction_options())
    assert (shape.sorted_runs, shape.files, shape.levels) == (0, 0, ())


def test_triggers_compare_with_the_run_count() -> None:
    options = compaction_options(compaction_trigger=2, stop_trigger=3)
    files = [data_file(f"f{number}") for number in range(4)]
    shapes = [bucket_shape(bucket_of(files[:count]), options) for count in range(5)]
    marks = [run_state(s.sorted_runs, s.compaction_trigger, s.stop_trigger).mark for s in shapes]
    assert marks == ["", "", " *", " *", " !!"]
