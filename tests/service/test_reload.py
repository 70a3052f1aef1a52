"""The configuration changed under a running daemon."""

from __future__ import annotations

import re
import signal

import yaml

from tests.service.conftest import Served
from tests.service.daemon_process import merged
from tests.service.lakes import Beside


def test_a_changed_file_is_taken_over_under_load_and_a_wrong_one_refused(served: Served) -> None:
    lake, service = served.lake, served.service
    keyed, other = lake.keyed("reload_k"), lake.keyed("reload_x")
    try:
        with Beside(keyed, other):
            both = {"reload_k", "reload_x"}
            service.wait_until(lambda: both <= service.metrics().tables(), "found")
            service.reconfigure(
                merged(
                    served.config,
                    {
                        "discovery": {"excluding_tables": r"db\.reload_x"},
                        "defaults": {"max_backlog_age": "77 s"},
                    },
                )
            )
            service.wait_until(
                lambda: service.metrics().states()["reload_x"] == "excluded", "excluded"
            )
            why = service.json("/v1/tables/lake/db/reload_x")["view"]["why"]
            assert re.fullmatch(r"discovery\.excluding_tables \(.*:\d+\) is db\\\.reload_x", why)
            assert service.log("table_excluded")[-1]["reason"] == why
            scrape = service.metrics()
            assert scrape.one("table_max_backlog_age_seconds", table="reload_k") == 77
            assert scrape.one("config_last_reload_successful") == 1
            assert service.json("/config")["defaults"]["max_backlog_age"] == "77 s"
            reloaded = scrape.one("config_last_reload_success_timestamp_seconds")

            service.reconfigure("catalogs: [")
            service.wait_until(
                lambda: service.metrics().one("config_last_reload_successful") == 0, "refused"
            )
            assert service.log("config_reload_failed")[-1]["error"]
            scrape = service.metrics()
            assert scrape.one("config_last_reload_success_timestamp_seconds") == reloaded
            assert scrape.one("table_max_backlog_age_seconds", table="reload_k") == 77
            assert scrape.states()["reload_x"] == "excluded"
            assert service.answers("/readyz")

            service.reconfigure(merged(served.config, {"catalogs": {"lake": {"warehouse": "/x"}}}))
            service.wait_until(
                lambda: "catalogs" in str(service.json("/v1/status")["config"]["restart_required"]),
                "it says that catalogs stay until a restart",
            )
            assert service.log("config_restart_required")
            before = keyed.commits
            service.wait_until(lambda: keyed.commits > before + 20, "work goes on")
    finally:
        service.reconfigure(served.config)
    service.wait_until(lambda: service.metrics().states()["reload_x"] == "active", "back")
    scrape = service.wait_settled("reload_k", "reload_x")
    assert scrape.one("config_last_reload_successful") == 1
    assert scrape.one("table_max_backlog_age_seconds", table="reload_k") == 1800
    for writer in (keyed, other):
        writer.check()


def test_sighup_reads_the_file_at_once_and_a_missing_one_changes_nothing(served: Served) -> None:
    service = served.service
    path = service.folder / "compactord.yaml"
    before = len(service.log("config_loaded"))
    service.signal(signal.SIGHUP)
    service.wait_until(lambda: len(service.log("config_loaded")) > before, "read again")
    path.unlink()
    try:
        service.wait_until(
            lambda: service.metrics().one("config_last_reload_successful") == 0, "missed"
        )
        assert service.answers("/readyz")
    finally:
        path.write_text(yaml.safe_dump(served.config))
    service.wait_until(lambda: service.metrics().one("config_last_reload_successful") == 1, "back")
