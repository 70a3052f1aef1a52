"""Why a table is left alone, with the key that decides and where it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.config import policy
from compactord.config.load import load_config
from compactord.model import TableName

CONFIG = """\
catalogs: {lake: {warehouse: /w}}
discovery:
  excluding_tables: "a\\\\.tmp_.*"
  including_databases: "[ab]"
  including_tables: ".*[xyz1]"
defaults: {priority: 10}
rules:
- match: {table: "a\\\\.x"}
  set: {mode: paused}
- match: {table: "a\\\\.[xy]"}
  set: {only_write_only: true, priority: 3}
"""


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("a.x", None),
        ("a.tmp_1", "discovery.excluding_tables ({}:3) is a\\.tmp_.*"),
        ("c.x", "discovery.including_databases ({}:4) is only [ab]"),
        ("a.w", "discovery.including_tables ({}:5) is only .*[xyz1]"),
    ],
)
def test_a_pattern_that_excludes_is_named(tmp_path: Path, table: str, why: str | None) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    loaded = load_config(str(path), environ={})
    found = policy.exclusion_by_name(loaded, TableName("lake", *table.split(".")))
    assert found == (why and why.format(path))


def test_the_rule_that_decides_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    loaded = load_config(str(path), environ={}, overrides=["rules.0.set.priority=4"])
    assert policy.paused(loaded, TableName("lake", "a", "x")) == f"by rules.0.set.mode ({path}:9)"
    not_write_only = "not write-only, so its writers compact it themselves; "
    assert policy.not_write_only(loaded, TableName("lake", "a", "y")) == (
        f"{not_write_only}rules.1.set.only_write_only ({path}:11)"
    )
    assert policy.not_write_only(loaded, TableName("lake", "b", "z")) == (
        f"{not_write_only}defaults.only_write_only (default)"
    )
    assert policy.setting_origin(loaded, TableName("lake", "b", "z"), "priority") == (
        f"defaults.priority ({path}:6)"
    )


@pytest.mark.parametrize(
    ("own", "of_branch", "why"),
    [
        ("main, b", "b", None),
        ("main, b", "main", "rules.1.set.branches ({}:4) does not name b"),
        # Nobody would list it, so that no command may say that it is served.
        ("main", "b", "rules.0.set.branches ({}:3) does not name b"),
    ],
)
def test_a_branch_is_served_if_its_table_and_its_own_rules_name_it(
    tmp_path: Path, own: str, of_branch: str, why: str | None
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "catalogs: {lake: {warehouse: /w}}\nrules:\n"
        f"- {{match: {{table: 'd\\.t'}}, set: {{branches: [{own}]}}}}\n"
        f"- {{match: {{table: 'd\\.t\\$branch_b'}}, set: {{branches: [{of_branch}]}}}}\n"
    )
    loaded = load_config(str(path), environ={})
    found = policy.exclusion(loaded, TableName("lake", "d", "t$branch_b"), "b")
    assert found == (why and why.format(path))
