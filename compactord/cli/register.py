"""`compactord catalog register`: a JDBC catalog learns of the tables that lie in its warehouse."""

from __future__ import annotations

import argparse
import json

from compactord.catalog.jdbc.registration import Registration
from compactord.catalog.open import open_registration
from compactord.cli.choice import load_place, tables_of
from compactord.cli.loading import warn_of_options
from compactord.cli.running import OK, exit_code, say, tell
from compactord.config.load import LoadedConfig
from compactord.errors import CompactordError, UsageError
from compactord.paimon.table import TableRef
from compactord.redaction import printable
from compactord.table.report import count_text


def register(args: argparse.Namespace) -> int:
    """Run the command; the exit code."""
    loaded = load_place(args)
    name = _catalog_name(args, loaded)
    section = loaded.config.catalogs[name]
    registration = open_registration(
        section.warehouse, options=section.options, zone=loaded.config.service.zone
    )
    warn_of_options(loaded.config, [name])
    unreadable: dict[str, CompactordError] = {}
    tables = list(tables_of(args, registration.files, unreadable))
    if args.execute:
        _execute(args, registration, tables)
    else:
        _print(args, registration, tables)
    for what, error in unreadable.items():
        say(f"compactord: {what} cannot be listed, so its tables are left out: {error}")
    return max((exit_code(error) for error in unreadable.values()), default=OK)


def _catalog_name(args: argparse.Namespace, loaded: LoadedConfig) -> str:
    """The one JDBC catalog that is meant."""
    catalogs = loaded.config.catalogs
    if args.catalog is not None and args.catalog not in catalogs:
        raise UsageError(f"--catalog {args.catalog}: expected one of {', '.join(catalogs)}")
    names = [
        name
        for name, section in catalogs.items()
        if section.metastore == "jdbc" and args.catalog in (None, name)
    ]
    if not names:
        raise UsageError("tables are registered in a JDBC catalog: give --metastore jdbc, or one")
    if len(names) > 1:
        raise UsageError(f"give one of the JDBC catalogs by --catalog: {', '.join(names)}")
    return names[0]


def _print(args: argparse.Namespace, registration: Registration, tables: list[TableRef]) -> None:
    script = list(registration.script(tables))
    if any(printable(statement) != statement for statement in script):
        raise UsageError("a name has characters that cannot be printed as SQL: use --execute")
    if args.json:
        print(json.dumps({"tables": [t.full_name for t in tables], "statements": script}))
        return
    for statement in script:
        print(f"{statement};")


def _execute(args: argparse.Namespace, registration: Registration, tables: list[TableRef]) -> None:
    made = registration.add_tables()
    added = [row for row in registration.rows(tables) if registration.add(row)]
    names = [
        f"{row.values['database_name']}.{row.values['table_name']}"
        for row in added
        if "table_name" in row.values
    ]
    if args.json:
        known = [t.full_name for t in tables if t.full_name not in names]
        print(json.dumps({"created": made, "registered": names, "known": known}))
        return
    for name in made:
        tell(f"created {name}")
    for name in names:
        tell(f"registered {name}")
    before = len(tables) - len(names)
    tell(f"{count_text(len(tables), 'table')}: {len(names)} registered, {before} known before")
