"""Documents lead where they say they do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_DOCUMENTS = sorted(
    subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=_ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
)
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_links_between_files_lead_to_files(document: str) -> None:
    path = _ROOT / document
    links = _LINK.findall(path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_contributing_names_every_folder_of_tests() -> None:
    text = (_ROOT / "CONTRIBUTING.md").read_text()
    folders = {path.name for path in (_ROOT / "tests").iterdir() if (path / "__init__.py").exists()}
    named = re.findall(r"^\| `tests/(\w+)` \|", text, re.MULTILINE)
    assert {*named} == folders | {"unit", "faults"}


def test_every_decision_is_listed() -> None:
    folder = _ROOT / "docs" / "adr"
    listed = _LINK.findall((folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))
