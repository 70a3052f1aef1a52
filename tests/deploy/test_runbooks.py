"""A page for every alert, in which every command, address, query and name is a real one."""

from __future__ import annotations

import dataclasses
import enum
import re
import shlex
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from compactord.cli.command import _parser
from compactord.config.keys import known_keys
from compactord.config.show import json_schema
from compactord.paimon.option_catalogue import find
from compactord.scheduler import status as scheduler_status
from compactord.service import view
from compactord.service.http import Request
from compactord.service.metrics import Metrics
from compactord.service.page.pages import render
from compactord.service.site import Site
from compactord.table.compactor import Phase
from tests.deploy.prometheus import DEPLOY, Exposed, Prometheus, running_prometheus
from tests.deploy.test_dashboard import dashboard
from tests.deploy.test_rules import alert_names
from tests.views import FixedClock, busy_night

PAGES = sorted((DEPLOY / "runbooks").glob("*.md"))
PACKAGE = DEPLOY.parent / "compactord"
HEADINGS = ["What it means", "If you do nothing", "Diagnosis", "Do", "Do not"]
# Names of others: of Paimon's system tables, and what a warehouse's folders are called.
FOREIGN = {"$snapshots", "commit_user", "commit_kind", "*.db"}
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


def blocks(page: Path, language: str) -> list[str]:
    """The lines of a page's blocks in a language."""
    found = (text for kind, text in _FENCE.findall(page.read_text()) if kind == language)
    return [line for text in found for line in text.splitlines()]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def addresses(page: Path) -> Iterator[str]:
    for address in re.findall(r"http://compactord:9464[^\s'`]*", page.read_text()):
        yield address.removeprefix("http://compactord:9464")
    yield from (span for span in spans(page) if span.startswith("/"))


def spans(page: Path) -> list[str]:
    """What stands between backticks."""
    return re.findall(r"`([^`\n]+)`", prose(page))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), "{}") as started:
        yield started


@pytest.fixture(scope="module")
def exposed() -> Exposed:
    return Exposed.everything()


@pytest.fixture(scope="module")
def names(exposed: Exposed) -> set[str]:
    return known_names(exposed)


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    assert {page.stem for page in PAGES} == alert_names()


@each_page
def test_a_page_answers_the_questions_of_the_night_in_order(page: Path) -> None:
    text = page.read_text()
    assert text.startswith(f"# {page.stem}\n")
    assert re.findall(r"^## (.+)$", prose(page), re.MULTILINE) == HEADINGS
    assert len(text.splitlines()) <= 80, "read by someone who was woken"
    assert max(len(line) for line in prose(page).splitlines()) <= 110
    assert set(re.findall(r"\bCompactord\w+", text)) <= alert_names()
    titles = {panel["title"] for panel in dashboard()["panels"]}
    assert set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text)) <= titles


@each_page
def test_commands_are_ones_that_the_command_line_takes(page: Path) -> None:
    for line in blocks(page, "sh"):
        program, *arguments = shlex.split(line)
        assert program in ("compactord", "curl", ""), line
        if program == "compactord":
            _parser().parse_args(arguments)


def test_the_reasons_of_a_halt_are_those_that_can_be_set() -> None:
    page = next(page for page in PAGES if page.stem == "CompactordTableHalted")
    told = re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE)
    assert set(told) == {reason.value for reason in scheduler_status.HaltReason}
    sources = "".join(path.read_text() for path in (PACKAGE / "scheduler").glob("*.py"))
    for reason in scheduler_status.HaltReason:
        assert f"HaltReason.{reason.name}" in sources, "nothing sets it"


@each_page
def test_addresses_are_served(page: Path) -> None:
    status, clock = busy_night(), FixedClock()
    site = Site(
        status=status,
        metrics=Metrics(),
        clock=clock,
        config=dict,
        page=lambda path, query: render(status, path, query, clock=clock),
    )
    for address in addresses(page):
        parts = urlsplit(address)
        query = dict(parse_qsl(parts.query))
        answer = site.answer(Request(path=parts.path, query=query, accept=""))
        assert answer.status != HTTPStatus.NOT_FOUND, address


@pytest.mark.tools
def test_queries_speak_of_nothing_that_is_not_exposed(
    prometheus: Prometheus, exposed: Exposed
) -> None:
    for page in PAGES:
        for line in blocks(page, "promql"):
            assert exposed.strangers(prometheus.parse(line)) == [], (page.stem, line)


@each_page
def test_names_in_the_text_are_those_of_the_program(page: Path, names: set[str]) -> None:
    said = (span for span in spans(page) if not span.startswith(("/", "http://")))
    words = {re.split("[ :=]", span)[0] for span in said}
    strangers = {
        word
        for word in words - names - FOREIGN
        if re.match(r"[a-z$*_]", word) and find(word) is None and word != "compactord"
    }
    assert strangers == set()


def known_names(exposed: Exposed) -> set[str]:
    """Keys of the configuration, log events, labels and their values, fields of the JSON."""
    names = set(exposed.labels)
    for (_, label), values in exposed.values.items():
        names |= {label, *values}
    for found in (*vars(view).values(), *vars(scheduler_status).values()):
        if isinstance(found, type) and issubclass(found, enum.Enum):
            names |= {member.value for member in found}
        elif dataclasses.is_dataclass(found):
            names |= {each.name for each in dataclasses.fields(found)}
    fields = {"halt": view.Halt, "engine": view.EngineView, "catalogs[]": view.CatalogView}
    for prefix, kind in fields.items():
        names |= {f"{prefix}.{each.name}" for each in dataclasses.fields(kind)}
    for source in PACKAGE.rglob("*.py"):
        text = source.read_text()
        names |= set(re.findall(r'"([a-z]+(?:_[a-z]+)+)"', text))
        names |= set(re.findall(r'beats\["(\w+)"\]', text))
    for section in json_schema()["properties"]:
        names |= {f"{section}.{key}" for key in known_keys((section,))} | {section}
    names |= {phase.value for phase in Phase}
    names |= set(known_keys(("rules", 0, "set", "windows", 0)))
    return names | set(known_keys(("defaults",)))
