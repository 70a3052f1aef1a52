"""Sound, spoilt and unmanaged tables of four catalogs: whoever is asked tells the same of each."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.service.daemon_process import SERVE, Service
from tests.service.story import CASES, CONFLICTS, STORMY, Name, Story, name_of, running
from tests.store_servers import StoreServer

_ROW = re.compile(
    r'<th scope="row"[^>]*><a href="/tables/(\w+)/db/(\w+)">.*?<span class="mark ([a-z-]+)"',
    re.DOTALL,
)
# Of each table its state and, if it is not active, the reason.
_Told = dict[Name, tuple[str, str]]


@pytest.fixture(scope="module")
def story(
    tmp_path_factory: pytest.TempPathFactory, started: Callable[[str], StoreServer]
) -> Iterator[Story]:
    """Everything is wrong that can be, and is found out."""
    with running(tmp_path_factory.mktemp("story"), started("moto")) as told:
        told.strike()
        yield told
        assert told.service.stop() == 0
        assert "Traceback" not in told.service.err


@pytest.fixture(scope="module")
def service(story: Story) -> Service:
    return story.service


def _states(told: _Told) -> dict[Name, str]:
    return {table: state for table, (state, _) in told.items()}


def _of_v1(service: Service) -> _Told:
    return {
        name_of(table): (table["status"], table["why"])
        for table in service.json("/v1/tables")["tables"]
    }


def _command(service: Service, *arguments: str) -> str:
    url = f"http://127.0.0.1:{service.port}"
    command = (SERVE[0], *arguments, "--url", url)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    # Tables that fail are among them.
    assert done.returncode == {"tables": 3, "status": 11}.get(arguments[0], 0), done.stderr
    return done.stdout


def _of_tables(service: Service) -> _Told:
    rows = json.loads(_command(service, "tables", "--json"))["tables"]
    return {
        (row["catalog"], row["table"].removeprefix("db.")): (row["state"], row["why"])
        for row in rows
    }


def _of_top(service: Service) -> _Told:
    """States are read from the drawn frame: an active table shows its need instead."""
    notes = {name_of(table): table["note"] for table in _json_tables(service)}
    drawn = _command(service, "top", "--once", "--width", "300").partition("running (")[0]
    shown = re.findall(r"^(\w+)\.db\.(\w+) +(\w+)(?!.*:) ", drawn, re.MULTILINE)
    needs = {"late", "due", "at", "near", "over"}
    return {
        (catalog, name): ("active" if word in needs else word, notes[catalog, name])
        for catalog, name, word in shown
    }


def _of_page(service: Service) -> _Told:
    """Reasons are the text of the whole page, for tables that it does not show as active."""
    _, page = service.get("/?all=1")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    part = page.partition('id="tables"')[2].partition("</table>")[0]
    return {
        (catalog, name): (state, "" if state == "active" else text)
        for catalog, name, state in _ROW.findall(part)
    }


@pytest.mark.parametrize("tell", [_of_v1, _of_tables, _of_top, _of_page])
def test_every_table_has_the_same_state_and_reason_everywhere(
    service: Service, tell: Callable[[Service], _Told]
) -> None:
    told = tell(service)
    assert _states(told) == {table: case.state for table, case in CASES.items()}
    for table, case in CASES.items():
        assert [word for word in case.words if word not in told[table][1]] == [], table
        assert bool(told[table][1]) == (case.state != "active"), table


def test_status_has_every_table_that_needs_people(service: Service) -> None:
    problems = {
        each["what"] for each in json.loads(_command(service, "status", "--json"))["problems"]
    }
    expected = {
        f"{catalog}.db.{name} {case.state}"
        for (catalog, name), case in CASES.items()
        if case.state in ("halted", "degraded", "error")
    }
    assert {each for each in problems if ".db." in each} == {*expected, "lake.db.late late"}


def test_metrics_have_the_same_states(service: Service) -> None:
    scrape = service.metrics()
    for (catalog, name), case in CASES.items():
        labels = {"catalog": catalog, "table": name}
        found = [s["state"] for n, s, _ in scrape.samples if _is_state(n, s, labels)]
        assert found == [case.state], name
        is_quarantined = name in ("overlap", "stopped", "corrupt", "hole", "full")
        assert bool(scrape.all("table_quarantined_buckets", **labels)) == is_quarantined, name


def _is_state(name: str, labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return name == "compactord_table_state" and wanted.items() <= labels.items()


def test_a_late_table_is_late_everywhere(service: Service) -> None:
    late = next(row for row in _json_tables(service) if row["name"]["table"] == "late")
    assert late["need"] == "late"
    assert 'class="mark late"' in service.get("/?q=db.late")[1]


def test_work_of_a_bucket_that_waits_for_its_repair_is_blocked(service: Service) -> None:
    service.wait_until(lambda: service.table("hole")["blocked"]["tasks"] == 1, "it is blocked")


def _json_tables(service: Service) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = json.loads(_command(service, "top", "--once", "--json"))[
        "tables"
    ]
    return tables


def test_a_conflict_storm_is_in_the_history_and_no_failure_of_the_table(service: Service) -> None:
    _, page = service.get(f"/tables/lake/db/{STORMY}")
    assert re.sub(r"<[^>]+>", " ", page).count("conflict") >= CONFLICTS
    counts = service.table(STORMY)["counters"]["compactions"]
    assert sum(n for kind, n in counts.items() if kind.endswith("/conflict")) >= CONFLICTS
    assert service.table(STORMY)["consecutive_failures"] == 0


def test_expiry_that_waits_for_the_end_of_a_restore_says_so(service: Service) -> None:
    words = "a restore or copy may be under way"
    assert words in service.table("copied")["maintenance"]["expire"]["why_not"]
    assert words in _command(service, "why", "lake.db.copied")
    assert words in html.unescape(service.get("/tables/lake/db/copied")[1])
    assert not service.table("copied")["last_expire_failed"]


@pytest.mark.parametrize(
    "words",
    [
        "Catalog down cannot be listed, so none of its tables is compacted.",
        "The store or server of catalog far does not answer; its tables wait.",
    ],
)
def test_a_catalog_that_is_down_is_told_of_with_what_to_do(service: Service, words: str) -> None:
    _, page = service.get("/")
    for told in (
        html.unescape(page),
        _command(service, "top", "--once", "--width", "600"),
        _command(service, "status"),
    ):
        assert words.rstrip(".") in re.sub(r"\s+", " ", told)
        assert "what to do: " in re.sub(r"<[^>]+>", "", told).lower()


def test_probes_and_metrics_have_the_catalogs_that_are_down(service: Service) -> None:
    warnings = {each["check"] for each in service.json("/readyz")["warnings"]}
    assert {"catalog down", "catalog far"} <= warnings
    scrape = service.metrics()
    assert scrape.one("discovery_last_success_timestamp_seconds", catalog="down") == 0
    assert scrape.one("discovery_failures_total", catalog="down") > 0
    assert scrape.one("store_breaker_open", catalog="far") == 1
    assert scrape.one("store_breaker_open", catalog="lake") == 0
