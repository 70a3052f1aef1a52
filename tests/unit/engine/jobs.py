"""A job without an engine."""

from __future__ import annotations

from collections.abc import Iterable

from compactord.engine.base import Job
from compactord.model import Subcompaction, SubcompactionOutcome


class ScriptedJob(Job):
    """Runs the given subcompactions, in their order."""

    def __init__(self, subcompactions: Iterable[Subcompaction]) -> None:
        self.all = tuple(subcompactions)
        self.group = "job"
        self.first = self.all[0]
        self.sent = {(each.compaction_id, each.index): each for each in self.all}
        self.taken: list[SubcompactionOutcome] = []
        self.ended = False

    def deliver(self, outcome: SubcompactionOutcome) -> bool:
        expected = len(self.taken)
        if self.ended or [outcome.index] != [each.index for each in self.all[expected:][:1]]:
            return False
        self.taken.append(outcome)
        return True

    def following(self) -> Subcompaction | None:
        return self.all[len(self.taken)] if len(self.taken) < len(self.all) else None
