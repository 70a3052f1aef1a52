"""What rounds that mark partitions done remember of a table's partitions."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Marks:
    """What is known of a table's partitions from one round to the next, in ms since the epoch.

    `marked_ms`: when each was marked. `appended_ms`: when the newest file of source APPEND that was
    seen was created; a compaction may have replaced it since.
    """

    marked_ms: dict[bytes, int] = field(default_factory=dict)
    appended_ms: dict[bytes, int] = field(default_factory=dict)
