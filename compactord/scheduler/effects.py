"""What the scheduler wants done; the daemon runs it and answers with an event."""

from __future__ import annotations

from dataclasses import dataclass

from compactord.model import Subcompaction, SubcompactionResult, TableName
from compactord.paimon.data_file import BucketId
from compactord.table.backlog import Skip
from compactord.table.cycle import UnderWay
from compactord.table.in_flight import Failed, Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCycle:
    """Run `TableCompactor.cycle`; answer with `cycle_ended`."""

    name: TableName
    ended: tuple[Finished | Failed, ...]
    skip: Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDispatch:
    """Run `TableCompactor.dispatch`; answer with `dispatched`."""

    name: TableName
    bucket: BucketId
    number: int
    free_slots: int


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
class StartExpire:
    """Run `TableCompactor.expire`; answer with `expired`."""

    name: TableName
    keep_from: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSweep:
    """Run `TableCompactor.sweep`; answer with `swept`."""

    name: TableName
    under_way: UnderWay


@dataclass(frozen=True, slots=True, kw_only=True)
class Discard:
    """Remove the outputs of compactions that will not be committed; answer with `discarded`."""

    name: TableName
    ended: tuple[Finished | Failed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """The table is no longer served and nothing of it is under way."""

    name: TableName


Effect = (
    StartCycle
    | StartDispatch
    | Submit
    | Cancel
    | RemoveOutputs
    | RestartEngine
    | StartExpire
    | StartSweep
    | Discard
    | Forget
)
