"""Tools are made once, whole or not at all, also by interrupted or concurrent runs. Without
downloads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.tools.catalogue import GO, TARGETS, Tool
from tests.tools.obtain import OF_PROGRAM, OF_PYTHON, main, obtain, tool_path
from tests.tools.workbench import ToolError, Workbench

REPOSITORY = Path(__file__).parent.parent.parent
# A run that hangs in the midst of its second tool; its argument is the root of the cache.
VICTIM = """
import signal, sys
from pathlib import Path
from tests.tools import obtain, test_obtain

root = Path(sys.argv[1])

def hang(bench):
    test_obtain._script(bench.folder / "saw")
    (root / "begun").touch()
    signal.pause()

obtain.obtain([test_obtain._tool("rasp"), test_obtain._tool("saw", hang)], root)
"""


def _script(path: Path, *, succeeds: bool = True) -> None:
    path.write_text(f"#!/bin/sh\nexit {0 if succeeds else 3}\n")
    path.chmod(0o755)


def _tool(
    name: str,
    make: Callable[[Workbench], None] | None = None,
    *,
    needs: tuple[Tool, ...] = (),
    keeper: bool = True,
) -> Tool:
    def simply(bench: Workbench) -> None:
        _script(bench.folder / name)

    return Tool(
        name=name,
        version="1",
        programs={name: name},
        make=make or simply,
        check=("--version",),
        needs=needs,
        keeper=keeper,
    )


def test_a_tool_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    made = []

    def make(bench: Workbench) -> None:
        made.append(bench)
        _script(bench.folder / "saw")

    for _ in range(2):
        assert obtain([_tool("saw", make)], tmp_path) == {}
    assert len(made) == 1
    assert sorted(os.listdir(tmp_path)) == ["lock", "saw-1"]
    assert os.listdir(tmp_path / "saw-1") == ["saw"]


def test_what_a_tool_needs_is_made_first_and_builders_go_away(tmp_path: Path) -> None:
    def make(bench: Workbench) -> None:
        assert bench.programs["forge"].exists()
        for cache in (bench.sources, bench.objects):
            cache.mkdir()
        _script(bench.folder / "saw")

    vice = _tool("vice")
    forge = _tool("forge", needs=(vice,), keeper=False)
    assert obtain([_tool("saw", make, needs=(forge,))], tmp_path) == {}
    assert sorted(os.listdir(tmp_path)) == ["lock", "saw-1", "vice-1"]


def test_one_that_fails_is_named_and_the_others_are_made(tmp_path: Path) -> None:
    def fail(bench: Workbench) -> None:
        bench.run("sh", "-c", "echo no such host; exit 7", cwd=bench.scratch)

    forge = _tool("forge", fail)
    tools = [_tool("saw", needs=(forge,)), _tool("file", needs=(forge,)), _tool("rasp")]
    failures = obtain(tools, tmp_path)
    assert list(failures) == ["forge", "saw", "file"]
    assert "exit code 7" in failures["forge"]
    assert "no such host" in failures["forge"]
    assert failures["saw"] == "it needs forge"
    assert (tmp_path / "rasp-1").exists()
    assert not (tmp_path / "saw-1").exists()


def test_a_tool_that_does_not_start_is_not_kept(tmp_path: Path) -> None:
    def make(bench: Workbench) -> None:
        _script(bench.folder / "saw", succeeds=False)

    assert "exit code 3" in obtain([_tool("saw", make)], tmp_path)["saw"]
    assert "came without saw" in obtain([_tool("saw", lambda _: None)], tmp_path)["saw"]
    assert not (tmp_path / "saw-1").exists()


def test_a_killed_run_leaves_nothing_half_made_and_the_next_goes_on(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", VICTIM, tmp_path], cwd=REPOSITORY)
    while not (tmp_path / "begun").exists():
        assert run.poll() is None
        time.sleep(0.005)
    run.kill()
    run.wait()
    assert (tmp_path / "rasp-1").exists()
    assert not (tmp_path / "saw-1").exists()

    def must_not(bench: Workbench) -> None:
        raise AssertionError("it is there")

    assert obtain([_tool("rasp", must_not), _tool("saw")], tmp_path) == {}
    assert sorted(os.listdir(tmp_path)) == ["begun", "lock", "rasp-1", "saw-1"]


def test_of_two_runs_at_a_time_one_makes(tmp_path: Path) -> None:
    def make(bench: Workbench) -> None:
        with (tmp_path / "made").open("a") as stream:
            stream.write(".")
        time.sleep(0.1)
        _script(bench.folder / "saw")

    # Each opens the lock again, as processes would.
    with ThreadPoolExecutor(3) as runs:
        answers = [runs.submit(obtain, [_tool("saw", make)], tmp_path) for _ in range(3)]
    assert [answer.result() for answer in answers] == [{}, {}, {}]
    assert (tmp_path / "made").read_text() == "."
    assert sorted(os.listdir(tmp_path)) == ["lock", "made", "saw-1"]


@pytest.mark.parametrize("name", [*OF_PROGRAM, *OF_PYTHON])
def test_a_missing_tool_says_what_to_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    target = OF_PYTHON.get(name) or OF_PROGRAM[name][1]
    with pytest.raises(ToolError, match=f"^{name} is missing .*: run `make {target}`"):
        tool_path(name)


def test_make_test_builds_nothing() -> None:
    assert [tool.name for tool in TARGETS["tools"] if GO in tool.needs] == []


def test_an_unknown_name_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["helmet"])
    assert "deploy-tools" in capsys.readouterr().err


def test_names_are_used_once() -> None:
    tools = [tool for tools in TARGETS.values() for tool in tools]
    names = [*TARGETS, *(program for tool in tools for program in tool.programs)]
    assert len(names) == len({*names})
    assert len(tools) == len({tool.name for tool in tools})
