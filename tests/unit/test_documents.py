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
_SECTION = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_links_between_files_lead_to_files(document: str) -> None:
    path = _ROOT / document
    links = _LINK.findall(path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_links_to_a_section_lead_to_its_heading(document: str) -> None:
    path = _ROOT / document
    lost = [
        (name, anchor)
        for name, anchor in _SECTION.findall(path.read_text())
        if anchor not in _anchors(path.parent / name if name else path)
    ]
    assert lost == []


def _anchors(page: Path) -> set[str]:
    """Of the headings, as hosts of Git make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


_PART = re.compile(r"`(?:compactord/)?([a-z_]+(?:/[a-z_0-9]+)+(?:\.py)?)")


def test_modules_that_texts_name_are_there() -> None:
    product = _ROOT / "compactord"
    rooms = {path.name for path in product.iterdir() if path.is_dir()}
    texts = [*product.rglob("*.py"), *(_ROOT / name for name in _DOCUMENTS)]
    lost = [
        (path.relative_to(_ROOT), part)
        for path in texts
        if path.name != "CHANGELOG.md"
        for part in _PART.findall(path.read_text())
        if part.split("/")[0] in rooms
        if not ((product / part).exists() or (product / f"{part}.py").exists())
    ]
    assert lost == []


def test_every_page_is_in_the_index() -> None:
    pages = (_ROOT / "docs").glob("*.md")
    listed = {*_LINK.findall((_ROOT / "docs" / "README.md").read_text())}
    assert {page.name for page in pages} - {"README.md"} <= listed


def test_contributing_names_every_folder_of_tests() -> None:
    text = (_ROOT / "CONTRIBUTING.md").read_text()
    folders = {path.name for path in (_ROOT / "tests").iterdir() if (path / "__init__.py").exists()}
    named = re.findall(r"^\| `tests/(\w+)` \|", text, re.MULTILINE)
    assert {*named} == folders | {"unit", "faults"}


def test_every_decision_is_listed() -> None:
    folder = _ROOT / "docs" / "adr"
    listed = _LINK.findall((folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))
