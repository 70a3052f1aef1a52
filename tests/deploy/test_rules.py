"""The alerts as shipped: right for promtool, proved by its tests, made of what is exposed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.prometheus import (
    DEPLOY,
    RULES,
    Exposed,
    Prometheus,
    promtool,
    running_prometheus,
)

Rule = dict[str, Any]
PROMETHEUS = DEPLOY / "prometheus"
UNIT_TESTS = sorted((PROMETHEUS / "tests").glob("*.yaml"))
INHIBITIONS = PROMETHEUS / "alertmanager-inhibitions.yaml"
_ALERTS = re.compile(r'^ALERTS\{alertname="(\w+)",alertstate="firing"\}$')


def rules() -> list[Rule]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[Rule]:
    return [rule for rule in rules() if "alert" in rule]


def alert_names() -> set[str]:
    return {rule["alert"] for rule in alerts()}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), "{}") as started:
        yield started


@pytest.fixture(scope="module")
def exposed() -> Exposed:
    """With what the rules record on top."""
    recorded = {
        rule["record"]: frozenset({"namespace", "job", "catalog", "database", "table"})
        for rule in rules()
        if "record" in rule
    }
    base = Exposed.everything()
    return Exposed({**base.labels, **recorded}, base.values)


@pytest.mark.tools
def test_promtool_finds_nothing_to_complain_of() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES, cwd=PROMETHEUS)


@pytest.mark.tools
@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_alerts_behave_as_their_unit_tests_say(path: Path) -> None:
    promtool("test", "rules", path.name, cwd=path.parent)


@pytest.mark.tools
def test_unit_tests_notice_when_an_alert_is_wrong(tmp_path: Path) -> None:
    """Every expression negated in its comparison: each file must fail."""
    broken = RULES.read_text().replace(" > ", " < ").replace("== 0", "== 2")
    (tmp_path / RULES.name).write_text(broken.replace("== 1", "== 2"))
    (tmp_path / "tests").mkdir()
    for path in UNIT_TESTS:
        (tmp_path / "tests" / path.name).write_text(path.read_text())
        with pytest.raises(AssertionError, match="FAILED"):
            promtool("test", "rules", path.name, cwd=tmp_path / "tests")


def test_each_alert_is_shown_firing_and_quiet() -> None:
    fires, quiet = set(), set()
    for path in UNIT_TESTS:
        for case in yaml.safe_load(path.read_text())["tests"]:
            for each in case.get("promql_expr_test", ()):
                if named := _ALERTS.match(each["expr"]):
                    (fires if each["exp_samples"] else quiet).add(named[1])
    assert fires == quiet == alert_names()


@pytest.mark.tools
def test_rules_speak_of_nothing_that_is_not_exposed(
    prometheus: Prometheus, exposed: Exposed
) -> None:
    strangers = {
        rule.get("alert") or rule["record"]: found
        for rule in rules()
        if (found := exposed.strangers(prometheus.parse(rule["expr"])))
    }
    assert strangers == {}


@pytest.mark.tools
def test_a_stranger_is_noticed(prometheus: Prometheus, exposed: Exposed) -> None:
    expression = (
        'sum by (bucket) (compactord_leader) + compactord_table_files{partition="x"} '
        '+ rate(compactord_commits_total{result="lost"}[5m])'
    )
    assert exposed.strangers(prometheus.parse(expression)) == [
        "compactord_leader",
        "compactord_table_files{partition}",
        "compactord_commits_total{result=lost}",
        "by bucket",
    ]


@pytest.mark.tools
def test_texts_fill_in_only_labels_that_the_alert_has(
    prometheus: Prometheus, exposed: Exposed
) -> None:
    for rule in alerts():
        texts = " ".join(rule["annotations"].values())
        labels = exposed.labels_of(prometheus.parse(rule["expr"]))
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= labels, rule["alert"]


@pytest.mark.tools
def test_alerts_about_a_table_name_it_and_others_do_not(
    prometheus: Prometheus, exposed: Exposed
) -> None:
    for rule in alerts():
        labels = exposed.labels_of(prometheus.parse(rule["expr"]))
        is_named = {"catalog", "database", "table"} <= labels
        assert rule["labels"]["scope"] == ("table" if is_named else "service"), rule["alert"]


def test_every_alert_says_what_is_wrong_and_where_to_read_on() -> None:
    for rule in alerts():
        name, annotations = rule["alert"], rule["annotations"]
        assert name.startswith("Compactord")
        assert set(rule["labels"]) == {"severity", "scope"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(annotations) == {"summary", "description", "runbook_url"}
        assert annotations["summary"].endswith("."), name
        assert annotations["description"].endswith("."), name
        assert annotations["runbook_url"] == f"deploy/runbooks/{name}.md"
        assert (DEPLOY.parent / annotations["runbook_url"]).is_file()
        assert "for" in rule, name


@pytest.mark.tools
def test_inhibitions_name_alerts_that_exist_and_labels_that_they_have(
    prometheus: Prometheus, exposed: Exposed
) -> None:
    labels = {rule["alert"]: exposed.labels_of(prometheus.parse(rule["expr"])) for rule in alerts()}
    for inhibition in yaml.safe_load(INHIBITIONS.read_text())["inhibit_rules"]:
        (source,) = (named_by(text) for text in inhibition["source_matchers"])
        targets = set().union(*(named_by(text) for text in inhibition["target_matchers"]))
        assert source
        assert targets
        assert not source & targets
        for name in (source | targets) if inhibition.get("equal") else ():
            assert set(inhibition["equal"]) <= labels[name], name


def named_by(matcher: str) -> set[str]:
    """The alerts that a matcher of an inhibition selects."""
    parts = re.fullmatch(r'(alertname|scope) (=|=~) "([^"]*)"', matcher)
    assert parts is not None, matcher
    label, kind, value = parts.groups()
    if label == "scope":
        return {rule["alert"] for rule in alerts() if rule["labels"]["scope"] == value}
    if kind == "=":
        assert value in alert_names()
        return {value}
    prefix, choices = re.fullmatch(r"(\w+)\(([\w|]+)\)", value).groups()  # type: ignore[union-attr]
    named = {prefix + choice for choice in choices.split("|")}
    assert named <= alert_names()
    return named
