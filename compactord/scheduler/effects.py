"""What the fleet wants done; the daemon performs it and answers with an event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compactord.model import Subcompaction, TableName
from compactord.paimon.data_file import BucketId
from compactord.table.backlog import Skip
from compactord.table.in_flight import Crashed, Landed
from compactord.table.session import UnderWay


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTurn:
    """Run `TableCompactor.turn`; answer with `turned`."""

    name: TableName
    ended: Mapping[int, Landed | Crashed]
    skip: Skip


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTakeOff:
    """Run `TableCompactor.take_off`; answer with `took_off`."""

    name: TableName
    bucket: BucketId
    number: int
    free_slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Hand a part to the engine; its outcome comes as `part_ended`."""

    part: Subcompaction


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
    ended: Mapping[int, Landed | Crashed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget:
    """Nothing of this table is under way and it is served no more."""

    name: TableName


Effect = StartTurn | StartTakeOff | Submit | StartExpire | StartSweep | Discard | Forget
