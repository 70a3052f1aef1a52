"""What a command imports before it does its work: that is most of the time of a short one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_cli import _keyed_table

_HEAVY = (
    "numpy",
    "pyarrow",
    "pydantic",
    "pyspark",
    "rich",
    "shtab",
    "sqlalchemy",
    "thrift",
    "urllib3",
    "structlog",
    "yaml",
)
_RUN = """
import sys
from compactord.cli.command import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
sys.stdout.flush()
print(code, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def _imported(*arguments: str) -> set[str]:
    """The packages that a command had imported when it ended with 0."""
    command = [sys.executable, "-c", _RUN, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    code, *names = run.stderr.splitlines()[-1].split()
    assert code == "0", run.stderr
    return set(names)


@pytest.mark.parametrize(
    "command", [[], ["compact"], ["plan"], ["inspect"], ["serve"], ["config", "check"], ["top"]]
)
def test_help_imports_nothing_but_the_parser(command: list[str]) -> None:
    assert _imported(*command, "--help").isdisjoint(_HEAVY)


@pytest.mark.parametrize("command", ["inspect", "plan"])
def test_a_look_at_a_table_imports_no_spark(command: str, tmp_path: Path) -> None:
    _keyed_table(tmp_path, commits=1)
    found = _imported(command, "--warehouse", str(tmp_path), "--table", "d.t")
    assert found.isdisjoint({"pyspark", "py4j"})
    assert "pyarrow" in found
