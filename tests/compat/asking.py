"""pypaimon in a process of its own: see `answering`, which says what it can be asked."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("answering.py")
# `make compat-pypaimon` installs it; it wants other versions of our own dependencies.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
PYTHON = _CACHE / "compactord/compat/pypaimon-2.1/bin/python"


class PyPaimonError(RuntimeError):
    """pypaimon raised; `name` is the class."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class PyPaimon:
    """One process for one warehouse."""

    def __init__(self, warehouse: Path) -> None:
        if not PYTHON.exists():
            pytest.fail(f"{PYTHON} is missing: run `make compat-pypaimon`")
        self._process = subprocess.Popen(
            [PYTHON, PROGRAM, warehouse], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> PyPaimon:
        return self

    def __exit__(self, *_: object) -> None:
        # It ends with its standard input, which is closed first; this waits for it.
        self._process.communicate(timeout=180)

    def ask(
        self, question: str, /, *, meanwhile: Callable[[], None] = lambda: None, **arguments: Any
    ) -> Any:
        """The answer; `meanwhile` is done when a commit pauses, and may ask nothing."""
        self._tell([question, arguments])
        answer = self._hear()
        if "pause" in answer:
            try:
                meanwhile()
            finally:
                # Whatever comes of it, the next answer is to be that of the next question.
                self._tell("go on")
                answer = self._hear()
        if "error" in answer:
            raise PyPaimonError(answer["error"], answer["message"])
        return answer["answer"]

    def _tell(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError("pypaimon's process ended")
        heard: dict[str, Any] = json.loads(line)
        return heard
