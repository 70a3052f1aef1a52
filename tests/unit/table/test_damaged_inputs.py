"""Certain damage of a live file holds the table at once; an error while reading does not."""

from __future__ import annotations

import errno
import itertools
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.commit.changes import Committed
from compactord.errors import DataFileDamaged, TransientStorageError
from compactord.formats.parquet import thrift
from compactord.model import FailureKind, SubcompactionFailure
from compactord.plan.table import Strategy
from compactord.state.table_state import load_state
from compactord.storage.base import Capabilities, whole_range
from compactord.storage.ranges import SMALL_FILE, FileForArrow
from compactord.table.compactor import TableCompactor
from compactord.table.jobs import CycleResult, InFlight
from tests import builders
from tests.storages import Call, MemoryStorage, WatchedStorage
from tests.unit.table.compacting import ALL, outcome_of
from tests.unit.verify.holding import HOME, OPTIONS, Held, held_table


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


def _compacted(compactor: TableCompactor, held: Held) -> tuple[InFlight, CycleResult]:
    """The merge of the bucket with the damaged file, and the cycle that settles it."""
    number = int(held.merged[0].split("/bucket-")[1].split("/")[0])
    [bucket] = [each for each in held.state().files.bucket_ids() if each.bucket == number]
    dispatched = compactor.dispatch(bucket, compaction_id=1, free_slots=1)
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
        assert isinstance(cycle.commit, Committed)
    assert held.expired().snapshots > 0
    assert held.hold is None


def _eio(data: bytes) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _is_503(data: bytes) -> bytes:
    raise TransientStorageError("/somewhere", "read failed (503 Slow Down)")


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


class _Stream(FileForArrow):
    """What a store opens; `answered` has the last word on what a read returns."""

    def __init__(self, data: bytes, answered: Callable[[bytes], bytes]) -> None:
        super().__init__(len(data))
        self._data, self._answered = data, answered

    def read(self, size: int = -1) -> bytes:
        end = self.size_bytes if size < 0 else self.position + size
        found = self._answered(self._data[self.position : end])
        self.position += len(found)
        return found

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _How:
    """`answer` is what reads come to, `times` of them, of a local store or one behind a network."""

    answer: Callable[[bytes], bytes]
    times: float = math.inf
    is_local: bool = False


class _BadReads(WatchedStorage):
    """From read `at` on those of a file fail or are wrong."""

    def __init__(self, inner: MemoryStorage, path: str, how: _How, at: int = 1) -> None:
        super().__init__(inner)
        self.reads = 0
        self._path, self._how, self._at = path, how, at

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(behind_network=not self._how.is_local)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return whole_range(path, start, size, super().read_range(path, start, size))

    def around(self, call: Call, effect: Callable[[], Any]) -> Any:
        if call.path != self._path or call.method not in ("read", "read_range", "open_input"):
            return effect()
        if call.method == "open_input":
            return _Stream(self.inner.read(call.path), self._answered).stream()
        return self._answered(effect())

    def _answered(self, data: bytes) -> bytes:
        self.reads += 1
        is_bad = self._at <= self.reads < self._at + self._how.times
        return self._how.answer(data) if is_bad else data


def test_a_bit_that_flips_on_its_way_is_no_damage_of_the_file() -> None:
    held = held_table()
    bad = _BadReads(held.storage, held.merged[0], _How(answer=_flipped, times=1))
    compactor = held.started(bad, strategy=Strategy.FULL)
    ended, cycle = _compacted(compactor, held)
    assert not isinstance(ended.result, SubcompactionFailure)
    assert isinstance(cycle.commit, Committed)
    assert cycle.commit.compaction_ids == (1,)
    assert cycle.hold is None


def _large_table() -> Held:
    """Its merged file is read by ranges, or by Arrow from its stream."""
    storage = MemoryStorage()
    table = builders.keyed_table(storage, HOME, buckets=1, options=OPTIONS)
    target = builders.writer(storage, table)
    # Nothing packs them.
    target.write(builders.rows_of([(key, key * key * 65_537) for key in range(150_000)]))
    builders.compact(storage, table, strategy=Strategy.FULL)
    [merged] = builders.live_paths(storage, table, load_state(storage, table))
    builders.fill_keyed(target, commits=4, keys=12)
    assert len(storage.objects[merged]) > SMALL_FILE
    return Held(storage, table, (), (merged,))


_NO_DAMAGE = {
    "EIO": _How(answer=_eio, is_local=True),
    "EIO once": _How(answer=_eio, times=1, is_local=True),
    "503 in a stream": _How(answer=_is_503, is_local=True),
    "503": _How(answer=_is_503),
    "503 once": _How(answer=_is_503, times=1),
    "half of a stream once": _How(answer=_half, times=1, is_local=True),
    "half once": _How(answer=_half, times=1),
    "half": _How(answer=_half),
}


@pytest.mark.parametrize("table", [held_table, _large_table])
@pytest.mark.parametrize("how", _NO_DAMAGE)
def test_a_read_that_fails_or_ends_early_is_no_damage(table: Callable[[], Held], how: str) -> None:
    """Whichever read of the merge it is. A disk on which all end early has lost the rest."""
    template = table()
    for at in itertools.chain(range(1, 8), itertools.count(8, 8)):
        held = Held(template.storage.copy(), template.table, template.live, template.merged)
        bad = _BadReads(held.storage, held.merged[0], _NO_DAMAGE[how], at)
        compactor = held.started(bad, strategy=Strategy.FULL)
        before = dict(held.storage.objects)
        ended, cycle = _compacted(compactor, held)
        assert (cycle.causes, cycle.hold, held.hold) == ({}, None, None), f"read {at}"
        if isinstance(ended.result, SubcompactionFailure):
            assert ended.result.kind is FailureKind.TRANSIENT, f"read {at}: {ended.result}"
            assert held.storage.objects == before, f"read {at}"
        else:
            assert isinstance(cycle.commit, Committed)
            assert cycle.commit.compaction_ids == (1,)
        assert held.expired(compactor).snapshots > 0, f"read {at}"
        if bad.reads < at:
            break
    assert at > 1


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
    dispatched = compactor.dispatch(bucket, compaction_id=1, free_slots=1)
    assert isinstance(dispatched, InFlight)
    ended = outcome_of(dispatched)
    [path] = {vector.path for vector in held.state().indexes.vectors(bucket).values()}
    storage.objects[path] = storage.objects[path][:-1] + b"?"
    error = compactor.cycle([ended], ALL).causes[1]
    assert isinstance(error, DataFileDamaged)
    assert error.path == path
    assert held.hold["files"][0]["damage"] == "content"
