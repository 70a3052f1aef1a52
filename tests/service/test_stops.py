"""Daemons told to stop, killed, and started twice."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import builders
from tests.oracle.judge import Judge
from tests.service.daemon_process import Service, Services, configuration
from tests.service.lakes import LARGE, LOCAL, Appended, Beside, Keyed, Lake


def _merging(services: Services, lake: Lake, name: str, **sections: object) -> Service:
    """A daemon in the middle of its first merges of a table."""
    config = configuration(lake.warehouse, **{"rules": [LARGE], **sections})
    service = services.start(config).wait_started()
    service.wait_until(lambda: service.data_files(lake.path(name)), "a merge writes")
    service.family()
    return service


@contextlib.contextmanager
def _frozen(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_sigterm_under_load_lets_merges_finish_commits_them_and_leaves_nothing_behind(
    services: Services, tmp_path: Path, judge: Judge
) -> None:
    lake = Lake(tmp_path)
    rows = lake.large("large")
    keyed = lake.keyed("k")
    service = _merging(services, lake, "large")
    with Beside(keyed, pause_s=0.1):
        # It must not be over before it was asked.
        with _frozen(service.workers()):
            service.signal(signal.SIGTERM)
            service.wait_until(lambda: service.answers("/readyz", 503), "it says that it ends")
            assert service.answers("/livez")
            assert service.metrics().one("draining") == 1
        assert service.wait_exit() == 0
    service.assert_no_process_remains()
    # What had begun was finished and committed.
    assert lake.work("large").snapshots >= 1
    assert lake.rows("large").equals(rows)
    keyed.check()
    for name in ("large", "k"):
        assert lake.leftovers(name) == set()
        builders.check_chain(LOCAL, lake.ref(name))
    count, _ = judge.read_checksum(lake.path("large"))
    assert count == rows.num_rows
    assert len(judge.read(lake.path("k"))) == len(keyed.rows)
    assert service.log("service_stopped", exit_code=0)
    assert list((service.folder / "t").iterdir()) == []


@pytest.mark.parametrize("how", ["grace-is-over", "second-signal"])
def test_merges_that_may_not_finish_are_cancelled_and_leave_nothing_behind(
    services: Services, tmp_path: Path, how: str
) -> None:
    lake = Lake(tmp_path)
    rows = lake.large("large")
    # The long one is longer than the waits below.
    is_short = how == "grace-is-over"
    grace = {"grace": "6 s" if is_short else "500 s", "commit_reserve": "5 s"}
    service = _merging(services, lake, "large", shutdown=grace)
    # Frozen workers finish nothing. They cannot clean up either, until they were told to end.
    with _frozen(service.workers()):
        service.signal(signal.SIGTERM)
        service.wait_until(lambda: service.log("service_draining", asked=1), "it drains")
        if not is_short:
            service.signal(signal.SIGTERM)
        service.wait_until(lambda: service.log("tasks_cancelled"), "merges are cancelled")
    assert service.wait_exit() == 0
    service.assert_no_process_remains()
    assert lake.rows("large").equals(rows)
    assert lake.leftovers("large") == set()


def test_a_killed_daemon_takes_its_processes_along_and_the_next_one_cleans_up_and_goes_on(
    services: Services, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    rows = lake.large("large")
    service = _merging(services, lake, "large")
    for pid in service.workers():
        # Frozen, they cannot clean up before they are killed, too: nothing but names is left.
        os.kill(pid, signal.SIGSTOP)
    workers = service.workers()
    service.signal(signal.SIGKILL)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    service.wait_exit()
    service.assert_no_process_remains()
    assert lake.leftovers("large")
    assert lake.rows("large").equals(rows)
    # Of a stranger, alive for all we know: nobody may touch it.
    strange = lake.path("large") / "bucket-0" / f"data-{builders.FIRST.unique_name()}-0.parquet"
    strange.write_bytes(b"x")
    again = services.start(configuration(tmp_path)).wait_started()
    again.wait_settled("large")
    # It may belong to a snapshot that is still being restored: it waits ten minutes.
    assert lake.leftovers("large") > {strange.name}
    builders.sweep_later(LOCAL, str(lake.path("large")), grace_ms=builders.DAY_MS)
    assert lake.leftovers("large") == {strange.name}
    assert lake.rows("large").equals(rows)
    assert lake.level0_files("large") == 0
    assert again.stop() == 0
    assert strange.exists()


def test_two_daemons_on_the_same_tables_waste_work_and_lose_nothing(
    services: Services, tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    tables = [lake.keyed(f"k{n}", buckets=4) for n in range(3)]
    appended = lake.appended("a")
    writers: list[Keyed | Appended] = [*tables, appended]
    one = {"spark": {"master": "local[1]"}}
    pair = [services.start(configuration(tmp_path, **one)) for _ in range(2)]
    for service in pair:
        service.wait_started()
    with Beside(*writers, pause_s=0.01):
        pair[0].wait_until(lambda: tables[0].commits >= 25, "25 commits")
    # Twice: while the second one settles, the first may still commit what it had under way.
    for _ in range(2):
        scrapes = [service.wait_settled("k0", "k1", "k2", "a") for service in pair]
    for writer in writers:
        writer.check()
        builders.check_chain(LOCAL, writer.ref)
        name = writer.ref.name
        assert lake.leftovers(name) == set()
        counted = [
            scrape.one("commits_total", table=name, result="committed") for scrape in scrapes
        ]
        assert sum(counted) == lake.work(name).snapshots
        assert sum(scrape.sum("commit_lost_snapshots_total", table=name) for scrape in scrapes) == 0
        assert sum(scrape.sum("table_halted", table=name) for scrape in scrapes) == 0
    both = sum(scrape.sum("compactions_total", outcome="conflict") for scrape in scrapes)
    races = sum(scrape.sum("commit_conflicts_total") for scrape in scrapes)
    assert both + races > 0
    for service in pair:
        assert service.stop() == 0
