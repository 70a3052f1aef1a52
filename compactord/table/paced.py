"""Tables as maintenance has them: its deletions wait for their turn."""

from __future__ import annotations

from dataclasses import replace

from compactord.catalog.access import TableAccess
from compactord.storage.calls import DeletePace


def paced(access: TableAccess, pace: DeletePace) -> TableAccess:
    """The table, in a store whose deletions are paced. What publishes its snapshots is not."""
    return replace(access, storage=pace.paced(access.storage))
