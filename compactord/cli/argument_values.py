"""Parses and checks the arguments of the commands for tables.

Errors are `UsageError`s that name the argument and the expected value.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from compactord.cli.catalog_arguments import catalog_keys, pairs
from compactord.cli.registries import registries_of
from compactord.config.load import LoadedConfig
from compactord.config.model import LEAST_TASK_MEMORY_BYTES, ServiceConfig
from compactord.config.policy import config_of_warehouse
from compactord.config.registries import OWN, ConfigRegistries
from compactord.config.values import duration_ms, orphan_grace_ms, size_bytes
from compactord.engine.kinds import check_engine
from compactord.errors import UsageError
from compactord.model import PickRule
from compactord.plan.table import Strategy
from compactord.table.partition_texts import unescaped
from compactord.text import ReferenceMissing, resolve, size_text

T = TypeVar("T")
_ANY = range(sys.maxsize)
# By argument: its parser, the allowed milliseconds or bytes, and these in words.
_AMOUNTS: Mapping[str, tuple[Callable[[str], int], range, str]] = {
    "append_wait": (duration_ms, _ANY, ""),
    "quiet_for": (duration_ms, _ANY, ""),
    "memory": (
        size_bytes,
        _ANY[LEAST_TASK_MEMORY_BYTES:],
        f"{size_text(LEAST_TASK_MEMORY_BYTES)} or more for a merge",
    ),
    "interval": (duration_ms, range(200, 3_600_001), "200 ms to 1 h"),
    "orphan_grace": (orphan_grace_ms, _ANY, ""),
    "task_timeout": (duration_ms, _ANY[1000:], "1 s or more"),
    # Applies to files of unknown writers, whose clocks may differ.
    "older_than": (
        duration_ms,
        _ANY[3_600_000:],
        "1 h or more: writers publish files some time after they write them",
    ),
}


def engine_config(args: argparse.Namespace, config: ServiceConfig) -> ServiceConfig:
    """The configuration with the engine arguments (where and how merges run) applied."""
    pairs_given = pairs(args.spark_conf, "--spark-conf").items()
    given = {name: resolved(value, f"--spark-conf {name}") for name, value in pairs_given}
    master = config.spark.master if args.master is None else resolved(args.master, "--master")
    spark = config.spark.model_copy(
        update={
            "master": master,
            "conf": config.spark.conf | given,
            "task_memory_bytes": amount_of(args, "memory", config.spark.task_memory_bytes),
        }
    )
    check_engine(master, spark.settings, registries_of(args).engines)
    timeout_ms = amount_of(args, "task_timeout", config.limits.task_timeout_ms)
    grace_ms = amount_of(args, "orphan_grace", config.recovery.orphan_grace_ms)
    limits = config.limits.model_copy(update={"task_timeout_ms": timeout_ms})
    recovery = config.recovery.model_copy(update={"orphan_grace_ms": grace_ms})
    return config.model_copy(update={"spark": spark, "limits": limits, "recovery": recovery})


def amount_of(args: argparse.Namespace, name: str, default: T) -> int | T:
    """An argument in milliseconds or bytes; `default` if it was not given.

    Raises `UsageError` with the argument's name, as all functions here do.
    """
    text = getattr(args, name)
    if text is None:
        return default
    read, allowed, expected = _AMOUNTS[name]
    try:
        amount = read(text)
        if amount not in allowed:
            raise ValueError(expected)
    except ValueError as error:
        raise UsageError(f"--{name.replace('_', '-')} {text!r}: expected {error}") from error
    return amount


def check_amounts(args: argparse.Namespace) -> None:
    """Raises `UsageError` for a duration or size that no table can use."""
    for name in _AMOUNTS.keys() & vars(args).keys():
        amount_of(args, name, None)


def strategy_of(args: argparse.Namespace) -> Strategy:
    """`--strategy`. Raises `UsageError` for an unknown strategy."""
    try:
        return Strategy(args.strategy)
    except ValueError:
        raise UsageError(f"--strategy {args.strategy}: unknown; it is one of minor, full") from None


def overrides_of(args: argparse.Namespace) -> Mapping[str, str]:
    """Options of the table, by key as given; `check_overrides` validates them."""
    return pairs(args.option, "--option")


def check_overrides(args: argparse.Namespace) -> None:
    """Raises `UsageError` for options that no run can set."""
    registries = registries_of(args)
    for key, value in overrides_of(args).items():
        registries.check_option(key, value)


def partitions_of(args: argparse.Namespace) -> tuple[Mapping[str, str], ...]:
    """The requested partitions, escaped as in folder names: values may contain commas."""
    asked = (pairs(text.split(","), "--partition") for text in args.partition)
    return tuple(
        {unescaped(name): unescaped(value) for name, value in one.items()} for one in asked
    )


def pick_of(args: argparse.Namespace) -> PickRule | None:
    """`--pick`. Raises `UsageError` for an unknown rule."""
    try:
        return None if args.pick is None else PickRule(args.pick)
    except ValueError:
        raise UsageError(f"--pick {args.pick}: unknown; it is one of 2.0, 2.1") from None


def warehouse_config(args: argparse.Namespace, known: ConfigRegistries = OWN) -> LoadedConfig:
    """The defaults for the catalog that the arguments name, of a `known` kind.

    Raises `UsageError`.
    """
    if not args.warehouse:
        raise UsageError("--warehouse is empty")
    keys = catalog_keys(args)
    for key, value in keys["options"].items():
        # Catalogs resolve references in their options when they are opened.
        resolved(value, f"--catalog-option {key}")
    return config_of_warehouse(args.warehouse, known, **keys)


def resolved(text: str, argument: str) -> str:
    """The text with references resolved. References hide secrets from other users of the machine.

    Raises `UsageError`.
    """
    try:
        return resolve(text)
    except ReferenceMissing as error:
        raise UsageError(f"{argument} has {error}") from None
