"""The README says what is true: its compatibility table is the allow-list's."""

from __future__ import annotations

import os
from pathlib import Path

from compactord.paimon.support import compatibility_table

_README = Path(__file__).parents[2] / "README.md"
_START = "<!-- compatibility table: generated, see tests/unit/test_readme.py -->\n"
_END = "<!-- end of compatibility table -->"


def test_the_readme_has_the_compatibility_table_of_the_allow_list() -> None:
    """`REWRITE=1 pytest tests/unit/test_readme.py` writes it anew."""
    text = _README.read_text()
    head, rest = text.split(_START)
    found, tail = rest.split(_END)
    expected = compatibility_table().strip() + "\n"
    if os.environ.get("REWRITE"):
        _README.write_text(head + _START + expected + _END + tail)
        found = expected
    assert found == expected
