"""One pass over several tables: what ends it, and what its exit code says."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from compactord.cli.command import _parser
from compactord.cli.select import Result, SelectedTable, choose, over_tables
from compactord.errors import (
    AccessDenied,
    CompactordError,
    EngineUnavailable,
    StorageError,
    UnsupportedTable,
    UsageError,
)
from tests.unit.cli.warehouses import answered, configuration, keyed, said

_FINE = Result(lines=[], found={})
_REFUSED = UnsupportedTable("t", ["no"])


def _pass(
    tmp_path: Path, outcomes: dict[str, Result | CompactordError], stop: threading.Event | None
) -> int:
    for name in outcomes:
        keyed(tmp_path, f"d.{name}")
    args = _parser().parse_args(["plan", "--warehouse", str(tmp_path), "--database", "d", "--json"])

    def work(target: SelectedTable) -> Result:
        outcome = outcomes[target.ref.name]
        if stop is not None:
            stop.set()
        if isinstance(outcome, CompactordError):
            raise outcome
        return outcome

    return over_tables(args, choose(args), work, passes_over=True, stop=stop)


@pytest.mark.parametrize(
    ("outcomes", "code", "summary"),
    [
        ([_FINE, _FINE], 0, {"done": 2}),
        ([_FINE, StorageError("/p", "odd")], 3, {"done": 1, "failed": 1}),
        ([_FINE, _REFUSED], 4, {"done": 1, "refused": 1}),
        ([_REFUSED, AccessDenied("/p", "no")], 77, {"refused": 1, "failed": 1}),
        ([_REFUSED, StorageError("/p", "odd")], 3, {"refused": 1, "failed": 1}),
        ([_FINE, AccessDenied("/p", "no")], 77, {"done": 1, "failed": 1}),
        ([AccessDenied("/p", "no"), StorageError("/p", "odd")], 3, {"failed": 2}),
        ([UsageError("no"), UsageError("no")], 2, {"failed": 2}),
        ([_FINE, UsageError("no")], 3, {"done": 1, "failed": 1}),
        ([_FINE, Result(lines=[], found={}, code=3)], 3, {"done": 1, "failed": 1}),
        ([EngineUnavailable("gone"), _FINE, _FINE], 69, {"failed": 1, "not begun": 2}),
    ],
)
def test_a_failure_is_told_by_the_exit_code_whatever_else_was_done(
    outcomes: list[Result | CompactordError],
    code: int,
    summary: dict[str, int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    named = {f"t{index}": outcome for index, outcome in enumerate(outcomes)}
    assert _pass(tmp_path, named, None) == code
    assert json.loads(capsys.readouterr().out)["summary"] == summary


def test_after_a_signal_no_other_table_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _pass(tmp_path, {"a": _FINE, "b": _FINE, "c": _FINE}, threading.Event()) == 3
    assert json.loads(capsys.readouterr().out)["summary"] == {"done": 1, "not begun": 2}


def test_a_catalog_that_is_away_does_not_keep_the_tables_of_others_from_their_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "d.t", commits=6)
    text = "catalogs: {a: {warehouse: WH}, b: {warehouse: WH/none}}"
    config = configuration(tmp_path, text)
    found = answered(capsys, "plan", "--all", "--config", config, code=3)
    assert (found["summary"], list(found["unreadable"])) == (
        {"done": 1, "not listed": 1},
        ["catalog b"],
    )
    listed = said(capsys, "tables", "--config", config, code=3)
    assert "a.d.t" in listed
    assert "catalog b cannot be listed: warehouse does not exist" in listed


def test_who_asks_for_json_gets_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path, "d.t", commits=6)
    for choice in (("--table", "d.t"), ("--database", "d")):
        for command in ("plan", "inspect"):
            text = said(capsys, command, "--warehouse", str(tmp_path), *choice, "--json")
            assert len(text.splitlines()) == 1
