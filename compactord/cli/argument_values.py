"""Parses and checks the arguments of the commands for tables.

Errors are `UsageError`s that name the argument and the expected value.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TypeVar

from compactord.cli.amounts import amount_of
from compactord.cli.catalog_arguments import catalog_keys, pairs
from compactord.cli.names import unknown_choice
from compactord.cli.registries import registries_of
from compactord.config.load import LoadedConfig
from compactord.config.model import ServiceConfig
from compactord.config.policy import config_of_warehouse
from compactord.config.registries import OWN, ConfigRegistries
from compactord.engine.kinds import check_engine
from compactord.errors import UsageError
from compactord.model import PickRule
from compactord.plan.table import Strategy
from compactord.table.partition_texts import unescaped
from compactord.text import ReferenceMissing, resolve

T = TypeVar("T")


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


def strategy_of(args: argparse.Namespace) -> Strategy:
    """`--strategy`. Raises `UsageError` for an unknown strategy."""
    try:
        return Strategy(args.strategy)
    except ValueError:
        known = [each.value for each in Strategy]
        raise unknown_choice("--strategy", args.strategy, known) from None


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
        raise unknown_choice("--pick", args.pick, [each.value for each in PickRule]) from None


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
