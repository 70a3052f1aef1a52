"""Selects the tables of a command and runs it on each: one result per table, one exit code.

A named table is always selected. In a database, a pattern or a whole configuration, tables that
the service would not manage are skipped and listed with the reason.
"""

from __future__ import annotations

import argparse
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import partial
from typing import Any, TypeVar

from structlog.contextvars import bound_contextvars

from compactord.catalog.access import TableAccess
from compactord.catalog.base import Catalog
from compactord.cli.argument_values import overrides_of, warehouse_config
from compactord.cli.catalog_arguments import refuse_catalog_arguments
from compactord.cli.names import (
    pattern_of,
    suggestion,
    table_test,
    unknown_choice,
    with_catalog_of_table,
)
from compactord.cli.registries import Registries, registries_of
from compactord.cli.running import (
    FAILED,
    NO_ENGINE,
    OK,
    answer,
    error_json,
    exit_code,
    failure_word,
    joint_code,
    say,
    summary_text,
    tell,
)
from compactord.cli.serve import load_usable, open_configured, warn_of_options
from compactord.config.load import LoadedConfig
from compactord.config.policy import TablePolicy, policy_for, setting_keys
from compactord.errors import CompactordError, TableNotFound, UsageError
from compactord.model import TableName
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.schema import TableRef
from compactord.service.registry import branches_of
from compactord.service.view import TableStatus, unmanaged_reason
from compactord.text import did_you_mean

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTable:
    """A table with the settings that hold for it; it is opened within `wrap_access`."""

    catalog_name: str
    catalog: Catalog
    ref: TableRef
    policy: TablePolicy
    registries: Registries = field(repr=False)
    wrap_access: Callable[[TableAccess], TableAccess] = lambda access: access

    @property
    def name(self) -> TableName:
        return TableName(self.catalog_name, self.ref.database, self.ref.name)

    @property
    def full_name(self) -> str:
        return self.ref.full_name

    def open(self) -> TableAccess:
        """See `Catalog.open`, also for what it raises."""
        return self.wrap_access(self.catalog.open(self.ref))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSelection:
    """The tables that the arguments select.

    `is_single`: one table, by its name.
    `unreadable` has the databases and catalogs that could not be listed, with their errors.
    """

    loaded: LoadedConfig
    is_single: bool
    targets: tuple[SelectedTable, ...]
    unreadable: Mapping[str, CompactordError]

    @property
    def zone(self) -> tzinfo | None:
        """The configured time zone, or None for the system's."""
        return self.loaded.config.service.zone

    def shown_name(self, target: SelectedTable) -> str:
        """The table's name, with its catalog's where there are several."""
        if len(self.loaded.config.catalogs) < 2:
            return target.full_name
        return f"{target.catalog_name}.{target.full_name}"

    def keys_of(self, target: SelectedTable) -> Mapping[str, str]:
        """The key of the configuration that decides each setting of the table (`setting_keys`)."""
        return setting_keys(self.loaded.config, target.name)

    def unmanaged_reason(
        self, target: SelectedTable, *, write_only: bool
    ) -> tuple[TableStatus, str] | None:
        """Why the service does not manage a supported table, or None if it does."""
        name, branch = target.name, target.ref.branch
        return unmanaged_reason(self.loaded, name, branch, target.policy, write_only=write_only)


def choose(args: argparse.Namespace) -> TableSelection:
    """The tables that the arguments select; without a selection all of them.

    Raises `UsageError` for arguments that contradict each other, `ConfigInvalid` for the
    configuration, `TableNotFound` for what does not exist.
    """
    loaded, registries = load_place(args), registries_of(args)
    args = with_catalog_of_table(args, loaded.config.catalogs)
    is_single = args.table is not None
    pattern_of(args)
    catalogs = {
        name: open_configured(loaded.config, name, registries)
        for name in catalog_names(args, loaded, is_single=is_single)
    }
    warn_of_options(loaded.config, catalogs, registries.stores)
    unreadable: dict[str, CompactordError] = {}
    targets: list[SelectedTable] = []

    def listed(name: str) -> tuple[Sequence[TableRef], Mapping[str, CompactordError]]:
        errors: dict[str, CompactordError] = {}
        branches = partial(branches_of, config=loaded.config, name=name, catalog=catalogs[name])
        try:
            return list(tables_of(args, catalogs[name], errors, branches)), errors
        except CompactordError as error:
            if len(catalogs) == 1:
                raise
            return (), {**errors, f"catalog {name}": error}

    for name, (found, errors) in zip(catalogs, side_by_side(listed, list(catalogs)), strict=True):
        unreadable |= errors
        for ref in found:
            policy = policy_for(loaded.config, TableName(name, ref.database, ref.name))
            targets.append(
                SelectedTable(
                    catalog_name=name,
                    catalog=catalogs[name],
                    ref=ref,
                    policy=policy,
                    registries=registries,
                )
            )
    is_part = (args.database, args.tables) != (None, None)
    known: Sequence[TableRef] = ()
    if not targets and not unreadable and is_part:
        known = [table for each in catalogs.values() for table in each.list_tables().tables]
    # An empty warehouse has no tables yet: no selection is wrong there.
    if known:
        what = f"database {args.database}" if args.database else f"--tables {args.tables}"
        places = ", ".join(catalog.warehouse for catalog in catalogs.values())
        hint = suggestion(args, {(table.database, table.full_name) for table in known})
        raise TableNotFound(f"{what} matches no table in {places}{hint}")
    return TableSelection(
        loaded=loaded,
        is_single=is_single,
        targets=tuple(targets),
        unreadable=unreadable,
    )


def side_by_side(call: Callable[[T], R], each: Sequence[T]) -> list[R]:
    """`call` for each of several catalogs, in order; none waits for another one that is silent."""
    if len(each) < 2:
        return [*map(call, each)]
    with ThreadPoolExecutor(len(each), "catalog") as pool:
        return [*pool.map(call, each)]


def load_place(args: argparse.Namespace) -> LoadedConfig:
    """The configuration that `--config` or `--warehouse` names. Raises as `choose`."""
    if args.config is not None:
        refuse_catalog_arguments(args)
        return load_usable(args.config, args.config_overrides, registries_of(args))
    if args.catalog is not None or args.config_overrides:
        raise UsageError("--catalog and --set need --config")
    return warehouse_config(args, registries_of(args))


def catalog_names(args: argparse.Namespace, loaded: LoadedConfig, *, is_single: bool) -> list[str]:
    """The catalogs that are meant. Raises `UsageError` for one table where several could be."""
    configured = loaded.config.catalogs
    names = list(configured)
    if args.catalog is not None:
        if args.catalog not in configured:
            raise unknown_choice("--catalog", args.catalog, names)
        names = [args.catalog]
    if is_single and len(names) > 1:
        catalog, *others = args.table.split(".", 2)
        hint = did_you_mean(catalog, names) if len(others) > 1 else ""
        raise UsageError(
            f"--table {args.table}: {loaded.path} has several catalogs; give one of them by "
            f"--catalog: {', '.join(names)}{hint}"
        )
    return names


def tables_of(
    args: argparse.Namespace,
    catalog: Catalog,
    unreadable: dict[str, CompactordError],
    branches: Callable[[TableRef], Sequence[TableRef]] = lambda _: (),
) -> Iterator[TableRef]:
    """The tables of a catalog that the arguments name; adds to `unreadable` (`TableSelection`).

    Each table is followed by its selected `branches`.
    """
    if args.table is not None:
        yield catalog.find_table(args.table)
        return
    is_chosen = table_test(args)
    listed = catalog.list_tables()
    for database, error in listed.unreadable.items():
        if args.database in (None, database):
            unreadable[f"database {database}"] = error
    for table in listed.tables:
        if args.database not in (None, table.database):
            continue
        others: Sequence[TableRef] = ()
        try:
            others = branches(table)
        except CompactordError as error:
            unreadable[f"branches of {table.full_name}"] = error
        for ref in (table, *others):
            if is_chosen(ref.database, ref.full_name):
                yield ref


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a command in one table: lines of text, and the same as plain data."""

    lines: Sequence[str]
    found: Mapping[str, Any]
    code: int = OK


def table_overrides(args: argparse.Namespace, target: SelectedTable) -> dict[str, str]:
    """Table options of the rules, overridden by the options of the run."""
    given = overrides_of(args) if "option" in args else {}
    return {**target.policy.options, **given}


def why_unmanaged(
    args: argparse.Namespace, choice: TableSelection, target: SelectedTable
) -> str | None:
    """Why the service does not work on the table, None if it does. Reads the table's schema."""
    options = parse_options(target.open().newest_schema(), table_overrides(args, target))
    found = choice.unmanaged_reason(target, write_only=options.write_only)
    return None if found is None else f"{found[0].value}: {found[1]}"


def note_if_unmanaged(args: argparse.Namespace, choice: TableSelection, what: str) -> None:
    """Print a note if the service does not manage the one table that was named."""
    if not choice.is_single:
        return
    why = why_unmanaged(args, choice, choice.targets[0])
    if why is not None:
        name = choice.shown_name(choice.targets[0])
        say(f"note: {name}: {what} because it was named; serve does not manage it: {why}")


def over_tables(
    args: argparse.Namespace,
    choice: TableSelection,
    work: Callable[[SelectedTable], Result],
    *,
    passes_over: bool,
    stop: threading.Event | None = None,
) -> int:
    """Print the result of `work` for each table; the exit code.

    Raises the errors of a single named table. With several tables the next one follows after a
    failure, and `passes_over` skips tables that the service does not manage. No further table
    starts once `stop` is set or the engine cannot be reached.
    """
    if choice.is_single:
        result = _worked(work, choice.targets[0])
        answer(args, result.found, result.lines)
        return result.code
    tables: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    # Exit codes, also of databases and catalogs that cannot be listed.
    codes: list[int] = []
    for index, target in enumerate(choice.targets):
        if (stop is not None and stop.is_set()) or NO_ENGINE in codes:
            counts["not begun"] += len(choice.targets) - index
            codes.append(NO_ENGINE if NO_ENGINE in codes else FAILED)
            break
        outcome, more, own = _one_of_several(args, choice, target, work, passes_over=passes_over)
        named = {"table": target.full_name, "catalog": target.catalog_name}
        tables.append({**named, "outcome": outcome.replace(" ", "_"), **more})
        counts[outcome] += 1
        codes += own
    for what, trouble in choice.unreadable.items():
        say(f"{what}: FAILED: {trouble}")
        counts["not listed"] += 1
        codes.append(exit_code(trouble))
    unreadable = {name: str(error) for name, error in choice.unreadable.items()}
    found = {"tables": tables, "unreadable": unreadable, "summary": dict(counts)}
    parts = [f"{number} {what}" for what, number in counts.items()]
    answer(args, found, [summary_text(len(choice.targets), parts)])
    return joint_code(codes)


def _one_of_several(
    args: argparse.Namespace,
    choice: TableSelection,
    target: SelectedTable,
    work: Callable[[SelectedTable], Result],
    *,
    passes_over: bool,
) -> tuple[str, Mapping[str, Any], list[int]]:
    """The outcome in words, its plain data, and the exit code unless the table was skipped."""
    name = choice.shown_name(target)
    try:
        why = why_unmanaged(args, choice, target) if passes_over else None
        if why is not None:
            _print(args, [f"{name}: passed over, {why}"])
            return "passed over", {"why": why}, []
        result = _worked(work, target)
    except CompactordError as error:
        outcome = failure_word(error)
        say(f"{name}: {outcome.upper()}: {error}")
        return outcome, error_json(error), [exit_code(error)]
    _print(args, result.lines)
    return "done" if result.code == OK else "failed", result.found, [result.code]


def _worked(work: Callable[[SelectedTable], Result], target: SelectedTable) -> Result:
    """The result of `work`, whose log entries name the table."""
    with bound_contextvars(**target.name.log_fields):
        return work(target)


def _print(args: argparse.Namespace, lines: Sequence[str]) -> None:
    """Print lines of text, unless the output is JSON."""
    for line in () if args.json else lines:
        tell(line)
