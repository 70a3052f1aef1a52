from __future__ import annotations

from compactord.model import CompactReason, SortedRun
from compactord.plan.picks import pick_full
from tests.unit.plan.builders import data_file, names

TOP = [SortedRun(level=5, files=(data_file("a", level=5), data_file("b", level=5, keys=(1, 1))))]


def test_settled_files_are_not_forced_again() -> None:
    pick = pick_full(TOP, 6, force_rewrite=True, final={"a"})
    assert pick is not None
    assert names(pick.files) == ["b"]
    assert pick.reason is CompactReason.FORCED_REWRITE
    assert pick_full(TOP, 6, force_rewrite=True, final={"a", "b"}) is None


def test_a_given_reason_names_merges() -> None:
    runs = [SortedRun(level=0, files=(data_file("c"),)), *TOP]
    pick = pick_full(runs, 6, force_rewrite=True, reason=CompactReason.DELTA_COMMITS)
    assert pick is not None
    assert (names(pick.files), pick.output_level) == (["c", "a", "b"], 5)
    assert pick.reason is CompactReason.DELTA_COMMITS


def test_a_run_on_the_configured_but_not_the_effective_top_is_picked() -> None:
    assert pick_full(TOP, 6, force_rewrite=False) is None
    assert pick_full(TOP, 8, force_rewrite=False) is not None
