"""Golden output of every command that has `--json`, with and without it.

Each runs in this process, on tables of `lakes.py` or against the service of `test_http.py`.
"""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from compactord.cli.command import _parser, main
from compactord.cli.maintain import maintain, orphans
from compactord.cli.plan import plan
from compactord.cli.running import run_parsed
from compactord.cli.verify import verify
from compactord.clock import Clock, SystemClock
from tests.builders import DAY_MS, VirtualClock
from tests.unit.doors.command import registered
from tests.unit.golden import lakes
from tests.unit.golden.recorded import PLACES, SIZES, TIMES, Rules, check, check_names, stable
from tests.unit.golden.test_http import night, site_of
from tests.unit.service.http_client import serving


class _Case(NamedTuple):
    """WH is the warehouse, CONFIG its configuration, ROOT the folder of both, URL the service.

    `later`: two days from now, for what is deleted by its age. `is_text`: has no --json.
    """

    words: str
    code: int = 0
    later: Callable[..., int] | None = None
    is_text: bool = False


_ORDERS = "--config CONFIG --table sales.orders"
_JDBC = "--warehouse WH --metastore jdbc --catalog-option uri=jdbc:sqlite:ROOT/c.db"
# By the name of its files; on `lakes.lake`, of which nothing is changed.
_OF_LAKE = {
    "tables": _Case("tables --config CONFIG", 3),
    "tables-warehouse": _Case("tables --warehouse WH --database logs", 3),
    "tables-one": _Case("tables --warehouse WH --table sales.orders"),
    "tables-unreadable": _Case("tables --config ROOT/nowhere.yaml --database logs", 3),
    "tables-none": _Case("tables --config CONFIG --table sales.none", 2),
    "tables-no-warehouse": _Case("tables --warehouse WH-none", 2),
    "why": _Case("why sales.orders --config CONFIG"),
    "why-warehouse": _Case("why sales.orders --warehouse WH --worst 1"),
    "why-bucket": _Case("why sales.orders --config CONFIG --bucket 0 --partition dt=2026-11-17"),
    "why-pick": _Case("why sales.orders --warehouse WH --bucket 0 --pick 2.0"),
    "why-lazy": _Case("why sales.lazy --config CONFIG"),
    "why-paused": _Case("why sales.held --config CONFIG"),
    "why-waiting": _Case("why sales.waiting --config CONFIG"),
    "why-damaged": _Case("why sales.damaged --config CONFIG"),
    "why-refused": _Case("why sales.refused --config CONFIG"),
    "why-empty": _Case("why sales.empty --config CONFIG"),
    "why-append": _Case("why logs.raw --config CONFIG"),
    "why-torn": _Case("why logs.torn --config CONFIG"),
    "why-unknown": _Case("why sales.none --config CONFIG", 2),
    "why-no-bucket": _Case("why sales.orders --config CONFIG --bucket 7", 2),
    "plan": _Case(f"plan {_ORDERS}"),
    "plan-full": _Case(f"plan {_ORDERS} --strategy full --partition dt=2026-11-18"),
    "plan-absent": _Case(f"plan {_ORDERS} --partition dt=2026-01-01"),
    "plan-append": _Case("plan --warehouse WH --table logs.raw --append-wait '1 min'"),
    "plan-damaged": _Case("plan --config CONFIG --table sales.damaged"),
    "plan-waiting": _Case("plan --config CONFIG --table sales.waiting"),
    "plan-empty": _Case("plan --config CONFIG --table sales.empty"),
    "plan-refused": _Case("plan --config CONFIG --table sales.refused", 4),
    "plan-torn": _Case("plan --config CONFIG --table logs.torn", 3),
    "plan-several": _Case("plan --all --config CONFIG", 3),
    "plan-no-selection": _Case("plan --warehouse WH", 2),
    "plan-strategy": _Case(f"plan {_ORDERS} --strategy half", 2),
    "plan-typo": _Case("plan --confg CONFIG --warehouse WH", 2),
    "inspect": _Case(f"inspect {_ORDERS}"),
    "inspect-worst": _Case(f"inspect {_ORDERS} --worst 1 --partition dt=2026-11-18"),
    "inspect-append": _Case("inspect --warehouse WH --table logs.raw"),
    "inspect-damaged": _Case("inspect --warehouse WH --table sales.damaged"),
    "inspect-refused": _Case("inspect --warehouse WH --table sales.refused"),
    "inspect-several": _Case("inspect --all --config CONFIG", 3),
    "config-show": _Case("config show --config CONFIG"),
    "config-show-warehouse": _Case("config show --warehouse WH --set limits.task_slots=2"),
    "config-show-broken": _Case("config show --config ROOT/broken.yaml", 2),
    "config-check": _Case("config check --config CONFIG"),
    "config-check-online": _Case("config check --config ROOT/nowhere.yaml --online", 2),
    "config-check-broken": _Case("config check --config ROOT/broken.yaml", 2),
    "config-check-no-file": _Case("config check --config ROOT/none.yaml", 2),
    "config-schema": _Case("config schema", is_text=True),
    "serve-broken": _Case("serve --config ROOT/broken.yaml", 2, is_text=True),
    "top-warehouse": _Case("top --warehouse WH --once"),
    "top-no-warehouse": _Case("top --warehouse WH-none --once", 2),
    "catalog-register": _Case(f"catalog register {_JDBC} --database logs"),
    "catalog-register-no-jdbc": _Case("catalog register --warehouse WH --all", 2),
    "doctor": _Case("doctor --config CONFIG"),
    "doctor-no-warehouse": _Case("doctor --config ROOT/nowhere.yaml", 3),
    "doctor-no-file": _Case("doctor --config ROOT/none.yaml", 2),
}
_DONE, _LOST = "--warehouse WH --table d.done", "--warehouse WH --table d.lost"
_FOREIGN = f"orphans {_DONE} --foreign"
# On a copy of `lakes.files` for each.
_OF_FILES = {
    "compact": _Case("compact --warehouse WH --table d.due"),
    "compact-append": _Case("compact --warehouse WH --table d.raw"),
    "compact-full": _Case("compact --warehouse WH --table d.calm --strategy full"),
    "compact-nothing": _Case("compact --warehouse WH --table d.calm"),
    "compact-lost": _Case("compact --warehouse WH --table d.lost --strategy full", 3),
    "compact-refused": _Case("compact --warehouse WH --table d.refused", 4),
    "compact-several": _Case("compact --all --config CONFIG", 4),
    "compact-unknown": _Case("compact --warehouse WH --table d.none", 2),
    "expire": _Case(f"expire {_DONE}"),
    "expire-dry": _Case(f"expire {_DONE} --dry-run"),
    "expire-nothing": _Case("expire --warehouse WH --table d.calm"),
    "expire-held": _Case(f"expire {_LOST}", 3),
    "expire-held-dry": _Case(f"expire {_LOST} --dry-run"),
    "expire-held-forced": _Case(f"expire {_LOST} --force"),
    "expire-refused": _Case("expire --warehouse WH --table d.refused", 4),
    "expire-several": _Case("expire --all --config CONFIG --dry-run", 4),
    "orphans": _Case(f"orphans {_DONE}", later=orphans),
    "orphans-dry": _Case(f"orphans {_DONE} --dry-run", later=orphans),
    "orphans-nothing": _Case("orphans --warehouse WH --table d.calm"),
    "orphans-held": _Case(f"orphans {_LOST}", 3),
    "orphans-foreign": _Case(_FOREIGN, later=orphans),
    "orphans-foreign-dry": _Case(f"{_FOREIGN} --dry-run", later=orphans),
    "orphans-foreign-trash": _Case(f"{_FOREIGN} --trash ROOT/trash", later=orphans),
    "orphans-foreign-refused": _Case("orphans --warehouse WH --table d.refused --foreign", 4),
    "orphans-no-foreign": _Case(f"orphans {_DONE} --trash ROOT/trash", 2),
    "maintain": _Case(f"maintain {_DONE}", later=maintain),
    "maintain-dry": _Case(f"maintain {_DONE} --dry-run", later=maintain),
    "maintain-orphans-dry": _Case(
        f"maintain {_DONE} --only orphans --only foreign --dry-run", later=maintain
    ),
    "maintain-nothing": _Case("maintain --warehouse WH --table d.calm"),
    "maintain-held": _Case(f"maintain {_LOST}", 3),
    "maintain-held-dry": _Case(f"maintain {_LOST} --dry-run"),
    "maintain-several": _Case("maintain --all --config CONFIG --dry-run", 4),
    "maintain-unknown": _Case(f"maintain {_DONE} --only snapshot", 2),
    "plan-orphans": _Case("plan --warehouse WH --table d.done", later=plan),
    "verify": _Case("verify --warehouse WH --table d.due --pages all"),
    "verify-tag": _Case(f"verify {_DONE} --tag old --footers 0"),
    "verify-all": _Case(f"verify {_DONE} --all-snapshots"),
    "verify-lost": _Case(f"verify {_LOST}", 3, later=verify),
    "verify-refused": _Case("verify --warehouse WH --table d.refused"),
    "verify-several": _Case("verify --all --config CONFIG", 3, later=verify),
    "verify-footers": _Case("verify --warehouse WH --all --footers some", 2),
    "why-held": _Case("why d.lost --warehouse WH"),
    "catalog-register-execute": _Case(f"catalog register --all {_JDBC} --execute"),
}
# By the service of `test_http.py`.
_OF_SERVICE = {
    "url-tables": _Case("tables --url URL", 3),
    "url-tables-some": _Case("tables --url URL --database sales", 3),
    "url-tables-none": _Case("tables --url URL --database none", 2),
    "url-why": _Case("why sales.orders --url URL"),
    "url-why-worst": _Case("why sales.orders --url URL --worst 1"),
    "url-why-halted": _Case("why sales.refunds --url URL"),
    "url-why-waiting": _Case("why mart.fresh --url URL"),
    "url-why-append": _Case("why logs.few --url URL"),
    "url-why-unknown": _Case("why sales.none --url URL", 2),
    "url-why-bucket": _Case("why sales.orders --url URL --bucket 1", 2),
    "url-top": _Case("top --url URL --once"),
    "url-status": _Case("status --url URL", 11),
    "url-status-nagios": _Case("status --url URL --nagios", 2),
    "url-status-no-service": _Case("status --url URL/runbooks", 12),
    "url-no-service": _Case("tables --url URL/runbooks", 3),
    "url-top-no-service": _Case("top --url URL/runbooks --once", 3),
}
_CASES = {**_OF_LAKE, **_OF_FILES, **_OF_SERVICE}
# What is checked of the machine differs between machines: what was found, and what to do.
_OF_MACHINE = "python|spark|java|cores|memory|time zone"
_MACHINE: Rules = (
    (rf'("check": "(?:{_OF_MACHINE})",\s+"verdict": "\w+",\s+"found": )".*"', r'\1"<machine>"'),
    (r'("check": "scratch",\s+"verdict": )".*"', r'\1"<machine>"'),
    (r'("check": "scratch",\s+"verdict": .*\s+"found": )".*"', r'\1"<machine>"'),
    (r'("check": "scratch",(?:\s+.*){2}\s+"advice": )".*"', r'\1"<machine>"'),
    (r'("(?:warnings|version)": )("\d.*"|\d+)', r'\1"<machine>"'),
    (rf"^(ok +(?:{_OF_MACHINE}) +).*", r"\1<machine>"),
    (r"^\w+ +scratch +.*", "<machine> scratch"),
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    lakes.lake(folder)
    return folder


@pytest.fixture(scope="module")
def made_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    lakes.files(folder)
    return folder


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(site_of(night()).answer) as server:
        yield f"http://127.0.0.1:{server.port}"


def _forms(cases: dict[str, _Case]) -> list[str]:
    """The files of all these cases."""
    texts = [f"{name}.txt" for name in cases]
    return texts + [f"{name}.json" for name, case in cases.items() if not case.is_text]


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("file", _forms(_OF_LAKE))
def test_of_a_lake(file: str, lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _check(file, lake, PLACES + TIMES + _MACHINE, capsys)


@pytest.mark.parametrize("file", _forms(_OF_FILES))
def test_of_files(
    file: str, made_files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lakes.copy(made_files, tmp_path)
    _check(file, tmp_path, PLACES + TIMES + SIZES, capsys)


@pytest.mark.parametrize("file", _forms(_OF_SERVICE))
def test_of_a_service(
    file: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _check(file, tmp_path, PLACES, capsys, url)


def test_every_file_is_of_a_case() -> None:
    check_names("commands", set(_forms(_CASES)))


def test_every_command_with_json_has_cases_that_succeed_and_that_do_not() -> None:
    lacking = []
    for words in _commands_with_json(_parser()):
        of_it = [each for each in _CASES.values() if each.words.startswith(f"{words} ")]
        # `status` succeeds with 11, its judgement of the service.
        has_worked = [each.code in (0, 11) for each in of_it]
        if all(has_worked) or not any(has_worked):
            lacking.append(words)
    assert lacking == []


def _commands_with_json(parser: argparse.ArgumentParser, words: str = "") -> Iterator[str]:
    for action in parser._actions:
        if "--json" in action.option_strings:
            yield words
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _commands_with_json(sub, f"{words} {name}".strip())


def _check(
    file: str, folder: Path, rules: Rules, capsys: pytest.CaptureFixture[str], url: str = ""
) -> None:
    name, _, form = file.rpartition(".")
    case = _CASES[name]
    words = case.words if form == "txt" else f"{case.words} --json"
    places = {"ROOT": str(folder), "CONFIG": f"{folder}/config.yaml", "WH": f"{folder}/wh"}
    for short, place in {**places, "URL": url}.items():
        words = words.replace(short, place)
    code = _run(shlex.split(words), case.later)
    out, err = capsys.readouterr()
    assert code == case.code, (out, err)
    command = f"compactord {words}"
    if form == "txt":
        err = "".join(map(_event_sorted, err.splitlines(keepends=True)))
        found = f"$ {command}\nexit {code}\n--- stdout\n{out}--- stderr\n{err}"
    else:
        answers = [json.loads(line) for line in out.splitlines()]
        shown = {"command": command, "exit": code, "stdout": answers}
        found = json.dumps(shown, indent=2, ensure_ascii=False) + "\n"
    check(f"commands/{file}", stable(found, rules, folder))


def _event_sorted(line: str) -> str:
    """A line of stderr; the fields of an event, which come in any order, are sorted."""
    return f"{json.dumps(json.loads(line), sort_keys=True)}\n" if line.startswith("{") else line


def _run(words: list[str], later: Callable[..., int] | None) -> int:
    """The exit code of a command; with a function for it, two days from now."""
    try:
        if later is None:
            return main(words, registered())
        args = _parser(registered()).parse_args(words)
        args.command = partial(later, clock=_in_two_days())
        return run_parsed(args)
    except SystemExit as ended:
        return int(ended.code or 0)


def _in_two_days() -> Clock:
    return VirtualClock(SystemClock().now_ms() + 2 * DAY_MS)
