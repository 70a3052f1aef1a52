"""Foreign writers rename over snapshots of ours at any moment, however late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from compactord.commit.changes import LossOutcome, LostCommit
from compactord.paimon.snapshot import Snapshot, read_snapshot, snapshot_ids
from tests.builders import FIRST, SECOND, VirtualClock
from tests.late import Process
from tests.lineage import APPENDED, DYNAMIC, KEYED, TABLE, Kind, Lineage
from tests.sampling import one_in
from tests.storages import Call, Schedule, StoppingStorage, all_schedules

Ends = Counter[str]
SETTLE_MS = 10_000
# Until the next stop everybody only reads, and writes files of its own.
_COMMUTING = ("start",)


class _Writer:
    """One commit of a foreign job: it looks, and renames whatever has happened meanwhile."""

    def __init__(self, table: Lineage, user: str, bucket: int) -> None:
        self._table, self._user, self._bucket = table, user, bucket
        self._rename: Callable[[], Snapshot] | None = None
        self.rows: frozenset[int] = frozenset()
        self.snapshot: Snapshot | None = None

    def look(self) -> None:
        self._rename = self._table.prepare_replacement(
            bucket=self._bucket, commit_user=self._user, commit_identifier=7
        )
        self.rows = self._table.rows[self._table.replacement_file.file_name]

    def rename(self) -> None:
        assert self._rename is not None
        self.snapshot = self._rename()

    def is_on_disk(self) -> bool:
        assert self.snapshot is not None
        if self.snapshot.id not in snapshot_ids(self._table.storage, TABLE.location):
            return False
        there = read_snapshot(self._table.storage, TABLE.location, self.snapshot.id)
        return there.identity == self.snapshot.identity

    def reported(self, found: list[LostCommit], outcome: LossOutcome) -> bool:
        return any(each.commit_user == self._user and each.outcome is outcome for each in found)


def _publications(call: Call) -> bool:
    return call.method == "create_if_absent"


@one_in(2)
@pytest.mark.parametrize(
    ("is_keyed", "buckets"), [(True, (0, 0)), (True, (0, 1)), (False, (0, 1)), (False, (2, 2))]
)
def test_whenever_two_writers_rename_no_row_is_lost_unnamed_and_none_is_there_twice(
    *, is_keyed: bool, buckets: tuple[int, int]
) -> None:
    """We publish a merge of bucket 0, then of bucket 1; each writer looks once and renames once."""
    table = Lineage(is_keyed=is_keyed)
    left, right = table.append(2, bucket=0), table.append(2, bucket=1)
    seen: Ends = Counter()

    def run(schedule: Schedule) -> None:
        fork = table.fork()
        before = +fork.expected
        ours = Process(fork, storage=StoppingStorage(fork.storage, "us", schedule, _publications))
        writers = [_Writer(fork, user, bucket) for user, bucket in zip("ab", buckets, strict=True)]

        def compact() -> None:
            for bucket, files in ((0, left), (1, right)):
                ours.commit(fork.change(files, owner=FIRST, bucket=bucket))

        def write(name: str, writer: _Writer) -> None:
            writer.look()
            schedule.wait(name, "rename")
            writer.rename()

        schedule.run(
            {
                "us": compact,
                "a": lambda: write("a", writers[0]),
                "b": lambda: write("b", writers[1]),
            }
        )
        # The process goes on, or another one begins: both find the same.
        restarted = fork.fork()
        for end, process in (
            ("goes on", _without_schedule(ours)),
            ("restarted", Process(restarted, owner=SECOND)),
        ):
            found = process.look()
            assert process.look() == [], "it is said once"
            context = (end, schedule.trace)
            ends = _judged(process.table, before, writers, found, context)
            seen.update(f"{end}: {how}" for how in ends)

    for schedule in all_schedules(run, _COMMUTING):
        assert schedule.trace
    print(seen)
    assert seen["goes on: healed"] > 0
    assert seen["restarted: healed"] > 0


@pytest.mark.parametrize(
    ("kind", "buckets"),
    [
        (KEYED, (0,)),
        (KEYED, (1,)),
        (KEYED, (2,)),
        (DYNAMIC, (1,)),
        (APPENDED, (0,)),
        (KEYED, (0, 1)),
    ],
)
def test_a_rename_while_our_snapshot_still_has_to_stand_loses_nothing_but_our_work(
    *, kind: Kind, buckets: tuple[int, int]
) -> None:
    """As above; but before we publish again, our snapshot stands for a while and is read back.

    What a writer renames in that time is there afterwards, unless a second writer built on ours;
    and nothing has to be committed again. What it renames later is found as ever.
    """
    table = Lineage(**kind)
    left, right = table.append(2, bucket=0), table.append(2, bucket=1)
    seen: Ends = Counter()

    def run(schedule: Schedule) -> None:
        fork = table.fork()
        before = +fork.expected
        happened: list[str] = []
        clock = _StoppingClock(schedule, happened)
        ours = Process(
            fork,
            storage=StoppingStorage(fork.storage, "us", schedule, _publications),
            clock=clock,
            settle_ms=SETTLE_MS,
        )
        writers = [_Writer(fork, user, bucket) for user, bucket in zip("ab", buckets, strict=False)]

        def compact() -> None:
            for bucket, files in ((0, left), (1, right)):
                ours.commit(fork.change(files, owner=FIRST, bucket=bucket))
            happened.append("published")

        def write(name: str, writer: _Writer) -> None:
            writer.look()
            schedule.wait(name, "rename")
            writer.rename()
            happened.append(name)

        actors = {
            name: partial(write, name, each) for name, each in zip("ab", writers, strict=False)
        }
        schedule.run({"us": compact, **actors})
        in_time = set(happened[: happened.index("stood")])
        # Until then nothing is committed again either.
        clock.sleep(SETTLE_MS / 1000 + 1)
        restarted = fork.fork()
        for end, process in (
            ("goes on", _without_schedule(ours)),
            ("restarted", Process(restarted, owner=SECOND)),
        ):
            found = process.look()
            ends = _judged(process.table, before, writers, found, (end, happened, schedule.trace))
            for name, how in zip("ab", ends, strict=False):
                seen[f"{'in time' if name in in_time else 'late'}: {how}"] += 1
            if len(in_time) == len(writers):
                assert process.follower.replaced_snapshots == 0, "it cost only work"

    for schedule in all_schedules(run, _COMMUTING):
        assert schedule.trace
    print(seen)
    assert seen["in time: there"] > 0
    assert seen["late: healed"] > 0
    if len(buckets) == 1:
        assert {how for how in seen if how.startswith("in time")} == {"in time: there"}


class _StoppingClock(VirtualClock):
    """Others may do something whenever we have waited for a snapshot of ours to stand."""

    def __init__(self, schedule: Schedule, happened: list[str]) -> None:
        super().__init__()
        self._schedule, self._happened = schedule, happened

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if seconds == SETTLE_MS / 1000:
            self._schedule.wait("us", "stood")
            self._happened.append("stood")


def _without_schedule(process: Process) -> Process:
    """Its store lets every call through from now on."""
    assert isinstance(process.storage, StoppingStorage)
    process.storage.is_open = True
    return process


def _judged(
    table: Lineage,
    before: Counter[int],
    writers: list[_Writer],
    found: list[LostCommit],
    context: object,
) -> list[str]:
    now, ends = table.rows_now(), []
    assert all(count == 1 for count in (+now).values()), ("a row is there twice", context)
    assert all(now[row] == 1 for row in before), ("a row of before is gone", context)
    for writer in writers:
        there = {now[row] for row in writer.rows}
        assert len(there) == 1
        if there == {1}:
            ends.append("healed" if writer.reported(found, LossOutcome.HEALED) else "there")
        elif writer.reported(found, LossOutcome.HALTED):
            ends.append("halted")
        else:
            # The other writer renamed over it: nothing is left that could be found.
            assert not writer.is_on_disk(), context
            ends.append("replaced by the other")
    return ends
