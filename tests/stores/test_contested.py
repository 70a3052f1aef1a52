"""Processes that commit to one table at the same time lose nothing: no store may let two win."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store_servers import StoreServer
from tests.stores.contested import PROCESSES, contest
from tests.stores.subjects import subject


@pytest.mark.parametrize("name", ["local", "moto"])
def test_commits_of_four_processes_make_one_chain(
    name: str, started: Callable[[str], StoreServer], tmp_path: Path
) -> None:
    """`python -m tests.bench contested` does the same a thousand times, on every store."""
    store = subject(name, started, "contested", tmp_path)
    assert store.spec is not None
    found = contest(store.spec, f"{store.folder}/db.db/t", each=10)
    assert (found.commits, found.compactions) == (PROCESSES * 10, PROCESSES * 3)
    assert found.attempts > found.compactions, "they were in each other's way"
