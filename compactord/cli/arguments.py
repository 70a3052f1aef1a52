"""The arguments of the commands for tables: declared, checked and parsed.

Errors are `UsageError`s that name the argument and say what was expected.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.config.model import ServiceConfig
from compactord.config.problems import COMMAND_LINE, Problem
from compactord.config.source import Node, References
from compactord.config.values import orphan_grace_ms
from compactord.engine.masters import check_spark
from compactord.errors import CompactordError, UsageError
from compactord.paimon.option_catalogue import check_override
from compactord.paimon.option_values import duration_ms, memory_size
from compactord.plan.table import Strategy
from compactord.redaction import redact_text
from compactord.table import report
from compactord.table.partition_texts import unescaped

_LEAST_MEMORY = 32 << 20


def error_json(error: CompactordError | KeyboardInterrupt) -> dict[str, str]:
    """The error that ended a command, as plain data."""
    return {"error": str(error) or "interrupted", "kind": type(error).__name__}


class Parser(argparse.ArgumentParser):
    """With --json, also reports wrong arguments as a JSON object."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        message = redact_text(message)
        if "--json" in self._given:
            found = json.dumps(error_json(UsageError(message)))
            self._print_message(f"{found}\n", sys.stdout)
        super().error(message)


def add_choice_arguments(parser: argparse.ArgumentParser) -> None:
    """Which tables a command is for (`cli/choice.py`)."""
    add_place_arguments(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--table", metavar="DB.T", help="one table, with its database")
    which.add_argument("--database", metavar="DB", help="all tables of a database")
    which.add_argument(
        "--tables",
        metavar="REGEX",
        help="all tables whose whole name, database.table, matches this regular expression",
    )
    add_output_arguments(parser)


def add_one_table_arguments(parser: argparse.ArgumentParser) -> None:
    """As `add_choice_arguments`, for one table that is always named."""
    parser.add_argument("table", metavar="DB.T", help="the table, with its database")
    parser.set_defaults(database=None, tables=None)
    add_place_arguments(parser)
    add_output_arguments(parser)


def add_dry_run_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would go; change nothing")


def add_bucket_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bucket", type=int, metavar="N", help="only the buckets of this number")


def add_place_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--warehouse", help="root folder of the warehouse")
    where.add_argument(
        "--config",
        metavar="FILE",
        help="a configuration of serve: its catalogs, and its rules for each table",
    )
    parser.add_argument("--catalog", metavar="NAME", help="only this catalog of --config")
    parser.add_argument(
        "--set",
        dest="config_overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a value that overrides --config's; may be repeated",
    )


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object, last on stdout")
    parser.add_argument("-v", "--verbose", action="store_true", help="log more on stderr")


def add_option_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a table option for this run; overrides the table's own; may be repeated",
    )


def add_partition_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partition",
        action="append",
        default=[],
        metavar="K=V[,K=V]",
        help="only these partitions; may be repeated. Null is written as the table's "
        "partition.default-name (__DEFAULT_PARTITION__); %%2C is a comma, %%25 a percent sign",
    )


def add_worst_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--worst", type=int, metavar="N", help="only the N buckets that need compaction most"
    )


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strategy",
        default=Strategy.MINOR.value,
        metavar="{minor,full}",
        help="minor (default): compact what the table's triggers ask for; full: everything into "
        "the highest level, or every file below the target size on an append table",
    )
    add_partition_argument(parser)
    parser.add_argument(
        "--append-wait",
        metavar="DURATION",
        help="merge small append files that have waited longer, even if there are fewer than "
        "compaction.min.file-num (default: --config's; without one they wait for more)",
    )
    parser.add_argument(
        "--quiet-for",
        metavar="DURATION",
        help="skip partitions of an append table that a command rewrote (DELETE, UPDATE, "
        "MERGE) within this time (default: --config's, else 0 s: skip none)",
    )


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "where and how it runs", "For compact; plan checks these arguments but does not use them."
    )
    group.add_argument(
        "--master",
        help="Spark master, sc://… for Spark Connect (default: a Spark inside this process)",
    )
    group.add_argument(
        "--spark-conf",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Spark setting; may be repeated. Other users can see command lines: write "
        "secrets as ${env:NAME} or ${file:/path}, here and in --master",
    )
    group.add_argument(
        "--memory",
        help="memory of one merge, in addition to the idle worker's (default: --config's, else "
        "512 mb)",
    )
    add_grace_argument(group)


def add_grace_argument(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument(
        "--orphan-grace",
        metavar="DURATION",
        help="age at which left-over files of earlier runs are deleted when it cannot be proved "
        "that their run has ended (default: --config's, else 1 d; at least 1 h); must exceed the "
        "longest compaction",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """Where merges run, and with what; `master` None is the embedded Spark."""

    master: str | None
    spark_conf: Mapping[str, str]
    memory_bytes: int
    orphan_grace_ms: int


def engine_arguments(args: argparse.Namespace, config: ServiceConfig) -> EngineArguments:
    """What the arguments say, and where they are silent the configuration."""
    given = _pairs(args.spark_conf, "--spark-conf")
    spark = config.spark
    spark_conf = {
        "spark.app.name": spark.app_name,
        **spark.conf,
        **{name: _resolved(value, f"--spark-conf {name}") for name, value in given.items()},
    }
    master = spark.master if args.master is None else _resolved(args.master, "--master")
    check_spark(master, spark_conf)
    return EngineArguments(
        master=master,
        spark_conf=spark_conf,
        memory_bytes=spark.task_memory_bytes if args.memory is None else _memory(args.memory),
        orphan_grace_ms=grace_ms(args, config),
    )


def grace_ms(args: argparse.Namespace, config: ServiceConfig) -> int:
    if args.orphan_grace is None:
        return config.recovery.orphan_grace_ms
    return _value(orphan_grace_ms, args.orphan_grace, "--orphan-grace")


def open_warehouse(warehouse: str) -> Catalog:
    """The catalog that `--warehouse` names. Raises `UsageError` for what names none."""
    if not warehouse:
        raise UsageError("--warehouse is empty")
    return open_catalog(warehouse)


def strategy_of(args: argparse.Namespace) -> Strategy:
    try:
        return Strategy(args.strategy)
    except ValueError:
        raise UsageError(f"--strategy {args.strategy}: unknown; it is one of minor, full") from None


def overrides_of(args: argparse.Namespace) -> Mapping[str, str]:
    """Options of the table, by key as it was given."""
    overrides = _pairs(args.option, "--option")
    for key, value in overrides.items():
        check_override(key, value)
    return overrides


def partitions_of(args: argparse.Namespace) -> tuple[Mapping[str, str], ...]:
    """The requested partitions; escaped as in folder names, so that values may contain commas."""
    asked = (_pairs(text.split(","), "--partition") for text in args.partition)
    return tuple(
        {unescaped(name): unescaped(value) for name, value in pairs.items()} for pairs in asked
    )


def append_wait_ms(args: argparse.Namespace, default: int | None) -> int | None:
    if args.append_wait is None:
        return default
    return _value(duration_ms, args.append_wait, "--append-wait")


def quiet_for_ms(args: argparse.Namespace, default: int) -> int:
    return default if args.quiet_for is None else _value(duration_ms, args.quiet_for, "--quiet-for")


def _pairs(texts: Sequence[str], argument: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{argument} {redact_text(text)!r} is not of the form key=value")
        if pairs.setdefault(key.strip(), value) != value:
            raise UsageError(f"{argument} gives {key.strip()} twice, with different values")
    return pairs


def _resolved(text: str, argument: str) -> str:
    """Resolves references to secrets as `serve` does: all users of a machine can see arguments."""
    problems: list[Problem] = []
    node = Node(content=text, origin=COMMAND_LINE)
    References(os.environ, problems).resolve(node)
    for problem in problems:
        raise UsageError(f"{argument} has {problem.value}: expected {problem.expected}")
    return str(node.content)


def _value(parse: Callable[[str], int], text: str, argument: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{argument} {text!r}: {error}") from error


def _memory(text: str) -> int:
    size = _value(memory_size, text, "--memory")
    if size < _LEAST_MEMORY:
        raise UsageError(
            f"--memory {text}: a merge needs {report.size_text(_LEAST_MEMORY)} or more"
        )
    return size
