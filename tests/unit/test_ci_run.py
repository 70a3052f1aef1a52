"""`.ci/run`, with a `make` that only says how its targets ended."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_RUN = Path(__file__).parents[2] / ".ci" / "run"
_SUITES = ("test", "test-hdfs", "test-spark", "test-bench", "test-deploy")
_MAKE = """\
#!/bin/sh
echo "=========== 1 passed in 1.00s (of make $1) ==========="
[ "$1" = test ] && echo "make: leaving"
[ "$1" != "$FAILS" ]
"""


def _run(folder: Path, fails: str) -> tuple[int, list[str]]:
    """The exit code, and of each line that pytest could have ended with its target."""
    (folder / ".ci").mkdir()
    shutil.copy(_RUN, folder / ".ci" / "run")
    make = folder / "make"
    make.write_text(_MAKE)
    make.chmod(0o755)
    done = subprocess.run(
        [folder / ".ci" / "run"],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "FAILS": fails},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if "passed" in line]
    return done.returncode, [line.split()[-2].removesuffix(")") for line in lines]


@pytest.mark.parametrize("fails", ["", "lint", *_SUITES])
def test_it_ends_with_all_closing_lines_and_fails_with_any_part(fails: str, tmp_path: Path) -> None:
    code, said = _run(tmp_path, fails)
    assert said == ["setup", "lint", *_SUITES, *_SUITES]
    assert code == (1 if fails else 0)


def test_without_an_environment_nothing_is_tested(tmp_path: Path) -> None:
    assert _run(tmp_path, "setup") == (1, ["setup"])
