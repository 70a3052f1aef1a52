"""Runs kinds of maintenance as commands, with the service's checks and rules."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import structlog

from compactord import ids
from compactord.catalog.access import TableAccess
from compactord.cli.running import FAILED, OK, error_json, exit_code, failure_word, joint_code, say
from compactord.cli.select import Result, SelectedTable, TableSelection
from compactord.clock import Clock
from compactord.commit.changes import CommitOutcome
from compactord.config.choices import MaintenanceRule
from compactord.config.model import ServiceConfig
from compactord.config.policy import setting_origin
from compactord.errors import CompactordError, TableHeld, UnsupportedTable, UsageError
from compactord.maintenance.kind import AnyKind, Done, OfferedKind, Report, ShownTable
from compactord.paimon.options.maintenance import ExpireOptions
from compactord.paimon.schema import TableRef
from compactord.scheduler.halts import advice
from compactord.state.table_state import TableState
from compactord.table.opening import OpenTable
from compactord.table.planning import CompactRequest
from compactord.table.session import ChosenPartitions, TableSession
from compactord.verify.holds import Hold, TableHolds, text_of

T = TypeVar("T")
_log = structlog.get_logger()
# More than any table has: a dry run shows what all rounds together would remove.
_ALL_ROUNDS = 1 << 62
# Snapshots of a round at least.
_LEAST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRun:
    """One run of a command over the tables of its choice; once `stop` is set, nothing begins.

    `grace_ms`: how old left-over files must be whose process cannot be proved dead.
    """

    args: argparse.Namespace
    choice: TableSelection
    clock: Clock
    stop: threading.Event
    kinds: Sequence[AnyKind]
    grace_ms: int
    _holds: dict[TableRef, TableHolds] = field(default_factory=dict)

    @property
    def is_dry(self) -> bool:
        """Whether it only reports the work."""
        dry: bool = self.args.dry_run
        return dry

    def holds_of(self, access: TableAccess) -> TableHolds | None:
        """The table's holds, for all kinds of this run, or None with `--force`."""
        if self.args.force:
            return None
        made = TableHolds(
            access.storage, access.ref, self.clock, ids.this_process(), is_kept=not self.is_dry
        )
        return self._holds.setdefault(access.ref, made)

    def refusal(self, target: SelectedTable, hold: Hold | None) -> Sequence[str]:
        """Lines for a dry run that would be refused; else raises `TableHeld` for a hold."""
        if hold is None:
            return ()
        why = f"{hold}. {advice(hold.error)} Use --force to delete anyway"
        if self.is_dry:
            return [f"  would be refused: {why}"]
        raise TableHeld(f"nothing of {target.full_name} is deleted: {why}")

    def shown(self, target: SelectedTable, table: OpenTable | None) -> ShownTable:
        """A table of the choice, and as what it is open."""
        name = self.choice.shown_name(target)
        return ShownTable(name=name, is_dry=self.is_dry, table=table)


# Does one kind of maintenance in a table.
Work: TypeAlias = Callable[[MaintenanceRun, SelectedTable], Result]


def in_turn(
    run: MaintenanceRun,
    works: Iterable[tuple[str, str, Callable[[], Result]]],
    *,
    raises_refusal: bool = False,
) -> tuple[list[str], Mapping[str, Mapping[str, Any]], int]:
    """Does several things in one table: lines, what each found by its name, one exit code.

    Each turn has a name, a label for the report of its failure, and the work. After a failure the
    next turn runs; with `raises_refusal` a table that the first turn finds refused or held is not
    tried again.
    """
    lines: list[str] = []
    found: dict[str, Mapping[str, Any]] = {}
    codes: list[int] = []
    for name, progress_reporter, work in works:
        if run.stop.is_set():
            codes.append(FAILED)
            break
        try:
            result = work()
        except CompactordError as error:
            is_refused = isinstance(error, UnsupportedTable | TableHeld)
            if raises_refusal and is_refused and not found:
                raise
            say(f"{progress_reporter}: {failure_word(error).upper()}: {error}")
            found[name] = error_json(error)
            codes.append(exit_code(error))
        else:
            lines += result.lines
            found[name] = result.found
            codes.append(result.code)
    return lines, found, joint_code(codes)


def offered(kinds: Sequence[AnyKind]) -> Mapping[str, Sequence[OfferedKind[Any]]]:
    """The kinds that users can run, by the names they choose."""
    found: dict[str, list[OfferedKind[Any]]] = {}
    for kind in kinds:
        if isinstance(kind, OfferedKind):
            found.setdefault(kind.choice, []).append(kind)
    return found


def off_by_rule(run: MaintenanceRun, target: SelectedTable, key: str | None) -> str | None:
    """The reason if the rule `key` disables a kind in this table, or None."""
    if key is None or getattr(target.policy, key) is not MaintenanceRule.OFF:
        return None
    return f"{setting_origin(run.choice.loaded, target.name, key)} is off"


def of_a_command(options: ExpireOptions, least: int = _LEAST) -> ExpireOptions:
    """The options with a limit of at least `least` snapshots in a round.

    A command runs until no snapshot is due, and each round reads all tags and branches: small
    rounds would read these repeatedly. A limit of 0 disables expiry.
    """
    return replace(options, limit=max(options.limit, least)) if options.limit > 0 else options


class CommandTable:
    """The `OpenedTable` of a command, opened as the service opens it.

    At least `least` snapshots expire in a round if that many are due. `holds_of` returns the
    table's holds. Raises `UnsupportedTable` for a table that must not be changed.
    """

    watches_files = False

    def __init__(
        self,
        target: SelectedTable,
        config: ServiceConfig,
        clock: Clock,
        stop: threading.Event,
        *,
        holds_of: Callable[[TableAccess], TableHolds | None],
        least: int = _LEAST,
    ) -> None:
        self.clock, self.owner = clock, ids.this_process()
        self._stop, self._least = stop, least
        self._memories: dict[type, Any] = {}
        self._was_looked_back = False
        request = CompactRequest.of(target.policy, config)
        access = target.open()
        self._holds = holds_of(access)
        self._followed = TableSession(
            access,
            request,
            clock=clock,
            owner=self.owner,
            registries=target.registries,
        )
        self._followed.refresh()

    @property
    def table(self) -> OpenTable:
        table = self._followed.table
        expire = of_a_command(table.options.expire, self._least)
        return replace(table, options=replace(table.options, expire=expire))

    def memory(self, type_: type[T]) -> T:
        found: T = self._memories.setdefault(type_, type_())
        return found

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def newest_state(self) -> TableState:
        self._followed.refresh()
        return self._followed.state

    def expiry_blocker(self) -> str | None:
        """Waits while the newest snapshot may be replaced, unless it is to stop.

        Only the snapshots show a commit of a writer that a late rename lost: they are checked
        first. Raises what reading raises.
        """
        self._look_back()
        return self._followed.expiry_blocker() or text_of(self.why_held())

    def why_held(self) -> Hold | None:
        """See `OpenedTable`; None where `--force` overrides it."""
        if self._holds is None:
            return None
        return self._holds.why_held(self.newest_state, self.table.bucket_folder)

    def drop_partitions(self, chosen: ChosenPartitions) -> CommitOutcome:
        # Later ones are looked back at by the commit, which commits again what was lost.
        if not self._was_looked_back:
            self._look_back()
        return self._followed.drop_partitions(chosen, busy=())

    def _look_back(self) -> None:
        wait_ms = self._followed.wait_ms()
        if wait_ms:
            _log.info("commit_settling", seconds=round(wait_ms / 1000, 1))
            self._stop.wait(wait_ms / 1000)
        self._followed.refresh()
        self._followed.look_back(busy=(), may_commit=False)
        self._was_looked_back = True


def of_choice(name: str, run: MaintenanceRun, target: SelectedTable) -> Result:
    """Runs the kinds of this name in one table: round after round, until none is due.

    A dry run reports the work instead. Skips kinds that a rule disables or that no option
    requests. A failure after a round is reported with that round's result. Raises `UsageError` for
    a name that no kind has.
    """
    kinds = offered(run.kinds).get(name)
    if kinds is None:
        raise UsageError(f"there is no kind of maintenance {name}")
    opened: CommandTable | None = None
    refusal: Sequence[str] = ()
    all_done: list[Done[Any]] = []
    table: OpenTable | None = None
    for kind in kinds:
        why_not = off_by_rule(run, target, kind.rule)
        if why_not is None:
            least = _ALL_ROUNDS if run.is_dry else _LEAST
            opened = opened or CommandTable(
                target,
                run.choice.loaded.config,
                run.clock,
                run.stop,
                holds_of=run.holds_of,
                least=least,
            )
            if table is None:
                # The report uses the options that requested the kind.
                table, refusal = opened.table, run.refusal(target, opened.why_held())
            all_done.append(_done(kind.for_table(target.policy), run, opened))
        else:
            all_done.append(Done(why_not=why_not))
    shown = run.shown(target, table)
    report = kinds[0].report(shown, *all_done)
    ended = [done.error for done in all_done if done.error is not None]
    report = replace(report, lines=[*report.lines, *refusal], errors=[*ended, *report.errors])
    was_stopped = opened is not None and not run.is_dry and run.stop.is_set()
    return result_of(report, shown, was_stopped=was_stopped)


def result_of(report: Report, shown: ShownTable, *, was_stopped: bool) -> Result:
    """The result of a table with this report; prints its errors."""
    for error in report.errors:
        say(f"{shown.name}: FAILED: {error}")
    return Result(
        lines=report.lines,
        found={**report.found, **(error_json(report.errors[0]) if report.errors else {})},
        code=FAILED if was_stopped or report.errors else OK,
    )


def _done(kind: OfferedKind[T], run: MaintenanceRun, opened: CommandTable) -> Done[T]:
    why_not = kind.not_configured(opened.table)
    if why_not is not None:
        return Done(why_not=why_not)
    if run.is_dry:
        return kind.preview(opened)
    rounds: list[T] = []
    while not run.stop.is_set():
        try:
            rounds.append(kind.run(opened, None))
        except CompactordError as error:
            if not rounds:
                raise
            return Done(rounds=rounds, error=error)
        if not kind.has_more(rounds[-1]):
            break
    return Done(rounds=rounds)
