"""What rounds that mark partitions done remember of a table's partitions."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Marks:
    """When each partition was marked, in ms since the epoch, as far as rounds know."""

    marked_ms: dict[bytes, int] = field(default_factory=dict)
