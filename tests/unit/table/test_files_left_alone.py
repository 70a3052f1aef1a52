"""Live files that must not be rewritten: their buckets are skipped and named, others go on."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from compactord.errors import UnsupportedTable
from compactord.paimon.data_file import DataFile
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from tests import builders
from tests.storages import MemoryStorage, RecordingStorage
from tests.unit.paimon.foreign_files import sequences
from tests.unit.paimon.table_builder import History
from tests.unit.table.compacting import ALL, compactor_of

HOME = "/warehouse/db.db/t"
OUTSIDE = "/elsewhere/data-0.parquet"


def _changed(
    change: Callable[[DataFile], DataFile], *, buckets: int = 2
) -> tuple[MemoryStorage, TableRef, dict[int, int], str]:
    """A table whose buckets are all due, with one file changed; the rows, and the file's name."""
    storage = MemoryStorage()
    table = builders.keyed_table(storage, HOME, buckets=buckets)
    expected = builders.fill_keyed(builders.writer(storage, table), commits=5)
    state = load_state(storage, table)
    name = state.files.files_in(state.files.bucket_ids()[0])[0].file_name
    history = History(storage, table, snapshot=state.snapshot)  # type: ignore[arg-type]
    history.merge_manifests(lambda file: change(file) if file.file_name == name else file)
    return storage, table, expected, name


def _outside(file: DataFile) -> DataFile:
    return replace(file, external_path=OUTSIDE)


def _foreign(file: DataFile) -> DataFile:
    return replace(file, foreign=(sequences(1),))


CASES = {
    "outside": (_outside, f"is outside the table, at {OUTSIDE}"),
    "foreign": (
        _foreign,
        "has values of columns that are not known, _FILE._WRITE_COLS_SEQUENCES: "
        "rewriting it would lose them",
    ),
}
each_case = pytest.mark.parametrize(("change", "said"), CASES.values(), ids=CASES)


@each_case
def test_a_file_that_must_not_be_rewritten_is_not_read_and_its_bucket_is_named(
    change: Callable[[DataFile], DataFile], said: str
) -> None:
    storage, table, expected, name = _changed(change)
    watched = RecordingStorage(storage)
    totals = builders.compact(watched, table)
    (failure,) = totals.failures
    assert f"file {name} {said}" in failure
    assert totals.compactions == 1
    assert not [call for call in watched.log if call.path.endswith((name, OUTSIDE))]
    assert builders.read_keyed(storage, table) == expected


@each_case
def test_the_service_is_told_of_it_when_the_bucket_takes_off(
    change: Callable[[DataFile], DataFile], said: str
) -> None:
    storage, table, _, name = _changed(change, buckets=1)
    compactor = compactor_of(storage, table)
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    with pytest.raises(UnsupportedTable, match=re.escape(f"file {name} {said}")):
        compactor.dispatch(planned.offered[0].bucket, compaction_id=1, free_slots=1)


def test_a_file_with_unknown_values_moves_to_the_highest_level_with_them() -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, HOME, buckets=1)
    builders.writer(storage, table).write(builders.rows_of((key, key) for key in range(40)))
    history = History(storage, table, snapshot=load_state(storage, table).snapshot)  # type: ignore[arg-type]
    history.merge_manifests(_foreign)
    totals = builders.compact(storage, table, strategy=Strategy.FULL)
    assert (totals.failures, totals.upgraded_files) == ([], 1)
    state = load_state(storage, table)
    (file,) = state.files.files_in(state.files.bucket_ids()[0])
    assert (file.level, file.foreign) == (5, (sequences(1),))
