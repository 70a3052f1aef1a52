"""The text of a scrape as Prometheus' own linter sees it."""

from __future__ import annotations

import subprocess

import pytest

from tests.tools.obtain import tool_path
from tests.unit.service.test_metrics import everything

pytestmark = pytest.mark.tools


def _lint(text: str) -> subprocess.CompletedProcess[str]:
    command = [tool_path("promtool"), "check", "metrics"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_promtool_finds_nothing_in_a_scrape() -> None:
    found = _lint(everything())
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_promtool_would_find_what_is_wrong() -> None:
    wrong = "# TYPE compactord_pauses counter\ncompactord_pauses 1\n"
    assert _lint(wrong).returncode != 0
