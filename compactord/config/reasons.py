"""Why the service leaves a table alone that it could work on, in words, with the key that decides.

Pure: the commands and the service give the same reasons.
"""

from __future__ import annotations

from compactord.config.load import LoadedConfig
from compactord.config.policy import excluding_key, policy_for, setting_keys
from compactord.model import TableName
from compactord.paimon.schema import BRANCH_MARK


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
    """As `exclusion_by_name`, or `rules.0.set.branches (c.yaml:7) does not name main`.

    A branch is listed if what holds for its main branch names it; rules of its own may leave it
    out, and not bring it in.
    """
    why = exclusion_by_name(loaded, table)
    if why is not None:
        return why
    for each in (table._replace(table=table.table.partition(BRANCH_MARK)[0]), table):
        if not policy_for(loaded.config, each).takes(branch):
            return f"{setting_origin(loaded, each, 'branches')} does not name {branch}"
    return None


def paused(loaded: LoadedConfig, table: TableName) -> str:
    """Which rule pauses a table: `by rules.0.set.mode (c.yaml:7)`."""
    return f"by {setting_origin(loaded, table, 'mode')}"


def setting_origin(loaded: LoadedConfig, table: TableName, setting: str) -> str:
    """Which rule or default decides a setting of a table, and where that is written."""
    return shown_key(loaded, setting_keys(loaded.config, table)[setting])


def shown_key(loaded: LoadedConfig, key: str) -> str:
    """A key of the configuration with the place of its value."""
    return f"{key} ({loaded.origin(key)})"
