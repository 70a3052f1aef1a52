from __future__ import annotations

from typing import Any

import pytest

from compactord.config.choices import MaintenanceRule, Mode
from compactord.config.load import LoadedConfig
from compactord.config.model import Discovery, ServiceConfig
from compactord.config.policy import (
    cold_differences,
    excluding_key,
    policy_for,
    similar_rules,
    unmatched_patterns,
    unmatched_text,
)
from compactord.model import PickRule, TableName

_TABLE = TableName("lake", "d", "t")


def _named(table: str) -> TableName:
    return _TABLE._replace(table=table)


_B = "$branch_b"
_B1 = f"{_B}1"


def _config(**sections: Any) -> ServiceConfig:
    return ServiceConfig.model_validate({"catalogs": {"lake": {"warehouse": "/w"}}, **sections})


def test_without_rules_the_defaults_hold() -> None:
    policy = policy_for(_config(), _TABLE)
    assert policy.mode is Mode.AUTO
    assert policy.priority == 50
    assert policy.max_backlog_age_ms == 30 * 60_000
    assert policy.append_wait_ms == 30 * 60_000
    assert policy.quiet_for_ms == 0
    assert policy.pick is PickRule.RELEASE_2_1
    assert policy.discovery_interval_ms is None
    assert policy.expire_snapshots is MaintenanceRule.FROM_TABLE


def test_later_rules_win_key_by_key() -> None:
    config = _config(
        defaults={"priority": 10, "max_concurrent_tasks": 7},
        rules=[
            {"match": {"table": "d\\..*"}, "set": {"priority": 20, "mode": "paused"}},
            {"match": {"table": "d\\.t"}, "set": {"priority": 30, "quiet_for": "15 min"}},
            {"match": {"table": "d\\.other"}, "set": {"priority": 40}},
            {"match": {}, "set": {"pick": 2.0}},
        ],
    )
    policy = policy_for(config, _TABLE)
    assert (policy.priority, policy.mode, policy.max_concurrent_tasks) == (30, Mode.PAUSED, 7)
    assert policy.quiet_for_ms == 15 * 60_000
    assert policy.pick is PickRule.RELEASE_2_0


def test_a_rule_can_set_a_default_back() -> None:
    config = _config(
        defaults={"priority": 10, "append_wait": None},
        rules=[{"match": {}, "set": {"priority": 50, "append_wait": "30 min"}}],
    )
    policy = policy_for(config, _TABLE)
    assert (policy.priority, policy.append_wait_ms) == (50, 1_800_000)


def test_a_rule_can_set_null() -> None:
    config = _config(rules=[{"match": {}, "set": {"append_wait": None}}])
    assert policy_for(config, _TABLE).append_wait_ms is None


def test_windows_of_a_rule_replace_those_before() -> None:
    config = _config(
        defaults={"windows": [{"days": "sat"}, {"days": "sun"}]},
        rules=[{"match": {}, "set": {"windows": [{"days": "mon"}]}}],
    )
    assert [w.days for w in policy_for(config, _TABLE).windows] == [(0,)]


def test_options_are_merged_one_by_one_under_any_of_their_names() -> None:
    config = _config(
        defaults={"options": {"num-levels": 5, "write-only": True, "target-file-size": "1 gb"}},
        rules=[
            {"match": {}, "set": {"options": {"num-levels": 6}}},
            {"match": {}, "set": {"options": {"write.compaction-skip": False}}},
        ],
    )
    assert policy_for(config, _TABLE).options == {
        "num-levels": "6",
        "write-only": "false",
        "target-file-size": "1 gb",
    }
    assert config.defaults.options["num-levels"] == "5"


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ({}, True),
        ({"catalog": "lake"}, True),
        ({"catalog": "lak"}, False),
        ({"catalog": "lake.*"}, False),
        ({"table": "d.t"}, True),
        ({"table": "t"}, False),
        ({"table": "d"}, False),
        ({"table": "D\\.T"}, False),
        ({"catalog": "other", "table": ".*"}, False),
        ({"catalog": "lake", "table": "d\\.[tu]"}, True),
    ],
)
def test_a_rule_needs_the_exact_catalog_and_the_whole_name(
    match: dict[str, str], matches: bool
) -> None:
    config = _config(rules=[{"match": match, "set": {"priority": 99}}])
    assert (policy_for(config, _TABLE).priority == 99) is matches


@pytest.mark.parametrize(
    ("discovery", "included"),
    [
        ({}, True),
        ({"including_databases": "d"}, True),
        ({"including_databases": "d\\.t"}, False),
        ({"including_databases": "[a-c].*"}, False),
        ({"including_tables": "d\\.t"}, True),
        ({"including_tables": "t"}, False),
        ({"excluding_tables": "d\\.t"}, False),
        ({"excluding_tables": "t"}, True),
        ({"including_tables": "d\\.t", "excluding_tables": ".*"}, False),
        ({"including_tables": "x\\.t|d\\..*"}, True),
    ],
)
def test_a_table_is_included_by_both_patterns_unless_excluded(
    discovery: dict[str, str], included: bool
) -> None:
    assert (excluding_key(Discovery.model_validate(discovery), _TABLE) is None) is included


def test_cold_keys_are_told_from_hot_ones() -> None:
    old = _config(spark={"conf": {"spark.a": "1", "spark.gone": "1"}})
    new = ServiceConfig.model_validate(
        {
            "catalogs": {"lake": {"warehouse": "/other"}, "new": {"warehouse": "/w"}},
            "service": {"timezone": "UTC", "http": {"port": 1}},
            "spark": {"conf": {"spark.a": "2"}, "task_memory": "1 gb"},
            "defaults": {"priority": 1},
            "rules": [{"match": {}, "set": {}}],
            "limits": {"memory": "1 gb", "task_slots": 1},
            "log": {"level": "debug"},
            "shutdown": {"grace": "1 h"},
        }
    )
    assert set(cold_differences(old, new)) == {
        "service.timezone",
        "service.http.port",
        "spark.conf.spark.a",
        "spark.conf.spark.gone",
        "spark.task_memory",
        "catalogs.lake.warehouse",
        "catalogs.new.metastore",
        "catalogs.new.options",
        "catalogs.new.unlocked_writers",
        "catalogs.new.allow_http",
        "catalogs.new.create",
        "catalogs.new.allow_schemes",
        "catalogs.new.settle",
        "catalogs.new.warehouse",
    }
    assert cold_differences(new, new) == ()


_TABLES = [TableName("lake", "a", "x"), TableName("lake", "b", "tmp_1"), TableName("sea", "a", "y")]


@pytest.mark.parametrize(
    ("sections", "listed", "unmatched"),
    [
        ({}, ["lake", "sea"], []),
        ({"discovery": {"including_databases": "a|c"}}, ["lake", "sea"], []),
        (
            {"discovery": {"including_databases": "c", "including_tables": "a\\.z"}},
            ["lake", "sea"],
            ["discovery.including_databases", "discovery.including_tables"],
        ),
        ({"discovery": {"excluding_tables": ".*tmp_.*"}}, ["lake", "sea"], []),
        (
            {"discovery": {"excluding_tables": "tmp_.*"}},
            ["lake", "sea"],
            ["discovery.excluding_tables"],
        ),
        # A catalog that was not listed may have such a table.
        ({"discovery": {"excluding_tables": "tmp_.*"}}, ["lake"], []),
        ({"rules": [{"table": "a\\.[xy]"}, {"table": "x"}]}, ["lake", "sea"], ["rules.1"]),
        ({"rules": [{"table": "x"}]}, ["lake"], []),
        ({"rules": [{"catalog": "lake", "table": "a\\.y"}]}, ["lake"], ["rules.0"]),
        ({"rules": [{"catalog": "sea", "table": "a\\.y"}, {}]}, ["lake", "sea"], []),
        ({"rules": [{"catalog": "lake", "table": ".*"}]}, ["lake"], []),
    ],
)
def test_patterns_that_match_no_table_of_the_listed_catalogs_are_found(
    sections: dict[str, Any], listed: list[str], unmatched: list[str]
) -> None:
    rules = [{"match": match, "set": {"priority": 1}} for match in sections.pop("rules", ())]
    catalogs = {name: {"warehouse": f"/{name}"} for name in ("lake", "sea")}
    config = ServiceConfig.model_validate({"catalogs": catalogs, "rules": rules, **sections})
    found = unmatched_patterns(config, _TABLES, listed)
    assert [key.removesuffix(".match.table") for key in found] == unmatched
    assert all(each.unlisted == () for each in found.values())


@pytest.mark.parametrize(
    ("match", "listed", "failed", "text"),
    [
        (
            {"table": r"a\.xx"},
            ["lake"],
            ["sea"],
            "not listed: catalog sea; did you mean a.x?",
        ),
        ({"table": r"A\.X"}, ["lake", "sea"], [], "did you mean a.x or a.y?"),
        ({"table": "tmp_1"}, ["lake", "sea"], [], "did you mean b.tmp_1?"),
        ({"table": r"shop\.orders"}, ["sea"], ["lake"], "not listed: catalog lake"),
        ({"table": r"shop\.orders"}, [], ["lake", "sea"], None),
        ({"table": r"shop\.orders"}, ["sea"], [], None),
        ({"table": r"a\.x", "catalog": "sea"}, ["lake"], ["sea"], None),
        ({"table": r"b\..*"}, ["lake"], ["sea"], None),
    ],
)
def test_a_pattern_is_judged_without_a_catalog_that_is_down_and_the_nearest_names_are_told(
    match: dict[str, str], listed: list[str], failed: list[str], text: str | None
) -> None:
    catalogs = {name: {"warehouse": f"/{name}"} for name in ("lake", "sea")}
    rules = [{"match": match, "set": {"priority": 1}}]
    config = ServiceConfig.model_validate({"catalogs": catalogs, "rules": rules})
    loaded = LoadedConfig(path="c", config=config, origins={}, references={}, digest="")
    found = unmatched_patterns(config, _TABLES, listed, failed)
    texts = [unmatched_text(loaded, key, each, _TABLES) for key, each in found.items()]
    assert [each.partition("; ")[2] for each in texts] == ([] if text is None else [text])


@pytest.mark.parametrize(
    ("rules", "similar"),
    [
        ([r"sales\.ordrs"], (0,)),
        ([r"Sales\.Orders", r"logs\..*", r"sales\.order_.*"], (0, 2)),
        ([r"sales\.clicks", "tmp.*"], ()),
        ([r"sales\.ordrs", r"sales\..*"], ()),
    ],
)
def test_rules_that_look_like_a_table_are_named_if_none_matches_it(
    rules: list[str], similar: tuple[int, ...]
) -> None:
    config = _config(rules=[{"match": {"table": each}, "set": {"priority": 1}} for each in rules])
    assert similar_rules(config, TableName("lake", "sales", "orders")) == similar


def test_rules_of_a_table_hold_for_its_branches_and_may_be_of_one() -> None:
    config = _config(
        discovery={"excluding_tables": r"d\.t\$branch_old"},
        rules=[
            {"match": {"table": r"d\.t"}, "set": {"branches": ["main", "b.*"], "priority": 10}},
            {"match": {"table": r"d\.t\$branch_b2"}, "set": {"mode": "paused"}},
        ],
    )
    main, *branches = (policy_for(config, _named(f"t{b}")) for b in ("", _B1, f"{_B}2"))
    assert main.asks_for_branches
    assert [main.takes(branch) for branch in ("main", "b1", "b", "xb")] == [True, True, True, False]
    assert [each.priority for each in (main, *branches)] == [10, 10, 10]
    assert [each.mode for each in (main, *branches)] == [Mode.AUTO, Mode.AUTO, Mode.PAUSED]
    other = policy_for(config, _named("other"))
    assert not other.asks_for_branches
    assert [other.takes("main"), other.takes("mainly"), other.takes("b1")] == [True, False, False]
    assert excluding_key(config.discovery, _named(f"t{_B1}")) is None
    assert excluding_key(config.discovery, _named("t$branch_old")) is not None
    only = Discovery.model_validate({"including_tables": r"d\.t"})
    assert excluding_key(only, _named(f"t{_B1}")) is None
    assert excluding_key(only, _named(f"x{_B1}")) is not None
