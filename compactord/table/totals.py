"""What a run over one table came to, and who is told of its progress."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from compactord.model import Compaction
from compactord.table.in_flight import InFlight
from compactord.table.opening import OpenTable


@dataclass(slots=True)
class CompactTotals:
    """What was published so far, and what was lost on the way. Sizes in bytes."""

    snapshots: list[int] = field(default_factory=list)
    compactions: int = 0
    files_in: int = 0
    files_out: int = 0
    upgraded_files: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    rows_in: int = 0
    rows_out: int = 0
    dropped: int = 0
    wasted_bytes: int = 0
    worker_cpu_s: float = 0.0
    peak_worker_rss_bytes: int = 0
    # From the first plan to the last snapshot, without the start of the engine.
    seconds: float = 0.0
    start_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    # Failures for lack of permission.
    denied: int = 0
    lost_snapshots: list[str] = field(default_factory=list)
    # Commits of writers that a late rename had lost, and that were committed again, as texts.
    lost_commits: list[str] = field(default_factory=list)
    orphans_removed: int = 0
    # Requested partitions that have no live files.
    absent_partitions: list[str] = field(default_factory=list)
    # Partitions with something to do that were skipped, and why.
    resting: dict[str, str] = field(default_factory=dict)
    stopped: bool = False


class Progress(Protocol):
    """Receives the events of a run; must not block."""

    def planned(self, table: OpenTable, compaction: Compaction) -> None: ...

    def finished(self, in_flight: InFlight) -> None: ...

    def committed(self, snapshot_id: int) -> None: ...

    def waiting(self, wait_ms: int) -> None:
        """Our last snapshot stands for so long before anything is built on it."""
        ...
