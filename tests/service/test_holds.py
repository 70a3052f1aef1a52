"""A daemon that is killed while a live file is missing: the next one expires nothing either."""

from __future__ import annotations

import time
from pathlib import Path

from compactord.paimon.snapshot import snapshot_ids
from compactord.state.table_state import load_state
from compactord.verify.holds import HOLD_FILE
from tests import builders
from tests.service.daemon_process import Services, configuration
from tests.service.lakes import LOCAL, TRIGGER, Lake


def test_a_hold_outlives_the_process_until_the_file_is_back(
    services: Services, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    keyed = lake.keyed("k", buckets=1)
    keyed.commit(8)
    before = snapshot_ids(LOCAL, keyed.ref.location)
    [*_, path] = sorted(
        map(Path, builders.live_paths(LOCAL, keyed.ref, load_state(LOCAL, keyed.ref))),
        key=lambda path: path.stat().st_mtime_ns,
    )
    data = path.read_bytes()
    path.unlink()
    config = configuration(lake.warehouse)
    service = services.start(config).wait_started()
    service.wait_until(
        lambda: service.log("table_halted", reason="data_file_missing"), "the merge has failed"
    )
    safe = f"the newest version without it is snapshot {before[-2]}"
    # By the listing after the start, by the merge, or by both.
    assert all(safe in halted["message"] for halted in service.log("table_halted"))
    hold = lake.path("k") / HOLD_FILE
    assert path.name in hold.read_text()
    service.kill_family()
    # Now all but the newest snapshot may expire, and no merge tries the file again.
    lake.alter(
        "k",
        {
            "snapshot.time-retained": "1 ms",
            "snapshot.num-retained.min": "1",
            TRIGGER: "100",
            "num-sorted-run.stop-trigger": "200",
        },
    )
    service = services.start(config).wait_started()
    service.wait_until(lambda: len(service.log("expire_stopped")) > 0, "a round has held")
    service.wait_until(lambda: service.table("k").get("halt"), "people are told")
    halt = service.table("k")["halt"]
    assert halt["reason"] == "data_file_missing"
    assert path.name in halt["message"]
    assert safe in halt["message"]
    time.sleep(2)
    assert snapshot_ids(LOCAL, keyed.ref.location) == before
    path.write_bytes(data)
    service.wait_until(
        lambda: snapshot_ids(LOCAL, keyed.ref.location) == before[-1:], "snapshots expire"
    )
    service.wait_until(lambda: not service.table("k").get("halt"), "nothing holds it")
    assert not hold.exists()
    assert service.log("hold_lifted")
    keyed.check()
    assert service.stop() == 0
