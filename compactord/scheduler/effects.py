"""What the scheduler wants done: jobs on tables, and what concerns the engine."""

from __future__ import annotations

from dataclasses import dataclass

from compactord.model import Subcompaction, SubcompactionResult, TableName
from compactord.scheduler.job import Job


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
    """The table is no longer served and nothing of it is under way."""

    name: TableName


Effect = Job | Submit | Cancel | RemoveOutputs | RestartEngine | Forget
