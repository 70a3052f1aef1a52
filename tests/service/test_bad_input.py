"""What a user can get wrong before the start: clear errors, told exit codes, nothing touched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.service.daemon_process import Services, configuration
from tests.service.lakes import Lake


def _ends(services: Services, config: dict[str, Any] | str, *arguments: str, **how: Any) -> Any:
    """The exit code, stderr, and the log of a daemon that is not to start."""
    service = services.start(config, *arguments, **how)
    code = service.wait_exit()
    assert "Traceback" not in service.err
    return code, service.err, service.log()


@pytest.mark.parametrize("zone", ["UTC-3", "EST5EDT,M3.2.0,M11.1.0", "No/Where"])
def test_a_machine_whose_time_zone_has_no_name_is_told_what_to_configure(
    services: Services, tmp_path: Path, zone: str
) -> None:
    code, err, _ = _ends(services, configuration(tmp_path), environment={"TZ": zone})
    assert code == 2
    assert zone in err
    assert "service.timezone" in err


def test_a_catalog_that_cannot_be_used_does_not_keep_the_others_from_their_service(
    services: Services, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "lake")
    lake.keyed("k")
    config = configuration(lake.warehouse)
    config["catalogs"]["away"] = {"warehouse": f"{tmp_path}/none"}
    service = services.start(config).wait_started()
    (told,) = service.log("catalog_unavailable")
    assert told["catalog"] == "away"
    assert service.stop() == 0


def test_warehouses_that_do_not_answer_are_named_served_later_and_hold_up_no_end(
    services: Services, tmp_path: Path
) -> None:
    lake = Lake(tmp_path / "hangs-for-a-while")
    keyed = lake.keyed("k")
    keyed.commit(6)
    config = configuration(lake.warehouse)
    config["catalogs"]["never"] = {"warehouse": f"{tmp_path}/hangs-for-ever"}
    control = tmp_path / "faults.json"
    control.write_text('{"hang": "hangs-for"}')
    service = services.start(
        config,
        command=(sys.executable, "-m", "tests.service.launcher"),
        environment={"FAULTS": str(control)},
    ).wait_started()
    assert service.answers("/readyz")
    warnings = service.json("/readyz")["warnings"]
    assert {warning["check"] for warning in warnings} == {"catalog lake", "catalog never"}
    told = service.log("catalog_unavailable")
    assert {each["catalog"] for each in told} == {"lake", "never"}
    assert all("no answer within 10 s" in each["error"] for each in told)
    control.write_text('{"hang": "hangs-for-ever"}')
    service.wait_settled("k")
    keyed.check()
    assert lake.level0_files("k") == 0
    assert service.stop() == 0


def test_a_spark_that_does_not_start_is_tried_until_the_time_is_over_and_quoted(
    services: Services, tmp_path: Path
) -> None:
    config = configuration(
        tmp_path,
        startup={"timeout": "8 s"},
        spark={"conf": {"spark.driver.extraJavaOptions": "-javaagent:/none.jar"}},
    )
    code, _, log = _ends(services, config)
    assert code == 69
    (failed,) = (line for line in log if line["event"] == "startup_failed")
    assert "/none.jar" in failed["error"]
