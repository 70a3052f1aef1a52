from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import compactord
from compactord.engine.inspection import WorkerFacts, check_workers, package_zip
from compactord.errors import EngineUnavailable


def _facts(version: str = compactord.__version__, problem: str | None = None) -> WorkerFacts:
    return WorkerFacts(
        compactord=version, python="3.11", packages=(), host="node-7", problem=problem
    )


def test_the_package_runs_from_the_zip(tmp_path: Path) -> None:
    path = package_zip(tmp_path)
    assert not [name for name in zipfile.ZipFile(path).namelist() if "__pycache__" in name]
    code = (
        f"import sys; sys.path.insert(0, {str(path)!r})\n"
        "import compactord.rewrite.subcompaction; print(compactord.__file__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert run.stdout.startswith(str(path)), run.stderr


def test_a_worker_with_a_problem_is_named() -> None:
    workers = [_facts(), _facts(problem="ModuleNotFoundError: No module named 'pyarrow'")]
    with pytest.raises(EngineUnavailable, match=r"node-7 .* No module named 'pyarrow'"):
        check_workers("spark://master", workers)


def test_another_version_on_the_workers_is_refused() -> None:
    with pytest.raises(EngineUnavailable, match=r"compactord 9\.9"):
        check_workers("spark://master", [_facts(version="9.9")])


def test_equal_workers_pass() -> None:
    check_workers("spark://master", [_facts(), _facts()])
