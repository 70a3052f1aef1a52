"""The tables that the service compacts: discovery, opening, polling intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from compactord.catalog.access import TableAccess
from compactord.catalog.base import Catalog, TableList
from compactord.clock import Clock
from compactord.config.choices import Mode
from compactord.config.load import LoadedConfig
from compactord.config.model import ServiceConfig
from compactord.config.policy import (
    Unmatched,
    exact_tables,
    excluding_key,
    exclusion,
    not_write_only,
    paused,
    policy_for,
    unmatched_patterns,
    unmatched_text,
)
from compactord.errors import CompactordError
from compactord.model import TableName
from compactord.paimon.options.table_options import DISCOVERY_INTERVAL_MS
from compactord.paimon.schema import TableRef, branch_of
from compactord.paimon.snapshot import branch_names
from compactord.scheduler.scheduled_table import ScheduledTable
from compactord.scheduler.scheduler import Scheduler
from compactord.service.jobs import TableSpec
from compactord.service.settings import Timetable
from compactord.service.view import CatalogView, TableView, excluded_view, unreachable_view
from compactord.table.planning import CompactRequest
from compactord.text import age_text

_log = structlog.get_logger()
# A listing that takes longer is reported every time this much passes; it continues.
OVERDUE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """One catalog's tables; `open` opens them.

    If not `is_listed`, no table counts as dropped, and `error` is the reason. The same holds for
    tables of `unreadable` databases; then `error` names these.
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
    """A running listing: its thread, its start, and when it was last reported as overdue."""

    thread: threading.Thread
    since_ms: int
    reported_ms: int


@dataclass(slots=True, kw_only=True)
class Discovery:
    """Lists each catalog in a thread of its own: one that hangs does not delay the rest.

    Only the loop uses it. A catalog's thread calls `post` once its listing has ended; `ended` must
    follow. `loaded` is thread-safe. Times are steady.
    """

    catalogs: Mapping[str, Catalog]
    loaded: Callable[[], LoadedConfig]
    post: Callable[[Listing], None]
    clock: Clock
    _under_way: dict[str, _UnderWay] = field(default_factory=dict, init=False)

    def begin(self, *names: str) -> None:
        """List these catalogs, or all if none is named; skips catalogs still being listed."""
        now_ms = self.clock.steady_ms()
        for name in names or self.catalogs:
            if name in self._under_way:
                continue
            catalog = self.catalogs[name]
            # A listing changes nothing, so the end of the process need not wait for it.
            thread = threading.Thread(
                target=self._list, args=(name, catalog), name=f"listing-{name}", daemon=True
            )
            self._under_way[name] = _UnderWay(thread=thread, since_ms=now_ms, reported_ms=now_ms)
            thread.start()

    def ended(self, name: str) -> None:
        """Allow the next listing of this catalog: its last one was posted."""
        del self._under_way[name]

    def overdue(self, now_ms: int) -> Iterator[tuple[str, int]]:
        """Catalogs whose listing runs for another minute, and for how many seconds in all."""
        for name, listing in self._under_way.items():
            if now_ms - listing.reported_ms >= OVERDUE_MS:
                listing.reported_ms = now_ms
                yield name, (now_ms - listing.since_ms) // 1000

    def close(self, seconds_max: float) -> bool:
        """Wait for listings; returns whether all ended in time."""
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
    """List one catalog by the patterns in effect when it has answered; never raises."""
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
    """The tables, each followed by its configured branches.

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
    """The branches of a table that its rules select, without main; listed only if rules select any.

    Empty for a table that patterns exclude. `name` is the catalog's. Raises what `Catalog.open` and
    listing raise.
    """
    table = TableName(name, ref.database, ref.name)
    policy = policy_for(config, table)
    if not policy.asks_for_branches or excluding_key(config.discovery, table) is not None:
        return ()
    found = branch_names(catalog.open(ref).storage, ref.location)
    # A branch name with a $ would look like a system table.
    return tuple(branch_of(ref, each) for each in found if policy.takes(each) and "$" not in each)


_LEAST_INTERVAL_MS = 100
# How often the time between polls of a quiet table doubles at most.
_DOUBLED_MAX = 30


class TableRegistry:
    """The served tables. Only the loop uses it. Cycles read `specs`; listings fill `catalogs`.

    `excluded` are the tables that patterns exclude; the scheduler has the tables that are excluded
    because their writers compact them. `unmatched` are patterns that match no table, by their keys,
    as shown to operators.
    """

    def __init__(
        self,
        loaded: LoadedConfig,
        scheduler: Scheduler,
        specs: dict[TableName, TableSpec],
        *,
        timetable: Timetable,
        clock: Clock,
    ) -> None:
        self.catalogs = {
            name: CatalogView(
                name=name, warehouse=catalog.warehouse, last_success_ms=0, failures=0, error=""
            )
            for name, catalog in loaded.config.catalogs.items()
        }
        self.excluded: dict[TableName, TableView] = {}
        self.unmatched: dict[str, str] = {}
        self._unreachable: dict[TableName, TableView] = {}
        # Kept, because comparing names takes long.
        self._unmatched_texts: dict[tuple[str, Unmatched], str] = {}
        # Catalogs that were listed completely.
        self._listed: set[str] = set()
        # Names of dropped tables that still leave while new tables have the same names.
        self._replaced: set[TableName] = set()
        self._loaded = loaded
        self._scheduler = scheduler
        self._specs = specs
        self._timetable = timetable
        self._clock = clock

    def listed(self, listing: Listing) -> None:
        """Serve the tables found and drop the missing ones; drops none if the listing failed."""
        self._note(listing)
        if not listing.is_listed:
            self._judge_names()
            return
        tables = self._scheduler.tables
        for name, ref in listing.found.items():
            if name in tables and tables[name].ref != ref:
                # The old table's state does not apply: the new one is served once the old has left.
                self._replaced.add(name)
                self._leave(name)
                continue
            policy = policy_for(self._loaded.config, name)
            if name not in tables:
                _log.info("table_added", **name.log_fields, location=ref.location)
            self._scheduler.add(name, ref, policy, self._clock.steady_ms())
            self._specs[name] = TableSpec(
                ref=ref,
                request=CompactRequest.of(policy, self._loaded.config),
                open=listing.open,
            )
            self._judge(tables[name])
        self._exclude(listing)
        for name in tables:
            is_gone = (
                name.catalog == listing.catalog
                and name not in listing.found
                and name.database not in listing.unreadable
            )
            if is_gone:
                self._leave(name)
        if not listing.unreadable:
            self._listed.add(listing.catalog)
        self._judge_names()

    def _leave(self, name: TableName) -> None:
        """Stop serving the table once its running work has ended."""
        if not self._scheduler.tables[name].is_leaving:
            _log.info("table_removed", **name.log_fields)
            self._scheduler.remove(name)
            self._timetable.stop_calling(str(name))

    def to_list_again(self) -> set[str]:
        """Catalogs with tables to serve whose names older tables used until now."""
        left = {name for name in self._replaced if name not in self._scheduler.tables}
        self._replaced -= left
        return {name.catalog for name in left}

    @property
    def unserved(self) -> Mapping[TableName, TableView]:
        """Tables without work: excluded ones, and named ones of catalogs that were never listed."""
        return {**self.excluded, **self._unreachable}

    def _judge_names(self) -> None:
        """Compare the names in the configuration with the tables.

        Records patterns that match no table, because a name is misspelled or its table was dropped,
        and exact names of tables in catalogs that were not listed since the start.
        """
        self._unreachable = {
            name: unreachable_view(excluded_view(name, "", ""), each.error)
            for catalog, each in self.catalogs.items()
            if each.error and not each.last_success_ms
            for name in exact_tables(self._loaded.config, catalog)
        }
        served = (each.name for each in self._scheduler.tables.values() if not each.is_leaving)
        tables = {*served, *self.excluded}
        failed = {name for name, each in self.catalogs.items() if each.error}
        found = unmatched_patterns(self._loaded.config, tables, self._listed, failed)
        texts = {
            key: self._unmatched_texts.get((key, each))
            or unmatched_text(self._loaded, key, each, tables)
            for key, each in found.items()
        }
        self._unmatched_texts = {(key, each): texts[key] for key, each in found.items()}
        for text in texts.values():
            if text not in self.unmatched.values():
                _log.warning("pattern_matches_nothing", pattern=text)
        # Keep the same object: views are made from it.
        self.unmatched.clear()
        self.unmatched.update(texts)

    def _exclude(self, listing: Listing) -> None:
        """Update the tables that patterns exclude; databases that were not listed keep theirs."""
        for name, excluded in listing.excluded.items():
            known = self.excluded.get(name)
            if known is None or known.why != excluded.why:
                _log.info("table_excluded", **name.log_fields, reason=excluded.why)
        kept = {
            name: excluded
            for name, excluded in self.excluded.items()
            if name.catalog != listing.catalog or name.database in listing.unreadable
        }
        self.excluded = {**kept, **listing.excluded}

    def overdue(self, catalog: str, seconds: int) -> None:
        """Count a catalog as failing until its overdue listing ends."""
        silent = age_text(1000 * seconds)
        self._failed(catalog, f"it has not answered for {silent}; its listing continues")
        self._judge_names()

    def _note(self, listing: Listing) -> None:
        name, known = listing.catalog, self.catalogs[listing.catalog]
        is_first = listing.is_listed and not known.last_success_ms
        if is_first and not (listing.found or listing.excluded or listing.unreadable):
            _log.warning("catalog_empty", catalog=name, warehouse=known.warehouse)
        now_ms = self._clock.steady_ms()
        succeeded_ms = now_ms if listing.is_listed else known.last_success_ms
        self.catalogs[name] = replace(known, last_success_ms=succeeded_ms, error="")
        if listing.error:
            self._failed(name, listing.error)

    def _failed(self, name: str, error: str) -> None:
        known = self.catalogs[name]
        self.catalogs[name] = replace(known, failures=known.failures + 1, error=error)
        _log.warning("discovery_failed", catalog=name, error=error)

    def polled(self, scheduled: ScheduledTable) -> None:
        """Apply what an ended cycle read: it may exclude the table or change its interval."""
        scheduled.count_quiet_poll()
        self._judge(scheduled)

    def _judge(self, scheduled: ScheduledTable) -> None:
        """Apply the configuration to a table that is new or was read again."""
        self._note_policy(scheduled)
        if not scheduled.is_leaving:
            self._set_interval(scheduled)

    def _note_policy(self, scheduled: ScheduledTable) -> None:
        """Record whether the configuration excludes or pauses the table, and why."""
        policy, info, name = scheduled.policy, scheduled.info, scheduled.name
        scheduled.is_excluded = policy.only_write_only and info is not None and not info.write_only
        event, why = "", ""
        if scheduled.is_excluded:
            event, why = "table_excluded", not_write_only(self._loaded, name)
        elif policy.mode is Mode.PAUSED:
            event, why = "table_paused", paused(self._loaded, name)
        if why == scheduled.unmanaged_reason:
            return
        scheduled.unmanaged_reason = why
        if event:
            _log.info(event, **name.log_fields, reason=why)
        else:
            _log.info("table_resumed", **name.log_fields)

    def apply(self, loaded: LoadedConfig) -> None:
        """Put another configuration into effect."""
        self._loaded = loaded
        self._unmatched_texts.clear()
        for name, scheduled in self._scheduler.tables.items():
            policy = policy_for(self._loaded.config, name)
            self._scheduler.set_policy(name, policy)
            request = CompactRequest.of(policy, loaded.config)
            self._specs[name] = replace(self._specs[name], request=request)
            self._judge(scheduled)
            self._poll_due(name)
        self._judge_names()

    def _set_interval(self, scheduled: ScheduledTable) -> None:
        """Set how often a table is polled: as configured, or by the table's own options.

        Each poll without news doubles the time, up to `max_quiet_interval`.
        """
        interval_ms = scheduled.policy.discovery_interval_ms
        if interval_ms is None:
            planned = scheduled.planned
            interval_ms = planned.discovery_interval_ms if planned else DISCOVERY_INTERVAL_MS
        if scheduled.is_excluded:
            # Polled only to check whether its writers still compact.
            interval_ms = max(interval_ms, self._loaded.config.discovery.catalog_list_interval_ms)
        interval_ms = max(_LEAST_INTERVAL_MS, interval_ms)
        longest_ms = max(interval_ms, scheduled.policy.max_quiet_interval_ms or 0)
        if scheduled.planned and scheduled.planned.info.readers_wait:
            longest_ms = interval_ms
        interval_ms = min(interval_ms << min(scheduled.quiet_polls, _DOUBLED_MAX), longest_ms)
        scheduled.interval_ms = interval_ms
        self._timetable.every(
            str(scheduled.name), interval_ms, partial(self._poll_due, scheduled.name)
        )

    def _poll_due(self, name: TableName) -> None:
        self._scheduler.poll_due(name, self._clock.steady_ms())
