from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.table.explain import bucket_details
from compactord.table.status import BUCKETS_MAX, BucketDetail
from compactord_demo.writer import create_table
from tests.builders import append_table, fill_keyed, keyed_table, rows_of, writer
from tests.damage import DAMAGE, Spoil, spoil
from tests.storages import MemoryStorage
from tests.unit.table.compacting import ALL, Driver, compactor_of

WHERE = "/warehouse/db.db/t"


def _details(
    storage: MemoryStorage, table: TableRef, *, cycles: int = 1
) -> tuple[BucketDetail, ...]:
    compactor = compactor_of(storage, table)
    if cycles == 1:
        compactor.cycle((), ALL)
    else:
        Driver(compactor).run(cycles=cycles)
    assert compactor.last_plan is not None
    return bucket_details(compactor.last_plan)


def test_before_a_first_look_nothing_is_seen() -> None:
    storage = MemoryStorage()
    assert compactor_of(storage, keyed_table(storage, WHERE)).last_plan is None


def test_a_bucket_is_shown_run_by_run_with_its_keys_and_what_is_planned() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=1)
    target = writer(storage, table)
    for n in range(5):
        target.write(rows_of([(n, 1), (100 + n, 2)]))
    (detail,) = _details(storage, table)
    assert detail.sorted_runs == 5
    assert [(run.level, run.files, run.rows) for run in detail.runs] == [(0, 1, 2)] * 5
    assert (detail.runs[0].min_key, detail.runs[0].max_key) == ("4", "104"), "the newest first"
    assert detail.plan != ""


def test_binary_keys_are_shown_in_hex() -> None:
    storage = MemoryStorage()
    table = TableRef(database="db", name="t", location=WHERE)
    key = DataField(id=0, name="k", type=AtomicType(root=TypeRoot.VARBINARY, nullable=False))
    create_table(storage, table, [key], primary_keys=["k"], options={"bucket": "1"})
    keys = pa.array([b"\x00", b"\xffb"], pa.binary())
    writer(storage, table).write(pa.table({"k": keys}))
    (detail,) = _details(storage, table)
    assert (detail.runs[0].min_key, detail.runs[0].max_key) == ("0x00", "0xff62")


def test_after_compaction_one_run_is_left_and_nothing_is_planned() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=2)
    fill_keyed(writer(storage, table), commits=6)
    for detail in _details(storage, table, cycles=3):
        assert [run.level for run in detail.runs] == [5]
        assert detail.plan == ""


def test_the_worst_buckets_come_first_and_not_all_of_them() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=BUCKETS_MAX + 20)
    target = writer(storage, table)
    target.write(rows_of([(key, 1) for key in range(2_000)]))
    for _ in range(3):
        target.write(rows_of([(7, 1)]))
    details = _details(storage, table)
    assert len(details) == BUCKETS_MAX
    assert details[0].sorted_runs == 4
    runs = [detail.sorted_runs for detail in details]
    assert runs == sorted(runs, reverse=True)


def test_append_files_have_no_keys() -> None:
    storage = MemoryStorage()
    table = append_table(storage, WHERE)
    target = writer(storage, table)
    for n in range(3):
        target.write(rows_of([(n, n)]))
    (detail,) = _details(storage, table)
    assert detail.files == 3
    assert {(run.min_key, run.max_key) for run in detail.runs} == {("", "")}


@pytest.mark.parametrize(("how", "said"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_bucket_is_shown_as_such_beside_the_others(how: Spoil, said: str) -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=2)
    fill_keyed(writer(storage, table), commits=6)
    spoil(storage, table, 1, how)
    details = {each.bucket: each for each in _details(storage, table)}
    assert said in details[1].plan
    assert details[1].runs == ()
    assert details[0].plan.startswith("bucket 0: size_amp")
    assert len(details[0].runs) == 6


def test_a_bucket_whose_entries_disagree_is_shown_as_damaged() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, WHERE, buckets=1)
    fill_keyed(writer(storage, table), commits=6)
    spoil(storage, table, 0, lambda entry: replace(entry, total_buckets=9))
    (detail,) = _details(storage, table)
    assert "disagree about the number of buckets" in detail.plan
