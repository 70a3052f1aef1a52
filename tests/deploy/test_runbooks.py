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
import yaml

from compactord.cli.command import _parser
from compactord.config.load import json_schema, known_keys
from compactord.config.model import Recovery
from compactord.maintenance.registry import maintenance_kinds
from compactord.paimon.options.catalogue import find
from compactord.scheduler import compaction as scheduler_status
from compactord.service import view
from compactord.service.http import Request
from compactord.service.metrics import Metrics
from compactord.service.page.pages import render
from compactord.service.site import Site
from compactord.table.jobs import Phase
from tests.deploy.prometheus import DEPLOY, Exposed, Prometheus, running_prometheus
from tests.deploy.test_dashboard import dashboard
from tests.deploy.test_rules import alert_names
from tests.views import FixedClock, busy_night

PAGES = sorted((DEPLOY / "runbooks").glob("*.md"))
PACKAGE = DEPLOY.parent / "compactord"
HEADINGS = ["Meaning", "If you do nothing", "Diagnosis", "Do", "Do not"]
# What to do about a key that is refused stands on one page, to which the others lead.
CREDENTIALS = "CompactordDiscoveryFailing"
# The release of the documentation: its namespace, its deployment, and the service's port.
KUBECTL = "kubectl -n compactord "
IN_POD = f"{KUBECTL}exec deploy/compactord -- "
SHOWN = f"{IN_POD}compactord top --url http://localhost:9464 --once"
FORWARDED = f"{KUBECTL}port-forward deploy/compactord 9464 &"
# Names of others: of Paimon's system tables, what a warehouse's folders are called, references, and
# values of the chart.
FOREIGN = {"$snapshots", "commit_user", "commit_kind", "*.db", "${file", "${env"}
FOREIGN |= {"existingSecret", "executors.existingSecret"}
_FENCE = re.compile(r"^ *```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


def blocks(page: Path, language: str) -> list[str]:
    """The lines of a page's blocks in a language."""
    found = (text for kind, text in _FENCE.findall(page.read_text()) if kind == language)
    return [line.strip() for text in found for line in text.splitlines()]


def prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text())


def addresses(page: Path) -> Iterator[str]:
    text = page.read_text().replace(SHOWN, "")
    for address in re.findall(r"http://localhost:9464[^\s'`]*", text):
        yield address.removeprefix("http://localhost:9464")
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
    headings = re.findall(r"^## (.+)$", prose(page), re.MULTILINE)
    assert [each for each in headings if each != "Credentials"] == HEADINGS
    assert ("Credentials" in headings) == (page.stem == CREDENTIALS)
    assert len(text.splitlines()) <= 80, "read by someone who was woken"
    assert max(len(line) for line in prose(page).splitlines()) <= 110
    assert set(re.findall(r"\bCompactord\w+", text)) <= alert_names()
    titles = {panel["title"] for panel in dashboard()["panels"]}
    assert set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text)) <= titles | {"Credentials"}


@each_page
def test_a_page_begins_with_what_shows_the_state_to_a_laptop(page: Path) -> None:
    """There is no curl in the image, and no route to the pod: `kubectl` has one."""
    first, _, _ = page.read_text().partition("\n## ")
    (block,) = (text for _, text in _FENCE.findall(first))
    lines = block.splitlines()
    assert [line for line in lines if not line.startswith(KUBECTL)] == []
    assert lines[-2:] == [SHOWN, FORWARDED]
    # What runs in the pod has the service's configuration and keys.
    assert not [line for line in blocks(page, "sh") if re.match("compactord (why|inspect)", line)]


def test_the_deployment_is_the_one_of_the_documentation() -> None:
    (manifest,) = (DEPLOY / "kubernetes").glob("local-on-volume.yaml")
    made = [each for each in yaml.safe_load_all(manifest.read_text()) if each]
    (deployment,) = (each for each in made if each["kind"] == "Deployment")
    named = (deployment["metadata"]["namespace"], deployment["metadata"]["name"])
    assert named == ("compactord", "compactord")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [port["containerPort"] for port in container["ports"] if port["name"] == "http"] == [
        9464
    ]


@each_page
def test_commands_are_ones_that_the_command_line_takes(page: Path) -> None:
    for line in blocks(page, "sh"):
        program, *arguments = shlex.split(line.removeprefix(IN_POD))
        assert program in ("compactord", "curl", "kubectl"), line
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
    fields = {
        "halt": scheduler_status.Halt,
        "engine": view.EngineView,
        "catalogs[]": view.CatalogView,
    }
    for prefix, kind in fields.items():
        names |= {f"{prefix}.{each.name}" for each in dataclasses.fields(kind)}
    for source in PACKAGE.rglob("*.py"):
        text = source.read_text()
        names |= set(re.findall(r'"([a-z]+(?:_[a-z]+)+)"', text))
        names |= set(re.findall(r'beats\["(\w+)"\]', text))
    for section in json_schema()["properties"]:
        names |= {f"{section}.{key}" for key in known_keys((section,))} | {section}
    names |= {phase.value for phase in Phase}
    names |= {f"{kind.name}_failed" for kind in maintenance_kinds(Recovery())}
    names |= set(known_keys(("rules", 0, "set", "windows", 0)))
    return names | set(known_keys(("defaults",)))
