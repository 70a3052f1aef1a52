"""What kinds of maintenance need as commands: the run, the service's own checks and rules."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog

from compactord import ids
from compactord.amounts import count_text, size_text
from compactord.cli.argument_values import amount_of
from compactord.cli.arguments import error_json
from compactord.cli.choice import Choice, Target
from compactord.cli.each_table import Result, joint_code
from compactord.cli.running import FAILED, exit_code, say
from compactord.clock import Clock
from compactord.config.choices import MaintenanceRule
from compactord.config.reasons import setting_origin
from compactord.errors import CompactordError, UnsupportedTable
from compactord.maintenance.orphan_files import Orphan, OwnerRule
from compactord.state.table_state import TableState
from compactord.storage.open import STORES, Stores
from compactord.table.followed import FollowedTable
from compactord.table.opening import OpenTable, open_table, refuse_live_state
from compactord.table.request import CompactRequest

_log = structlog.get_logger()


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

    @property
    def grace_ms(self) -> int:
        """How old left-over files must be whose process cannot be proved dead."""
        return amount_of(
            self.args, "orphan_grace", self.choice.loaded.config.recovery.orphan_grace_ms
        )

    @property
    def expired(self) -> str:
        """What is said of what goes: `3 snapshots expired`."""
        return "would expire" if self.is_dry else "expired"


# Does one kind of maintenance in a table.
Work: TypeAlias = Callable[[MaintenanceRun, Target], Result]


def in_turn(
    run: MaintenanceRun,
    works: Iterable[tuple[str, str, Callable[[], Result]]],
    *,
    raises_refusal: bool = False,
) -> tuple[list[str], Mapping[str, Mapping[str, Any]], int]:
    """Does several things in one table: lines, what each found by its name, one exit code.

    Of each come the name, what is told of when it fails, and the work. One that fails is told, and
    does not keep the others from their turn; with `raises_refusal` a table that is refused by the
    first is not tried again.
    """
    lines: list[str] = []
    found: dict[str, Mapping[str, Any]] = {}
    codes: list[int] = []
    for name, told_of, work in works:
        if run.stop.is_set():
            codes.append(FAILED)
            break
        try:
            result = work()
        except CompactordError as error:
            if raises_refusal and isinstance(error, UnsupportedTable) and not found:
                raise
            say(f"{told_of}: FAILED: {error}")
            found[name] = error_json(error)
            codes.append(exit_code(error))
        else:
            lines += result.lines
            found[name] = result.found
            codes.append(result.code)
    return lines, found, joint_code(codes)


def off_by_rule(run: MaintenanceRun, target: Target, key: str) -> str | None:
    """That the rule `key` has a kind off in this table; None: it has not."""
    if getattr(target.policy, key) is not MaintenanceRule.OFF:
        return None
    return f"{setting_origin(run.choice.loaded, target.name, key)} is off"


def open_supported(target: Target) -> tuple[OpenTable, TableState]:
    """The table, as the service opens it before it compacts, expires or sweeps anything.

    Raises `UnsupportedTable` for what must not be touched, live files included.
    """
    access = target.open()
    table = open_table(access, target.policy.options)
    state = access.newest_state().state
    refuse_live_state(table, state)
    return table, state


def because(why_not: str | None, *, has_some: object) -> list[str]:
    """The line below what was done, `has_some` if anything, that says why no more; none without."""
    return [] if why_not is None else [f"  {'no more ' if has_some else ''}because {why_not}"]


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


def orphans_json(orphans: Sequence[Orphan]) -> list[dict[str, Any]]:
    return [{"path": orphan.path, "bytes": orphan.size_bytes} for orphan in orphans]
