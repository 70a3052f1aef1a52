"""Follows a table: applies new snapshots, detects lost ones, sums up changes and reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import structlog

from compactord.clock import SystemClock
from compactord.errors import CompactordError
from compactord.paimon.data_file import BucketId
from compactord.paimon.snapshot import Snapshot
from compactord.state.ancestry import PublishedSnapshots, SettleDelay
from compactord.state.table_state import Refreshed, TableState

_log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class RefreshStats:
    """Findings of refreshes: changed buckets (None if any may be), bytes appended, reads."""

    changed: set[BucketId] | None = field(default_factory=set)
    appended_bytes: int = 0
    manifests: int = 0
    entries: int = 0
    skipped_entries: int = 0

    def add(self, refreshed: Refreshed) -> None:
        self.appended_bytes += refreshed.appended_bytes
        self.manifests += refreshed.manifests
        self.entries += refreshed.entries
        self.skipped_entries += refreshed.skipped_entries
        if refreshed.changed is None or self.changed is None:
            self.changed = None
        else:
            self.changed |= refreshed.changed


class StateSource(Protocol):
    """Source of a table's newest state and schema: its folder, or its catalog."""

    def newest_state(self) -> Refreshed:
        """See `load_newest`, also for what it raises."""
        ...

    def refreshed_state(self, known: TableState, *, checks_hint: bool = False) -> Refreshed:
        """See `refresh_state`, also for what it raises."""
        ...

    def newest_schema_id(self) -> int | None:
        """The id of the newest schema, or None if the table has none any more."""
        ...


class Follower:
    """Follows one table for `user`, whose snapshots other writers must not replace or roll back.

    `looked_back` remembers published snapshots for look backs, if there are any.
    """

    def __init__(
        self, source: StateSource, *, user: str, looked_back: PublishedSnapshots | None = None
    ) -> None:
        self.user = user
        # The committer of this user replaces it if snapshots must settle first.
        self.delay = SettleDelay(SystemClock(), 0)
        # So does it here, if writers exclude each other: then only a rollback removes a snapshot.
        self.may_be_replaced = True
        self._looked_back = looked_back
        # Texts about the user's snapshots that other writers replaced, until a caller takes them.
        self.lost_snapshots: list[str] = []
        # Snapshots whose id belongs to another one now: only an unsafe publication does that.
        # Other lost ones were rolled back, or their table was dropped.
        self.replaced_snapshots = 0
        # Lost snapshots with newer ones above: a look back finds out what that lost.
        self.suspects: list[Snapshot] = []
        self.source = source
        self._drift = RefreshStats()

    def loaded(self) -> TableState:
        """The newest state of a table that was not read before. Raises what reading raises."""
        refreshed = self.source.newest_state()
        self._drift.add(refreshed)
        return refreshed.state

    def refreshed(self, state: TableState, *, checks_hint: bool = False) -> TableState:
        """The newest state; a snapshot of the user's that it does not build upon is reported.

        Arguments and errors as for `refresh_state`.
        """
        refreshed = self._refresh(state, checks_hint=checks_hint)
        if refreshed.lost is not None and refreshed.lost.commit_user == self.user:
            newest = refreshed.state.snapshot
            if not self.may_be_replaced:
                # A writer's command needed what was compacted (commit/CommitRollback.java).
                _log.warning("snapshot_rolled_back", reason=lost_text(refreshed.lost, None))
                return refreshed.state
            if self._looked_back and newest is not None and newest.id > refreshed.lost.id:
                self.suspects.append(refreshed.lost)
                return refreshed.state
            is_replaced = newest is not None and newest.id >= refreshed.lost.id
            if is_replaced and self._looked_back:
                is_replaced = not self._looked_back.was_rolled_back(refreshed.lost)
            why = lost_text(refreshed.lost, None)
            self.report_lost(why, is_replaced=is_replaced, ours=refreshed.lost)
        return refreshed.state

    def published(self, snapshot: Snapshot, base: Snapshot | None, now_ms: int) -> None:
        """Notes a snapshot that was published, or may have been, on top of `base`."""
        if self._looked_back is not None:
            self._looked_back.add(snapshot, base, now_ms)

    def newest_after(self, state: TableState) -> TableState:
        """The newest state, or the known one when it cannot be read; reports no lost snapshot."""
        try:
            return self._refresh(state).state
        except CompactordError as error:
            _log.warning("refresh_failed", error=str(error))
            return state

    def grown(self, refreshed: Refreshed) -> TableState:
        """The state after a snapshot of the user's, whose changes need not be read."""
        self._drift.add(refreshed)
        return refreshed.state

    def report_lost(self, why: str, *, is_replaced: bool, ours: Snapshot | None = None) -> None:
        """Notes a lost snapshot.

        With `ours`, only that one is lost: just work to repeat if no work was built on it,
        during the settle delay.
        """
        if ours is not None and not self.delay.has_relied_on(ours):
            _log.warning("snapshot_replaced_early", reason=why)
            return
        self.lost_snapshots.append(why)
        self.replaced_snapshots += is_replaced
        _log.error("snapshot_lost", reason=why)

    def forgive_suspects(self) -> None:
        """The table was recreated: its old snapshots are not losses."""
        suspects, self.suspects = self.suspects, []
        for ours in suspects:
            self.report_lost(lost_text(ours, None), is_replaced=False)

    def drain_stats(self) -> RefreshStats:
        """The sum of all refreshes since the last call, commits included."""
        drift, self._drift = self._drift, RefreshStats()
        return drift

    def _refresh(self, state: TableState, *, checks_hint: bool = False) -> Refreshed:
        refreshed = self.source.refreshed_state(state, checks_hint=checks_hint)
        self._drift.add(refreshed)
        return refreshed


def lost_text(ours: Snapshot, found: Snapshot | None) -> str:
    """A text for the loss of `ours`; `found` is the snapshot with its id now."""
    now = f"is now {found.uuid} by {found.commit_user}" if found else "does not exist any more"
    return f"snapshot {ours.id}, which we published with uuid {ours.uuid}, {now}"
