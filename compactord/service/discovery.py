"""Which tables there are, and which of them are served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from compactord.catalog.filesystem import TableList, list_tables
from compactord.clock import Clock
from compactord.commit.publish import SnapshotPublisher, StorePublisher
from compactord.config.model import Discovery
from compactord.config.policy import is_included
from compactord.errors import CompactordError
from compactord.model import TableName
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One catalog's tables. Not `is_listed`: nothing is known to be gone; `error` says why.

    Nor is anything of the `unreadable` databases, of which `error` speaks while others were listed.
    """

    catalog: str
    storage: Storage
    publisher: SnapshotPublisher
    found: dict[TableName, TableRef]
    is_listed: bool
    unreadable: frozenset[str]
    excluded: int
    seconds: float
    error: str


def list_catalogs(
    warehouses: Mapping[str, tuple[Storage, str]], discovery: Discovery, clock: Clock
) -> list[Listing]:
    """Every catalog, one after the other; the trouble of one is not that of another.

    `warehouses` are the store of each catalog and the warehouse's path in it.
    """
    return [
        _listing(catalog, storage, root, discovery, clock)
        for catalog, (storage, root) in warehouses.items()
    ]


def _listing(
    catalog: str, storage: Storage, root: str, discovery: Discovery, clock: Clock
) -> Listing:
    start_s = clock.monotonic_s()
    listed = TableList(tables=(), unreadable={})
    error = ""
    is_listed = False
    try:
        listed, is_listed = list_tables(storage, root), True
        error = "; ".join(listed.unreadable.values())
    except CompactordError as found:
        error = str(found)
    except Exception as found:  # noqa: BLE001 - a listing that fails must not end all listings
        _log.error("discovery_defect", catalog=catalog, exc_info=True)
        error = f"{type(found).__name__}: {found}"
    included = [t for t in listed.tables if is_included(discovery, t.database, t.name)]
    return Listing(
        catalog=catalog,
        storage=storage,
        publisher=StorePublisher(storage),
        found={TableName(catalog, table.database, table.name): table for table in included},
        is_listed=is_listed,
        unreadable=frozenset(listed.unreadable),
        excluded=len(listed.tables) - len(included),
        seconds=clock.monotonic_s() - start_s,
        error=error,
    )
