"""What only stores know, how they are called and how their options begin, stands in their room."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.storage.open import STORES

_PRODUCT = Path(__file__).parents[3] / "compactord"
# Examples for people, and the signs that a URL of Azure has where others have a password.
_ALLOWED = {
    "catalog/hive/kind.py",
    "catalog/jdbc/kind.py",
    "cli/arguments.py",
    "cli/examples.py",
    "config/model.py",
    "text.py",
}


def _words() -> Iterator[str]:
    for store in STORES.known:
        for scheme in store.schemes:
            yield rf"\b{scheme}://"
            if scheme != "file":
                yield rf"[\"']{scheme}[\"']"
        for prefix in store.prefixes:
            yield rf"(?<![\w.]){re.escape(prefix)}(?!py\b)"


@pytest.mark.parametrize("word", list(_words()))
def test_a_word_of_a_store_stands_in_its_room(word: str) -> None:
    found = {
        str(path.relative_to(_PRODUCT))
        for path in _PRODUCT.rglob("*.py")
        if not path.is_relative_to(_PRODUCT / "storage") and re.search(word, path.read_text())
    }
    assert found <= _ALLOWED


def test_the_words_are_found_where_they_stand() -> None:
    room = "\n".join(path.read_text() for path in (_PRODUCT / "storage").rglob("*.py"))
    # Schemes stand there without what follows them in a URL.
    words = [word for word in _words() if not word.endswith("://")]
    assert [word for word in words if not re.search(word, room)] == []
