"""Requests are counted by the kind of the table that they are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from compactord.catalog.access import table_in_folder
from compactord.model import TableName
from compactord.paimon.schema import TableRef
from compactord.scheduler.effects import CycleJob
from compactord.service.jobs import ServedTables, TableSpec
from compactord.storage.base import Storage
from compactord.storage.requests import StorageRequest, metered
from compactord.table.backlog import DispatchFilter
from compactord.table.jobs import CycleResult
from compactord.table.planning import CompactRequest
from compactord.table.subcompactions import WorkerSpec
from tests.builders import FIRST, VirtualClock, append_table, keyed_table
from tests.storages import MemoryStorage

NAME = TableName("lake", "db", "t")


@pytest.mark.parametrize(
    ("make", "kind"), [(keyed_table, "primary-key"), (append_table, "append-unaware")]
)
def test_each_request_counts_for_the_kind_of_its_table(
    make: Callable[[Storage, str], TableRef], kind: str
) -> None:
    clock, inner, counted = VirtualClock(), MemoryStorage(), Counter[str]()
    all_requests: list[StorageRequest] = []
    ref = make(inner, "/wh/db.db/t")
    storage = metered(inner, all_requests.append, clock, store="memory")
    tables = ServedTables(
        clock=clock,
        worker=WorkerSpec(owner=FIRST, memory_bytes=64 << 20, zone=clock.time_zone),
        requested=lambda kind, count: counted.update({kind.value: count}),
    )
    tables.specs[NAME] = TableSpec(
        ref=ref,
        request=CompactRequest(),
        open=partial(table_in_folder, storage),
    )
    for polls in (1, 2):
        outcome, _ = tables.run(CycleJob(name=NAME, ended=(), skip=DispatchFilter()))
        assert isinstance(outcome, CycleResult)
        assert outcome.error is None
        assert counted == {kind: len(all_requests)}, polls
