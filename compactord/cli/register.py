"""`compactord catalog register`: a catalog learns of the tables that lie in its warehouse."""

from __future__ import annotations

import argparse

from compactord.catalog.base import Registration
from compactord.cli.names import with_catalog_of_table
from compactord.cli.registries import Registries, registries_of
from compactord.cli.running import answer, exit_code, joint_code, say
from compactord.cli.select import catalog_names, load_place, tables_of
from compactord.cli.serve import open_configured, warn_of_options
from compactord.config.load import LoadedConfig
from compactord.errors import CompactordError, UsageError
from compactord.paimon.schema import TableRef
from compactord.text import count_text, printable


def register(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    loaded = load_place(args)
    args = with_catalog_of_table(args, loaded.config.catalogs)
    registration = _registration(args, loaded, registries_of(args))
    unreadable: dict[str, CompactordError] = {}
    tables = list(tables_of(args, registration.files, unreadable))
    if args.execute:
        _execute(args, registration, tables)
    else:
        _print(args, registration, tables)
    for what, error in unreadable.items():
        say(f"compactord: {what} cannot be listed, so its tables are left out: {error}")
    return joint_code(map(exit_code, unreadable.values()))


def _registration(
    args: argparse.Namespace, loaded: LoadedConfig, registries: Registries
) -> Registration:
    """The registration of the one selected catalog that registers its tables."""
    opened = {
        name: open_configured(loaded.config, name, registries).registration()
        for name in catalog_names(args, loaded, is_single=False)
    }
    found = {name: registration for name, registration in opened.items() if registration}
    if not found:
        able = [name for name, kind in registries.kinds.items() if "register" in kind.examples]
        raise UsageError(
            f"tables are registered in a catalog of metastore {' or '.join(able)}: give "
            f"--metastore {able[0]}, or one by --catalog"
        )
    if len(found) > 1:
        raise UsageError(f"give one of these catalogs by --catalog: {', '.join(found)}")
    warn_of_options(loaded.config, found, registries.stores)
    return next(iter(found.values()))


def _print(args: argparse.Namespace, registration: Registration, tables: list[TableRef]) -> None:
    script = list(registration.script(tables))
    if any(printable(statement) != statement for statement in script):
        raise UsageError("a name has characters that cannot be printed as SQL: use --execute")
    found = {"tables": [t.full_name for t in tables], "statements": script}
    answer(args, found, (f"{statement};" for statement in script))


def _execute(args: argparse.Namespace, registration: Registration, tables: list[TableRef]) -> None:
    done = registration.add(tables)
    known = [t.full_name for t in tables if t.full_name not in done.tables]
    found = {"created": list(done.created), "registered": list(done.tables), "known": known}
    lines = [f"created {name}" for name in done.created]
    lines += [f"registered {name}" for name in done.tables]
    total, before = count_text(len(tables), "table"), len(tables) - len(done.tables)
    lines.append(f"{total}: {len(done.tables)} registered, {before} known before")
    answer(args, found, lines)
