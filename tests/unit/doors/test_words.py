"""What only one room knows is said by name in no other."""

from __future__ import annotations

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
            "paimon/options/",  # the catalogue of all options, and the default
            "paimon/arrow.py",  # Arrow's key of field ids
            "engine/jvm.py",  # jars of Spark
        ),
    ),
    ("deduplicate", _ENGINES),
    ("partial-update", _ENGINES),
    ("first-row", ("paimon/", "kernels/functions/")),
]


@pytest.mark.parametrize(("word", "rooms"), _ROOMS)
def test_a_name_is_known_in_its_rooms(word: str, rooms: tuple[str, ...]) -> None:
    names = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if word in path.read_text().lower()
    }
    assert {name for name in names if not name.startswith(rooms)} == set()
    assert all(any(name.startswith(room) for name in names) for room in rooms)
