"""Calls into stores that never return: what goes on, how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from compactord.paimon.snapshot import snapshot_ids
from tests.service.daemon_process import Service, Services, configuration
from tests.service.faulty import Faulty
from tests.service.lakes import LOCAL, Keyed, Lake

# From the signal to the last event; the grace, which is for merges and commits, is far longer.
_STOP_SECONDS_MAX = 10
_EXPIRES = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"}


def _first_snapshot(keyed: Keyed) -> int:
    return min(snapshot_ids(LOCAL, keyed.ref.location))


def _expires(faulty: Faulty, keyed: Keyed) -> bool:
    """Whether a snapshot expires within a few intervals."""
    before = _first_snapshot(keyed)
    keyed.commit(3)
    faulty.service.wait_until(lambda: _first_snapshot(keyed) > before, "a snapshot expires")
    return True


def test_maintenance_that_hangs_in_one_store_holds_up_that_of_no_other(
    services: Services, tmp_path: Path
) -> None:
    lake, ill_lake = Lake(tmp_path / "lake"), Lake(tmp_path / "ill")
    well = lake.keyed("well", options=_EXPIRES)
    well.commit()
    ill = [ill_lake.keyed(f"ill{n}", buckets=1, options=_EXPIRES) for n in range(4)]
    catalogs = {"ill": {"warehouse": str(ill_lake.warehouse)}}
    shutdown = {"grace": "10 min"}
    faulty = Faulty(services, lake.warehouse, tmp_path, catalogs=catalogs, shutdown=shutdown)
    assert _expires(faulty, well)
    faulty.tell({"hang": "/ill/.*/tag"})
    for keyed in ill:
        keyed.commit(3)
        hung = f"/{keyed.ref.name}/tag"
        faulty.service.wait_until(lambda hung=hung: faulty.has_hung(hung), "its expiry hangs")
    for _ in range(3):
        assert _expires(faulty, well)
    assert faulty.service.answers("/livez")
    _assert_quick_end(faulty.service)
    for keyed in (well, *ill):
        keyed.check()


def test_the_end_waits_for_no_call_that_hangs(services: Services, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    polled, expired = lake.keyed("polled"), lake.keyed("expired", options=_EXPIRES)
    shutdown = {"grace": "10 min"}
    faulty = Faulty(services, lake.warehouse, tmp_path, shutdown=shutdown)
    faulty.service.wait_settled("polled", "expired")
    hang = "/expired/tag"
    faulty.tell({"hang": hang})
    expired.commit(3)
    faulty.service.wait_until(lambda: faulty.has_hung(hang), "an expiry hangs")
    faulty.tell({"hang": f"{hang}|/polled/|/db.db$"})
    faulty.service.wait_until(lambda: faulty.has_hung("/polled/"), "a poll hangs")
    faulty.service.wait_until(lambda: faulty.has_hung("/db.db$"), "the listing hangs")
    _assert_quick_end(faulty.service)
    assert faulty.service.log("threads_abandoned")
    polled.check()
    expired.check()


def test_the_end_waits_for_no_configuration_that_hangs(services: Services, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    keyed = lake.keyed("configured")
    config = configuration(lake.warehouse, shutdown={"grace": "10 min"}, reload={"interval": "1 h"})
    service = services.start(config).wait_started()
    path = service.folder / "compactord.yaml"
    path.unlink()
    os.mkfifo(path)
    service.signal(signal.SIGHUP)
    with contextlib.ExitStack() as stack:
        service.wait_until(lambda: _joined(path, stack), "it reads the configuration")
        keyed.commit(6)
        service.wait_settled("configured")
        assert not service.log("config_reload_failed")
        _assert_quick_end(service)
    keyed.check()


def _joined(fifo: Path, stack: contextlib.ExitStack) -> bool:
    """Whether somebody reads; then the other end is open until the stack ends, and silent."""
    with contextlib.suppress(OSError):
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        stack.callback(os.close, descriptor)
        return True
    return False


def _assert_quick_end(service: Service) -> None:
    assert service.stop() == 0
    service.assert_no_process_remains()
    [drained] = service.log("service_draining")
    [stopped] = service.log("service_stopped", exit_code=0)
    seconds = _moment_s(stopped) - _moment_s(drained)
    assert seconds < _STOP_SECONDS_MAX, service.text


def _moment_s(line: Mapping[str, Any]) -> float:
    return datetime.strptime(line["ts"], "%Y-%m-%dT%H:%M:%S.%f%z").timestamp()
