"""Four processes that commit to one table at the same time, and what must hold of it afterwards.

Each appends files of its own, and compacts two of them after every second APPEND. What compactions
bring has no rows that could be read: a name stands for a row count.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from compactord import ids
from compactord.catalog.access import table_in_folder
from compactord.clock import SystemClock
from compactord.commit.changes import BucketChange, Committed
from compactord.commit.committer import Committer, commit_user
from compactord.commit.publish import StorePublisher
from compactord.model import DATA, Output
from compactord.paimon import paths
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, read_snapshot, snapshot_ids
from compactord.state.follower import Follower
from compactord.state.table_state import delta_entries, load_state
from compactord.storage.base import Storage, StorageSpec
from compactord.table.opening import open_table
from tests import builders

PROCESSES = 4
# The contest is over when all have won often enough: none gives up.
OPTIONS = {
    "commit.max-retries": "100000",
    "commit.min-retry-wait": "1 ms",
    "commit.max-retry-wait": "50 ms",
}
_WAIT_SECONDS = 3_600
_BUCKET = BucketId(encode_row((), ()), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What one process committed: id, kind and user of each snapshot; rows of what is to be live.

    `attempts` are those of its compactions.
    """

    snapshots: tuple[tuple[int, CommitKind, str], ...]
    attempts: int
    live: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """`seconds` from the first commit to the last one; `attempts` of the compactions."""

    commits: int
    compactions: int
    attempts: int
    seconds: float


def contest(spec: StorageSpec, location: str, *, each: int) -> Contest:
    """Make an append table at `location`, an empty place, and let each process commit so often.

    Raises `AssertionError` if a commit or a file is lost, or the snapshots are not one chain.
    """
    storage = spec.open()
    table = builders.append_table(storage, location, options=OPTIONS)
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(PROCESSES + 1), context.Queue()
    processes = [
        context.Process(target=_commits, args=(spec, table, each, barrier, answers), daemon=True)
        for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    barrier.wait(_WAIT_SECONDS)
    start_s = time.perf_counter()
    found = [answers.get(timeout=_WAIT_SECONDS) for _ in processes]
    seconds = time.perf_counter() - start_s
    for process in processes:
        process.join(_WAIT_SECONDS)
    for one in found:
        assert isinstance(one, Done), one
    check(storage, table, found, commits=PROCESSES * each)
    kinds = [kind for one in found for _, kind, _ in one.snapshots]
    return Contest(
        commits=len(kinds),
        compactions=kinds.count(CommitKind.COMPACT),
        attempts=sum(one.attempts for one in found),
        seconds=seconds,
    )


def check(storage: Storage, table: TableRef, found: Sequence[Done], *, commits: int) -> None:
    """No commit is lost, ids have no gaps, each file is live once, record counts are right."""
    claimed = {number: (user, kind) for one in found for number, kind, user in one.snapshots}
    assert sum(len(one.snapshots) for one in found) == len(claimed) == commits
    there = snapshot_ids(storage, table.location)
    assert there == tuple(range(1, commits + 1)), "ids have gaps"
    total = 0
    for number in there:
        snapshot = read_snapshot(storage, table.location, number)
        assert (snapshot.commit_user, snapshot.commit_kind) == claimed[number]
        total += snapshot.delta_record_count
        assert snapshot.total_record_count == total
    live: dict[str, int] = {}
    for one in found:
        live |= one.live
    state = load_state(storage, table)
    files = [f for bucket in state.files.bucket_ids() for f in state.files.files_in(bucket)]
    assert {file.file_name: file.row_count for file in files} == live
    assert sum(live.values()) == total


def _commits(spec: StorageSpec, table: TableRef, each: int, barrier: Any, answers: Any) -> None:
    # What loses a race says so, thousands of times.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        process = _Process(spec.open(), table)
        barrier.wait(_WAIT_SECONDS)
        answers.put(process.commit(each))
    except BaseException as error:
        barrier.abort()
        answers.put(f"{type(error).__name__}: {error}")
        raise


class _Process:
    """One of those that commit: a writer and a compactor."""

    def __init__(self, storage: Storage, table: TableRef) -> None:
        self._storage, self._ref, self._owner = storage, table, ids.this_process()
        self._table = open_table(table_in_folder(storage, table), {})
        self._writer = builders.writer(storage, table, owner=self._owner)
        self._user = commit_user(self._owner, None)
        self._committer = Committer(
            storage=storage,
            publisher=StorePublisher(storage),
            follower=Follower(table_in_folder(storage, table), user=self._user),
            clock=SystemClock(),
            owner=self._owner,
        )
        self._state = load_state(storage, table)
        self._snapshots: list[tuple[int, CommitKind, str]] = []
        self._live: dict[str, DataFile] = {}
        self._attempts = 0

    def commit(self, each: int) -> Done:
        """Two APPENDs and a COMPACT of what they brought, and so on."""
        for number in range(each):
            if number % 3 < 2:
                self._append(number)
            else:
                self._compact()
        return Done(
            snapshots=tuple(self._snapshots),
            attempts=self._attempts,
            live={name: file.row_count for name, file in self._live.items()},
        )

    def _append(self, number: int) -> None:
        snapshot_id = self._writer.write(builders.rows_of([(number, number)] * (1 + number % 5)))
        snapshot = read_snapshot(self._storage, self._ref.location, snapshot_id)
        self._note(snapshot_id, CommitKind.APPEND, snapshot.commit_user)
        (entry,) = delta_entries(self._storage, self._ref.location, snapshot)
        self._live[entry.file.file_name] = entry.file

    def _compact(self) -> None:
        before = tuple(self._live.values())[-2:]
        outcome, self._state = self._committer.commit(
            self._state, [self._change(before)], self._table.commit_settings
        )
        assert isinstance(outcome, Committed), outcome
        self._attempts += outcome.attempts
        self._note(outcome.snapshot_id, CommitKind.COMPACT, self._user)
        ((output,),) = (change.outputs for change in outcome.published)
        for file in before:
            del self._live[file.file_name]
        # Not among the last two again.
        self._live = {output.file.file_name: output.file, **self._live}

    def _change(self, before: Sequence[DataFile]) -> BucketChange:
        name = f"data-{self._owner.unique_name()}-0.parquet"
        merged = replace(
            before[0], file_name=name, row_count=sum(file.row_count for file in before)
        )
        folder = self._table.bucket_folder(_BUCKET)
        path = paths.join(folder, merged.file_name)
        self._storage.write_new(path, bytes(merged.file_size))
        return BucketChange(
            bucket=_BUCKET,
            total_buckets=-1,
            output_level=0,
            before=tuple(before),
            upgraded=(),
            outputs=(Output(DATA, merged),),
            files_above=frozenset(),
        )

    def _note(self, snapshot_id: int, kind: CommitKind, user: str) -> None:
        self._snapshots.append((snapshot_id, kind, user))
