"""Fifty commits that a reader of Java's follows; `make follow` has a thousand, and daemons."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.following import PRODUCERS, Followed, Runner, follow
from tests.oracle.judge import Judge


@pytest.mark.parametrize("producer", PRODUCERS)
def test_each_change_is_told_once_and_in_order(judge: Judge, tmp_path: Path, producer: str) -> None:
    path = tmp_path / "warehouse" / "db.db" / "t"
    followed = Followed(judge, path, 0, producer)
    follow(followed, 50, lambda: Runner(path), lives=3)
    assert followed.check() > 100
    # Every snapshot is kept, and its index files.
    assert any(path.glob("index/*")) == ("deletion-vectors.enabled" in PRODUCERS[producer])
