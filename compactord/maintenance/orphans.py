"""Sweeps of orphan files and of unreferenced files of other programs.

Files are deleted, or moved to the same place below a trash folder. Then empty folders are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from compactord import ids
from compactord.clock import Clock, WallTime
from compactord.config.policy import TablePolicy
from compactord.errors import CompactordError, UsageError
from compactord.ids import Liveness, Owner
from compactord.maintenance.copied_files import watched
from compactord.maintenance.kind import (
    Done,
    DueTable,
    MaintenanceKind,
    MaintenanceRecord,
    OfferedKind,
    OpenedTable,
    Report,
    Round,
    ShownTable,
    UnderWay,
    in_windows,
)
from compactord.maintenance.orphan_search import (
    Orphan,
    OrphanSearch,
    OwnerRule,
    Sweep,
    TableFolders,
    find_orphans,
    remove_folders,
    remove_orphans,
)
from compactord.maintenance.used_names import Incomplete
from compactord.paimon import paths
from compactord.storage.base import Storage
from compactord.table.opening import OpenTable
from compactord.text import count_text, size_text


class Sightings:
    """Orphans found by consecutive sweeps of one table since the start of the process.

    A file that was copied with its times looks old at once, and its metadata may follow. It counts
    as young until sweeps have found it unchanged and unnamed for the grace.
    """

    def __init__(self) -> None:
        self._since_ms: dict[Orphan, int] = {}

    def aged(self, found: Sequence[Orphan], *, now_ms: int, grace_ms: int) -> tuple[Orphan, ...]:
        """The files of `found` that were first found `grace_ms` ago; forgets all other files.

        `now_ms` is steady time.
        """
        self._since_ms = {orphan: self._since_ms.get(orphan, now_ms) for orphan in found}
        return tuple(each for each in found if now_ms - self._since_ms[each] >= grace_ms)


_log = structlog.get_logger()
REMOVED = "removed_files"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOrphans(OfferedKind[Sweep]):
    """Due every `interval_ms`, whether or not the table has changed; see `orphan_search`."""

    name = "sweep"
    choice = "orphans"
    explicit_only = True

    interval_ms: int
    grace_ms: int

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        return now_ms - record.ended_ms >= self.interval_ms

    def preview(self, table: OpenedTable) -> Done[Sweep]:
        values, depth = table.table, len(table.table.schema.partition_keys)
        rule = owner_rule(table.clock, self.grace_ms, table.owner)
        found = find_orphans(
            values.storage,
            values.ref.location,
            partition_depth=depth,
            rule=rule,
            why_wait=partial(watched(table, self.grace_ms).why_wait, values, rule.now_ms),
        )
        return Done(rounds=[found])

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> Sweep:
        """Delete the files that dead compactord processes left; returns them.

        With `under_way` also the files that killed workers of this process left: files that are
        older than all running work by the grace, in both its measures. Otherwise no file of this
        process.
        """
        rule = owner_rule(table.clock, self.grace_ms, table.owner)
        if under_way is not None:
            began_ms = min(under_way.since_ms, rule.now_ms - under_way.for_ms)
            rule = replace(rule, own_before_ms=began_ms - self.grace_ms)
        values, depth = table.table, len(table.table.schema.partition_keys)
        # Commands check the hold before, except `compact`: it would read the whole table for that.
        if under_way is not None and (hold := table.why_held()) is not None:
            _log.warning("sweep_skipped", reason=str(hold), files=0)
            return Sweep()

        def aged(found: Sequence[Orphan]) -> Sequence[Orphan]:
            may_look_old = values.storage.capabilities.copies_may_look_old
            if not may_look_old or not table.watches_files:
                return found
            now_ms = table.clock.steady_ms()
            return table.memory(Sightings).aged(found, now_ms=now_ms, grace_ms=self.grace_ms)

        return remove_orphans(
            values.storage,
            values.ref.location,
            partition_depth=depth,
            rule=rule,
            among=aged,
            why_wait=partial(watched(table, self.grace_ms).why_wait, values, rule.now_ms),
        )

    def ended(self, result: Sweep | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("sweep_failed", error=str(result))
            return Round(has_failed=True, why_not=str(result))
        _log_unlisted(result.error)
        removed = len(result.orphans)
        if removed:
            _log.info("sweep_finished", removed_files=removed)
        return Round(counts={REMOVED: removed})

    def report(self, shown: ShownTable, done: Done[Sweep], *others: Done[Any]) -> Report:
        found = [orphan for sweep in done.rounds for orphan in sweep.orphans]
        errors = [sweep.error for sweep in done.rounds if sweep.error is not None]
        return files_report(shown, found, orphans_text(found), errors)


def _log_unlisted(error: CompactordError | None) -> None:
    if error is not None:
        _log.warning("uploads_not_listed", error=str(error))


def owner_rule(clock: Clock, grace_ms: int, myself: Owner | None = None) -> OwnerRule:
    """The rule of `compact`: keeps files of this process and of processes that may live."""
    return OwnerRule(
        myself=myself or ids.this_process(),
        liveness=ids.liveness,
        now_ms=clock.now_ms(),
        grace_ms=grace_ms,
    )


def files_report(
    shown: ShownTable, found: Sequence[Orphan], what: str, errors: Sequence[CompactordError]
) -> Report:
    """The report of removed files `what`; in a dry run, with each path."""
    verb = "would remove" if shown.is_dry else "removed"
    nothing = "no left-over file found" if errors else "nothing left over"
    lines = [f"{shown.name}: {verb} {what}" if found else f"{shown.name}: {nothing}"]
    if shown.is_dry:
        unfinished = " (unfinished upload)"
        lines += [f"  {each.path}{unfinished if each.upload else ''}" for each in found]
    return Report(lines=lines, found={"orphans": orphans_json(found)}, errors=errors)


def orphans_text(orphans: Sequence[Orphan]) -> str:
    """`3 left-over files of earlier runs (1.5 MiB)`."""
    size = sum(orphan.size_bytes for orphan in orphans)
    return f"{count_text(len(orphans), 'left-over file')} of earlier runs ({size_text(size)})"


def orphans_json(orphans: Sequence[Orphan]) -> list[dict[str, Any]]:
    return [{"path": orphan.path, "bytes": orphan.size_bytes} for orphan in orphans]


_COPIED_AT_ONCE = 8 << 20


def remove_found(
    storage: Storage,
    folders: TableFolders,
    search: OrphanSearch,
    found: Sequence[Orphan],
    *,
    trash: str | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Sequence[Orphan]:
    """Remove the files that `search` found, and folders that are empty; returns those files.

    `trash` is a folder of the same store, in which this call makes one of its own. Ends early once
    `is_stopped`. Raises what `OrphanSearch.removed` raises, after it has logged the files removed
    so far.
    """
    delete = None
    if trash is not None:
        trash = paths.join(trash, ids.random_uuid())
        delete = partial(_move, storage, folders, trash)
    removed: list[Orphan] = []
    try:
        for orphan in search.removed(found, delete, is_stopped):
            removed.append(orphan)  # noqa: PERF402 - keeps files removed before an error
        if not is_stopped():
            _remove_empty(storage, folders, search.empty_folders, removed)
    finally:
        if removed:
            _log.info(
                "foreign_files_removed",
                files=len(removed),
                size_bytes=sum(orphan.size_bytes for orphan in removed),
                trash=trash,
            )
    return removed


def trash_of(folders: TableFolders, table: str, given: str, path: str | None) -> str:
    """The table's folder in the trash `path`, which is None for a trash in another store.

    `table` is its full name. Raises `UsageError`, which begins with `given`, for a folder of
    another store or inside the table.
    """
    if path is None:
        raise UsageError(f"{given}: expected a folder of the store of {table}")
    if any(f"{path}/".startswith(f"{root}/") for root in folders.data_roots):
        raise UsageError(f"{given}: expected a folder outside {table}")
    return paths.join(path, table)


def trash_path(folders: TableFolders, trash: str, path: str) -> str:
    """The path of a file of the table below the trash folder."""
    for number, root in enumerate(folders.data_roots):
        if path.startswith(f"{root}/"):
            below = (f"external-{number}",) if number else ()
            return paths.join(trash, *below, path[len(root) + 1 :])
    raise AssertionError(f"{path} is in no folder of the table")


def _move(storage: Storage, folders: TableFolders, trash: str, orphan: Orphan) -> None:
    """Copy the file, then delete it.

    It makes a copy of its own: another sweep that fails removes its copy, even a complete one.
    """
    with storage.open_output(trash_path(folders, trash, orphan.path)) as stream:
        for data in _parts(storage, orphan.path, orphan.size_bytes):
            stream.write(data)
    storage.delete(orphan.path)


def _parts(storage: Storage, path: str, size_bytes: int) -> Iterator[bytes]:
    for start in range(0, size_bytes, _COPIED_AT_ONCE):
        yield storage.read_range(path, start, min(_COPIED_AT_ONCE, size_bytes - start))


def _remove_empty(
    storage: Storage, folders: TableFolders, empty: Sequence[str], removed: Sequence[Orphan]
) -> None:
    """Remove `empty` folders, and emptied bucket folders with their partition folders."""
    if not storage.capabilities.has_folders:
        return
    for folder in empty:
        storage.remove_empty_folder(folder)
    emptied = dict.fromkeys(orphan.path.rpartition("/")[0] for orphan in removed)
    buckets = [path for path in emptied if path.rsplit("/", 1)[1].startswith(paths.BUCKET_PREFIX)]
    remove_folders(folders.data_roots, buckets, storage.remove_empty_folder)


# A round deletes for an hour at most, so that other kinds run too. The next round lists again.
_DELETIONS_MAX_MS = 3_600_000
# After a failed round the next one starts earlier than by the table's rule.
_RETRY_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedFiles:
    """The result of one round; `more` if it ended early, `why_not` if it removed no file."""

    files: int = 0
    size_bytes: int = 0
    more: bool = False
    why_not: str | None = None


class _ForeignSightings(Sightings):
    """Sightings of files of other programs."""


class _Stopping(Exception):
    """The process is about to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepForeign(MaintenanceKind[RemovedFiles]):
    """Due by the table's rule, in the windows of expiry, whether or not the table has changed.

    Copies of snapshots that are older than `grace_ms` count as complete. The other fields come from
    the table's rule.
    """

    name = "foreign"
    is_long = True
    counters = (
        ("foreign_files_removed", "Files of other programs that nothing named, removed by rule."),
        ("foreign_bytes_removed", "Bytes of files of other programs, removed by rule."),
    )

    grace_ms: int
    older_than_ms: int = 0
    trash: str | None = None

    def is_due(
        self, table: DueTable, record: MaintenanceRecord, now_ms: int, wall: WallTime
    ) -> bool:
        policy = table.policy
        wait_ms = policy.foreign_files_interval_ms
        if record.has_failed:
            wait_ms = min(wait_ms, _RETRY_MS)
        return (
            policy.remove_foreign_files
            and table.settling_until_ms <= now_ms
            and now_ms - record.ended_ms >= wait_ms
            and in_windows(table, now_ms, wall)
        )

    def for_table(self, policy: TablePolicy) -> SweepForeign:
        return replace(
            self,
            older_than_ms=policy.foreign_files_older_than_ms,
            trash=policy.foreign_files_trash,
        )

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> RemovedFiles:
        """As `orphans --foreign`, except compactord's own files, which `sweep` removes."""
        values = table.table
        if values.ref.branch != paths.MAIN_BRANCH:
            # All branches share the table's folders: the sweep of main covers them.
            return RemovedFiles()
        why_not = table.expiry_blocker()
        if why_not is not None:
            return RemovedFiles(why_not=why_not)
        folders = TableFolders(
            location=values.ref.location,
            partition_depth=len(values.schema.partition_keys),
            of_others=True,
        )
        trash = self._trash(values, folders)
        try:
            return self._removed(table, folders, trash)
        except Incomplete as why:
            return RemovedFiles(why_not=why.reason)
        except _Stopping:
            # Raised by `on_progress`, also where new versions are read between deletions.
            return RemovedFiles(more=True)

    def _removed(
        self, table: OpenedTable, folders: TableFolders, trash: str | None
    ) -> RemovedFiles:
        values, search = table.table, self._search(table, folders)
        found = search.find()
        _log_unlisted(search.uploads_error)
        if values.storage.capabilities.copies_may_look_old:
            now_ms = table.clock.steady_ms()
            sightings = table.memory(_ForeignSightings)
            found = sightings.aged(found, now_ms=now_ms, grace_ms=self.older_than_ms)
        # The time starts after the search, so that even after a slow one files are deleted.
        end_ms = table.clock.steady_ms() + _DELETIONS_MAX_MS

        def is_over() -> bool:
            return table.is_stopping or table.clock.steady_ms() > end_ms

        removed = remove_found(
            values.storage, folders, search, found, trash=trash, is_stopped=is_over
        )
        return RemovedFiles(
            files=len(removed),
            size_bytes=sum(orphan.size_bytes for orphan in removed),
            more=is_over(),
        )

    def _search(self, table: OpenedTable, folders: TableFolders) -> OrphanSearch:
        rule = OwnerRule(
            myself=table.owner,
            liveness=lambda owner: Liveness.ALIVE,
            now_ms=table.clock.now_ms(),
            grace_ms=self.grace_ms,
            others_grace_ms=self.older_than_ms,
        )

        def stop_early(_: str) -> None:
            if table.is_stopping:
                raise _Stopping

        copies = watched(table, self.grace_ms)
        why_wait = partial(copies.why_wait, table.table, rule.now_ms)
        return OrphanSearch(table.table.storage, folders, rule, stop_early, why_wait)

    def _trash(self, values: OpenTable, folders: TableFolders) -> str | None:
        """The folder of this table in the trash. Raises `UsageError` for one of another store."""
        if self.trash is None:
            return None
        path = paths.external_path(folders.location, self.trash.rstrip("/"))
        return trash_of(folders, values.ref.full_name, f"foreign_files_trash {self.trash}", path)

    def ended(self, result: RemovedFiles | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("foreign_failed", error=str(result))
            return Round(has_failed=True, why_not=str(result))
        if result.why_not is not None:
            _log.warning("foreign_failed", error=result.why_not)
        counts = {
            "foreign_files_removed": result.files,
            "foreign_bytes_removed": result.size_bytes,
        }
        has_failed = result.why_not is not None
        return Round(counts=counts, more=result.more, has_failed=has_failed, why_not=result.why_not)
