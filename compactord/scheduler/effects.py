"""Effects that the scheduler requests: jobs on tables, and requests to the engine.

A job is what a thread does for one table: its class is its kind, its fields are the request. A
table has at most one job of its own lane (a cycle, a dispatch, a discarding) and one of
maintenance at a time. `Scheduler.job_ended` takes the outcome of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from compactord.errors import CompactordError
from compactord.maintenance.kind import AnyKind, Round, UnderWay
from compactord.model import Subcompaction, SubcompactionResult, TableName
from compactord.paimon.data_file import BucketId
from compactord.table.backlog import DispatchFilter
from compactord.table.jobs import CycleResult, InFlight, InputsReplaced


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work on a table's compactor, begun at `since_ms` in steady time."""

    name: TableName
    since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleJob(Job):
    """Run `TableCompactor.cycle`: its outcome is always a `CycleResult`."""

    ended: tuple[InFlight, ...]
    skip: DispatchFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchJob(Job):
    """Run `TableCompactor.dispatch`: None if the bucket has no work any more."""

    bucket: BucketId
    compaction_id: int
    free_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardJob(Job):
    """Remove the outputs of compactions that will not be committed; the outcome does not matter."""

    ended: tuple[InFlight, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceJob(Job):
    """Run one round of a kind of maintenance: its outcome is a `Round`, or an error."""

    kind: AnyKind
    under_way: UnderWay | None


JobOutcome = CycleResult | InFlight | InputsReplaced | Round | CompactordError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Submit to the engine; the outcome comes as `subcompaction_ended`."""

    subcompaction: Subcompaction


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Stop a submitted subcompaction; its outcome still comes, as soon as its worker has ended."""

    subcompaction: Subcompaction


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOutputs:
    """Remove what a worker wrote whose result came after its compaction had ended; no answer."""

    subcompaction: Subcompaction
    result: SubcompactionResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartEngine:
    """End the engine with all its workers and start it again; the loss comes as `engine_lost`."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The table is no longer served and has no running work."""

    name: TableName


Effect = Job | Submit | Cancel | RemoveOutputs | RestartEngine | Forget
