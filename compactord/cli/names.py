"""Selection of tables by their names. Quick to import, for commands that only query a service."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Sequence

from compactord.errors import UsageError
from compactord.text import did_you_mean, did_you_mean_table


def with_catalog_of_table(
    args: argparse.Namespace, catalogs: Collection[str]
) -> argparse.Namespace:
    """The arguments, in which `--table CATALOG.DB.T` is split if it names one of the catalogs.

    The page, alerts and logs show tables so.
    """
    catalog, _, table = (args.table or "").partition(".")
    if "." not in table or catalog not in catalogs or args.catalog not in (None, catalog):
        return args
    return argparse.Namespace(**{**vars(args), "catalog": catalog, "table": table})


def suggestion(args: argparse.Namespace, known: Collection[tuple[str, str]]) -> str:
    """`did_you_mean` for a selection without tables; `known` are databases and full names."""
    if args.database is not None:
        return did_you_mean(args.database, {database for database, _ in known})
    return did_you_mean_table(args.table or args.tables or "", sorted(name for _, name in known))


def unknown_choice(flag: str, value: str, known: Sequence[str]) -> UsageError:
    """The error for a value of a flag that only the command itself can check."""
    expected = ", ".join(known)
    hint = did_you_mean(value, known)
    return UsageError(f"{flag} {value}: unknown; it is one of {expected}{hint}")


def table_test(args: argparse.Namespace) -> Callable[[str, str], bool]:
    """Whether the arguments choose the table of this database and full name."""
    pattern = pattern_of(args)

    def is_chosen(database: str, full_name: str) -> bool:
        if args.table not in (None, full_name) or args.database not in (None, database):
            return False
        return pattern is None or pattern.fullmatch(full_name) is not None

    return is_chosen


def pattern_of(args: argparse.Namespace) -> re.Pattern[str] | None:
    """`--tables`, or None without it. Raises `UsageError` for no regular expression."""
    if args.tables is None:
        return None
    # Slow to import.
    from compactord.config.values import table_pattern

    try:
        return table_pattern(args.tables)
    except ValueError as error:
        raise UsageError(f"--tables {args.tables}: expected {error}") from None
