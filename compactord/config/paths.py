"""Places in a configuration: keys and indices from the root."""

from __future__ import annotations

from collections.abc import Iterable

Path = tuple[str | int, ...]


def dotted(path: Iterable[str | int]) -> str:
    """`("rules", 0, "set")` → `rules.0.set`."""
    return ".".join(str(part) for part in path)
