"""Stores that fail, hang or are full, and clocks that jump, under a running daemon."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import builders
from tests.service.daemon_process import Services, configuration
from tests.service.faulty import Faulty
from tests.service.lakes import LARGE, LOCAL, Appended, Beside, Keyed, Lake


def test_with_a_store_that_fails_every_now_and_then_work_is_done_and_no_row_is_lost(
    services: Services, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    tables = [lake.keyed("k0"), lake.keyed("k1", buckets=1)]
    appended = lake.appended("a")
    writers: list[Keyed | Appended] = [*tables, appended]
    faulty = Faulty(services, lake.warehouse, tmp_path)
    service = faulty.service
    for every in (97, 31, 11):
        faulty.tell({"every": every})
        wanted = tables[0].commits + 20
        with Beside(*writers, pause_s=0.05):
            service.wait_until(functools.partial(_has_made, tables[0], wanted), "20 commits")
            service.wait_until(lambda: _has_worked(lake, *writers), "work is done")
    service.wait_until(
        lambda: service.metrics().sum("storage_requests_total", outcome="error") > 10,
        "more than ten calls fail",
    )
    assert service.answers("/livez")
    faulty.tell({})
    scrape = service.wait_settled("k0", "k1", "a")
    for writer in writers:
        writer.check()
        builders.check_chain(LOCAL, writer.ref)
        assert scrape.sum("table_halted", table=writer.ref.name) == 0
    assert lake.level0_files("k0") < 10
    assert service.stop() == 0
    assert service.log("defect") == []
    assert "Traceback" not in service.err


def test_a_store_that_is_away_is_told_of_and_when_it_is_back_work_goes_on(
    services: Services, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    keyed = lake.keyed("k")
    keyed.commit(6)
    faulty = Faulty(
        services, lake.warehouse, tmp_path, retry={"halt_after_consecutive_failures": 3}
    )
    service = faulty.service
    service.wait_settled("k")
    faulty.tell({"every": 1})
    service.wait_until(
        lambda: service.metrics().sum("discovery_failures_total", catalog="lake") >= 2,
        "the listing fails",
    )
    service.wait_until(
        lambda: service.metrics().sum("table_halted", table="k") == 1, "the table is halted"
    )
    assert service.table("k")["halt"]["reason"] == "repeated_failures"
    assert service.answers("/livez")
    assert service.log("discovery_failed")
    keyed.commit(6)
    faulty.tell({})
    scrape = service.wait_settled("k")
    assert scrape.sum("table_halted", table="k") == 0
    assert lake.level0_files("k") < 10
    keyed.check()
    assert service.stop() == 0


def test_a_call_that_never_returns_holds_up_its_table_alone_and_not_the_end(
    services: Services, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    stuck, free = lake.keyed("stuck"), lake.keyed("free")
    faulty = Faulty(
        services, lake.warehouse, tmp_path, shutdown={"grace": "4 s", "commit_reserve": "1 s"}
    )
    service = faulty.service
    service.wait_settled("stuck", "free")
    faulty.tell({"hang": "/db.db/stuck/snapshot"})
    stuck.commit(6)
    free.commit(6)
    service.wait_settled("free")
    assert lake.level0_files("free") == 0
    assert service.answers("/livez")
    # The grace, and some seconds more for what does not let go.
    assert service.stop() == 0
    assert service.log("threads_abandoned")
    service.assert_no_process_remains()
    stuck.check()
    free.check()


def _has_made(writer: Keyed, commits: int) -> bool:
    return writer.commits >= commits


def _has_worked(lake: Lake, *writers: Keyed | Appended) -> bool:
    return any(lake.work(writer.ref.name).snapshots > 0 for writer in writers)


@contextlib.contextmanager
def _small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk: run `make test` as root")
def test_a_full_disk_is_named_and_work_goes_on_when_there_is_room_again(
    services: Services, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with _small_disk(disk, 60 << 20):
        lake = Lake(disk)
        rows = lake.large("large_t", buckets=1)
        keyed = lake.keyed("k")
        room = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize - 200_000))
        service = services.start(
            configuration(disk, rules=[LARGE], retry={"halt_after_consecutive_failures": 2})
        ).wait_started()
        service.wait_until(
            lambda: "No space left" in str(service.table("large_t").get("quarantined")),
            "it says that the disk is full",
        )
        assert lake.leftovers("large_t") == set()
        (disk / "ballast").unlink()
        keyed.commit(6)
        scrape = service.wait_settled("large_t", "k")
        assert scrape.sum("table_halted", table="large_t") == 0
        assert lake.level0_files("large_t") == 0
        assert lake.rows("large_t").equals(rows)
        assert lake.leftovers("large_t") == set()
        keyed.check()
        assert service.stop() == 0


_SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    char text[32] = {0};
    int file = open(getenv("CLOCK_SHIFT"), O_RDONLY);
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    return got > 0 ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    if (clock == CLOCK_REALTIME) time->tv_sec += shift();
    return result;
}
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that shifts the time of day by the seconds in the file `CLOCK_SHIFT`."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(_SHIM)
    compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(folder / "shim.so"), "shim.c", "-ldl"]
    try:
        subprocess.run(compiler, cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("cc, which shifts a process's clock, is not installed: apt-get install gcc")
    return folder / "shim.so"


@pytest.mark.parametrize("jump_s", [-7200, 7200], ids=["back", "ahead"])
def test_after_a_jump_of_the_clock_tables_are_still_looked_at_and_compacted(
    services: Services, tmp_path: Path, shim: Path, jump_s: int
) -> None:
    lake = Lake(tmp_path / "lake")
    keyed = lake.keyed("k")
    offset = tmp_path / "offset"
    offset.write_text("0")
    service = services.start(
        configuration(lake.warehouse),
        environment={"LD_PRELOAD": str(shim), "CLOCK_SHIFT": str(offset)},
    ).wait_started()
    keyed.commit(6)
    service.wait_settled("k")
    polls = service.metrics().sum("poll_duration_seconds_count")
    offset.write_text(str(jump_s))
    late = lake.keyed("late")
    keyed.commit(5)  # beside the one run that is there
    late.commit(6)
    service.wait_until(
        lambda: lake.level0_files("k") == lake.level0_files("late") == 0, "compacted"
    )
    assert service.metrics().sum("poll_duration_seconds_count") > polls
    time.sleep(2)
    assert service.answers("/livez")
    assert service.answers("/readyz")
    for writer in (keyed, late):
        writer.check()
    assert service.stop() == 0
