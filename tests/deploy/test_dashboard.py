"""The dashboard as shipped: explained panels, any data source, queries over what is exposed."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy.prometheus import (
    DEPLOY,
    Exposed,
    Prometheus,
    running_prometheus,
    selectors,
)

PATH = DEPLOY / "grafana" / "compactord.json"
DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Which variable must narrow down a series that has the label.
VARIABLES = ("instance", "catalog", "database", "table")
# What Grafana puts in for a query's own steps, and for the time that is shown.
STEPS = {"$__rate_interval": "1m", "$__range": "6h"}

Json = Any


def dashboard() -> Json:
    return json.loads(PATH.read_text())


def panels() -> list[Json]:
    """Those that show something; rows only have a title."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries() -> list[tuple[str, str, Json]]:
    """Title of the panel, expression as it stands, target."""
    return [
        (panel["title"], target["expr"], target)
        for panel in panels()
        for target in panel["targets"]
    ]


def filled_in(expression: str, steps: dict[str, str] | None = None) -> str:
    """As Grafana sends it with everything chosen."""
    for name, value in (steps or STEPS).items():
        expression = expression.replace(name, value)
    return re.sub(r"\$\w+", ".*", expression)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), "{}") as started:
        yield started


@pytest.fixture(scope="module")
def exposed() -> Exposed:
    return Exposed.everything()


def test_the_file_is_laid_out_for_review() -> None:
    text = PATH.read_text()
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"


def test_it_has_a_fixed_identity_and_the_variables_that_operators_choose_by() -> None:
    board = dashboard()
    assert board["uid"] == "compactord"
    assert "id" not in board
    assert board["schemaVersion"] >= 41
    variables = {each["name"]: each for each in board["templating"]["list"]}
    assert list(variables) == ["datasource", *VARIABLES]
    assert variables["datasource"]["type"] == "datasource"
    # Everything of any job would match what each process exposes.
    assert "allValue" not in variables["instance"]
    for name in VARIABLES:
        assert variables[name]["datasource"] == DATA_SOURCE
        assert variables[name]["includeAll"]


def test_every_panel_is_explained_and_has_a_unit() -> None:
    for panel in panels():
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
    titles = [panel["title"] for panel in dashboard()["panels"]]
    assert len(set(titles)) == len(titles)


def test_no_data_source_but_the_variable_is_named() -> None:
    def sources(value: Json) -> Iterator[Json]:
        if isinstance(value, dict):
            if "datasource" in value:
                yield value["datasource"]
            for child in value.values():
                yield from sources(child)
        elif isinstance(value, list):
            for child in value:
                yield from sources(child)

    found = list(sources(dashboard()))
    assert len(found) > 2 * len(panels())
    assert all(source == DATA_SOURCE for source in found)
    for panel in panels():
        assert panel["datasource"] == DATA_SOURCE
        assert all(target["datasource"] == DATA_SOURCE for target in panel["targets"])


def test_panels_lie_beside_each_other_on_the_grid() -> None:
    cells: set[tuple[int, int]] = set()
    ids = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        own = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]),
                range(place["y"], place["y"] + place["h"]),
            )
        )
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert not own & cells, panel["title"]
        cells |= own
        ids.add(panel["id"])
    assert len(ids) == len(dashboard()["panels"])


@pytest.mark.tools
def test_queries_speak_of_nothing_that_is_not_exposed(
    prometheus: Prometheus, exposed: Exposed
) -> None:
    strangers = {}
    for title, expression, _ in queries():
        # Regular expressions of variables match any value, which is not what is asked here.
        if found := exposed.strangers(prometheus.parse(filled_in(expression))):
            strangers[title] = found
    assert strangers == {}


@pytest.mark.tools
def test_queries_are_narrowed_down_by_every_variable_that_applies(
    prometheus: Prometheus, exposed: Exposed
) -> None:
    for title, expression, _ in queries():
        text = expression.replace("$__rate_interval", "1m").replace("$__range", "6h")
        for selector in selectors(prometheus.parse(text)):
            wanted = {
                (label, "=~", f"${label}")
                for label in VARIABLES
                if label in exposed.labels[selector.name]
            }
            assert wanted <= set(selector.matchers), (title, selector)


@pytest.mark.tools
def test_variables_and_annotations_ask_for_what_is_exposed(
    prometheus: Prometheus, exposed: Exposed
) -> None:
    board = dashboard()
    asked = [each["expr"] for each in board["annotations"]["list"]]
    for variable in board["templating"]["list"][1:]:
        parts = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
        assert parts is not None
        assert variable["query"]["query"] == variable["definition"]
        assert parts[2] == variable["name"]
        assert parts[2] in exposed.labels_of(prometheus.parse(filled_in(parts[1])))
        asked.append(parts[1])
    for expression in asked:
        assert exposed.strangers(prometheus.parse(filled_in(expression))) == []


@pytest.mark.tools
def test_legends_fill_in_only_labels_that_the_result_has(
    prometheus: Prometheus, exposed: Exposed
) -> None:
    for title, expression, target in queries():
        named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert named <= exposed.labels_of(prometheus.parse(filled_in(expression))), title
