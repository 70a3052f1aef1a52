"""Fifty commits that a reader of Java's follows; `make follow` has a thousand, and daemons."""

from __future__ import annotations

from pathlib import Path

from tests.oracle.following import Followed, Runner, follow
from tests.oracle.judge import Judge


def test_each_change_is_told_once_and_in_order(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "warehouse" / "db.db" / "t"
    followed = Followed(judge, path, 0)
    follow(followed, 50, lambda: Runner(path), lives=3)
    assert followed.check() > 100
