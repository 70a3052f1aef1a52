"""What the arguments of the commands for tables mean: parsed and checked.

Errors are `UsageError`s that name the argument and say what was expected.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compactord.config.amounts import duration_ms, orphan_grace_ms, size_bytes
from compactord.config.model import Limits, ServiceConfig
from compactord.config.warehouse import pairs, resolved
from compactord.engine.masters import check_spark
from compactord.errors import UsageError
from compactord.model import PickRule
from compactord.paimon.options.catalogue import check_override
from compactord.plan.table import Strategy
from compactord.table import report
from compactord.table.partition_texts import unescaped

_LEAST_MEMORY = 32 << 20
_LEAST_TIMEOUT_MS = 1000
# Of files whose writer is not known; clocks may differ, too.
_LEAST_AGE_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArguments:
    """Where merges run, and with what; `master` None is the embedded Spark."""

    master: str | None
    spark_conf: Mapping[str, str]
    memory_bytes: int
    orphan_grace_ms: int
    limits: Limits


def engine_arguments(args: argparse.Namespace, config: ServiceConfig) -> EngineArguments:
    """What the arguments say, and where they are silent the configuration."""
    given = pairs(args.spark_conf, "--spark-conf")
    spark = config.spark
    spark_conf = {
        "spark.app.name": spark.app_name,
        **spark.conf,
        **{name: resolved(value, f"--spark-conf {name}") for name, value in given.items()},
    }
    master = spark.master if args.master is None else resolved(args.master, "--master")
    check_spark(master, spark_conf)
    return EngineArguments(
        master=master,
        spark_conf=spark_conf,
        memory_bytes=spark.task_memory_bytes if args.memory is None else _memory(args.memory),
        orphan_grace_ms=grace_ms(args, config),
        limits=_limits(args, config),
    )


def grace_ms(args: argparse.Namespace, config: ServiceConfig) -> int:
    if args.orphan_grace is None:
        return config.recovery.orphan_grace_ms
    return _value(orphan_grace_ms, args.orphan_grace, "--orphan-grace")


def older_than_ms(args: argparse.Namespace, default: int) -> int:
    if args.older_than is None:
        return default
    return _value(_older_than_ms, args.older_than, "--older-than")


def _older_than_ms(text: str) -> int:
    age_ms = duration_ms(text)
    if age_ms < _LEAST_AGE_MS:
        raise ValueError("1 h or more: writers publish files some time after they write them")
    return age_ms


def _limits(args: argparse.Namespace, config: ServiceConfig) -> Limits:
    if args.task_timeout is None:
        return config.limits
    timeout_ms = _value(_timeout_ms, args.task_timeout, "--task-timeout")
    return config.limits.model_copy(update={"task_timeout_ms": timeout_ms})


def _timeout_ms(text: str) -> int:
    timeout_ms = duration_ms(text)
    if timeout_ms < _LEAST_TIMEOUT_MS:
        raise ValueError("1 s or more")
    return timeout_ms


def strategy_of(args: argparse.Namespace) -> Strategy:
    try:
        return Strategy(args.strategy)
    except ValueError:
        raise UsageError(f"--strategy {args.strategy}: unknown; it is one of minor, full") from None


def overrides_of(args: argparse.Namespace) -> Mapping[str, str]:
    """Options of the table, by key as it was given."""
    overrides = pairs(args.option, "--option")
    for key, value in overrides.items():
        check_override(key, value)
    return overrides


def partitions_of(args: argparse.Namespace) -> tuple[Mapping[str, str], ...]:
    """The requested partitions; escaped as in folder names, so that values may contain commas."""
    asked = (pairs(text.split(","), "--partition") for text in args.partition)
    return tuple(
        {unescaped(name): unescaped(value) for name, value in one.items()} for one in asked
    )


def append_wait_ms(args: argparse.Namespace, default: int | None) -> int | None:
    if args.append_wait is None:
        return default
    return _value(duration_ms, args.append_wait, "--append-wait")


def quiet_for_ms(args: argparse.Namespace, default: int) -> int:
    return default if args.quiet_for is None else _value(duration_ms, args.quiet_for, "--quiet-for")


def pick_of(args: argparse.Namespace) -> PickRule | None:
    try:
        return None if args.pick is None else PickRule(args.pick)
    except ValueError:
        raise UsageError(f"--pick {args.pick}: unknown; it is one of 2.0, 2.1") from None


def _value(parse: Callable[[str], int], text: str, argument: str) -> int:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{argument} {text!r}: expected {error}") from error


def _memory(text: str) -> int:
    size = _value(size_bytes, text, "--memory")
    if size < _LEAST_MEMORY:
        raise UsageError(
            f"--memory {text}: a merge needs {report.size_text(_LEAST_MEMORY)} or more"
        )
    return size
