from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactord.config.policy import TablePolicy
from compactord.model import CompactReason, WorkKind
from compactord.paimon.data_file import BucketId
from compactord.scheduler.compaction import PriorityClass
from compactord.scheduler.priority import (
    LARGE_BYTES,
    Contender,
    choose,
    cost,
    lag_of,
    most_urgent,
    priority_class,
)
from compactord.table.backlog import PendingCompaction

MIB = 1 << 20


def contender(index: int, **fields: object) -> Contender:
    values: dict[str, object] = {
        "priority_class": PriorityClass.BENEFIT,
        "benefit": 1.0,
        "weight": 6.0,
        "slots": 0,
        "slots_max": 4,
        "is_large": False,
        "virtual_time": 0.0,
    }
    return Contender(index=index, **{**values, **fields})  # type: ignore[arg-type]


def pending(bucket: int = 0, **fields: object) -> PendingCompaction:
    values: dict[str, object] = {
        "partition": "",
        "kind": WorkKind.MINOR,
        "reason": CompactReason.SIZE_RATIO,
        "tasks": 1,
        "files": 5,
        "size_bytes": 10 * MIB,
        "files_saved": 4,
        "sorted_runs": 5,
        "is_near_stop": False,
        "since_ms": 1_000,
    }
    return PendingCompaction(bucket=BucketId(b"", bucket), **{**values, **fields})  # type: ignore[arg-type]


def _limits(max_age_ms: int, max_lag_ms: int | None = None) -> TablePolicy:
    own = {"max_backlog_age_ms": max_age_ms, "max_freshness_lag_ms": max_lag_ms}
    return TablePolicy().model_copy(update=own)


def chosen(*able: Contender, slots: int = 4, free: int = 1, large: int = 0) -> int | None:
    found = choose(able, slots=slots, free=free, large_running=large)
    return found.index if found is not None else None


def test_nobody_is_chosen_when_nobody_wants_or_nothing_is_free() -> None:
    assert chosen() is None
    assert chosen(contender(1), free=0) is None


def test_need_comes_first_then_age_then_what_a_byte_gains() -> None:
    forced = contender(1, priority_class=PriorityClass.FORCED, benefit=0.1)
    breach = contender(2, priority_class=PriorityClass.BREACH, benefit=0.5)
    better, worse = contender(3, benefit=9.0), contender(4, benefit=8.0)
    assert chosen(worse, better, breach, forced) == 1
    assert chosen(worse, better, breach) == 2
    assert chosen(worse, better) == 3


def test_priority_weighs_what_is_gained() -> None:
    assert chosen(contender(1, benefit=2.0, weight=1.0), contender(2, benefit=1.0, weight=3.0)) == 2


@pytest.mark.parametrize("urgency", [PriorityClass.FORCED, PriorityClass.BREACH])
def test_among_the_urgent_those_that_got_least_go_first(urgency: PriorityClass) -> None:
    got_much = contender(1, priority_class=urgency, virtual_time=5.0, benefit=100.0)
    got_little = contender(2, priority_class=urgency, virtual_time=1.0)
    assert chosen(got_much, got_little) == 2


def test_a_table_never_holds_more_slots_than_it_may() -> None:
    assert chosen(contender(1, slots=4, slots_max=4)) is None


def test_a_table_that_holds_its_share_yields_while_another_can_use_the_slot() -> None:
    greedy = contender(1, priority_class=PriorityClass.FORCED, slots=2)
    modest = contender(2, slots=0)
    assert chosen(greedy, modest) == 2
    assert chosen(greedy) == 1, "alone it may have all"


def test_one_slot_of_several_is_not_for_large_subcompactions() -> None:
    large, small = contender(1, is_large=True, benefit=9.0), contender(2)
    assert chosen(large, small, large=2) == 1
    assert chosen(large, small, large=3) == 2
    assert chosen(large, large=3) is None
    assert chosen(large, slots=1, large=0) == 1, "with one slot large subcompactions must have it"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(list(PriorityClass)),
            st.integers(0, 4),
            st.integers(1, 4),
            st.booleans(),
            st.floats(0, 100),
        ),
        max_size=8,
    ),
    st.integers(1, 8),
    st.integers(0, 8),
)
def test_a_slot_is_given_whenever_somebody_may_have_it(
    drawn: list[tuple[PriorityClass, int, int, bool, float]], slots: int, large: int
) -> None:
    able = [
        contender(
            n,
            priority_class=urgency,
            slots=has,
            slots_max=most,
            is_large=is_large,
            virtual_time=virtual_time,
        )
        for n, (urgency, has, most, is_large, virtual_time) in enumerate(drawn)
    ]
    found = choose(able, slots=slots, free=1, large_running=large)
    large_may = slots == 1 or large < slots - 1
    may = {c.index for c in able if c.slots < c.slots_max and (large_may or not c.is_large)}
    assert (found is None) == (not may)
    assert found is None or found.index in may


@pytest.mark.parametrize(
    ("age_ms", "urgency"),
    [
        (0, PriorityClass.BENEFIT),
        (1_000, PriorityClass.BENEFIT),
        (1_001, PriorityClass.BREACH),
        (2_000, PriorityClass.BREACH),
        (2_001, PriorityClass.FORCED),
    ],
)
def test_waiting_makes_urgent(age_ms: int, urgency: PriorityClass) -> None:
    found = priority_class(pending(since_ms=0), _limits(1_000), age_ms)
    assert found is urgency


def test_runs_near_the_stop_trigger_are_urgent_at_once() -> None:
    near = pending(is_near_stop=True, since_ms=0)
    assert priority_class(near, _limits(1_000), 0) is PriorityClass.FORCED


@pytest.mark.parametrize(
    ("waiting_since_ms", "limits", "urgency", "lag"),
    [
        (0, _limits(100_000, 1_000), PriorityClass.BENEFIT, 0.0),
        (9_900, _limits(100_000), PriorityClass.FORCED, 0.0),
        (9_501, _limits(100_000, 1_000), PriorityClass.FORCED, 0.499),
        (9_500, _limits(100_000, 1_000), PriorityClass.FRESHNESS, 0.5),
        (7_000, _limits(100_000, 1_000), PriorityClass.FRESHNESS, 3.0),
        (7_000, _limits(1, 100_000), PriorityClass.FORCED, 0.03),
    ],
)
def test_rows_that_wait_are_forced_and_first_from_half_of_their_limit_on(
    waiting_since_ms: int, limits: TablePolicy, urgency: PriorityClass, lag: float
) -> None:
    found = pending(since_ms=9_999, waiting_since_ms=waiting_since_ms)
    assert priority_class(found, limits, 10_000) is urgency
    assert lag_of(found, limits, 10_000) == lag


def test_the_table_that_is_most_over_its_limit_goes_first_and_spares_others_when_told_to() -> None:
    little = contender(1, priority_class=PriorityClass.FRESHNESS, lag=0.5, virtual_time=0.0)
    most = contender(2, priority_class=PriorityClass.FRESHNESS, lag=3.0, virtual_time=9.0)
    forced = contender(3, priority_class=PriorityClass.FORCED)
    calm = contender(4)
    assert chosen(calm, forced, little, most) == 2
    assert chosen(calm, forced, little) == 1
    for able, index in (((calm, forced, little, most), 3), ((calm, most), 4), ((little, most), 2)):
        found = choose(able, slots=4, free=1, large_running=0, spares_others=True)
        assert found is not None
        assert found.index == index


def test_of_a_table_the_bucket_goes_first_whose_rows_have_waited_longest() -> None:
    old = pending(1, since_ms=1, waiting_since_ms=9_000)
    late = pending(2, since_ms=9_000, waiting_since_ms=5_000)
    later = pending(3, since_ms=9_000, waiting_since_ms=8_900)
    found = most_urgent((old, later, late), _limits(1_000, 2_000), 10_000)
    assert found is late


def test_a_tables_most_urgent_work_goes_first_and_of_urgent_work_the_oldest() -> None:
    def first(*offered: PendingCompaction) -> int:
        found = most_urgent(offered, _limits(1_000), 10_000)
        assert found is not None
        return found.bucket.bucket

    young = pending(1, since_ms=9_900, files_saved=100)
    better = pending(2, since_ms=9_950, files_saved=200)
    late = pending(3, since_ms=8_500)
    forced = pending(4, since_ms=9_999, is_near_stop=True)
    waited = pending(5, since_ms=100)
    assert first(young, better) == 2
    assert first(young, better, late) == 3
    assert first(young, better, late, forced) == 4
    assert first(young, better, late, forced, waited) == 5
    assert first(young, replace(young, bucket=BucketId(b"", 6), since_ms=9_800)) == 6
    assert most_urgent([], _limits(1), 1) is None


def test_small_subcompactions_cost_about_one_and_large_ones_their_size() -> None:
    assert cost(0) == 1
    assert cost(LARGE_BYTES) == 2
    assert cost(8 * LARGE_BYTES) == 9
