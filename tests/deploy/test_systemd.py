"""The unit of systemd: what systemd says of it, and what has to fit compactord."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from compactord.cli import command, running
from compactord.config.load import load_config
from tests.deploy.rendering import ROOT

UNIT = ROOT / "deploy" / "systemd" / "compactord.service"
# In tenths; 10 is what systemd calls OK at best, 100 is a unit without any hardening.
EXPOSURE_MAX = 20


def _settings() -> dict[str, list[str]]:
    """All values of each key, in order."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def _one(key: str) -> str:
    (value,) = _settings()[key]
    return value


@pytest.fixture(params=["analyzed" if shutil.which("systemd-analyze") else "only-read"])
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """The unit with programs that exist here; None where systemd is not there to judge it."""
    if request.param == "only-read":
        return None
    path = tmp_path / UNIT.name
    path.write_text(UNIT.read_text().replace("/opt/compactord/bin/compactord", sys.executable))
    return path


def test_systemd_understands_every_line(unit: Path | None) -> None:
    sections = re.findall(r"^\[(\w+)\]$", UNIT.read_text(), re.MULTILINE)
    assert sections == ["Unit", "Service", "Install"]
    if unit is not None:
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit],
            capture_output=True,
            text=True,
            check=False,
        )
        told = [line for line in done.stderr.splitlines() if UNIT.stem in line]
        assert told == []
        # It does not always say by its exit code what it says in words.
        unit.write_text(unit.read_text().replace("KillMode=", "KilMode="))
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "KilMode" in done.stderr


def test_the_daemon_is_confined(unit: Path | None) -> None:
    for key, value in {
        "NoNewPrivileges": "true",
        "ProtectSystem": "strict",
        "ProtectHome": "true",
        "PrivateTmp": "true",
        "CapabilityBoundingSet": "",
        "User": "compactord",
    }.items():
        assert _one(key) == value
    if unit is not None:
        limit = f"--threshold={EXPOSURE_MAX}"
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", limit, unit],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout.splitlines()[-1]


@pytest.mark.parametrize("key", ["ExecStartPre", "ExecStart"])
def test_its_commands_are_commands_of_compactord(key: str) -> None:
    program, *arguments = shlex.split(_one(key))
    assert Path(program).name == "compactord"
    args = command._parser().parse_args(arguments)
    assert args.config == "/etc/compactord/compactord.yaml"


def test_systemd_waits_half_a_minute_longer_than_a_drain_may_take() -> None:
    config = load_config(str(ROOT / "config" / "compactord.yaml"), environ={}).config
    assert _one("TimeoutStopSec") == f"{config.shutdown.grace_ms // 1000 + 30}s"
    # To the daemon alone: its JVM has to live until all is published.
    assert _one("KillMode") == "mixed"


def test_what_a_restart_does_not_heal_is_not_restarted() -> None:
    assert _one("RestartPreventExitStatus") == f"{running.USAGE} {running.DENIED}"
    assert _one("Restart") == "on-failure"


def test_the_warehouse_is_mounted_before_it_is_served_and_may_be_written() -> None:
    assert _one("RequiresMountsFor") in _one("ReadWritePaths").split()
