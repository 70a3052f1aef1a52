from __future__ import annotations

import pytest

from compactord.config.model import Limits
from compactord.engine.masters import is_embedded
from compactord.engine.worker import IDLE_WORKER_BYTES
from compactord.errors import UsageError
from compactord.service.settings import (
    memory_budget_bytes,
    slots_for,
)

MIB = 1 << 20
TASK = 110 * MIB
ONE = TASK + IDLE_WORKER_BYTES


def test_the_budget_is_what_was_asked_for() -> None:
    assert (
        memory_budget_bytes(
            Limits.model_validate({"memory": f"{ONE} b"}), TASK, "spark://head:7077"
        )
        == ONE
    )


def test_without_one_it_is_most_of_the_machine_and_less_than_all() -> None:
    import os

    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < (memory_budget_bytes(Limits(), 32 * MIB, None) or 0) <= total * 3 // 4


def test_a_budget_that_holds_no_merge_is_refused_with_both_numbers() -> None:
    with pytest.raises(UsageError) as caught:
        memory_budget_bytes(Limits.model_validate({"memory": f"{ONE - 1} b"}), TASK, None)
    text = str(caught.value)
    assert "limits.memory" in text
    assert "spark.task_memory = 110 mb" in text


@pytest.mark.parametrize(
    ("capacity", "asked", "budget", "expected"),
    [
        (4, None, 100 * ONE, 4),
        (4, 2, 100 * ONE, 2),
        (4, 9, 100 * ONE, 4),
        (4, None, 3 * ONE, 3),
        (4, None, 3 * ONE - 1, 2),
        (4, None, 1, 1),
    ],
)
def test_slots_are_what_engine_configuration_and_memory_all_allow(
    capacity: int, asked: int | None, budget: int, expected: int
) -> None:
    assert slots_for(capacity, Limits(task_slots=asked), budget, TASK) == expected


def test_on_a_cluster_the_memory_of_this_machine_says_nothing() -> None:
    assert memory_budget_bytes(Limits(), TASK, "spark://head:7077") is None
    assert slots_for(16, Limits(), None, TASK) == 16


@pytest.mark.parametrize(
    ("master", "expected"),
    [(None, True), ("local[2]", True), ("spark://head:7077", False), ("sc://head", False)],
)
def test_a_spark_of_our_own_is_told_from_a_cluster(master: str | None, expected: bool) -> None:
    assert is_embedded(master) is expected
