"""Sound, spoilt and unmanaged tables of three catalogs: whoever is asked tells the same of each."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.damage import DAMAGE, spoil
from tests.service.daemon_process import SERVE, Service, Services, configuration
from tests.service.lakes import LOCAL, Keyed, Lake

# A day on which the test does not run, also if it runs at midnight.
_OTHER_DAY = (datetime.now().astimezone() + timedelta(days=3)).strftime("%a").lower()
_RULES = [
    {"match": {"table": r"db\.paused"}, "set": {"mode": "paused"}},
    {
        "match": {"table": r"db\.late"},
        "set": {
            "windows": [{"days": _OTHER_DAY}],
            "windows_strict": True,
            "max_backlog_age": "1 s",
        },
    },
]
# Modes of folders count for a daemon without capabilities also when root starts it.
_BARE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--")
_ROW = re.compile(
    r'<th scope="row"[^>]*><a href="/tables/(\w+)/db/(\w+)">.*?<span class="mark ([a-z-]+)"',
    re.DOTALL,
)


def _due(lake: Lake, name: str, **options: str) -> Path:
    lake.keyed(name, buckets=1, options=options).commit(6)
    return lake.path(name)


def _refused(lake: Lake, name: str) -> None:
    _due(lake, name)
    lake.alter(name, {"row-tracking.enabled": "true"})


def _newest_data(table: Path) -> Path:
    return max(table.glob("bucket-0/data-*"), key=lambda path: path.stat().st_mtime_ns)


def _corrupt_data(lake: Lake, name: str) -> None:
    path = _newest_data(_due(lake, name))
    path.write_bytes(b"junk" + path.read_bytes()[4:-8] + b"junkjunk")


def _hole(lake: Lake, name: str) -> None:
    _newest_data(_due(lake, name)).unlink()


def _newer_schema(lake: Lake, name: str) -> None:
    lake.keyed(name)
    lake.alter(name, {})
    Keyed(lake.ref(name)).commit()
    (lake.path(name) / "schema" / "schema-1").unlink()


def _overlap(lake: Lake, name: str) -> None:
    # Two files of bucket 0 become one run: more runs than the trigger must be left.
    lake.keyed(name).commit(8)
    spoil(LOCAL, lake.ref(name), 0, DAMAGE["overlap"][0])


def _missing_manifest(lake: Lake, name: str) -> None:
    for path in (_due(lake, name) / "manifest").glob("manifest-list-*"):
        path.unlink()


@dataclass(frozen=True, slots=True)
class _Case:
    """How a table is made, the state that all tell of it, and words of the reason."""

    make: Callable[[Lake, str], object]
    state: str = "active"
    words: str = ""


_LAKE: Mapping[str, _Case] = {
    "healthy": _Case(_due),
    "appended": _Case(lambda lake, name: lake.appended(name).commit(3)),
    "empty": _Case(lambda lake, name: lake.keyed(name)),
    "late": _Case(_due),
    "paused": _Case(_due, "paused", "rules.0.set.mode"),
    "refused": _Case(_refused, "unsupported", "row-tracking.enabled"),
    "schema": _Case(_newer_schema, "unsupported", "live files have schema 1"),
    "overlap": _Case(_overlap, "degraded", "key range overlaps"),
    "corrupt": _Case(_corrupt_data, "halted", "bucket 0"),
    "hole": _Case(
        lambda lake, name: _newest_data(_due(lake, name)).unlink(), "halted", "not exist"
    ),
    "manifest": _Case(_missing_manifest, "halted", "manifest-list-"),
    "snapshot": _Case(
        lambda lake, name: (_due(lake, name) / "snapshot" / "snapshot-6").write_text("{"),
        "halted",
        "snapshot-6",
    ),
    "denied": _Case(lambda lake, name: _due(lake, name).chmod(0), "halted", "denied"),
    "tmp_x": _Case(_due, "excluded", "excluding_tables"),
    "own": _Case(
        lambda lake, name: _due(lake, name, **{"write-only": "false"}), "excluded", "not write-only"
    ),
}
_POND: Mapping[str, _Case] = {"healthy": _LAKE["healthy"], "hole": _LAKE["hole"]}
_CASES = {
    (catalog, name): case
    for catalog, cases in (("lake", _LAKE), ("pond", _POND))
    for name, case in cases.items()
}
# Of each table its state and, if it is not active, the reason.
_Told = dict[tuple[str, str], tuple[str, str]]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A daemon that has found out everything that is wrong."""
    scratch = tmp_path_factory.mktemp("story")
    lakes = {name: Lake(scratch / name) for name in ("lake", "pond")}
    for (catalog, name), case in _CASES.items():
        case.make(lakes[catalog], name)
    config = configuration(
        lakes["lake"].warehouse,
        catalogs={"pond": {"warehouse": f"{scratch}/pond"}, "down": {"warehouse": f"{scratch}/no"}},
        discovery={"excluding_tables": r"db\.tmp_.*"},
        retry={"halt_after_consecutive_failures": 3},
        rules=_RULES,
    )
    services = Services(scratch, [])
    command = (*_BARE, *SERVE) if os.geteuid() == 0 else SERVE
    try:
        started = services.start(config, command=command).wait_started()
        expected = {table: case.state for table, case in _CASES.items()}
        started.wait_until(lambda: _states(_of_v1(started)) == expected, "all is found out")
        yield started
        assert started.stop() == 0
        assert "Traceback" not in started.err
    finally:
        lakes["lake"].path("denied").chmod(0o755)
        for each in services.started:
            each.kill_family()


def _states(told: _Told) -> dict[tuple[str, str], str]:
    return {table: state for table, (state, _) in told.items()}


def _of_v1(service: Service) -> _Told:
    return {
        _key(table): (table["status"], table["why"])
        for table in service.json("/v1/tables")["tables"]
    }


def _key(table: Mapping[str, Any]) -> tuple[str, str]:
    return table["name"]["catalog"], table["name"]["table"]


def _command(service: Service, *arguments: str) -> str:
    url = f"http://127.0.0.1:{service.port}"
    command = (SERVE[0], *arguments, "--url", url)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    # 3: tables that fail are among them.
    assert done.returncode == (3 if arguments[0] == "tables" else 0), done.stderr
    return done.stdout


def _of_tables(service: Service) -> _Told:
    rows = json.loads(_command(service, "tables", "--json"))["tables"]
    return {
        (row["catalog"], row["table"].removeprefix("db.")): (row["state"], row["why"])
        for row in rows
    }


def _of_top(service: Service) -> _Told:
    """States are read from the drawn frame: an active table shows its need instead."""
    notes = {_key(table): table["note"] for table in _json_tables(service)}
    drawn = _command(service, "top", "--once", "--width", "300").partition("running (")[0]
    shown = re.findall(r"^(\w+)\.db\.(\w+) +(\w+)(?!.*:) ", drawn, re.MULTILINE)
    needs = {"late", "due", "at", "near", "over"}
    return {
        (catalog, name): ("active" if word in needs else word, notes[catalog, name])
        for catalog, name, word in shown
    }


def _of_page(service: Service) -> _Told:
    """Reasons are those that the page has anywhere, as /v1 words them."""
    _, page = service.get("/?all=1")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    part = page.partition('id="tables"')[2].partition("</table>")[0]
    reasons = {table: why for table, (_, why) in _of_v1(service).items()}
    return {
        (catalog, name): (state, why if (why := reasons[catalog, name]) in text else "")
        for catalog, name, state in _ROW.findall(part)
    }


@pytest.mark.parametrize("tell", [_of_v1, _of_tables, _of_top, _of_page])
def test_every_table_has_the_same_state_and_reason_everywhere(
    service: Service, tell: Callable[[Service], _Told]
) -> None:
    told = tell(service)
    assert _states(told) == {table: case.state for table, case in _CASES.items()}
    for table, case in _CASES.items():
        assert case.words in told[table][1], table
        assert bool(told[table][1]) == (case.state != "active"), table


def test_metrics_have_the_same_states(service: Service) -> None:
    scrape = service.metrics()
    for (catalog, name), case in _CASES.items():
        labels = {"catalog": catalog, "table": name}
        found = [s["state"] for n, s, _ in scrape.samples if _is_state(n, s, labels)]
        assert found == [case.state], name
        is_quarantined = name in ("overlap", "corrupt", "hole")
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


def test_a_catalog_that_is_down_is_told_of_with_what_to_do(service: Service) -> None:
    _, page = service.get("/")
    for told in (html.unescape(page), _command(service, "top", "--once", "--width", "400")):
        assert "Catalog down cannot be listed, so none of its tables is compacted." in told
        assert "What to do: " in re.sub(r"<[^>]+>", "", told)
    warnings = {each["check"] for each in service.json("/readyz")["warnings"]}
    assert warnings == {"catalog down"}
    scrape = service.metrics()
    assert scrape.one("discovery_last_success_timestamp_seconds", catalog="down") == 0
    assert scrape.one("discovery_failures_total", catalog="down") > 0
