"""Which tables there are, and which of them are served by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from compactord.catalog.base import Catalog, TableList
from compactord.clock import Clock
from compactord.commit.publish import SnapshotPublisher
from compactord.config.load import LoadedConfig
from compactord.config.reasons import excluded_by_name
from compactord.errors import CompactordError
from compactord.model import TableName
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedTable:
    """A table that a pattern excludes; `why` names the pattern."""

    ref: TableRef
    why: str


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
    excluded: dict[TableName, ExcludedTable]
    seconds: float
    error: str


def list_catalogs(
    catalogs: Mapping[str, Catalog], loaded: LoadedConfig, clock: Clock
) -> list[Listing]:
    """List every catalog, one after the other; a failure of one does not affect the others."""
    return [_listing(name, catalog, loaded, clock) for name, catalog in catalogs.items()]


def _listing(name: str, catalog: Catalog, loaded: LoadedConfig, clock: Clock) -> Listing:
    start_s = clock.monotonic_s()
    listed = TableList(tables=(), unreadable={})
    error = ""
    is_listed = False
    try:
        listed, is_listed = catalog.list_tables(), True
        error = "; ".join(str(trouble) for trouble in listed.unreadable.values())
    except CompactordError as trouble:
        error = str(trouble)
    except Exception as defect:  # noqa: BLE001 - a listing that fails must not end all listings
        _log.error("discovery_defect", catalog=name, exc_info=True)
        error = f"{type(defect).__name__}: {defect}"
    found: dict[TableName, TableRef] = {}
    excluded: dict[TableName, ExcludedTable] = {}
    for ref in listed.tables:
        table = TableName(name, ref.database, ref.name)
        why = excluded_by_name(loaded, ref.database, ref.name)
        if why is None:
            found[table] = ref
        else:
            excluded[table] = ExcludedTable(ref=ref, why=why)
    return Listing(
        catalog=name,
        storage=catalog.storage,
        publisher=catalog.publisher,
        found=found,
        is_listed=is_listed,
        unreadable=frozenset(listed.unreadable),
        excluded=excluded,
        seconds=clock.monotonic_s() - start_s,
        error=error,
    )
