"""Long rounds of maintenance: one at a time in a catalog, and alone in their table's folder."""

from __future__ import annotations

from collections.abc import Collection

from compactord.maintenance.orphans import SweepForeign, SweepOrphans
from compactord.model import TableName
from compactord.scheduler.effects import MaintenanceJob
from compactord.scheduler.scheduled_table import HUNG_JOB_MS, HUNG_MAINTENANCE_MS
from tests.unit.scheduler.test_scheduler import Stage

_LONG, _SHORT = "foreign", "sweep"
_KINDS = SweepForeign(grace_ms=1), SweepOrphans(interval_ms=1, grace_ms=1)


def _stage(*tables: str) -> Stage:
    """Of `b@a` the files are in the folder of `a`; those with a capital letter have the rule.

    `x/a` is in catalog x, others in c.
    """
    stage = Stage(kinds=_KINDS)
    for name in tables:
        name, _, location = name.partition("@")
        catalog, _, name = name.rpartition("/")
        key = TableName(catalog or "c", "db", name)
        rules = {"remove_foreign_files": name.isupper(), "foreign_files_interval_ms": 1}
        stage.add(key, location=f"/{location or name}", **rules)
    for effect in stage.scheduler.tick(stage.now):
        stage.cycle_ended(effect)
    return stage


def _begun(stage: Stage, after_ms: int = 0) -> dict[str, MaintenanceJob]:
    stage.now += after_ms
    jobs = [e for e in stage.scheduler.tick(stage.now) if isinstance(e, MaintenanceJob)]
    return {f"{job.name.table} {job.kind.name}": job for job in jobs}


def _names(jobs: Collection[str]) -> list[str]:
    return sorted(jobs)


def test_one_long_round_runs_at_a_time_and_leaves_the_other_place_to_short_ones() -> None:
    stage = _stage("A", "B")
    first = _begun(stage)
    assert _names(first) == [f"A {_LONG}", f"B {_SHORT}"]
    stage.maintained(first[f"B {_SHORT}"])
    assert _names(_begun(stage, after_ms=1)) == [f"B {_SHORT}"]
    stage.maintained(first[f"A {_LONG}"])
    assert _names(_begun(stage, after_ms=1)) == [f"A {_SHORT}"]


def test_nothing_else_runs_in_the_folder_of_a_long_round() -> None:
    stage = _stage("A", "b@A")
    first = _begun(stage)
    assert _names(first) == [f"A {_LONG}"]
    stage.maintained(first[f"A {_LONG}"])
    second = _begun(stage, after_ms=1)
    assert _names(second) == [f"A {_SHORT}", f"b {_SHORT}"]
    stage.maintained(second[f"A {_SHORT}"])
    assert _names(_begun(stage, after_ms=1)) == [f"A {_SHORT}"], "the branch's round runs"


def test_a_long_round_that_hangs_holds_up_no_long_round_of_other_catalogs() -> None:
    stage = _stage("sick/A", "sick/B", "well/C")
    first = _begun(stage)
    assert _names(first) == [f"A {_LONG}", f"B {_SHORT}", f"C {_LONG}"]
    stage.maintained(first[f"C {_LONG}"])
    stage.maintained(first[f"B {_SHORT}"])
    begun: set[str] = set()
    for _ in range(3):
        jobs = _begun(stage, after_ms=HUNG_JOB_MS)
        begun.update(jobs)
        for job in jobs.values():
            stage.maintained(job)
    assert f"C {_LONG}" in begun
    assert f"B {_LONG}" not in begun
    # Whatever it does, after hours it does not end.
    assert f"B {_LONG}" in _begun(stage, after_ms=HUNG_MAINTENANCE_MS)


def test_a_long_round_runs_by_the_rules_of_its_table() -> None:
    stage = Stage(kinds=_KINDS)
    rules = {"foreign_files_older_than_ms": 7, "foreign_files_trash": "/x"}
    stage.add(remove_foreign_files=True, **rules)
    for effect in stage.scheduler.tick(stage.now):
        stage.cycle_ended(effect)
    (job,) = _begun(stage).values()
    assert job.kind == SweepForeign(grace_ms=1, older_than_ms=7, trash="/x")
