"""A table's compactor driven by hand: what the daemon's threads do, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping

from compactord.clock import Clock
from compactord.engine.worker import run_part
from compactord.errors import CompactordError
from compactord.model import FailureKind, Subcompaction, TaskFailure
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage
from compactord.table.backlog import Skip
from compactord.table.compactor import Planned, TableCompactor, TakeOff, Turn
from compactord.table.in_flight import Crashed, Flights, Landed
from compactord.table.session import SessionRequest
from compactord.table.subcompactions import WorkerSpec
from tests.builders import FIRST, VirtualClock

ALL = Skip()


def compactor_of(
    storage: Storage,
    table: TableRef,
    *,
    clock: Clock | None = None,
    overrides: Mapping[str, str] | None = None,
    append_wait_ms: int | None = None,
    quiet_for_ms: int = 0,
) -> TableCompactor:
    clock = clock or VirtualClock()
    return TableCompactor(
        table,
        SessionRequest(
            overrides=overrides or {}, append_wait_ms=append_wait_ms, quiet_for_ms=quiet_for_ms
        ),
        storage=storage,
        clock=clock,
        worker=WorkerSpec(owner=FIRST, memory_bytes=64 << 20, zone=VirtualClock().time_zone),
        stop_trigger_fallback=3,
    )


def flown(take_off: TakeOff, *, crash: bool = False) -> Landed | Crashed:
    """What comes of a compaction; each part is run once, unless it is to `crash`."""
    flights = Flights(part_attempts=1)
    ended: Landed | Crashed | Subcompaction | None = flights.take_off(
        take_off.number,
        take_off.compaction,
        take_off.parts,
        neighbours=take_off.neighbours,
        index_entries=take_off.index_entries,
    )
    for part in take_off.parts:
        ended = flights.arrived(_poisoned(part) if crash else run_part(part))
    assert isinstance(ended, Landed | Crashed)
    return ended


def _poisoned(part: Subcompaction) -> TaskFailure:
    return TaskFailure(
        compaction=part.compaction,
        part=part.part,
        kind=FailureKind.POISON,
        error="E",
        message="it failed",
        traceback="",
    )


class Driver:
    """Turns and take-offs until nothing is due; remembers the errors that came back."""

    def __init__(self, compactor: TableCompactor) -> None:
        self.compactor = compactor
        self.errors: list[CompactordError] = []
        self.turns: list[Turn] = []
        self._number = 0

    def run(self, *, turns: int) -> Planned | None:
        """The plan in the end; at most so many turns."""
        planned: Planned | None = None
        ended: dict[int, Landed | Crashed] = {}
        for _ in range(turns):
            turn = self.compactor.turn(ended, ALL)
            self.turns.append(turn)
            ended = {}
            if turn.error is not None:
                self.errors.append(turn.error)
            planned = turn.planned or planned
            for due in turn.planned.dues if turn.planned is not None else ():
                self._number += 1
                try:
                    took_off = self.compactor.take_off(
                        due.bucket, number=self._number, free_slots=1
                    )
                except CompactordError as error:
                    self.errors.append(error)
                    continue
                if took_off is not None:
                    ended[self._number] = flown(took_off)
        return planned
