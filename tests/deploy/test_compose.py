"""The laptop's services: what they mount is there, and what they are told fits together."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
import yaml

from compactord.config.load import load_config
from tests.deploy.prometheus import DEPLOY, promtool

COMPOSE = DEPLOY / "compose"


def read(name: str) -> Any:
    return yaml.safe_load((COMPOSE / name).read_text())


def mounts(service: str) -> dict[str, str]:
    """Place inside → what is mounted there; named volumes and read-only marks left out."""
    found = {}
    for volume in read("compose.yaml")["services"][service]["volumes"]:
        # The colon of a variable's message is none of ours.
        source, _, target = volume.removesuffix(":ro").rpartition(":")
        if source.startswith("."):
            found[target] = source
    return found


def inside(service: str, path: str) -> bool:
    """Whether a path inside a service leads to a file of the repository."""
    for target, source in mounts(service).items():
        if PurePosixPath(path).is_relative_to(target):
            rest = PurePosixPath(path).relative_to(target)
            return (COMPOSE / source / rest).exists() if str(rest) != "." else True
    return False


@pytest.mark.parametrize("service", ["compactord", "prometheus", "grafana"])
def test_everything_that_is_mounted_exists(service: str) -> None:
    found = mounts(service)
    assert found
    for source in found.values():
        assert (COMPOSE / source).exists(), source


def test_named_volumes_are_declared() -> None:
    compose = read("compose.yaml")
    used = {
        volume.split(":")[0]
        for service in compose["services"].values()
        for volume in service["volumes"]
        if volume[0] not in ".$"
    }
    assert used == set(compose["volumes"])


def test_every_port_is_open_to_this_machine_only() -> None:
    for service in read("compose.yaml")["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_service_is_given_a_configuration_that_it_takes() -> None:
    service = read("compose.yaml")["services"]["compactord"]
    path = service["command"][-1]
    assert inside("compactord", path)
    config = load_config(str(COMPOSE / "config" / "compactord.yaml"), environ={}).config
    (warehouse,) = [catalog.warehouse for catalog in config.catalogs.values()]
    assert any(volume.endswith(f":{warehouse}") for volume in service["volumes"])
    assert service["ports"] == [f"127.0.0.1:{config.service.http.port}:{config.service.http.port}"]
    assert service["stop_grace_period"] == f"{config.shutdown.grace_ms // 1000 + 30}s"


@pytest.mark.tools
def test_prometheus_scrapes_the_service_and_finds_its_rules() -> None:
    promtool("check", "config", "--syntax-only", COMPOSE / "prometheus.yml", cwd=COMPOSE)
    config = read("prometheus.yml")
    assert all(inside("prometheus", path) for path in config["rule_files"])
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "compactord"
    (target,) = job["static_configs"][0]["targets"]
    assert target.split(":")[0] in read("compose.yaml")["services"]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    (source,) = read("grafana/datasources/prometheus.yaml")["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert read("compose.yaml")["services"][host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    step = read("prometheus.yml")["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == step
    (provider,) = read("grafana/dashboards/compactord.yaml")["providers"]
    assert inside("grafana", f"{provider['options']['path']}/compactord.json")
    environment = read("compose.yaml")["services"]["grafana"]["environment"]
    assert inside("grafana", environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
