"""What a command imports before it does its work: that is most of the time of a short one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.test_asked import Service
from tests.unit.test_cli import _keyed_table
from tests.views import busy_detail, table_view

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
    code, names = _ended(*arguments)
    assert code == "0"
    return names


def _ended(*arguments: str) -> tuple[str, set[str]]:
    """The exit code of a command, and the packages that it had imported."""
    command = [sys.executable, "-c", _RUN, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    code, *names = run.stderr.splitlines()[-1].split()
    return code, set(names)


@pytest.mark.parametrize(
    "command", [[], ["compact"], ["plan"], ["inspect"], ["serve"], ["config", "check"], ["top"]]
)
def test_help_imports_nothing_but_the_parser(command: list[str]) -> None:
    assert _imported(*command, "--help").isdisjoint(_HEAVY)


@pytest.mark.parametrize(
    "arguments",
    [
        ["tables", "--url", "URL"],
        ["tables", "--url", "URL", "--table", "lake.d.calm"],
        ["why", "d.calm", "--url", "URL"],
        ["tables", "--url", "http://127.0.0.1:1"],
        ["status", "--url", "URL"],
        ["top", "--once", "--url", "URL"],
        ["tables", "--url", "URL", "--database", "none"],
        ["why", "d.calm", "--url", "URL", "--metastore", "jdbc"],
        ["plan", "--warehouse", "/none", "--tabel", "d.t"],
        ["expire", "--warehouse", "/none"],
    ],
    ids=" ".join,
)
def test_a_query_of_a_service_and_a_wrong_argument_import_no_engine(arguments: list[str]) -> None:
    view = table_view("d.calm")
    service = Service(view)
    service.status.details[view.name] = busy_detail(view)
    try:
        given = [each.replace("URL", service.url) for each in arguments]
        _, found = _ended(*given)
    finally:
        service.server.stop()
    # `top` draws with rich, and durations are parsed beside types of pydantic.
    usual = {"rich", "pydantic"} if arguments[0] == "top" else set()
    assert found.isdisjoint(set(_HEAVY) - usual)


@pytest.mark.parametrize("command", ["inspect", "plan"])
def test_a_look_at_a_table_imports_no_spark(command: str, tmp_path: Path) -> None:
    _keyed_table(tmp_path, commits=1)
    found = _imported(command, "--warehouse", str(tmp_path), "--table", "d.t")
    assert found.isdisjoint({"pyspark", "py4j"})
    assert "pyarrow" in found
