"""The removal of files of any program that nothing names, as a kind of maintenance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import structlog

from compactord.clock import WallTime
from compactord.config.policy import TablePolicy
from compactord.errors import CompactordError
from compactord.ids import Liveness
from compactord.maintenance.copied_files import watched
from compactord.maintenance.foreign_files import remove_found, trash_of
from compactord.maintenance.kind import (
    DueTable,
    MaintenanceKind,
    MaintenanceRecord,
    OpenedTable,
    Round,
    TableValues,
    UnderWay,
    in_windows,
)
from compactord.maintenance.orphan_files import OrphanSearch, OwnerRule
from compactord.maintenance.sightings import Sightings
from compactord.maintenance.table_files import TableFolders
from compactord.maintenance.used_names import Incomplete
from compactord.paimon import paths

_log = structlog.get_logger()
# A round deletes for so long, so that other kinds have their turn; the next one lists anew.
_DELETIONS_MAX_MS = 3_600_000
# After a round that failed the next one comes earlier than the table's rule says.
_RETRY_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedFiles:
    """What one round removed. `more`: it ended early. `why_not`: why it removed nothing."""

    files: int = 0
    size_bytes: int = 0
    more: bool = False
    why_not: str | None = None


class _ForeignSightings(Sightings):
    """Those of files of other programs."""


class _Stopping(Exception):
    """The process is about to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepForeign(MaintenanceKind[RemovedFiles]):
    """Due where the table's rule asks for it, as often as that says, in the windows of expiry.

    Whether or not the table has changed. `grace_ms`: copies of snapshots that were made before are
    complete. The rest is that of one table's rule.
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
        if record.succeeded_ms < record.ended_ms:
            wait_ms = min(wait_ms, _RETRY_MS)
        return (
            policy.remove_foreign_files
            and table.held_until_ms <= now_ms
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
        """As `orphans --foreign`, but for compactord's own files, which `sweep` removes."""
        values = table.table
        if values.ref.branch != paths.MAIN_BRANCH:
            # The folders of the table are those of all its branches.
            return RemovedFiles()
        why_not = table.why_keep()
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
            # Between deletions, too, what has come since is read.
            return RemovedFiles(more=True)

    def _removed(
        self, table: OpenedTable, folders: TableFolders, trash: str | None
    ) -> RemovedFiles:
        values, search = table.table, self._search(table, folders)
        found = search.find()
        if values.storage.capabilities.copies_may_look_old:
            now_ms = table.clock.steady_ms()
            sightings = table.memory(_ForeignSightings)
            found = sightings.aged(found, now_ms=now_ms, grace_ms=self.older_than_ms)
        # However long the search took, something goes.
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

        def told(_: str) -> None:
            if table.is_stopping:
                raise _Stopping

        copies = watched(table, self.grace_ms)
        why_wait = partial(copies.why_wait, table.table, rule.now_ms)
        return OrphanSearch(table.table.storage, folders, rule, told, why_wait)

    def _trash(self, values: TableValues, folders: TableFolders) -> str | None:
        """The folder of this table in the trash. Raises `UsageError` for one of another store."""
        if self.trash is None:
            return None
        path = paths.external_path(folders.location, self.trash.rstrip("/"))
        return trash_of(folders, values.ref.full_name, f"foreign_files_trash {self.trash}", path)

    def ended(self, result: RemovedFiles | CompactordError, seconds: float) -> Round:
        if isinstance(result, CompactordError):
            _log.warning("foreign_files_kept", error=str(result))
            return Round(has_failed=True)
        if result.why_not is not None:
            _log.warning("foreign_files_kept", error=result.why_not)
        counts = {
            "foreign_files_removed": result.files,
            "foreign_bytes_removed": result.size_bytes,
        }
        return Round(counts=counts, more=result.more, has_failed=result.why_not is not None)
