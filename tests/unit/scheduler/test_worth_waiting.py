"""What the end of the service waits for: merges, and results that are committed or will be."""

from __future__ import annotations

from compactord.scheduler.effects import CycleJob, DiscardJob, Submit
from tests.unit.scheduler.test_scheduler import NAME, OTHER, Stage, only


def test_merges_and_results_are_worth_waiting_for_and_what_only_reads_is_not() -> None:
    stage = Stage()
    stage.add()
    found = [("poll", stage.decide(), stage.scheduler.has_results)]
    stage.cycle_ended(only(found[-1][1]))
    found.append(("dispatch", stage.decide(), stage.scheduler.has_results))
    stage.dispatched(only(found[-1][1]))
    found.append(("merge", stage.decide(), stage.scheduler.has_results))
    submit = only(found[-1][1])
    assert isinstance(submit, Submit)
    stage.scheduler.drain(stage.now)
    stage.ends(submit)
    found.append(("finished", [], stage.scheduler.has_results))
    found.append(("commit", stage.decide(), stage.scheduler.has_results))
    commit = only(found[-1][1])
    assert isinstance(commit, CycleJob)
    stage.cycle_ended(commit)
    found.append(("nothing", [], stage.scheduler.has_results))
    assert [what for what, _, is_worth in found if is_worth] == ["merge", "finished", "commit"]


def test_files_that_are_discarded_at_the_end_are_not_worth_waiting_for() -> None:
    stage = Stage(slots=2)
    stage.add()
    stage.add(OTHER)
    first, second = stage.submitted()
    stage.scheduler.drain(stage.now)
    stage.ends(first)
    stage.ends(second)
    (commit, other) = stage.decide()
    assert isinstance(commit, CycleJob)
    stage.cycle_ended(commit)
    stage.scheduler.end()
    assert stage.scheduler.has_results, "a commit under way"
    stage.cycle_ended(other)
    assert not stage.scheduler.has_results


def test_a_result_that_comes_after_the_end_is_not_worth_waiting_for() -> None:
    stage = Stage(slots=2)
    stage.add()
    (submit,) = stage.submitted()
    stage.scheduler.drain(stage.now)
    stage.scheduler.end()
    stage.ends(submit)
    assert not stage.scheduler.has_results
    assert isinstance(only(stage.decide()), DiscardJob)
    assert not stage.scheduler.has_results
    assert stage.scheduler.tables[NAME].job is not None
