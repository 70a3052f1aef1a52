"""Which tables are compacted, with which settings: discovery patterns, defaults, rules. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from compactord.config.keys import dotted, leaves
from compactord.config.model import Discovery, Mode, ServiceConfig, SnapshotExpiry, TableSettings
from compactord.config.windows import Window
from compactord.paimon.option_catalogue import canonical_key

# Sections read only when the daemon starts: its name and clock, its port, Spark, the catalogs.
_COLD = frozenset({"service", "spark", "catalogs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePolicy:
    """The settings of one table: `defaults`, overridden by the rules that match.

    `discovery_interval_ms` None: the table's own `continuous.discovery-interval`. `append_wait_ms`
    None: a few small files wait for more. `options` override the table's own.
    """

    mode: Mode
    priority: int
    windows: tuple[Window, ...]
    windows_strict: bool
    max_backlog_age_ms: int
    max_concurrent_tasks: int
    discovery_interval_ms: int | None
    append_wait_ms: int | None
    quiet_for_ms: int
    expire_snapshots: SnapshotExpiry
    options: Mapping[str, str] = field(repr=False)


def policy_for(config: ServiceConfig, catalog: str, database: str, table: str) -> TablePolicy:
    """Rules apply from top to bottom; for each key, and each option, the last one counts."""
    settings = _values(config.defaults)
    options = _options(config.defaults)
    for rule in config.rules:
        if rule.match.catalog not in (None, catalog):
            continue
        pattern = rule.match.table
        if pattern is not None and pattern.fullmatch(f"{database}.{table}") is None:
            continue
        given = rule.settings.model_fields_set
        settings.update((k, v) for k, v in _values(rule.settings).items() if k in given)
        options.update(_options(rule.settings))
    return TablePolicy(**{**settings, "options": options})


def _values(settings: TableSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in TableSettings.model_fields}


def _options(settings: TableSettings) -> dict[str, str]:
    """Options by their present names, so that a rule may use another name than the defaults."""
    return {canonical_key(key): value for key, value in settings.options.items()}


def is_included(discovery: Discovery, database: str, table: str) -> bool:
    """Whether a table is compacted; names as in the catalog.

    Whole names must match; excluding overrides (flink/utils/MultiTablesCompactorUtil.java).
    """
    full_name = f"{database}.{table}"
    excluding = discovery.excluding_tables
    return (
        discovery.including_databases.fullmatch(database) is not None
        and discovery.including_tables.fullmatch(full_name) is not None
        and (excluding is None or excluding.fullmatch(full_name) is None)
    )


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
