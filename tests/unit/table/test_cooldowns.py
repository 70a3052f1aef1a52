"""Partitions that somebody rewrote lately are skipped if `quiet_for` says so, and named always."""

from __future__ import annotations

import pytest
import structlog

from compactord.model import TableName
from compactord.paimon.data_file import BucketId
from compactord.paimon.snapshot import CommitKind
from compactord.scheduler.events import Polled
from compactord.service.logs import LoggingObserver
from compactord.service.metrics import Metrics
from compactord.table import report
from compactord.table.compactor import TableCompactor
from compactord.table.explain import bucket_details
from compactord.table.jobs import Planned
from compactord.table.planning import CompactRequest
from tests.builders import VirtualClock, one_shot
from tests.lineage import TABLE, Lineage
from tests.unit.state.table_by_day import MINUTE, NOW_MS, TableByDay, day
from tests.unit.table.compacting import ALL, compactor_of

QUIET_MS = 10 * MINUTE
NAME = TableName("lake", "db", "t")


def compactor_at(
    table: TableByDay, clock: VirtualClock, *, quiet_for_ms: int = QUIET_MS
) -> TableCompactor:
    return compactor_of(table.storage, table.table, clock=clock, quiet_for_ms=quiet_for_ms)


def planned(compactor: TableCompactor) -> Planned:
    found = compactor.cycle((), ALL)
    assert found.error is None
    assert found.planned is not None
    return found.planned


def pending(plan: Planned) -> list[str]:
    return sorted({each.partition for each in plan.offered})


def cooling_down(plan: Planned) -> dict[str, int]:
    """Partition → minutes until its cooldown ends."""
    return {each.partition: (each.until_ms - NOW_MS) // MINUTE for each in plan.cooling_down}


@pytest.mark.parametrize("is_known", [True, False], ids=["seen to come", "there at the start"])
def test_a_rewritten_partition_rests_and_is_due_when_its_time_has_come(*, is_known: bool) -> None:
    table, clock = TableByDay(), VirtualClock(NOW_MS)
    compactor = compactor_at(table, clock)
    if is_known:
        assert pending(planned(compactor)) == ["day=0", "day=1", "day=2"]
    table.rewrite(0, ago=7)
    table.rewrite(1, ago=3)
    table.append(ago=2)
    plan = planned(compactor)
    assert (pending(plan), cooling_down(plan)) == (["day=2"], {"day=0": 3, "day=1": 7})
    assert plan.backlog.tasks == 1
    assert compactor.dispatch(BucketId(day(0), 0), compaction_id=1, free_slots=1) is None
    planned(compactor)
    # No snapshot comes: time alone makes them due.
    for quiet_s, awake in ((179, ["day=0", "day=2"]), (239, ["day=0", "day=1", "day=2"])):
        clock.sleep(quiet_s)
        assert compactor.cycle((), ALL).planned is None
        clock.sleep(1)
        assert pending(planned(compactor)) == awake
        assert compactor.cycle((), ALL).planned is None


def test_nothing_rests_unless_it_was_asked_for() -> None:
    table, clock = TableByDay(), VirtualClock(NOW_MS)
    table.rewrite(0, ago=1)
    compactor = compactor_at(table, clock, quiet_for_ms=0)
    plan = planned(compactor)
    assert (pending(plan), cooling_down(plan)) == (["day=0", "day=1", "day=2"], {})
    for minutes, expected in ((10, {"day=0": 9}), (20, {"day=0": 19}), (0, {})):
        request = CompactRequest(quiet_for_ms=minutes * MINUTE)
        compactor.reconfigure(request)
        assert cooling_down(planned(compactor)) == expected


def test_all_buckets_of_a_partition_cool_down_when_one_was_rewritten() -> None:
    """An APPEND snapshot that deletes files: the table is not read anew, and only one changed."""
    table, clock = TableByDay(buckets=2), VirtualClock(NOW_MS)
    compactor = compactor_at(table, clock)
    assert planned(compactor).backlog.tasks == 6
    table.rewrite(0, ago=1, kind=CommitKind.APPEND)
    plan = planned(compactor)
    assert (pending(plan), cooling_down(plan)) == (["day=1", "day=2"], {"day=0": 9})
    assert plan.backlog.tasks == 4


def test_what_is_rewritten_again_rests_from_then_on() -> None:
    table, clock = TableByDay(), VirtualClock(NOW_MS)
    compactor = compactor_at(table, clock)
    table.rewrite(0, ago=7)
    assert cooling_down(planned(compactor)) == {"day=0": 3}
    table.rewrite(0, ago=1, kind=CommitKind.APPEND)
    assert cooling_down(planned(compactor)) == {"day=0": 9}
    clock.sleep(8 * 60)
    assert compactor.cycle((), ALL).planned is None
    clock.sleep(60)
    assert "day=0" in pending(planned(compactor))


def test_a_partition_with_nothing_to_do_does_not_cool_down() -> None:
    table = TableByDay()
    table.rewrite(0, ago=1)
    overrides = {"compaction.min.file-num": "9"}
    compactor = compactor_of(
        table.storage,
        table.table,
        clock=VirtualClock(NOW_MS),
        overrides=overrides,
        quiet_for_ms=QUIET_MS,
    )
    assert cooling_down(planned(compactor)) == {}


def test_a_table_with_a_primary_key_has_no_rewriters() -> None:
    table = Lineage(buckets=1)
    table.overwrite(0)
    table.append(1, commits=6)
    compactor = compactor_of(
        table.storage, TABLE, clock=VirtualClock(NOW_MS), quiet_for_ms=QUIET_MS
    )
    for _ in range(2):
        plan = planned(compactor)
        assert len(plan.offered) == 1
        assert (plan.info.rewrite, plan.cooling_down) == (None, ())
        table.overwrite(0)
        table.append(1, commits=6)


def test_a_run_names_what_it_leaves_alone_and_ends() -> None:
    table = TableByDay()
    table.rewrite(0, 1, 2, ago=3)
    run = one_shot(table.storage, table.table, clock=VirtualClock(NOW_MS), quiet_for_ms=QUIET_MS)
    totals = run.run()
    why = "skipped: rewritten 3 min ago by u"
    assert totals.resting == {"day=0": why, "day=1": why, "day=2": why}
    assert list(report.totals_text("db.t", totals)) == [
        "db.t: nothing to do",
        *(f"  day={n}: {why}" for n in range(3)),
    ]


def test_a_table_is_named_once_with_who_rewrites_it() -> None:
    table, clock = TableByDay(), VirtualClock(NOW_MS)
    compactor, watch = compactor_at(table, clock, quiet_for_ms=0), LoggingObserver(Metrics())
    plans = [planned(compactor)]
    for user in ("first", "second"):
        table.rewrite(0, ago=3, user=user)
        plans.append(planned(compactor))
    with structlog.testing.capture_logs() as logs:
        for before, plan in zip([None, *plans], plans, strict=False):
            watch.on_event(Polled(name=NAME, seconds=0.0, planned=plan, before=before))
    (event,) = [log for log in logs if log["event"] == "table_rewritten"]
    assert (event["user"], event["operation"], event["snapshot_id"]) == ("first", "UPDATE", 2)
    assert (event["time"], event["log_level"]) == ("2023-11-14T22:10:20Z", "warning")
    assert plans[-1].info.rewrite is not None
    assert plans[-1].info.rewrite.commit_user == "second"


def test_a_bucket_that_rests_says_so_where_its_plan_would_be() -> None:
    table, clock = TableByDay(), VirtualClock(NOW_MS)
    table.rewrite(0, ago=3)
    compactor = compactor_at(table, clock)
    planned(compactor)
    assert compactor.last_plan is not None
    plans = {detail.partition: detail.plan for detail in bucket_details(compactor.last_plan)}
    assert plans["day=0"] == "skipped, rewritten by u in snapshot 2 (UPDATE), 2023-11-14T22:10:20Z"
    assert "rewrite 2 files" in plans["day=1"]
