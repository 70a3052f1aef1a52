"""What only a kind of catalog knows, its name and its options, stands in its room."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compactord.catalog.kinds import CatalogKind
from compactord.catalog.registry import CATALOGS

_PRODUCT = Path(__file__).parents[3] / "compactord"
# The forms of addresses that may have a password in them.
_ALLOWED = {"text.py"}
# Every catalog is compared with this one, and it has no options.
_KINDS = [kind for kind in CATALOGS.values() if kind.name != "filesystem"]


def _users(word: str, kind: CatalogKind) -> set[str]:
    """The modules outside the kind's folder with the word."""
    return {
        str(path.relative_to(_PRODUCT))
        for path in _PRODUCT.rglob("*.py")
        if not path.is_relative_to(_PRODUCT / "catalog" / kind.name)
        and re.search(word, path.read_text(), re.IGNORECASE)
    }


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
def test_the_name_of_a_kind_stands_in_its_folder_and_on_its_line(kind: CatalogKind) -> None:
    # `rest` is a word of texts, too, and `hive` a part of others.
    is_word = kind.name in ("rest", "hive")
    word = rf'"{kind.name}"|catalog\.{kind.name}\b' if is_word else kind.name
    assert _users(word, kind) - _ALLOWED == {"catalog/registry.py"}


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.name)
def test_its_options_stand_in_its_folder(kind: CatalogKind) -> None:
    # One word, such as uri, means other things elsewhere; and kinds may share an option.
    for option in kind.options:
        sharing = {f"catalog/{other.name}/" for other in _KINDS if option in other.options}
        users = {
            name for name in _users(rf'"{option}"', kind) if not name.startswith(tuple(sharing))
        }
        assert "-" not in option or users == set()
