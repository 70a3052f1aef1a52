"""`status`: what counts as critical or degraded, and the exit codes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from compactord.cli.command import main
from compactord.scheduler.compaction import HaltReason
from compactord.service.view import CatalogView, ServiceView, TableStatus, TableView
from compactord.table.status import Backlog
from tests.conftest import REPOSITORY
from tests.unit.golden.test_http import site_of
from tests.unit.service.http_client import serving
from tests.views import MIB, FixedStatus, halt, service_view, table_view


def _table(status: TableStatus, **changes: object) -> TableView:
    return table_view(status=status, why=status.value, **changes)


def _down(view: ServiceView) -> ServiceView:
    catalog = CatalogView(
        name="lake", warehouse="/wh", last_success_ms=0, failures=3, error="no such host"
    )
    return replace(view, catalogs=(catalog,))


_WELL = service_view(table_view())
_CASES = {
    "well": (_WELL, "well"),
    "no table": (service_view(), "well"),
    "paused": (service_view(_table(TableStatus.PAUSED)), "well"),
    "excluded": (service_view(_table(TableStatus.EXCLUDED)), "well"),
    "unsupported": (service_view(_table(TableStatus.UNSUPPORTED, halt=halt())), "well"),
    "near its stop trigger": (service_view(table_view(runs=7)), "degraded"),
    "failing": (service_view(table_view(consecutive_failures=2)), "degraded"),
    "draining": (replace(_WELL, is_draining=True), "degraded"),
    "over its stop trigger": (service_view(table_view(runs=9)), "critical"),
    "error": (service_view(_table(TableStatus.ERROR, error="denied")), "critical"),
    "halted": (
        service_view(_table(TableStatus.HALTED, halt=halt(HaltReason.DATA_FILE_MISSING))),
        "critical",
    ),
    "an unlisted catalog": (_down(_WELL), "critical"),
    "the gravest counts": (service_view(table_view(runs=7), table_view("a.b", runs=9)), "critical"),
}
_CODES = {"well": (0, 0, "OK"), "degraded": (10, 1, "WARNING"), "critical": (11, 2, "CRITICAL")}


@pytest.mark.parametrize("case", _CASES)
def test_the_exit_code_is_the_gravest_problem(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    view, expected = _CASES[case]
    code, nagios_code, word = _CODES[expected]
    with serving(site_of(FixedStatus(view)).answer) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert main(["status", "--url", url]) == code
        text = capsys.readouterr().out
        assert main(["status", "--url", url, "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        assert main(["status", "--url", url, "--nagios"]) == nagios_code
        line = capsys.readouterr().out
    assert text.startswith(f"{expected}: {len(found['problems'])} problem")
    assert found["status"] == expected
    assert bool(found["problems"]) == (expected != "well")
    assert all(each["what"] in text for each in found["problems"])
    runbooks = {path.stem for path in (REPOSITORY / "deploy" / "runbooks").glob("*.md")}
    tables = [each for each in found["problems"] if each["what"].startswith("lake.")]
    assert {each["runbook"] for each in tables} <= runbooks
    assert line.startswith(f"COMPACTORD {word} - ")
    assert line.splitlines()[0].count("|") == 1


def test_due_work_of_unmanaged_tables_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    due = Backlog(tasks=1, files=6, size_bytes=MIB, oldest_ms=1)
    states = (TableStatus.ACTIVE, TableStatus.PAUSED, TableStatus.EXCLUDED)
    tables = [_table(status, table=f"db.{status.value}", backlog=due) for status in states]
    view = service_view(*tables)
    with serving(site_of(FixedStatus(view)).answer) as server:
        main(["status", "--url", f"http://127.0.0.1:{server.port}", "--json"])
    assert json.loads(capsys.readouterr().out)["backlog_bytes"] == MIB
    # `top` and the page count the same tables.
    assert [table.status for table in view.managed] == [TableStatus.ACTIVE]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--url http://127.0.0.1:1", 12),
        ("--url http://127.0.0.1:1 --nagios", 3),
        ("--url nowhere", 2),
        ("--url nowhere --nagios", 3),
    ],
)
def test_no_answer_is_not_critical_and_a_wrong_argument_is_no_answer(words: str, code: int) -> None:
    assert main(["status", *words.split()]) == code


@pytest.mark.parametrize(("words", "code"), [("", 2), ("--nagios", 3), ("--nagios --urls x", 3)])
def test_arguments_that_cannot_be_parsed(words: str, code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", *words.split()])
    assert ended.value.code == code
