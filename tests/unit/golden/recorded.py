"""Golden files: what commands and the service answer, as text that is compared exactly."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
_RENEW = "REWRITE=1 .venv/bin/python -m pytest tests/unit/golden"

Rules = tuple[tuple[str, str], ...]
# What differs between two runs, and what a golden file has for it.
PLACES: Rules = (
    (r"127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(-[0-9a-f]{16})?", "<uuid>"),
    # The origins of `config show` are below each other, unless a path before them is long.
    (r" +(?=# )", "  "),
)
TIMES: Rules = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "<time>"),
    (r'("\w*_ms": )1\d{12}\b', r'\1"<time>"'),
    (r'("\w*(?:seconds|cpu_s)": )[\d.e-]+', r'\1"<seconds>"'),
    (r"\b\d+\.\d+ s\b", "<seconds> s"),
    # In a column of `top`.
    (r" +\d+s ", " <age> "),
)
# Of files of real rows: they depend on the version of Arrow.
SIZES: Rules = (
    (r'("\w*bytes\w*": )\d+', r'\1"<size>"'),
    (r"\b\d+(\.\d+)? ([KMG]i)?B\b", "<size>"),
)


def stable(text: str, rules: Rules, folder: Path | None = None) -> str:
    """The text with placeholders for what differs between runs; `folder` is the test's own."""
    if folder is not None:
        text = text.replace(str(folder), "<tmp>")
    for pattern, placeholder in rules:
        text = re.sub(pattern, placeholder, text, flags=re.MULTILINE)
    return text


def check(name: str, found: str) -> None:
    """Compare with the golden file `name`; with REWRITE=1 in the environment write it."""
    path = FOLDER / name
    if os.environ.get("REWRITE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
        return
    expected = path.read_text(encoding="utf-8") if path.exists() else ""
    if found != expected:
        lines = difflib.unified_diff(
            expected.splitlines(), found.splitlines(), f"{name}, recorded", "now", lineterm=""
        )
        shown = "\n".join(lines)
        pytest.fail(f"{shown}\n\nIf that is meant, renew the files: {_RENEW}", pytrace=False)


def check_names(folder: str, names: set[str]) -> None:
    """No golden file is left without a case; with REWRITE=1 such files are deleted."""
    left = {path for path in (FOLDER / folder).glob("*") if path.name not in names}
    if os.environ.get("REWRITE"):
        for path in left:
            path.unlink()
        return
    assert left == set(), f"no case makes them; delete them by {_RENEW}"
