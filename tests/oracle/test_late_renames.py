"""Java is stopped between the look and the move of its rename, and we publish twice meanwhile."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from compactord.commit.changes import Committed, LossOutcome, LostCommit
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord.table.compactor import TableCompactor
from tests.builders import VirtualClock
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row
from tests.unit.table.compacting import ALL, compactor_of, outcome_of

LATE: Sequence[Row] = [[n, f"late-{n}", f"p{n % 2}"] for n in range(100, 110)]


def _filled(judge: Judge, path: Path, *, is_keyed: bool, **options: str) -> LiveTable:
    """Two buckets, or two partitions, each of which has something to compact."""
    table = LiveTable(
        judge=judge,
        path=path / "db.db" / "t",
        columns=(("k", "INT NOT NULL"), ("v", "STRING"), ("p", "STRING NOT NULL")),
        primary_key=("k",) if is_keyed else (),
        partition_by=() if is_keyed else ("p",),
        options={"bucket": "2" if is_keyed else "-1", **options},
    ).create()
    for commit in range(6):
        rows = [[n, f"{commit}-{n}", f"p{n % 2}"] for n in range(commit, 40, 2)]
        kinds = ["-D" if is_keyed and n % 7 == 3 else "+I" for n in range(len(rows))]
        table.write(rows, kinds)
    return table


@contextmanager
def _stopped_in_its_rename(writer: Judge, table: LiveTable, rows: Sequence[Row]) -> Iterator[None]:
    """Java commits rows, and its process stands still before the move until this ends."""
    late, reached = table.path / "late", table.path / "late.reached"
    late.touch()
    errors: list[BaseException] = []

    def write() -> None:
        try:
            writer.write(table.path, rows)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            errors.append(error)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    deadline = time.monotonic() + 180
    while not reached.exists():
        assert not errors
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # A collection would tell the stopped JVM which of its objects nobody refers to any more.
    gc.collect()
    gc.disable()
    os.kill(writer.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        late.unlink()
        os.kill(writer.pid, signal.SIGCONT)
        gc.enable()
        thread.join()
    reached.unlink()
    assert not errors, "for Java it is committed"


def _publish_twice(compactor: TableCompactor) -> None:
    planned = compactor.cycle((), ALL).planned
    assert planned is not None
    assert len(planned.offered) == 2
    for number, pending in enumerate(planned.offered, 1):
        dispatch = compactor.dispatch(pending.bucket, compaction_id=number, free_slots=1)
        assert dispatch is not None
        cycle = compactor.cycle([outcome_of(dispatch)], ALL)
        assert isinstance(cycle.commit, Committed)


def _lost(table: LiveTable, writer: Judge, *, is_restarted: bool) -> LostCommit:
    """What is found of a commit that Java made around two of ours."""
    clock, ref = VirtualClock(), TableRef(database="db", name="t", location=str(table.path))
    before = table.judge.snapshots(table.path)[-1]

    def compactor() -> TableCompactor:
        overrides = {"compaction.min.file-num": "2"}
        return compactor_of(LocalStorage(), ref, clock=clock, overrides=overrides)

    running = compactor()
    with _stopped_in_its_rename(writer, table, LATE):
        _publish_twice(running)
    table.check()
    snapshot = table.judge.snapshot(table.path, before + 1)
    assert snapshot is not None
    assert snapshot["commitKind"] == "APPEND", "it has replaced ours"
    clock.sleep(60)
    (lost,) = (compactor() if is_restarted else running).cycle((), ALL).lost_commits
    assert (lost.snapshot_id, lost.rows) == (before + 1, len(LATE))
    assert lost.commit_user == snapshot["commitUser"]
    return lost


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("is_keyed", [True, False], ids=["primary-key", "append"])
def test_rows_that_java_renamed_late_are_there_again_as_java_would_have_put_them(
    judge: Judge, writer: Judge, tmp_path: Path, *, is_keyed: bool, is_restarted: bool
) -> None:
    table = _filled(judge, tmp_path, is_keyed=is_keyed)
    lost = _lost(table, writer, is_restarted=is_restarted)
    assert lost.outcome is LossOutcome.HEALED, lost.why
    table.apply(LATE)
    table.check()
    again, late = judge.snapshot(table.path), judge.snapshot(table.path, lost.snapshot_id)
    assert again is not None
    assert late is not None
    assert again["id"] == lost.again_id
    for key in ("commitUser", "commitIdentifier", "commitKind", "deltaRecordCount", "watermark"):
        assert again.get(key) == late.get(key), key
    # Java goes on with it: commits, compacts, expires.
    table.write([[1, "after", "p1"]])
    judge.compact(table.path, full=True)
    table.check()
    judge.expire_snapshots(table.path, 1)
    table.check()


def test_what_is_not_proved_can_be_got_back_as_the_runbook_says(
    judge: Judge, writer: Judge, tmp_path: Path
) -> None:
    table = _filled(judge, tmp_path, is_keyed=True, **{"sequence.field": "v"})
    table.model.clear()
    for row in judge.read(table.path):
        table.model[table.key(row)] = row
    lost = _lost(table, writer, is_restarted=False)
    assert lost.outcome is LossOutcome.HALTED
    table.check()
    judge.create_tag(table.path, "lost", lost.snapshot_id)
    between = {"incremental-between": f"{lost.snapshot_id - 1},{lost.snapshot_id}"}
    rows = judge.read(table.path, options=between)
    assert sorted(rows) == sorted(tuple(row) for row in LATE)
    table.write(rows)
    table.check()
