"""Every fault of the story fires the alerts that name it, and no others, until it is mended.

The rules are those that are shipped, but for their patience: `for` is two seconds, and ten minutes
after a failure are ten seconds.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from tests.deploy.prometheus import Prometheus, free_port, running_prometheus
from tests.deploy.test_alerts_live import MAY_BE_EMPTY, prometheus_config
from tests.deploy.test_dashboard import filled_in, queries
from tests.deploy.test_rules import INHIBITIONS, named_by
from tests.service import story
from tests.store_servers import StoreServer

pytestmark = [pytest.mark.tools, pytest.mark.spark]

# Catalog and table, empty for the whole service.
_Subject = tuple[str, str]
_Firing = dict[_Subject, set[str]]
_SECONDS_MAX = 180
_RANGES = {"10m": "10s"}
# A retry empties a panel for a moment.
_LATELY = "max_over_time(({})[1m:1s])"
# Conflicts of one table waste much of the little work. They are counted over half an hour and more.
_OF_CONFLICTS = {
    ("", ""): {"CompactordWastedWork"},
    ("lake", story.STORMY): {"CompactordCommitConflictsHigh"},
}
_OF_CATALOGS = {
    ("down", ""): {"CompactordDiscoveryFailing"},
    ("far", ""): {"CompactordStoreSilent"},
}


@dataclass(slots=True)
class _Seen:
    struck: _Firing = field(default_factory=dict)
    mended: _Firing = field(default_factory=dict)
    texts: dict[_Subject, str] = field(default_factory=dict)
    # Tables that panels show which are empty while all is well.
    shown: dict[str, set[_Subject]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def seen(started: Callable[[str], StoreServer]) -> Iterator[_Seen]:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="c-") as scratch:
        folder = Path(scratch)
        with (
            running_prometheus(folder, prometheus_config(folder, port, _RANGES)) as prometheus,
            story.running(folder, started("moto"), port) as told,
        ):
            yield _play(told, prometheus)


def _play(told: story.Story, prometheus: Prometheus) -> _Seen:
    seen, expected = _Seen(), _expected()
    told.strike()
    seen.struck = _wait_for(prometheus, expected)
    for alert in prometheus.get("alerts")["alerts"]:
        texts = seen.texts.setdefault(_subject(alert["labels"]), "")
        seen.texts[_subject(alert["labels"])] = texts + " ".join(alert["annotations"].values())
    seen.shown = {
        title: {
            _subject(labels)
            for labels, _ in prometheus.samples(_LATELY.format(filled_in(expression)))
        }
        for title, expression, _ in queries()
        if title in MAY_BE_EMPTY
    }
    told.mend()
    # A table that is dropped may look like one whose snapshots were lost (docs/remaining.md).
    seen.mended = _wait_for(prometheus, _OF_CONFLICTS, ignored="CompactordSnapshotLost")
    return seen


def _expected() -> _Firing:
    found = {table: set(case.alerts) for table, case in story.CASES.items() if case.alerts}
    return {**found, **_OF_CATALOGS, **_OF_CONFLICTS}


def _wait_for(prometheus: Prometheus, expected: _Firing, *, ignored: str = "") -> _Firing:
    """The alerts once they are as expected, or after the time in which they should be."""
    deadline = time.monotonic() + _SECONDS_MAX
    while (found := _firing(prometheus, ignored)) != expected and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def _subject(labels: dict[str, str]) -> _Subject:
    return labels.get("catalog", ""), labels.get("table", "")


def _firing(prometheus: Prometheus, ignored: str) -> _Firing:
    """The alerts that Alertmanager would send: none that another one inhibits."""
    alerts = [
        each["labels"] for each in prometheus.get("alerts")["alerts"] if each["state"] == "firing"
    ]
    found: _Firing = {}
    for labels in alerts:
        if labels["alertname"] == ignored:
            continue
        if not any(_inhibits(rule, alerts, labels) for rule in _inhibitions()):
            found.setdefault(_subject(labels), set()).add(labels["alertname"])
    return found


def _inhibitions() -> list[dict[str, list[str]]]:
    rules: list[dict[str, list[str]]] = yaml.safe_load(INHIBITIONS.read_text())["inhibit_rules"]
    return rules


def _inhibits(
    rule: dict[str, list[str]], alerts: list[dict[str, str]], target: dict[str, str]
) -> bool:
    (sources,) = (named_by(matcher) for matcher in rule["source_matchers"])
    targets = set().union(*(named_by(matcher) for matcher in rule["target_matchers"]))
    return target["alertname"] in targets and any(
        source["alertname"] in sources
        and all(source.get(label) == target.get(label) for label in rule.get("equal", ()))
        for source in alerts
    )


def test_each_fault_fires_its_alert_and_no_other(seen: _Seen) -> None:
    assert seen.struck == _expected()


def test_alerts_name_what_they_are_about_and_a_runbook(seen: _Seen) -> None:
    for (catalog, table), names in seen.struck.items():
        text = seen.texts[catalog, table]
        assert (f"{catalog}.db.{table}" if table else catalog) in text
        assert all(f"deploy/runbooks/{name}.md" in text for name in names)


def test_panels_show_the_buckets_and_the_work_that_wait_for_people(seen: _Seen) -> None:
    damaged = {("lake", name) for name in ("overlap", "stopped", "corrupt", "hole", "full")}
    here = {table for table in (*damaged, ("pond", "hole")) if table in story.CASES}
    assert seen.shown["Quarantined buckets"] == here
    blocked = seen.shown["Blocked work"]
    assert {("lake", "hole"), ("pond", "hole")} <= blocked
    assert not blocked & {("lake", "healthy"), ("lake", "paused"), ("lake", "late")}


def test_alerts_end_with_their_causes(seen: _Seen) -> None:
    assert seen.mended == _OF_CONFLICTS
