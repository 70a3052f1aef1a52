"""What is printed to be installed can be installed: compactord itself is in no package index."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_LINE = re.compile(r"pip install((?: '[^']+')+)")


def _texts() -> dict[str, str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=_ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    paths = [_ROOT / name for name in listed.stdout.split("\n") if name.endswith((".py", ".md"))]
    return {str(path.relative_to(_ROOT)): path.read_text() for path in paths if path.exists()}


def test_nobody_is_told_to_fetch_compactord_from_an_index() -> None:
    own = re.compile(r"pip install [^\n`]*\bcompactord\[")
    found = [name for name, text in _texts().items() if own.search(text)]
    assert [name for name in found if name != "tests/unit/test_install_lines.py"] == []


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("compactord/catalog/jdbc/kind.py", "jdbc"),
        ("compactord/catalog/hive/kind.py", "hive"),
        ("compactord/catalog/hive/options.py", "kerberos"),
        ("compactord/catalog/rest/kind.py", "rest"),
        ("compactord/storage/objects/options.py", "stores"),
        ("compactord/storage/hdfs/spec.py", "hdfs"),
    ],
)
def test_the_packages_named_are_those_of_the_extra(module: str, extra: str) -> None:
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    (line,) = _LINE.findall(_texts()[module])
    assert re.findall(r"'([^']+)'", line) == project["optional-dependencies"][extra]
