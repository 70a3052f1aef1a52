"""Certain damage of a live file holds the table at once; an error while reading does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.errors import DataFileDamaged, TransientStorageError
from compactord.formats.parquet import thrift
from compactord.model import FailureKind, SubcompactionFailure
from compactord.plan.table import Strategy
from compactord.table.compactor import TableCompactor
from compactord.table.cycle import Cycle
from compactord.table.in_flight import InFlight
from tests import builders
from tests.storages import Call, MemoryStorage, WatchedStorage
from tests.unit.maintenance.holding import HOME, Held, held_table
from tests.unit.table.compacting import ALL, outcome_of


def _flipped(data: bytes) -> bytes:
    """A bit of a page is another one: its checksum fails."""
    group = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    start = group.column(group.num_columns - 1).data_page_offset
    _, place = thrift.decode(data, start)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def _without_footer(data: bytes) -> bytes:
    return data[:-12] + bytes(12)


def _shorter(data: bytes) -> bytes:
    return data[:-30]


_DAMAGES: tuple[Callable[[bytes], bytes], ...] = (_flipped, _without_footer, _shorter)


def _compacted(compactor: TableCompactor, held: Held) -> tuple[InFlight, Cycle]:
    """The merge of the bucket with the damaged file, and the cycle that settles it."""
    number = int(held.merged[0].split("/bucket-")[1].split("/")[0])
    [bucket] = [each for each in held.state().files.bucket_ids() if each.bucket == number]
    dispatched = compactor.dispatch(bucket, number=1, free_slots=1)
    assert isinstance(dispatched, InFlight)
    ended = outcome_of(dispatched)
    return ended, compactor.cycle([ended], ALL)


@pytest.mark.parametrize("damage", _DAMAGES)
def test_damage_of_a_live_file_holds_at_the_first_failure(
    damage: Callable[[bytes], bytes],
) -> None:
    held = held_table()
    path = held.merged[0]
    whole = held.storage.objects[path]
    compactor = held.started(strategy=Strategy.FULL)
    assert compactor.why_held() is None
    held.storage.objects[path] = damage(whole)
    _, cycle = _compacted(compactor, held)
    error = cycle.causes[1]
    assert isinstance(error, DataFileDamaged)
    assert error.path == path
    assert "the newest version without it is snapshot" in error.message
    assert cycle.hold is not None
    assert cycle.hold.path == path
    assert held.expired(compactor).why_not == f"{error.message}: {path}"
    # As after kill -9: the file may have the right size.
    assert held.expired().why_not is not None
    # A change of owner, or a backup by links, moves its time alone.
    held.storage.changed_ms[path] = 1
    assert held.expired().why_not is not None
    # Restored from a backup.
    held.storage.objects[path] = whole
    if len(damage(whole)) == len(whole):
        # Whether its bytes are other ones shows a compaction, which replaces it.
        assert held.expired().why_not is not None
        _, cycle = _compacted(held.started(strategy=Strategy.FULL), held)
        assert cycle.settled is not None
        assert cycle.settled.snapshot_id is not None
    assert held.expired().snapshots > 0
    assert held.hold is None


class _Bad(WatchedStorage):
    """The first reads of a file fail, or come with a flipped bit."""

    def __init__(self, inner: Any, path: str, times: int, error: bool) -> None:
        super().__init__(inner)
        self._path, self._times, self._error = path, times, error

    def around(self, call: Call, effect: Callable[[], Any]) -> Any:
        is_read = call.method in ("read", "read_range", "open_input")
        if call.path != self._path or not is_read or not self._times:
            return effect()
        self._times -= 1
        if self._error:
            raise TransientStorageError(call.path, "read failed (it took too long)")
        found = effect()
        return _flipped(found) if isinstance(found, bytes) else found


def test_a_bit_that_flips_on_its_way_is_no_damage_of_the_file() -> None:
    held = held_table()
    bad = _Bad(held.storage, held.merged[0], times=1, error=False)
    compactor = held.started(bad, strategy=Strategy.FULL)
    ended, cycle = _compacted(compactor, held)
    assert not isinstance(ended.result, SubcompactionFailure)
    assert cycle.settled is not None
    assert cycle.settled.published == (1,)
    assert cycle.hold is None


def test_a_read_that_fails_is_no_damage() -> None:
    held = held_table()
    bad = _Bad(held.storage, held.merged[0], times=99, error=True)
    compactor = held.started(bad, strategy=Strategy.FULL)
    ended, cycle = _compacted(compactor, held)
    assert isinstance(ended.result, SubcompactionFailure)
    assert ended.result.kind is FailureKind.TRANSIENT
    assert (cycle.causes, cycle.hold, held.hold) == ({}, None, None)
    assert held.expired().snapshots > 0


def test_so_does_a_damaged_file_of_deletion_vectors_that_only_the_commit_reads() -> None:
    storage = MemoryStorage()
    table = builders.keyed_table(
        storage, HOME, buckets=1, options={"deletion-vectors.enabled": "true"}
    )
    target = builders.writer(storage, table)
    for keys in (200, 5):
        target.write(builders.rows_of([(key, keys) for key in range(keys)]))
        builders.compact(storage, table)
    target.write(builders.rows_of([(7, 7)]))
    held = Held(storage, table, ())
    compactor = held.started()
    [bucket] = held.state().files.bucket_ids()
    dispatched = compactor.dispatch(bucket, number=1, free_slots=1)
    assert isinstance(dispatched, InFlight)
    ended = outcome_of(dispatched)
    [path] = {vector.path for vector in held.state().indexes.vectors(bucket).values()}
    storage.objects[path] = storage.objects[path][:-1] + b"?"
    error = compactor.cycle([ended], ALL).causes[1]
    assert isinstance(error, DataFileDamaged)
    assert error.path == path
    assert held.hold["files"][0]["damage"] == "content"
