"""Names of tables, and where a catalog that keeps no locations has them: `<db>.db/<table>`."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Sequence

from compactord.catalog.base import TableList
from compactord.errors import ObjectNotFound, StorageError, TableNotFound, UsageError
from compactord.paimon.paths import MAIN_BRANCH, is_file_name, schema_path
from compactord.paimon.schema import BRANCH_MARK, TableRef, schema_ids
from compactord.paimon.snapshot import branch_names
from compactord.storage.base import Storage

DATABASE_SUFFIX = ".db"


def table_at(warehouse: str, database: str, name: str) -> TableRef:
    """The table in its place (catalog/AbstractCatalog.java, `getTableLocation`)."""
    location = f"{warehouse}/{database}{DATABASE_SUFFIX}/{name}"
    return TableRef(database=database, name=name, location=location)


def parse_name(name: str, list_tables: Callable[[], TableList]) -> tuple[str, str, str]:
    """Database, table and branch of `database.table` or `database.table$branch_b`.

    Raises `UsageError` for a malformed name of no table, with those that were perhaps meant, and
    for system tables.
    """
    database, dot, rest = name.partition(".")
    table, dollar, marked = rest.partition("$")
    branch = (dollar + marked).removeprefix(BRANCH_MARK) if dollar else MAIN_BRANCH
    if "$" not in branch and dot and all(map(is_file_name, (database, table, branch))):
        return database, table, branch
    # Servers have tables of any name, and folders such with a $.
    known = _known_tables(list_tables)
    for table_ref in known:
        if table_ref.full_name == name:
            return table_ref.database, table_ref.name, MAIN_BRANCH
    if "$" in branch:
        raise UsageError(f"table {name!r} is a system table, which has no files of its own")
    hint = _nearest(name, known)
    forms = "database.table or database.table$branch_name"
    raise UsageError(f"table {name!r} is not of the form {forms}{hint}")


def nearest_names(name: str, list_tables: Callable[[], TableList]) -> str:
    """The tables whose names are most like this one, as a question; empty if there is none."""
    return _nearest(name, _known_tables(list_tables))


def _nearest(name: str, tables: Sequence[TableRef]) -> str:
    known = [table.full_name for table in tables]
    # Upper case is the usual slip, and folders are told apart by it.
    lower = {full.lower(): full for full in known}
    near = difflib.get_close_matches(name.lower(), lower, n=3)
    # A table of that name in another database counts, however its database is called.
    same = [full for full in known if full.partition(".")[2] == name.rpartition(".")[2]]
    found = list(dict.fromkeys([*(lower[text] for text in near), *same]))[:3]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _known_tables(list_tables: Callable[[], TableList]) -> Sequence[TableRef]:
    """None where they cannot be listed: another error is told."""
    try:
        return list_tables().tables
    except (StorageError, TableNotFound):
        return ()


def require_schema(storage: Storage, ref: TableRef) -> None:
    """Raises `TableNotFound` unless the table or branch has a schema, and what listing raises."""
    if may_be_table(storage, ref.root):
        return
    if ref.branch == MAIN_BRANCH:
        raise TableNotFound(f"{ref.location} is not a Paimon table: it has no schema")
    known = ", ".join((MAIN_BRANCH, *branch_names(storage, ref.location)))
    raise TableNotFound(f"{ref.location} has no branch {ref.branch}; its branches are {known}")


def may_be_table(storage: Storage, location: str) -> bool:
    """Whether there is a schema: one small request for a table, a listing for what may be none.

    No writer removes the first schema. When listing fails, True: opening the table reports the
    error.
    """
    with contextlib.suppress(StorageError):
        first = storage.status(schema_path(location, 0))
        if first is not None and not first.is_folder:
            return True
    try:
        return bool(schema_ids(storage, location))
    except ObjectNotFound:
        return False
    except StorageError:
        return True
