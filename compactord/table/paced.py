"""Tables as maintenance has them: its deletions wait for their turn."""

from __future__ import annotations

from dataclasses import replace

from compactord.catalog.access import TableAccess
from compactord.commit.changes import CommitOutcome
from compactord.maintenance.kind import ChosenPartitions
from compactord.state.table_state import TableState
from compactord.storage.pacing import DeletePace
from compactord.table.compactor import TableCompactor
from compactord.table.opening import OpenTable


def paced(access: TableAccess, pace: DeletePace) -> TableAccess:
    """The table, in a store whose deletions are paced. What publishes its snapshots is not."""
    return replace(access, storage=pace.paced(access.storage))


class PacedTable:
    """As `OpenedTable`, the table that a compactor has open."""

    has_next_rounds = TableCompactor.has_next_rounds

    def __init__(self, compactor: TableCompactor, pace: DeletePace) -> None:
        self._compactor, self._pace = compactor, pace
        self.clock, self.owner, self.memory = compactor.clock, compactor.owner, compactor.memory

    @property
    def table(self) -> OpenTable:
        table = self._compactor.table
        return replace(table, access=paced(table.access, self._pace))

    @property
    def is_stopping(self) -> bool:
        return self._compactor.is_stopping

    def newest_state(self) -> TableState:
        return self._compactor.newest_state()

    def why_keep(self) -> str | None:
        return self._compactor.why_keep()

    def drop_partitions(self, chosen: ChosenPartitions) -> CommitOutcome:
        return self._compactor.drop_partitions(chosen)
