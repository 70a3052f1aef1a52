"""Hooks for commits need no network, run what `make setup` installs, and find what they are for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

_ROOT = Path(__file__).parents[2]
_REPOSITORIES = yaml.safe_load((_ROOT / ".pre-commit-config.yaml").read_text())["repos"]
_HOOKS: dict[str, dict[str, Any]] = {
    hook["id"]: hook for repository in _REPOSITORIES for hook in repository["hooks"]
}
_LINT = (_ROOT / "Makefile").read_text().split("\nlint:")[1].split("\n\n")[0]


def test_hooks_are_downloaded_from_nowhere() -> None:
    assert {repository["repo"] for repository in _REPOSITORIES} == {"local"}
    assert {hook["language"] for hook in _HOOKS.values()} == {"system", "pygrep"}


def test_programs_are_those_of_make_lint() -> None:
    entries = [hook["entry"] for hook in _HOOKS.values() if hook["language"] == "system"]
    assert [entry.removesuffix(" --force-exclude") for entry in entries] == [
        line.strip().replace("$(BIN)", ".venv/bin") for line in _LINT.splitlines()[1:]
    ]


@pytest.mark.parametrize(
    ("hook", "text", "is_found"),
    [
        ("end-of-file", b"a\nb", True),
        ("end-of-file", b"a\n\n", True),
        ("end-of-file", b"a\n\nb\n", False),
        ("end-of-file", b"", False),
        ("trailing-whitespace", b"a \nb\n", True),
        ("trailing-whitespace", b"a\t\n", True),
        ("trailing-whitespace", b"a\r\n", True),
        ("trailing-whitespace", b" a b\n\n", False),
    ],
)
def test_patterns_find_what_they_are_for(hook: str, text: bytes, is_found: bool) -> None:
    """Searched as pre-commit does it: line by line, or the whole file with --multiline."""
    pattern = _HOOKS[hook]["entry"].encode()
    if "--multiline" in _HOOKS[hook].get("args", ()):
        found = re.search(pattern, text, re.MULTILINE | re.DOTALL) is not None
    else:
        lines = text.split(b"\n")
        found = any(re.search(pattern, line) for line in lines)
    assert found == is_found
