from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import Command, Commands


@pytest.fixture
def commands() -> Iterator[Commands]:
    """Starts `compactord` processes; whatever of them still runs at the end is killed."""
    started: list[Command] = []
    # Not below pytest's folders: Spark's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="c-") as scratch:
        try:
            yield Commands(Path(scratch), started)
        finally:
            for command in started:
                command.kill_family()
