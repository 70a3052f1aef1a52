"""The README is short and true, and the commands of all documents are understood."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.cli.command import _parser
from compactord.formats.registry import FORMATS
from compactord.kernels.functions.registry import MERGE_FUNCTIONS

_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text()
_DOCUMENTS = (_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md")))
# Half of what it had when all arguments and all features stood in it.
_BYTES_MAX = 22_701 // 2
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _commands() -> Iterator[tuple[str, str]]:
    """Each command of ours in a block of code, with its document; also those run in the image."""
    for document in _DOCUMENTS:
        for language, block in _FENCED.findall(document.read_text()):
            for line in block.replace("\\\n", " ").splitlines() if not language else ():
                text = line.removeprefix("$ ").partition("  #")[0]
                if found := re.match(r"(?:docker run .* )?compactord (?!\d)(.+)", text):
                    yield document.name, found[1]


def test_the_readme_is_half_as_long_as_it_was() -> None:
    assert len(_README.encode()) <= _BYTES_MAX


@pytest.mark.parametrize(("document", "command"), [*_commands()])
def test_commands_of_the_documents_are_understood(document: str, command: str) -> None:
    _parser().parse_args(shlex.split(command))


def test_the_readme_says_in_short_what_is_served() -> None:
    served, _ = re.findall(r"^- \*\*(?:Yes|Not yet):\*\* (.*(?:\n  .*)*)", _README, re.M)
    for engine in MERGE_FUNCTIONS:
        assert f"`{engine}`" in served
    for name in FORMATS:
        assert name in served.lower()


def test_the_tour_needs_no_more_than_it_says() -> None:
    """`make demo` installs the commands and a Java, and nothing of developers."""
    asked = subprocess.run(
        ["make", "--dry-run", "--always-make", "demo"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert re.findall(r"--editable (\S+)", asked) == ["'.[jre]'"]
    assert "tests." not in asked
