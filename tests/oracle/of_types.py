"""Tables of a file format with a column for each type, written by Java."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge

# A type and values of it, by its name.
Pools = Mapping[str, tuple[Any, list[Any]]]


def rows_of_types(
    pools: Pools, kinds: Sequence[str], count: int, *, seed: int, first: int = 0
) -> list[list[Any]]:
    """Rows of a table of these kinds, with ids from `first` on and some nulls."""
    chance = random.Random(seed)
    values = [pools[kind][1] for kind in kinds]
    return [
        [first + number, *(None if chance.random() < 0.15 else chance.choice(v) for v in values)]
        for number in range(count)
    ]


def table_of_types(
    judge: Judge,
    path: Path,
    columns: Mapping[str, Any],
    *,
    key: bool,
    options: Mapping[str, str],
) -> LiveTable:
    """A new table with an id and these columns, types by name."""
    return LiveTable(
        judge=judge,
        path=path,
        columns=(("id", "INT NOT NULL"), *columns.items()),
        primary_key=("id",) if key else (),
        options=options,
    ).create()
