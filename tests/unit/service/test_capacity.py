"""What the service says of its engine, and how many slots follow from it."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from compactord.config.model import ServiceConfig
from compactord.engine.worker import IDLE_WORKER_BYTES
from compactord.errors import UsageError
from compactord.model import RewriteStats, SubcompactionResult
from compactord.service.settings import Capacity
from tests.builders import VirtualClock

MIB = 1 << 20
ONE_BYTES = 110 * MIB + IDLE_WORKER_BYTES


def _config(**limits: Any) -> ServiceConfig:
    return ServiceConfig.model_validate(
        {
            "catalogs": {"c": {"warehouse": "/wh"}},
            "spark": {"master": "local[8]", "task_memory": "110 mb"},
            "limits": limits,
        }
    )


def _capacity(clock: VirtualClock | None = None, **limits: Any) -> Capacity:
    limits.setdefault("memory", f"{3 * ONE_BYTES} b")
    return Capacity(_config(**limits), clock or VirtualClock())


def test_slots_are_those_that_engine_and_memory_allow_and_none_without_an_engine() -> None:
    capacity = _capacity()
    assert capacity.slots == 0
    capacity.engine_up(8)
    assert capacity.slots == 3
    capacity.engine_up(2)
    assert capacity.slots == 2
    capacity.engine_failed("it died")
    assert capacity.slots == 0


def test_the_log_says_how_many_slots_hold_not_how_many_the_engine_could_run() -> None:
    capacity = _capacity(task_slots=1)
    with capture_logs() as logs:
        capacity.engine_up(8)
        capacity.engine_failed("it died")
        capacity.engine_up(2)
    assert [(log["event"], log["slots"], log["cores"]) for log in logs] == [
        ("spark_started", 1, 8),
        ("spark_restarted", 1, 2),
    ]


def test_a_first_start_and_more_cores_are_no_restarts() -> None:
    capacity = _capacity()
    capacity.engine_failed("no route")
    assert (capacity.view(0, 0).is_up, capacity.error) == (False, "no route")
    for cores in (4, 8):
        capacity.engine_up(cores)
        assert (capacity.view(0, 0).is_up, capacity.view(0, 0).restarts, capacity.error) == (
            True,
            0,
            "",
        )
    capacity.engine_failed("it died")
    capacity.engine_up(8)
    assert capacity.view(0, 0).restarts == 1


def test_other_limits_hold_at_once_but_not_a_memory_in_which_no_merge_fits() -> None:
    capacity = _capacity()
    capacity.engine_up(8)
    capacity.configure(_config(memory=f"{5 * ONE_BYTES} b").limits)
    assert capacity.slots == 5
    capacity.configure(_config(memory=f"{ONE_BYTES - 1} b", task_slots=4).limits)
    assert capacity.slots == 4, "the other limits are taken over"
    assert capacity.memory_budget_bytes == 5 * ONE_BYTES


def test_at_a_start_such_a_memory_is_refused() -> None:
    with pytest.raises(UsageError, match=r"limits\.memory"):
        _capacity(memory=f"{ONE_BYTES - 1} b")


def test_the_time_that_slots_are_in_use_is_summed_up() -> None:
    clock = VirtualClock()
    clock.sleep(100)
    capacity = _capacity(clock)
    for seconds, running in ((1, 1), (2, 3), (4, 0)):
        clock.sleep(seconds)
        capacity.count_busy(running)
    assert capacity.view(0, 0).slot_busy_seconds == 1 * 1 + 2 * 3


def test_a_lost_slot_keeps_its_memory() -> None:
    view = _capacity().view(2, 1)
    assert (view.running, view.lost_slots) == (2, 1)
    assert view.memory_reserved_bytes == 3 * ONE_BYTES


def test_memory_is_reserved_for_what_runs_and_the_largest_worker_is_remembered() -> None:
    capacity = _capacity()
    for peak in (7, 9, 8):
        stats = RewriteStats(
            input_records=0,
            output_records=0,
            input_bytes=0,
            output_bytes=0,
            cpu_s=0,
            peak_rss_bytes=peak,
        )
        capacity.subcompaction_ended(
            SubcompactionResult(compaction_id=1, index=0, outputs=(), stats=stats)
        )
    view = capacity.view(2, 0)
    assert (view.running, view.memory_reserved_bytes) == (2, 2 * ONE_BYTES)
    assert view.memory_budget_bytes == 3 * ONE_BYTES
    assert view.task_peak_memory_bytes == 9


def test_the_token_of_a_master_is_not_shown() -> None:
    config = ServiceConfig.model_validate(
        {
            "catalogs": {"c": {"warehouse": "/wh"}},
            "spark": {"master": "sc://head:15002/;token=s3same;x-org=s3same"},
        }
    )
    assert Capacity(config, VirtualClock()).view(0, 0).master == "sc://head:15002/;***"
