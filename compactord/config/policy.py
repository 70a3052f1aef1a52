"""Selection of tables and their settings: discovery patterns, defaults, rules, reasons. Pure.

Commands and the service report the same reasons.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from compactord.config.load import LoadedConfig, keys_of, leaves
from compactord.config.model import Discovery, Rule, ServiceConfig, TableSettings
from compactord.config.problems import dotted
from compactord.config.registries import OWN, ConfigRegistries
from compactord.model import TableName
from compactord.paimon.options.catalogue import canonical_key
from compactord.paimon.schema import BRANCH_MARK
from compactord.text import did_you_mean_table, suggestion

# Sections read only at the start: name and clock, port, Spark, catalogs.
_COLD = frozenset({"service", "spark", "catalogs"})
_COMPARED_MAX = 5_000
# Minimum similarity, from 0 to 1, of a table's name and a rule that may be meant for it.
_LIKENESS_MIN = 0.8
# A dot without a backslash is taken for itself.
_EXACT = re.compile(r"[\w-]+\\?\.[\w-]+(?:\\?\.[\w-]+)*", re.ASCII)
_ESCAPE = re.compile(r"\\(.)")


# The settings of one table: `defaults`, overridden by the matching rules. Keys in `options`, which
# override the table's own, are canonical.
TablePolicy: TypeAlias = TableSettings


def policy_for(config: ServiceConfig, table: TableName) -> TablePolicy:
    """The table's settings. Rules apply in order; the last one wins for each key and option."""
    settings: dict[str, Any] = {}
    options = _options(config.defaults)
    for index in matching_rules(config, table):
        given = config.rules[index].settings
        settings |= {name: getattr(given, name) for name in given.model_fields_set}
        options |= _options(given)
    return config.defaults.model_copy(update={**settings, "options": options})


def _options(settings: TableSettings) -> dict[str, str]:
    """Options by canonical names, so a rule may use another alias than the defaults."""
    return {canonical_key(key): value for key, value in settings.options.items()}


def setting_keys(config: ServiceConfig, table: TableName) -> Mapping[str, str]:
    """The configuration key that decides each setting of a table, consistent with `policy_for`.

    Maps a setting's key (`priority`; `options.` and the option's canonical name) to the deciding
    dotted key (`rules.2.set.priority`).
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
    """The indexes of the rules that match a table, in order."""
    return tuple(index for index, rule in enumerate(config.rules) if _concerns(rule, table))


def _concerns(rule: Rule, table: TableName) -> bool:
    pattern = rule.match.table
    is_there = rule.match.catalog in (None, table.catalog)
    return is_there and (pattern is None or _matches(pattern, table))


def _matches(pattern: re.Pattern[str], table: TableName) -> bool:
    """Whether the pattern matches the whole of database.table; for branches, either name."""
    full_name = f"{table.database}.{table.table}"
    names = (full_name, full_name.partition(BRANCH_MARK)[0])
    return any(map(pattern.fullmatch, names))


def _option_keys(section: str, settings: TableSettings) -> dict[str, str]:
    return {f"options.{canonical_key(k)}": f"{section}.options.{k}" for k in settings.options}


def excluding_key(discovery: Discovery, table: TableName) -> str | None:
    """The key of `discovery` that excludes a table or branch by its name, or None.

    Patterns match whole names; excluding wins (flink/utils/MultiTablesCompactorUtil.java).
    """
    excluding = discovery.excluding_tables
    if excluding is not None and _matches(excluding, table):
        return "excluding_tables"
    if discovery.including_databases.fullmatch(table.database) is None:
        return "including_databases"
    return None if _matches(discovery.including_tables, table) else "including_tables"


def exact_tables(config: ServiceConfig, catalog: str) -> Sequence[TableName]:
    """Tables of a catalog that patterns name without wildcards, unless patterns exclude them.

    With several catalogs, patterns that name no catalog do not count.
    """
    is_only = len(config.catalogs) == 1
    patterns = [config.discovery.including_tables] if is_only else []
    for rule in config.rules:
        is_meant = rule.match.catalog == catalog or (rule.match.catalog is None and is_only)
        patterns += [rule.match.table] if rule.match.table is not None and is_meant else []
    found = dict.fromkeys(
        TableName(catalog, *_plain(part).split(".", 1))
        for pattern in patterns
        for part in pattern.pattern.split("|")
        if _EXACT.fullmatch(part) and pattern.fullmatch(_plain(part))
    )
    return [table for table in found if excluding_key(config.discovery, table) is None]


class Unmatched(NamedTuple):
    """A pattern that matches no known table; tables of the catalogs in `unlisted` are not known."""

    pattern: str
    unlisted: tuple[str, ...] = ()


def unmatched_patterns(
    config: ServiceConfig,
    tables: Collection[TableName],
    listed: Collection[str],
    failed: Collection[str] = (),
) -> Mapping[str, Unmatched]:
    """The patterns, by their dotted keys, that match none of the tables.

    `listed` are the catalogs whose tables are complete, `failed` could not be listed. Patterns are
    judged once each of their catalogs is one or the other, and one is listed. Patterns that match
    an empty name, such as `.*`, are not judged.
    """
    found: dict[str, Unmatched] = {}

    def judge(key: str, pattern: re.Pattern[str] | None, of: Iterable[str], *, at: str) -> None:
        concerned = {at} if at else config.catalogs.keys()
        unlisted = tuple(name for name in config.catalogs if name in concerned - set(listed))
        is_known = set(unlisted) <= set(failed) and len(unlisted) < len(concerned)
        if pattern is not None and is_known and not any(map(pattern.fullmatch, ("", *of))):
            found[key] = Unmatched(pattern.pattern, unlisted)

    discovery, names = config.discovery, [f"{each[1]}.{each[2]}" for each in tables]
    databases = {each.database for each in tables}
    judge("discovery.including_databases", discovery.including_databases, databases, at="")
    judge("discovery.including_tables", discovery.including_tables, names, at="")
    judge("discovery.excluding_tables", discovery.excluding_tables, names, at="")
    for index, rule in enumerate(config.rules):
        catalog = rule.match.catalog or ""
        own = [f"{each[1]}.{each[2]}" for each in tables if catalog in ("", each.catalog)]
        own += [name.partition(BRANCH_MARK)[0] for name in own if BRANCH_MARK in name]
        judge(f"rules.{index}.match.table", rule.match.table, own, at=catalog)
    return found


def unmatched_text(
    loaded: LoadedConfig, key: str, unmatched: Unmatched, tables: Collection[TableName]
) -> str:
    """A pattern that matches nothing, with its place and the most similar names.

    Slow with many tables: at most 5,000 names are compared.
    """
    names = {each.database for each in tables}
    if key != "discovery.including_databases":
        names = {f"{each.database}.{each.table}" for each in tables}
    known = sorted(names)[:_COMPARED_MAX]
    near = did_you_mean_table(_plain(unmatched.pattern), known)
    text = pattern_text(loaded, key, unmatched.pattern)
    unlisted = ", ".join(unmatched.unlisted)
    return f"{text}{f'; not listed: catalog {unlisted}' if unlisted else ''}{near}"


def similar_rules(config: ServiceConfig, table: TableName) -> tuple[int, ...]:
    """The indexes of rules whose patterns are nearly the name of a table that no rule matches."""
    if matching_rules(config, table):
        return ()
    name = f"{table.database}.{table.table}"
    return tuple(
        index
        for index, rule in enumerate(config.rules)
        if rule.match.table is not None
        and suggestion(name, [_plain(rule.match.table.pattern)], likeness_min=_LIKENESS_MIN)
    )


def _plain(pattern: str) -> str:
    """The name that a pattern without wildcards matches."""
    return _ESCAPE.sub(r"\1", pattern)


def cold_differences(old: ServiceConfig, new: ServiceConfig) -> tuple[str, ...]:
    """Dotted keys whose change takes effect only after a restart: `service`, `spark`, `catalogs`.

    All other keys apply at once: with lower `limits`, running tasks finish; `startup` is used only
    at a start.
    """
    before, after = dict(leaves(old)), dict(leaves(new))
    return tuple(
        dotted(path)
        for path in {**before, **after}
        if path[0] in _COLD
        and (path not in before or path not in after or before[path] != after[path])
    )


def exclusion_by_name(loaded: LoadedConfig, table: TableName) -> str | None:
    """The pattern that excludes a table: `discovery.excluding_tables (c.yaml:7) is a\\.tmp_.*`."""
    name = excluding_key(loaded.config.discovery, table)
    if name is None:
        return None
    verb = "is" if name == "excluding_tables" else "is only"
    pattern = getattr(loaded.config.discovery, name).pattern
    return pattern_text(loaded, f"discovery.{name}", pattern, verb)


def pattern_text(loaded: LoadedConfig, key: str, pattern: str, verb: str = "is") -> str:
    """A pattern with its place: `rules.2.match.table (c.yaml:7) is a\\.tmp_.*`."""
    return f"{shown_key(loaded, key)} {verb} {loaded.reference(key) or pattern}"


def not_write_only(loaded: LoadedConfig, table: TableName) -> str:
    """Why a table without `write-only` is excluded."""
    decides = setting_origin(loaded, table, "only_write_only")
    return f"not write-only, so its writers compact it themselves; {decides}"


def exclusion(loaded: LoadedConfig, table: TableName, branch: str) -> str | None:
    """Result of `exclusion_by_name`, or `rules.0.set.branches (c.yaml:7) does not name main`.

    A branch is included if the settings of its main branch name it. Its own rules may exclude it,
    but not include it.
    """
    why = exclusion_by_name(loaded, table)
    if why is not None:
        return why
    for each in (table._replace(table=table.table.partition(BRANCH_MARK)[0]), table):
        if not policy_for(loaded.config, each).takes(branch):
            return f"{setting_origin(loaded, each, 'branches')} does not name {branch}"
    return None


def paused(loaded: LoadedConfig, table: TableName) -> str:
    """The rule that pauses a table: `by rules.0.set.mode (c.yaml:7)`."""
    return f"by {setting_origin(loaded, table, 'mode')}"


def setting_origin(loaded: LoadedConfig, table: TableName, setting: str) -> str:
    """The rule or default that decides a setting of a table, and its place."""
    return shown_key(loaded, setting_keys(loaded.config, table)[setting])


def shown_key(loaded: LoadedConfig, key: str) -> str:
    """A key of the configuration with the place of its value."""
    return f"{key} ({loaded.origin(key)})"


# Catalog name for a warehouse without a configuration.
NAMELESS = "warehouse"


def config_of_warehouse(
    warehouse: str, known: ConfigRegistries = OWN, **keys: object
) -> LoadedConfig:
    """The defaults, for a warehouse without a configuration; `keys` extend its section.

    Few small append files wait for more, as without the service they may be too new to merge.
    """
    section = {"warehouse": warehouse, **keys}
    given = {"catalogs": {NAMELESS: section}, "defaults": {"append_wait": None}}
    config = ServiceConfig.model_validate(given, context=known)
    return LoadedConfig(path="", config=config)
