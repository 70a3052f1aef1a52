from __future__ import annotations

from compactord.rewrite.pipeline import usable_cores


def test_there_is_a_usable_core() -> None:
    assert usable_cores() >= 1
