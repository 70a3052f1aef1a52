"""A system that does not show processes, as those that are not Linux: commands say so at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.command import Commands
from tests.unit.cli.warehouses import keyed

_HIDING = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs tmpfs /proc && exec "$@"', "sh")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts over /proc: run `make test` as root")
@pytest.mark.parametrize("command", ["serve", "doctor", "compact --all", "orphans --all"])
def test_the_error_names_what_is_missing(commands: Commands, tmp_path: Path, command: str) -> None:
    keyed(tmp_path, "d.t")
    outcome = commands.run(*command.split(), "--warehouse", str(tmp_path), before=_HIDING)
    assert outcome.code == 2
    assert "compactord runs on Linux only: /proc does not show this process" in outcome.err
    assert "Java" not in outcome.err + outcome.out
