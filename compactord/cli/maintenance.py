"""What kinds of maintenance need as commands: the run, the service's own checks and rules."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog

from compactord import ids
from compactord.cli.choice import Choice, Target
from compactord.cli.each_table import Result
from compactord.clock import Clock
from compactord.config.choices import MaintenanceRule
from compactord.config.reasons import setting_origin
from compactord.maintenance.orphan_files import Orphan, OwnerRule
from compactord.state.table_state import TableState
from compactord.storage.open import STORES, Stores
from compactord.table.followed import FollowedTable
from compactord.table.opening import OpenTable, open_table, refuse_live_state
from compactord.table.report import count_text, size_text
from compactord.table.request import CompactRequest

_log = structlog.get_logger()
# Does one kind of maintenance in a table.
Work: TypeAlias = Callable[[Target], Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRun:
    """One run of a command over the tables of its choice; once `stop` is set, nothing begins."""

    args: argparse.Namespace
    choice: Choice
    clock: Clock
    stop: threading.Event
    stores: Stores = STORES

    @property
    def is_dry(self) -> bool:
        """Whether it only says what would be done."""
        dry: bool = self.args.dry_run
        return dry


def off_by_rule(run: MaintenanceRun, target: Target, key: str) -> str | None:
    """That the rule `key` has a kind off in this table; None: it has not."""
    if getattr(target.policy, key) is not MaintenanceRule.OFF:
        return None
    return f"{setting_origin(run.choice.loaded, *target.name, key)} is off"


def open_supported(target: Target) -> tuple[OpenTable, TableState]:
    """The table, as the service opens it before it compacts, expires or sweeps anything.

    Raises `UnsupportedTable` for what must not be touched, live files included.
    """
    access = target.open()
    table = open_table(access, target.policy.options)
    state = access.newest_state().state
    refuse_live_state(table, state)
    return table, state


def looked_back(target: Target, clock: Clock, stop: threading.Event) -> FollowedTable:
    """The table as the service has it before it expires anything; it knows `why_keep`.

    A commit of a writer that a late rename lost is known from the snapshots alone. Waits while the
    newest snapshot may still be replaced, unless `stop` is set. Raises what `open_supported`
    raises.
    """
    followed = FollowedTable(
        target.open(),
        CompactRequest(overrides=target.policy.options),
        clock=clock,
        owner=ids.this_process(),
    )
    followed.refresh()
    wait_ms = followed.wait_ms()
    if wait_ms:
        _log.info("commit_settling", seconds=round(wait_ms / 1000, 1))
        stop.wait(wait_ms / 1000)
        followed.refresh()
    followed.look_back(busy=(), may_commit=False)
    return followed


def owner_rule(clock: Clock, grace_ms: int) -> OwnerRule:
    """The rule of `compact`: nothing of this process, nothing of one that may live."""
    return OwnerRule(
        myself=ids.this_process(),
        liveness=ids.liveness,
        now_ms=clock.now_ms(),
        grace_ms=grace_ms,
    )


def orphans_text(orphans: Sequence[Orphan]) -> str:
    """`3 left-over files of earlier runs (1.5 MiB)`."""
    size = sum(orphan.size_bytes for orphan in orphans)
    return f"{count_text(len(orphans), 'left-over file')} of earlier runs ({size_text(size)})"


def orphan_lines(orphans: Sequence[Orphan]) -> list[str]:
    """One for each, with its path."""
    return [f"  {each.path}{' (unfinished upload)' if each.upload else ''}" for each in orphans]


def orphans_json(orphans: Sequence[Orphan]) -> list[dict[str, Any]]:
    return [{"path": orphan.path, "bytes": orphan.size_bytes} for orphan in orphans]
