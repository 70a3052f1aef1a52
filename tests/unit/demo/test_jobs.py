from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactord.errors import StorageError
from compactord_demo.jobs import ClicksJob, Job, OrdersJob, Scene
from compactord_demo.rows import rows_of, same_rows
from tests.builders import writer
from tests.storages import MemoryStorage
from tests.unit.demo.scenes import scene_in

MAKERS = pytest.mark.parametrize("make", [OrdersJob, ClicksJob])


@MAKERS
def test_what_a_job_remembers_is_what_its_files_hold(make: Callable[[Scene], Job]) -> None:
    storage = MemoryStorage()
    job = make(scene_in(storage))
    written = sum(job.commit() for _ in range(3))
    found, expected = rows_of(storage, job.table, job.sort_names), job.expected()
    assert 0 < expected.num_rows <= written
    assert same_rows(found, expected)


def test_orders_are_updated_and_deleted() -> None:
    job = OrdersJob(scene_in(MemoryStorage()))
    before = job.expected()
    for _ in range(30):
        job.commit()
    middle = job.expected()
    job.commit()
    after = job.expected()
    assert before.num_rows == 0
    joined = middle.join(after, "id", right_suffix="_after", join_type="left outer")
    assert joined.column("amount_after").null_count > 0, "some are deleted"
    kept = joined.filter(pc.is_valid(joined.column("amount_after")))
    changed = pc.not_equal(kept.column("amount"), kept.column("amount_after"))
    assert pc.any(changed).as_py(), "some are changed"


@MAKERS
def test_a_row_of_somebody_else_is_a_difference(make: Callable[[Scene], Job]) -> None:
    storage = MemoryStorage()
    job = make(scene_in(storage))
    job.commit()
    # The highest in order: nothing else moves.
    row = job.expected().slice(job.expected().num_rows - 1, 1)
    stranger = writer(storage, job.table)
    changed = {"amount": pa.array([-1.0])} if make is OrdersJob else {}
    for name, values in changed.items():
        row = row.set_column(row.column_names.index(name), name, values)
    stranger.write(row)
    assert not same_rows(rows_of(storage, job.table, job.sort_names), job.expected())


@MAKERS
def test_a_table_without_files_has_no_rows(make: Callable[[Scene], Job]) -> None:
    storage = MemoryStorage()
    job = make(scene_in(storage))
    found = rows_of(storage, job.table, job.sort_names)
    assert found.num_rows == 0
    assert same_rows(found, job.expected())


@MAKERS
def test_a_table_that_is_there_already_is_left_alone(make: Callable[[Scene], Job]) -> None:
    scene = scene_in(MemoryStorage())
    make(scene)
    with pytest.raises(StorageError):
        make(scene)


@MAKERS
def test_the_jobs_of_one_seed_write_the_same(make: Callable[[Scene], Job]) -> None:
    jobs = [make(scene_in(MemoryStorage())) for _ in range(2)]
    for job in jobs:
        job.commit()
    assert same_rows(jobs[0].expected(), jobs[1].expected())
