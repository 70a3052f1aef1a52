"""Which tables there are, and which of them are served by their names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from compactord.catalog.access import TableAccess
from compactord.catalog.base import Catalog, TableList
from compactord.clock import Clock
from compactord.config.load import LoadedConfig
from compactord.config.model import ServiceConfig
from compactord.config.policy import excluding_key, exclusion, policy_for
from compactord.errors import CompactordError
from compactord.model import TableName
from compactord.paimon.schema import TableRef, branch_of
from compactord.paimon.snapshot import branch_names
from compactord.service.view import TableView, excluded_view

_log = structlog.get_logger()
# A listing that takes longer is told of, once for each such time; it goes on.
OVERDUE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One catalog's tables, which `open` opens.

    Not `is_listed`: nothing is known to be gone; `error` says why. Nor is anything of the
    `unreadable` databases, of which `error` speaks while others were listed.
    """

    catalog: str
    open: Callable[[TableRef], TableAccess]
    found: dict[TableName, TableRef]
    is_listed: bool
    unreadable: frozenset[str]
    excluded: dict[TableName, TableView]
    seconds: float
    error: str


@dataclass(slots=True, kw_only=True)
class _UnderWay:
    """A listing: its thread, when it began, and when it was last told that it has not ended."""

    thread: threading.Thread
    since_ms: int
    told_ms: int


@dataclass(slots=True, kw_only=True)
class Discovery:
    """Lists each catalog in a thread of its own, so that one that is silent delays no other.

    Used by the loop alone. `post` is called in a catalog's thread once its listing has ended;
    `ended` has to follow. `loaded` may be called by any thread. Times are steady.
    """

    catalogs: Mapping[str, Catalog]
    loaded: Callable[[], LoadedConfig]
    post: Callable[[Listing], None]
    clock: Clock
    _under_way: dict[str, _UnderWay] = field(default_factory=dict, init=False)

    def begin(self, *names: str) -> None:
        """List these catalogs, without names all, as far as their last listings have ended."""
        now_ms = self.clock.steady_ms()
        for name in names or self.catalogs:
            if name in self._under_way:
                continue
            catalog = self.catalogs[name]
            # Nothing waits for it at the end of the process: a listing changes nothing.
            thread = threading.Thread(
                target=self._list, args=(name, catalog), name=f"listing-{name}", daemon=True
            )
            self._under_way[name] = _UnderWay(thread=thread, since_ms=now_ms, told_ms=now_ms)
            thread.start()

    def ended(self, name: str) -> None:
        """The listing of this catalog was posted."""
        del self._under_way[name]

    def overdue(self, now_ms: int) -> Iterator[tuple[str, int]]:
        """Catalogs whose listing has not ended for another minute, and for how many seconds."""
        for name, listing in self._under_way.items():
            if now_ms - listing.told_ms >= OVERDUE_MS:
                listing.told_ms = now_ms
                yield name, (now_ms - listing.since_ms) // 1000

    def close(self, seconds_max: float) -> bool:
        """Whether all listings have ended in time."""
        deadline_s = self.clock.monotonic_s() + seconds_max
        threads = [listing.thread for listing in self._under_way.values()]
        for thread in threads:
            thread.join(max(0.0, deadline_s - self.clock.monotonic_s()))
        return not any(thread.is_alive() for thread in threads)

    def _list(self, name: str, catalog: Catalog) -> None:
        self.post(list_catalog(name, catalog, self.loaded, self.clock))


def list_catalog(
    name: str, catalog: Catalog, loaded: Callable[[], LoadedConfig], clock: Clock
) -> Listing:
    """List one catalog, whatever happens, by the patterns in effect when it has answered."""
    start_s = clock.monotonic_s()
    listed = TableList(tables=(), unreadable={})
    error = ""
    is_listed = False
    try:
        listed, is_listed = catalog.list_tables(), True
    except CompactordError as trouble:
        error = str(trouble)
    except Exception as defect:  # noqa: BLE001 - the border of the thread
        _log.error("discovery_defect", catalog=name, exc_info=True)
        error = f"{type(defect).__name__}: {defect}"
    found: dict[TableName, TableRef] = {}
    excluded: dict[TableName, TableView] = {}
    config = loaded()
    silent: dict[str, CompactordError] = dict(listed.unreadable)
    for ref in _with_branches(listed.tables, config.config, name, catalog, silent):
        table = TableName(name, ref.database, ref.name)
        why = exclusion(config, table, ref.branch)
        if why is None:
            found[table] = ref
        else:
            excluded[table] = excluded_view(table, ref.location, why)
    return Listing(
        catalog=name,
        open=catalog.open,
        found=found,
        is_listed=is_listed,
        unreadable=frozenset(silent),
        excluded=excluded,
        seconds=clock.monotonic_s() - start_s,
        error=error or "; ".join(str(trouble) for trouble in silent.values()),
    )


def _with_branches(
    tables: Iterable[TableRef],
    config: ServiceConfig,
    name: str,
    catalog: Catalog,
    unreadable: dict[str, CompactordError],
) -> Iterator[TableRef]:
    """The tables, each followed by those of its branches that are asked for.

    Adds the databases of tables whose branches cannot be listed to `unreadable`.
    """
    for ref in tables:
        yield ref
        try:
            yield from branches_of(ref, config, name, catalog)
        except CompactordError as error:
            unreadable[ref.database] = error


def branches_of(
    ref: TableRef, config: ServiceConfig, name: str, catalog: Catalog
) -> tuple[TableRef, ...]:
    """The branches of a table, main excepted, that its rules ask for: listed only if they do.

    None of a table that patterns exclude. `name` is the catalog's. Raises what `Catalog.open` and
    listing raise.
    """
    table = TableName(name, ref.database, ref.name)
    policy = policy_for(config, table)
    if not policy.asks_for_branches or excluding_key(config.discovery, table) is not None:
        return ()
    found = branch_names(catalog.open(ref).storage, ref.location)
    # With a $ it could not be told from a system table.
    return tuple(branch_of(ref, each) for each in found if policy.takes(each) and "$" not in each)
