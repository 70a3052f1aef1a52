"""A daemon as a user starts it, writers beside it, and what it says against what there is."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from pathlib import Path

from compactord.clock import SystemClock
from compactord.paimon.snapshot import snapshot_ids
from compactord_demo.writer import WriteOnlyWriter
from tests import builders
from tests.service.conftest import Served
from tests.service.lakes import LOCAL, TRIGGER, WRITER, Beside, Lake

# One after the other the requests before them take minutes.
_PROBES_SECONDS_MAX = 10


def test_tables_are_kept_compact_while_writers_commit_and_metrics_tell_the_truth(
    served: Served,
) -> None:
    lake, service = served.lake, served.service
    keyed, appended = lake.keyed("k"), lake.appended("a")
    with Beside(keyed, appended):
        service.wait_until(lambda: keyed.commits >= 60, "60 commits")
    service.wait_settled("k", "a")
    # Manifests may still be merged.
    service.wait_until(
        lambda: all(
            service.metrics().sum("table_planned_snapshot_id", table=name) == lake.snapshot_id(name)
            for name in ("k", "a")
        ),
        "the last snapshot is planned",
    )
    scrape = service.metrics()
    for name, writer in (("k", keyed), ("a", appended)):
        writer.check()
        files = lake.files(name)
        work = lake.work(name)
        assert work.snapshots >= 2, "it worked while writers wrote"
        truth = {
            "table_latest_snapshot_id": lake.snapshot_id(name),
            "table_planned_snapshot_id": lake.snapshot_id(name),
            "table_last_commit_snapshot_id": work.last_id,
            "table_snapshots": len(snapshot_ids(LOCAL, lake.ref(name).location)),
            "table_files": len(files),
            "table_size_bytes": sum(file.file_size for file in files),
            "table_halted": 0,
            "input_files_total": work.input_files,
            "output_files_total": work.output_files,
            "input_bytes_total": work.input_bytes,
            "output_bytes_total": work.output_bytes,
            "input_records_total": work.input_records,
            "output_records_total": work.output_records,
        }
        assert {metric: scrape.sum(metric, table=name) for metric in truth} == truth
        assert scrape.one("commits_total", table=name, result="committed") == work.snapshots
        counted = scrape.sum("compactions_total", table=name, outcome="committed")
        commits = service.log("commit_succeeded", table=name)
        assert len(commits) == work.snapshots
        # Some only merge manifests.
        with_files = sum(bool(commit["compaction_ids"]) for commit in commits)
        assert counted == len(service.log("compaction_finished", table=name)) >= with_files
    assert scrape.one("table_level0_files_max", table="k") * 2 >= lake.level0_files("k")
    assert scrape.one("table_sorted_runs_max", table="k") < 6
    assert scrape.sum("table_buckets_by_run_state", table="k") == 2
    worst = lake.worst_buckets("k")
    assert scrape.one("table_size_amplification_ratio_max", table="k") == worst[0]
    assert scrape.one("table_last_full_compaction_timestamp_seconds", table="k") == worst[1]
    # Only the kinds of compactions that a table may have.
    assert len(scrape.all("table_last_success_timestamp_seconds", table="k", kind="append")) == 0
    assert len(scrape.all("table_last_success_timestamp_seconds", table="a")) == 1
    assert scrape.one("spark_up") == 1
    assert (scrape.one("task_slots"), scrape.one("tasks_running")) == (2, 0)
    assert service.get("/readyz")[0] == service.get("/livez")[0] == 200


def test_many_small_buckets_that_finish_close_together_are_published_in_few_snapshots(
    served: Served,
) -> None:
    lake, service = served.lake, served.service
    lake.keyed("wide", buckets=32)
    writer = WriteOnlyWriter(LOCAL, lake.ref("wide"), owner=WRITER, clock=SystemClock())
    for commit in range(6):
        writer.write(builders.rows_of((key, commit) for key in range(2_000)))
    service.wait_settled("wide")
    finished = service.log("compaction_finished", table="wide")
    assert {each["bucket"] for each in finished} == set(range(32))
    assert lake.work("wide").snapshots <= 3
    assert lake.rows("wide").column("v").to_pylist() == [5] * 2_000


def test_a_new_table_is_found_a_dropped_one_forgotten_and_a_second_of_its_name_served_anew(
    served: Served,
) -> None:
    lake, service = served.lake, served.service
    first = lake.keyed("again", buckets=1)
    first.commit(6)
    service.wait_settled("again")
    assert lake.level0_files("again") == 0
    lake.drop("again")
    service.wait_until(lambda: "again" not in service.metrics().tables(), "its series vanish")
    assert service.table("again") == {}
    assert service.get("/v1/tables/lake/db/again")[0] == 404
    second = lake.keyed("again", buckets=3, options={TRIGGER: "7"})
    second.commit(7)
    scrape = service.wait_settled("again")
    second.check()
    assert lake.level0_files("again") == 0
    # Its counters begin anew, too.
    assert (
        scrape.one("commits_total", table="again", result="committed")
        == lake.work("again").snapshots
    )
    assert len(service.log("table_added", table="again")) == 2
    assert len(service.log("table_removed", table="again")) == 1


def test_a_table_that_is_replaced_between_two_looks_is_compacted_as_the_one_it_now_is(
    served: Served,
) -> None:
    lake, service = served.lake, served.service
    lake.keyed("swapped", buckets=1).commit(6)
    service.wait_settled("swapped")
    # Made elsewhere, so that the name is never missing for longer than a moment.
    other = Lake(lake.warehouse.parent / "elsewhere")
    second = other.keyed("swapped", buckets=2)
    second.commit(9)
    shutil.rmtree(lake.path("swapped"))
    other.path("swapped").rename(lake.path("swapped"))
    service.wait_settled("swapped")
    assert builders.read_keyed(LOCAL, lake.ref("swapped")) == second.rows
    assert lake.level0_files("swapped") == 0
    builders.check_chain(LOCAL, lake.ref("swapped"))


def test_changed_options_and_columns_of_a_table_are_taken_up(served: Served) -> None:
    lake, service = served.lake, served.service
    keyed = lake.keyed("altered", buckets=1, options={TRIGGER: "20"})
    keyed.commit(6)
    scrape = service.wait_settled("altered")
    assert lake.level0_files("altered") == 6
    assert scrape.one("table_compaction_trigger_runs", table="altered") == 20
    lake.alter("altered", {TRIGGER: "3"})
    service.wait_until(lambda: lake.level0_files("altered") == 0, "the new trigger is in effect")
    scrape = service.wait_settled("altered")
    assert scrape.one("table_compaction_trigger_runs", table="altered") == 3
    keyed.check()


def test_a_dead_worker_costs_a_retry_and_a_dead_spark_a_restart(served: Served) -> None:
    lake, service = served.lake, served.service
    rows = lake.large("large_k")
    location = lake.path("large_k")
    service.wait_until(lambda: service.data_files(location), "a merge writes")
    os.kill(service.workers()[0], signal.SIGKILL)
    service.wait_settled("large_k")
    assert lake.rows("large_k").equals(rows)
    assert lake.level0_files("large_k") == 0
    before = service.metrics().one("spark_restarts_total")
    rows = lake.large("large_s")
    location = lake.path("large_s")
    service.wait_until(lambda: service.data_files(location), "a merge writes")
    os.kill(service.jvm(), signal.SIGKILL)
    service.wait_until(lambda: service.answers("/readyz", 503), "it says that Spark is gone")
    assert service.get("/livez")[0] == 200
    service.wait_until(lambda: service.answers("/readyz"), "Spark is back")
    scrape = service.wait_settled("large_s")
    assert scrape.one("spark_restarts_total") == before + 1
    assert scrape.one("spark_up") == 1
    assert service.log("spark_lost")
    assert service.log("spark_restarted")
    assert lake.rows("large_s").equals(rows)
    assert lake.level0_files("large_s") == 0
    assert lake.leftovers("large_s") == set()
    # No bucket is to blame for a dead Spark.
    assert scrape.sum("compactions_total", table="large_s", outcome="failed") == 0


def test_a_daemon_that_was_frozen_goes_on(served: Served) -> None:
    lake, service = served.lake, served.service
    keyed = lake.keyed("frozen")
    keyed.commit(3)
    service.wait_settled("frozen")
    service.signal(signal.SIGSTOP)
    try:
        keyed.commit(6)
        time.sleep(3)
    finally:
        service.signal(signal.SIGCONT)
    service.wait_settled("frozen")
    assert lake.level0_files("frozen") <= 8
    assert service.get("/livez")[0] == 200
    keyed.check()


def test_stacks_are_written_when_asked_for_however_often(served: Served) -> None:
    service = served.service
    with Beside(served.lake.keyed("asked"), pause_s=0.01):
        # Faster than stacks are written, and in the middle of whatever the main thread does.
        for number in range(5000):
            service.signal(signal.SIGUSR1)
            if number % 50 == 0:
                time.sleep(0.01)
    service.wait_until(lambda: service.log("thread_stack"), "stacks in the log")
    threads = {line["thread"] for line in service.log("thread_stack")}
    assert "MainThread" in threads
    service.wait_settled("asked")


def test_nothing_grows_with_the_number_of_polls(served: Served) -> None:
    """Files, threads and memory, while tables change all the time."""
    lake, service = served.lake, served.service
    writers = [lake.keyed(f"polled_{n}", buckets=1) for n in range(8)]

    def commit_and_count() -> tuple[int, int, int]:
        for _ in range(6):
            for writer in writers:
                writer.commit()
            time.sleep(0.3)
        service.wait_settled(*(writer.ref.name for writer in writers))
        process = Path(f"/proc/{service.pid}")
        status = (process / "status").read_text()
        resident_kb = int(status.split("VmRSS:")[1].split()[0])
        return (
            len(list((process / "fd").iterdir())),
            len(list((process / "task").iterdir())),
            resident_kb,
        )

    commit_and_count()
    files, threads, memory_kb = commit_and_count()
    polls = service.metrics().sum("poll_duration_seconds_count")
    commit_and_count()
    later = commit_and_count()
    assert service.metrics().sum("poll_duration_seconds_count") > polls + 50
    assert later[0] <= files + 2
    assert later[1] <= threads + 2
    assert later[2] < memory_kb + 20_000
    for writer in writers:
        writer.check()


def test_clients_that_pipeline_requests_keep_no_probe_waiting(served: Served) -> None:
    service = served.service
    request = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    with contextlib.ExitStack() as clients:
        for _ in range(100):
            address = ("127.0.0.1", service.port)
            client = clients.enter_context(socket.create_connection(address))
            client.setblocking(False)
            # What does not fit any more is not sent.
            with contextlib.suppress(BlockingIOError, ConnectionError):
                client.send(2_000 * request)
        began = time.monotonic()
        for path in ("/livez", "/readyz", "/startupz"):
            assert service.answers(path)
        assert time.monotonic() - began < _PROBES_SECONDS_MAX
