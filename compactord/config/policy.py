"""Which tables are compacted, with which settings: discovery patterns, defaults, rules. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from compactord.config.keys import keys_of, leaves
from compactord.config.model import Discovery, ServiceConfig
from compactord.config.problems import dotted
from compactord.config.table_settings import Rule, TableSettings
from compactord.model import TableName
from compactord.paimon.options.catalogue import canonical_key
from compactord.paimon.schema import BRANCH_MARK

# Sections read only when the daemon starts: its name and clock, its port, Spark, the catalogs.
_COLD = frozenset({"service", "spark", "catalogs"})


# The settings of one table: `defaults`, overridden by the rules that match. `options`, which
# override the table's own, are under their present names.
TablePolicy: TypeAlias = TableSettings


def policy_for(config: ServiceConfig, table: TableName) -> TablePolicy:
    """Rules apply from top to bottom; for each key, and each option, the last one counts."""
    settings: dict[str, Any] = {}
    options = _options(config.defaults)
    for index in matching_rules(config, table):
        given = config.rules[index].settings
        settings |= {name: getattr(given, name) for name in given.model_fields_set}
        options |= _options(given)
    return config.defaults.model_copy(update={**settings, "options": options})


def _options(settings: TableSettings) -> dict[str, str]:
    """Options by their present names, so that a rule may use another name than the defaults."""
    return {canonical_key(key): value for key, value in settings.options.items()}


def setting_keys(config: ServiceConfig, table: TableName) -> Mapping[str, str]:
    """Which key of the configuration decides each setting of a table, as `policy_for` does.

    From the setting's key (`priority`; `options.` and the option's present name) to the dotted one
    that counts (`rules.2.set.priority`).
    """
    found = {key: f"defaults.{key}" for key in keys_of(TableSettings) if key != "options"}
    found.update(_option_keys("defaults", config.defaults))
    for index in matching_rules(config, table):
        settings = config.rules[index].settings
        fields = TableSettings.model_fields
        written = (fields[name].alias or name for name in settings.model_fields_set)
        found.update((key, f"rules.{index}.set.{key}") for key in written if key != "options")
        found.update(_option_keys(f"rules.{index}.set", settings))
    return found


def matching_rules(config: ServiceConfig, table: TableName) -> tuple[int, ...]:
    """The indexes of the rules that concern a table, from top to bottom."""
    return tuple(index for index, rule in enumerate(config.rules) if _concerns(rule, table))


def _concerns(rule: Rule, table: TableName) -> bool:
    pattern = rule.match.table
    is_there = rule.match.catalog in (None, table.catalog)
    return is_there and (pattern is None or _matches(pattern, table))


def _matches(pattern: re.Pattern[str], table: TableName) -> bool:
    """Whether it matches the whole of database.table; of a branch, that or the table's."""
    full_name = f"{table.database}.{table.table}"
    names = (full_name, full_name.partition(BRANCH_MARK)[0])
    return any(map(pattern.fullmatch, names))


def _option_keys(section: str, settings: TableSettings) -> dict[str, str]:
    return {f"options.{canonical_key(k)}": f"{section}.options.{k}" for k in settings.options}


def excluding_key(discovery: Discovery, table: TableName) -> str | None:
    """The key of `discovery` that excludes a table or branch by its name; None: none does.

    Whole names must match; excluding overrides (flink/utils/MultiTablesCompactorUtil.java).
    """
    excluding = discovery.excluding_tables
    if excluding is not None and _matches(excluding, table):
        return "excluding_tables"
    if discovery.including_databases.fullmatch(table.database) is None:
        return "including_databases"
    return None if _matches(discovery.including_tables, table) else "including_tables"


def unmatched_patterns(
    config: ServiceConfig, tables: Collection[TableName], listed: Collection[str]
) -> Mapping[str, str]:
    """The patterns, by their dotted keys, that match none of the tables.

    `listed` are the catalogs of which they are all: a pattern that concerns others is not judged,
    nor one that matches an empty name, such as `.*`.
    """
    found: dict[str, str] = {}
    if config.catalogs.keys() <= set(listed):
        discovery, names = config.discovery, [f"{database}.{t}" for _, database, t in tables]
        for key, pattern, of in (
            ("including_databases", discovery.including_databases, {each[1] for each in tables}),
            ("including_tables", discovery.including_tables, names),
            ("excluding_tables", discovery.excluding_tables, names),
        ):
            if pattern is not None and not any(map(pattern.fullmatch, ("", *of))):
                found[f"discovery.{key}"] = pattern.pattern
    for index, rule in enumerate(config.rules):
        concerned = {rule.match.catalog} if rule.match.catalog else config.catalogs.keys()
        pattern = rule.match.table
        if pattern is None or pattern.fullmatch("") or not concerned <= set(listed):
            continue
        if not any(_concerns(rule, table) for table in tables):
            found[f"rules.{index}.match.table"] = pattern.pattern
    return found


def cold_differences(old: ServiceConfig, new: ServiceConfig) -> tuple[str, ...]:
    """Dotted keys whose change takes effect only with a restart: `service`, `spark`, `catalogs`.

    All others apply at once: with lower `limits`, running tasks finish; `startup` is used only at a
    start.
    """
    before, after = dict(leaves(old)), dict(leaves(new))
    return tuple(
        dotted(path)
        for path in {**before, **after}
        if path[0] in _COLD
        and (path not in before or path not in after or before[path] != after[path])
    )
