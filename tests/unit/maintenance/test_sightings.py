"""Where new files may look old, a left-over file is swept once it was watched for long."""

from __future__ import annotations

import pytest

from compactord.maintenance.orphans import SweepOrphans
from compactord.storage.base import Capabilities
from tests.builders import DAY_MS, SECOND, VirtualClock, fill_keyed, keyed_table, writer
from tests.storages import MemoryStorage
from tests.unit.table.compacting import ALL, compactor_of

_HOUR_S = 3600
_LEFT = f"bucket-0/data-{SECOND.unique_name()}-0.parquet"


class _Copied(MemoryStorage):
    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(copies_may_look_old=True)


@pytest.mark.parametrize(
    ("storage", "steps"),
    [
        (MemoryStorage(), [(0, "", 1)]),
        (_Copied(), [(0, "", 0), (23, "", 0), (2, "", 1), (30, "", 0)]),
        (_Copied(), [(0, "", 0), (23, "changed", 0), (2, "", 0), (24, "", 1)]),
        (_Copied(), [(0, "", 0), (23, "gone", 0), (1, "back", 0), (2, "", 0), (24, "", 1)]),
        (_Copied(), [(0, "", 0), (1, "clock", 0), (24, "", 1)]),
    ],
    ids=["as it looks", "watched", "changed", "gone and back", "wall clock set"],
)
def test_a_file_that_looks_old_is_removed(
    storage: MemoryStorage, steps: list[tuple[int, str, int]]
) -> None:
    """Each step: after so many hours something happens, and a sweep removes so many files."""
    table = keyed_table(storage, "/wh/db.db/t")
    fill_keyed(writer(storage, table), commits=3)
    path, clock = f"{table.location}/{_LEFT}", VirtualClock()
    storage.write_new(path, b"x")
    compactor = compactor_of(storage, table, clock=clock)
    compactor.cycle((), ALL)
    for hours, event, removed in steps:
        clock.sleep(hours * _HOUR_S)
        match event:
            case "changed":
                storage.overwrite(path, b"longer")
            case "gone":
                storage.delete(path)
            case "back":
                storage.write_new(path, b"x")
            case "clock":
                clock.set_by_ms += 7 * DAY_MS
        swept = SweepOrphans(interval_ms=0, grace_ms=DAY_MS).run(compactor, None)
        assert len(swept.orphans) == removed
    assert storage.status(path) is None
