"""Live files that must not be rewritten: their buckets are left alone, by name, others go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from compactord.errors import UnsupportedTable
from compactord.paimon.data_file import DataFile
from compactord.paimon.table import load_state
from tests import builders
from tests.storages import MemoryStorage, RecordingStorage
from tests.unit.paimon.table_builder import History
from tests.unit.service.compacting import ALL, compactor_of

HOME = "/warehouse/db.db/t"
OUTSIDE = "/elsewhere/data-0.parquet"


def _changed(
    change: Callable[[DataFile], DataFile], *, buckets: int = 2
) -> tuple[MemoryStorage, builders.TableRef, dict[int, int], str]:
    """A table whose buckets are all due, with one file changed; the rows, and the file's name."""
    storage = MemoryStorage()
    table = builders.keyed_table(storage, HOME, buckets=buckets)
    expected = builders.fill_keyed(builders.writer(storage, table), commits=5)
    state = load_state(storage, table)
    name = state.files.files_in(state.files.bucket_ids()[0])[0].file_name
    history = History(storage, table, snapshot=state.snapshot)  # type: ignore[arg-type]
    history.merge_manifests(lambda file: change(file) if file.file_name == name else file)
    return storage, table, expected, name


def test_a_file_outside_of_the_table_is_not_read_and_its_bucket_is_named() -> None:
    storage, table, expected, name = _changed(lambda file: replace(file, external_path=OUTSIDE))
    watched = RecordingStorage(storage)
    totals = builders.compact(watched, table)
    (failure,) = totals.failures
    assert f"file {name} lies outside of the table, at {OUTSIDE}" in failure
    assert totals.compactions == 1
    assert not [call for call in watched.log if OUTSIDE in call.path]
    assert builders.read_keyed(storage, table) == expected


def test_the_service_is_told_of_it_when_the_bucket_takes_off() -> None:
    storage, table, _, name = _changed(lambda file: replace(file, external_path=OUTSIDE), buckets=1)
    compactor = compactor_of(storage, table)
    planned = compactor.turn({}, ALL).planned
    assert planned is not None
    with pytest.raises(UnsupportedTable, match=f"file {name} lies outside of the table"):
        compactor.take_off(planned.dues[0].bucket, number=1, free_slots=1)
