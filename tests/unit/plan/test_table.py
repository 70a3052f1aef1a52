from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from compactord.errors import FormatError
from compactord.model import CompactReason, TableKind
from compactord.paimon.data_file import BucketId
from compactord.plan.table import Strategy, plan_bucket
from compactord.table.planner import final_files
from tests.unit.plan.builders import (
    BUCKET,
    MB,
    NOW_MS,
    append_options,
    bucket_of,
    compaction_options,
    data_file,
    decisions,
    names,
    plan_buckets,
    plan_request,
)

OVERLAPPING = [data_file(f"f{n}", keys=(0, 9), sequences=(n, n)) for n in range(5)]
SMALL = [data_file(f"f{n}", sequences=(n, n)) for n in range(12)]


def test_decisions_carry_their_bucket_and_total_buckets() -> None:
    buckets = [
        replace(bucket_of(OVERLAPPING, BucketId(b"p", number)), total_buckets=7)
        for number in range(3)
    ]
    found = list(decisions(buckets, plan_request()))
    assert [(d.bucket, d.total_buckets) for d in found] == [
        (BucketId(b"p", number), 7) for number in range(3)
    ]


def test_quiet_buckets_have_no_decision() -> None:
    buckets = [bucket_of(OVERLAPPING[:4], BucketId(b"p", 1)), bucket_of([], BucketId(b"p", 2))]
    assert list(decisions(buckets, plan_request())) == []
    assert [plan.bucket.bucket for plan in plan_buckets(buckets, plan_request())] == [1, 2]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (lambda due: {"delta_commits_due": frozenset({due})}, CompactReason.DELTA_COMMITS),
        (
            lambda due: {
                "is_late": frozenset({due}).__contains__,
                "options": compaction_options(full_changelog=True),
            },
            CompactReason.FRESHNESS_LAG,
        ),
    ],
)
def test_due_buckets_are_compacted_in_full_and_others_are_not(
    how: Callable[[BucketId], dict[str, Any]], reason: CompactReason
) -> None:
    due = BucketId(b"p", 1)
    buckets = [bucket_of(OVERLAPPING[:2], due), bucket_of(OVERLAPPING[:2], BucketId(b"p", 2))]
    (decision,) = decisions(buckets, plan_request(**how(due)))
    assert (decision.bucket, decision.reason, decision.reason.is_full) == (due, reason, True)
    assert decision.output_level == 5


def test_under_full_a_due_bucket_is_just_full() -> None:
    request = plan_request(strategy=Strategy.FULL, delta_commits_due=frozenset({BUCKET}))
    (decision,) = decisions([bucket_of(OVERLAPPING)], request)
    assert decision.reason is CompactReason.FULL


def test_a_remembered_full_compaction_counts_when_it_is_later_than_the_files_say() -> None:
    interval = 1000
    files = [data_file("new"), data_file("top", level=5, created_ms=NOW_MS - interval - 1)]
    options = compaction_options(optimization_interval_ms=interval)
    request = plan_request(options=options)
    (decision,) = plan_bucket(bucket_of(files), request).compactions
    assert decision.reason is CompactReason.EARLY_FULL_INTERVAL
    later, earlier = ({BUCKET: NOW_MS - interval + offset} for offset in (0, -9))
    assert not plan_bucket(bucket_of(files), replace(request, last_full_ms=later)).compactions
    assert plan_bucket(bucket_of(files), replace(request, last_full_ms=earlier)).compactions


def test_offpeak_follows_the_local_hour_of_now() -> None:
    files = [
        data_file("a", size=100, sequences=(9, 9)),
        data_file("b", size=111, sequences=(8, 8)),
        data_file("c", level=4, size=10_000),
    ]
    options = compaction_options(
        compaction_trigger=3,
        offpeak_start_hour=10,
        offpeak_end_hour=11,
        offpeak_ratio_percent=20,
    )
    ten = plan_request(options=options)
    assert plan_bucket(bucket_of(files), ten).compactions
    eleven = replace(ten, now_local_ms=NOW_MS + 3_600_000)
    assert not plan_bucket(bucket_of(files), eleven).compactions


def test_a_bucket_with_overlapping_files_on_a_level_is_refused() -> None:
    files = [data_file("a", level=3, keys=(1, 5)), data_file("b", level=3, keys=(4, 9))]
    with pytest.raises(FormatError, match="level 3"):
        plan_bucket(bucket_of(files), plan_request())


def test_files_above_the_configured_levels_are_noted() -> None:
    files = [data_file("a", level=7)]
    plan = plan_bucket(bucket_of(files), plan_request())
    assert plan.notes == ("files on level 7 are above num-levels=6",)
    assert plan_bucket(bucket_of(files), plan_request(strategy=Strategy.FULL)).compactions == ()


def test_no_deletions_are_lifted_to_a_level_above_the_configured_ones() -> None:
    top = data_file("top", level=7, size=200 * MB, keys=(0, 9))
    files = [top, *(data_file(f"f{n}", size=200 * MB, keys=(20 + n, 20 + n)) for n in range(2))]
    files.append(data_file("deletes", size=200 * MB, keys=(30, 30), deletes=1))
    (decision,) = plan_bucket(bucket_of(files), plan_request(strategy=Strategy.FULL)).compactions
    assert (decision.output_level, decision.drop_deletes) == (7, True)
    assert sorted(names(decision.upgraded)) == ["f0", "f1"]
    assert sorted(names(decision.inputs)) == ["deletes", "f0", "f1"]


@pytest.mark.parametrize(
    ("wait_ms", "text"),
    [(600_000, "10 min"), (7_200_000, "2 h"), (90_000, "90 s"), (1, "1 ms"), (0, "0 ms")],
)
def test_waiting_small_files_are_noted(wait_ms: int, text: str) -> None:
    request = plan_request(TableKind.APPEND_UNAWARE, append_wait_ms=wait_ms)
    plan = plan_bucket(bucket_of(SMALL[:2]), request)
    assert plan.notes == (f"2 small files wait for compaction.min.file-num=5 or {text}",)
    assert plan_bucket(bucket_of(SMALL[:1]), request).notes == ()


def test_small_files_wait_for_ever_without_a_time() -> None:
    request = plan_request(TableKind.APPEND_UNAWARE, append_wait_ms=None, now_local_ms=1 << 60)
    plan = plan_bucket(bucket_of(SMALL[:2]), request)
    assert plan.compactions == ()
    assert plan.notes == ("2 small files wait for compaction.min.file-num=5",)


def test_a_round_without_buckets_ends_at_the_file_limit_and_the_next_goes_on() -> None:
    options = append_options(open_file_cost=170 << 20, file_num_limit=4, min_file_num=3)
    request = plan_request(TableKind.APPEND_UNAWARE, options=options)
    buckets = [bucket_of(SMALL, BucketId(b"p", 0)), bucket_of(SMALL, BucketId(b"q", 0))]
    first, *others = plan_buckets(buckets, request)
    assert [names(c.inputs) for c in first.compactions] == [["f0", "f1", "f2"], ["f3", "f4", "f5"]]
    assert first.notes == (
        "2 more tasks are deferred to the next round by compaction.file-num-limit",
    )
    assert others == []
    unlimited = replace(request, options=replace(options, file_num_limit=100_000))
    assert len(list(decisions(buckets, unlimited))) == 8


def test_the_file_limit_counts_over_all_buckets() -> None:
    options = append_options(open_file_cost=170 << 20, file_num_limit=4, min_file_num=3)
    request = plan_request(TableKind.APPEND_UNAWARE, options=options)
    buckets = [bucket_of(SMALL[:3], BucketId(b"p", 0)), bucket_of(SMALL, BucketId(b"q", 0))]
    plans = list(plan_buckets(buckets, request))
    assert [len(plan.compactions) for plan in plans] == [1, 1]


def test_the_first_task_is_planned_whatever_the_limit() -> None:
    options = append_options(file_num_limit=1)
    request = plan_request(TableKind.APPEND_UNAWARE, options=options)
    (decision,) = decisions([bucket_of(SMALL)], request)
    assert len(decision.inputs) == 12


def test_outputs_of_merges_are_settled_and_upgraded_files_are_not() -> None:
    lone = data_file("lone", keys=(50, 60), size=100 << 20, sequences=(9, 9))
    (decision,) = decisions([bucket_of([*OVERLAPPING, lone])], plan_request(strategy=Strategy.FULL))
    after = [data_file("out", level=5), replace(lone, level=5)]
    assert final_files(decision, after) == {"out"}


def test_the_last_output_of_a_minor_append_task_may_meet_others() -> None:
    for kind in (TableKind.APPEND_UNAWARE, TableKind.APPEND_BUCKETED):
        (decision, *_) = decisions([bucket_of(SMALL)], plan_request(kind))
        after = [data_file("x"), data_file("y"), data_file("z")]
        assert final_files(decision, after) == {"x", "y"}
        assert final_files(decision, []) == frozenset()


def test_all_outputs_of_a_full_bucket_are_settled() -> None:
    request = plan_request(TableKind.APPEND_BUCKETED, strategy=Strategy.FULL)
    (decision,) = decisions([bucket_of(SMALL)], request)
    assert final_files(decision, [data_file("x"), data_file("y")]) == {"x", "y"}
