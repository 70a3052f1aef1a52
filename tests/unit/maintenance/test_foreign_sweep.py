"""Where a table's rule asks for it the service removes what nothing names, in its time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timezone
from typing import Any

import pytest
from structlog.testing import capture_logs

from compactord.clock import WallTime
from compactord.config.windows import Window
from compactord.errors import UsageError
from compactord.maintenance.kind import MaintenanceRecord
from compactord.maintenance.orphans import RemovedFiles, SweepForeign
from compactord.model import WorkKind
from compactord.paimon import paths
from compactord.storage.base import Capabilities
from compactord.storage.calls import AT_ONCE
from compactord.table.compactor import TableCompactor
from tests.builders import DAY_MS, NOW_MS, VirtualClock, make_branch
from tests.deletions import Deletions
from tests.lineage import TABLE
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.maintenance.due_table import Due
from tests.unit.maintenance.left_files import HOME, KEPT, LEFT, leave, old_table
from tests.unit.table.compacting import ALL, compactor_of

HOUR_MS = 3_600_000
FOREIGN = LEFT[:-1]
KIND = SweepForeign(grace_ms=DAY_MS)
RULES: dict[str, Any] = {"remove_foreign_files": True}
POLICY = Due((), **RULES).policy
NIGHT = {"from": "00:00", "to": "00:01"}


@pytest.mark.parametrize(
    ("rules", "record", "is_due"),
    [
        ({}, {}, True),
        ({"remove_foreign_files": False}, {}, False),
        ({}, {"ended_ms": NOW_MS - DAY_MS + 1, "succeeded_ms": NOW_MS - DAY_MS + 1}, False),
        ({}, {"ended_ms": NOW_MS - DAY_MS, "succeeded_ms": NOW_MS - DAY_MS}, True),
        ({}, {"ended_ms": NOW_MS - HOUR_MS, "succeeded_ms": NOW_MS - 2 * HOUR_MS}, True),
        ({}, {"ended_ms": NOW_MS - HOUR_MS + 1}, False),
        ({}, {"ended_ms": 0, "succeeded_ms": NOW_MS}, True),
        (
            {"foreign_files_interval_ms": 60_000},
            {"ended_ms": NOW_MS - 60_000, "succeeded_ms": 0},
            True,
        ),
        ({"windows": (Window(allow=(WorkKind.FULL,), **NIGHT),)}, {}, True),
        ({"windows": (Window(allow=(WorkKind.EXPIRE,), **NIGHT),)}, {}, False),
    ],
)
def test_when_a_round_is_due(rules: dict[str, Any], record: dict[str, int], is_due: bool) -> None:
    wall = WallTime(timezone.utc)
    table = Due((), **{**RULES, **rules})
    assert KIND.is_due(table, MaintenanceRecord(**record), NOW_MS, wall) is is_due
    held = Due((), settling_until_ms=NOW_MS + 1, **{**RULES, **rules})
    assert not KIND.is_due(held, MaintenanceRecord(**record), NOW_MS, wall)


def _compactor(table: Deletions, storage: Any = None, **how: Any) -> TableCompactor:
    compactor = compactor_of(storage or table.storage, how.pop("ref", TABLE), **how)
    compactor.cycle((), ALL)
    return compactor


def _run(compactor: TableCompactor, **rules: Any) -> RemovedFiles:
    kind = KIND.for_table(POLICY.model_copy(update=rules))
    return kind.run(compactor, None)


def test_a_round_removes_what_others_left_and_what_is_ours_stays() -> None:
    table = old_table()
    used = set(table.storage.objects)
    kept, left = leave(table, (*KEPT, LEFT[-1])), leave(table, FOREIGN)
    compactor = _compactor(table)
    assert _run(compactor, foreign_files_older_than_ms=2 * DAY_MS).files == 0
    with capture_logs() as logs:
        done = _run(compactor)
    assert done == RemovedFiles(files=len(left), size_bytes=len(left))
    assert set(table.storage.objects) == used | kept
    assert [log["event"] for log in logs] == ["foreign_files_removed"]
    round_ = KIND.ended(done, 1.0)
    assert round_.counts == {
        "foreign_files_removed": len(left),
        "foreign_bytes_removed": len(left),
    }
    assert (round_.has_failed, round_.more) == (False, False)


def test_files_go_to_the_trash_of_the_rule() -> None:
    table = old_table()
    left = leave(table, FOREIGN)
    assert _run(_compactor(table), foreign_files_trash="file:///trash/").files == len(left)
    moved = {path for path in table.storage.objects if path.startswith("/trash/")}
    [folder] = {path.removeprefix("/trash/db.t/").split("/")[0] for path in moved}
    assert moved == {path.replace(HOME, f"/trash/db.t/{folder}") for path in left}


@pytest.mark.parametrize(
    ("trash", "message"),
    [
        ("s3://bucket/trash", "expected a folder of the store of db.t"),
        ("trash", "expected a folder of the store of db.t"),
        ("/x/../y", "expected a folder of the store of db.t"),
        (f"{HOME}/trash", "expected a folder outside db.t"),
    ],
)
def test_a_trash_that_cannot_be_used_keeps_all(trash: str, message: str) -> None:
    table = old_table()
    left = leave(table, FOREIGN)
    with pytest.raises(UsageError, match=message) as caught:
        _run(_compactor(table), foreign_files_trash=trash)
    assert left <= set(table.storage.objects)
    with capture_logs() as logs:
        assert KIND.ended(caught.value, 1.0).has_failed
    assert [(log["event"], log["log_level"]) for log in logs] == [("foreign_failed", "warning")]


def test_a_branch_has_its_files_in_the_folders_of_the_table() -> None:
    table = old_table()
    left = leave(table, FOREIGN)
    branch = make_branch(table.storage, TABLE, "b")
    assert _run(_compactor(table, ref=branch)) == RemovedFiles()
    assert left <= set(table.storage.objects)


class _WithLostCommit(TableCompactor):
    def expiry_blocker(self) -> str | None:
        return "a commit was lost"


def test_nothing_goes_while_a_lost_commit_may_need_files() -> None:
    table = old_table()
    left = leave(table, FOREIGN)
    done = _run(_compactor(table, made_by=_WithLostCommit))
    assert done == RemovedFiles(why_not="a commit was lost")
    assert left <= set(table.storage.objects)
    assert KIND.ended(done, 1.0).has_failed


def test_nothing_goes_while_snapshots_may_be_missing() -> None:
    table = old_table()
    left = leave(table, FOREIGN)
    compactor = _compactor(table)
    table.storage.delete(paths.latest_hint(HOME))
    done = _run(compactor)
    assert done.why_not is not None
    assert left <= set(table.storage.objects)


@pytest.mark.parametrize(
    ("at", "acts", "removed_max"),
    [
        ("read", lambda compactor: setattr(compactor, "is_stopping", True), 0),
        ("delete", lambda compactor: setattr(compactor, "is_stopping", True), AT_ONCE),
        ("delete", lambda compactor: compactor.clock.sleep(3601), AT_ONCE),
    ],
    ids=["stop while it reads", "stop while it deletes", "an hour is over"],
)
def test_a_round_ends_early_and_the_next_one_goes_on(
    at: str, acts: Callable[[TableCompactor], None], removed_max: int
) -> None:
    table = old_table()
    left = leave(table, FOREIGN)
    compactors: list[TableCompactor] = []

    def before(call: Call) -> None:
        if compactors and call.method == at:
            acts(compactors.pop())

    compactor = _compactor(table, HookedStorage(table.storage, before=before))
    compactors.append(compactor)
    done = _run(compactor)
    assert done.more
    assert done.files <= removed_max
    assert KIND.ended(done, 1.0).more
    compactor.is_stopping = False
    assert _run(compactor) == RemovedFiles(
        files=len(left) - done.files, size_bytes=len(left) - done.files
    )


def test_a_stop_while_it_reads_what_has_come_between_deletions_ends_the_round() -> None:
    table = old_table()
    leave(table, FOREIGN)
    compactors: list[TableCompactor] = []
    listings = itertools.count(1)

    def before(call: Call) -> None:
        for compactor in compactors:
            if call.path == paths.tag_folder(HOME) and next(listings) == 3:
                tag = table.storage.read(paths.tag_path(HOME, "v1"))
                table.storage.write_new(paths.tag_path(HOME, "late"), tag)
            if call.path == paths.tag_path(HOME, "late"):
                compactor.is_stopping = True

    compactor = _compactor(table, HookedStorage(table.storage, before=before))
    compactors.append(compactor)
    assert _run(compactor) == RemovedFiles(more=True)
    assert compactor.is_stopping


class _Copied(MemoryStorage):
    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(copies_may_look_old=True)


def test_where_copies_may_look_old_a_file_is_watched_for_as_long() -> None:
    table = old_table()
    left = leave(table, FOREIGN)
    storage, clock = _Copied(table.storage.objects), VirtualClock()
    compactor = _compactor(table, storage, clock=clock)
    for hours, removed in ((0, 0), (23, 0), (1, len(left))):
        clock.sleep(hours * 3600)
        assert _run(compactor).files == removed
