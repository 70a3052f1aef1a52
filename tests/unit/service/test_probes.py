from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.service import probes
from compactord.service.probes import Health
from compactord.service.view import LoopView, ServiceView
from tests.views import MINUTE, NOW_MS, SECOND, halt, service_view, table_view


def checks(health: Health) -> list[str]:
    assert health.is_well == (health.status == "ok") == (not health.failed)
    return [failed.check for failed in health.failed]


def with_loops(*ages_ms: int) -> ServiceView:
    loops = (
        LoopView(name=f"l{i}", heartbeat_ms=NOW_MS - age_ms, stale_after_ms=60 * SECOND, overruns=0)
        for i, age_ms in enumerate(ages_ms)
    )
    return service_view(loops=tuple(loops))


def with_engine(*, is_up: bool, **changes: object) -> ServiceView:
    view = service_view(**changes)
    return replace(view, engine=replace(view.engine, is_up=is_up, error="" if is_up else "gone"))


def with_catalogs(*ages_ms: int) -> ServiceView:
    (catalog,) = service_view().catalogs
    catalogs = (
        replace(catalog, name=f"c{i}", last_success_ms=NOW_MS - age_ms, error="refused")
        for i, age_ms in enumerate(ages_ms)
    )
    return service_view(catalogs=tuple(catalogs))


def test_a_service_that_runs_well_passes_every_probe() -> None:
    view = service_view(table_view())
    for health in (
        probes.liveness(view, NOW_MS),
        probes.readiness(view, NOW_MS),
        probes.startup(view),
    ):
        assert checks(health) == []


def test_it_lives_as_long_as_every_loop_shows_life() -> None:
    assert checks(probes.liveness(with_loops(60 * SECOND, 0), NOW_MS)) == []
    stale = probes.liveness(with_loops(0, 60 * SECOND + 1, 90 * SECOND), NOW_MS)
    assert checks(stale) == ["loop l1", "loop l2"]
    assert stale.failed[1].message == "no heartbeat for 1 min 30 s, at most 1 min are allowed"


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("planner", None),
        ("committer", None),
        ("dispatcher", "no heartbeat for 1 min 30 s, at most 1 min are allowed"),
        ("slots", "every slot is lost to a worker that does not answer for 1 min 30 s, "),
        ("jobs", "every thread, or every table, waits for a call into a store for 1 min 30 s, "),
    ],
)
def test_one_job_that_hangs_fails_nothing_but_all_do(loop: str, message: str | None) -> None:
    view = with_loops(90 * SECOND)
    view = replace(view, loops=tuple(replace(each, name=loop) for each in view.loops))
    failed = probes.liveness(view, NOW_MS).failed
    assert len(failed) == (message is not None)
    assert message is None or failed[0].message.startswith(message)


def test_a_view_that_is_not_renewed_goes_stale_by_the_probes_own_clock() -> None:
    view = service_view()
    assert checks(probes.liveness(view, NOW_MS + MINUTE)) == ["loop service"]


@pytest.mark.parametrize(
    "view",
    [
        with_engine(is_up=False),
        with_catalogs(60 * MINUTE),
        service_view(is_started=False),
        service_view(is_draining=True),
        service_view(table_view(halt=halt())),
    ],
    ids=["engine down", "catalog away", "starting", "draining", "table halted"],
)
def test_what_a_restart_does_not_heal_leaves_it_alive(view: ServiceView) -> None:
    assert checks(probes.liveness(view, NOW_MS)) == []


def test_a_service_that_starts_says_what_it_waits_for() -> None:
    fresh = with_engine(is_up=False, is_started=False, catalogs=())
    assert checks(probes.startup(fresh)) == ["start", "engine"]
    assert checks(probes.startup(service_view(is_started=False))) == ["start"]
    assert checks(probes.readiness(fresh, NOW_MS)) == ["start", "engine"]


def test_once_started_the_startup_probe_stays_content() -> None:
    assert checks(probes.startup(with_engine(is_up=False))) == []
    assert checks(probes.startup(with_catalogs(60 * MINUTE))) == []


def test_without_its_engine_it_is_not_ready() -> None:
    health = probes.readiness(with_engine(is_up=False), NOW_MS)
    assert checks(health) == ["engine"]
    assert health.failed[0].message == "gone"


def test_catalogs_out_of_reach_are_named_and_fail_nothing() -> None:
    view = with_catalogs(60 * MINUTE, 5 * MINUTE, 5 * MINUTE + 1)
    ready = probes.readiness(view, NOW_MS)
    assert checks(ready) == []
    assert [(each.check, each.message) for each in ready.warnings] == [
        ("catalog c0", "refused"),
        ("catalog c2", "refused"),
    ]
    (catalog, *others) = view.catalogs
    silent = replace(catalog, store_silent_since_ms=NOW_MS - 2 * MINUTE)
    ready = probes.readiness(replace(view, catalogs=(silent, *others)), NOW_MS)
    assert ready.warnings[0].message == "its store or server has not answered for 2 min"
    assert checks(ready) == []


def test_a_service_that_ends_is_not_ready() -> None:
    assert checks(probes.readiness(service_view(is_draining=True), NOW_MS)) == ["draining"]


def test_a_halted_table_fails_no_probe() -> None:
    assert checks(probes.readiness(service_view(table_view(halt=halt())), NOW_MS)) == []
