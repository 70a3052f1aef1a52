"""What only one room knows is said by name in no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[3] / "compactord"
_ENGINES = ("kernels/functions/", "paimon/")

# Each word with the folders and modules that may have it.
_ROOMS = [
    (
        "parquet",
        (
            "formats/parquet/",
            "formats/registry.py",
            "paimon/options/catalogue.py",  # a former key of an option of all formats
            "paimon/options/merge.py",  # the default
            "paimon/types.py",  # Arrow's key of field ids
            "paimon/avro/container.py",  # what manifests may be instead
            "engine/jvm.py",  # jars of Spark
        ),
    ),
    (
        r"\borc\b",
        (
            "formats/orc/",
            "formats/registry.py",
            "paimon/options/catalogue.py",  # as above
            "paimon/avro/container.py",  # as above
            "paimon/schema.py",  # the default of old schemas
            "engine/jvm.py",
        ),
    ),
    # Also the format of manifests.
    (
        r"\bavro\b(?!\.(?:types|columns|container) import)",
        ("paimon/", "formats/avro/", "formats/registry.py"),
    ),
    ("deduplicate", _ENGINES),
    ("partial-update", _ENGINES),
    ("first-row", _ENGINES),
]


@pytest.mark.parametrize(("word", "rooms"), _ROOMS)
def test_a_name_is_known_in_its_rooms(word: str, rooms: tuple[str, ...]) -> None:
    names = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(word, path.read_text().lower())
    }
    assert {name for name in names if not name.startswith(rooms)} == set()
    assert all(any(name.startswith(room) for name in names) for room in rooms)
