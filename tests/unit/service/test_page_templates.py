"""The page's templates held against the records that they render, and their files as a package."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import is_dataclass
from inspect import getmembers, isclass
from pathlib import Path

import pytest
from jinja2 import meta, nodes

import compactord.model
import compactord.reasons
import compactord.scheduler.record
import compactord.scheduler.status
import compactord.service.page.lsm
import compactord.service.page.overview
import compactord.service.view
import compactord.state.rewrites
import compactord.table.status
from compactord.service.page.pages import environment
from tests.views import service_view

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "compactord" / "service" / "page" / "templates"
TEMPLATES = sorted(path.name for path in FOLDER.glob("*.j2"))
RECORDS = (
    *(compactord.model, compactord.reasons, compactord.scheduler.record),
    *(compactord.scheduler.status, compactord.service.page.lsm, compactord.service.page.overview),
    *(compactord.service.view, compactord.state.rewrites, compactord.table.status),
)
# Values of a rendering that `pages` passes, on top of those that `overview` returns.
VALUES = {"title", "view", "filter", "now_ms", "table", "buckets", "bucket_count", "plan_link"}
VALUES |= {"alert", "text", "meanings", "name"}


def _parsed(name: str) -> nodes.Template:
    return environment().parse((FOLDER / name).read_text())


def _fields() -> Iterator[str]:
    """Fields and properties of all records that a template may be given."""
    for module in RECORDS:
        for _, found in getmembers(module, isclass):
            if issubclass(found, enum.Enum):
                yield from (each for member in found for each in (*dir(member), *vars(member)))
            elif is_dataclass(found) or hasattr(found, "_fields"):
                yield from (each for each in (*vars(found), *found.__annotations__))


@pytest.mark.parametrize("name", TEMPLATES)
def test_attributes_in_templates_are_those_of_records(name: str) -> None:
    methods = {each for kind in (str, dict) for each in dir(kind)}
    loops = {"first", "last", "index0"}
    used = {found.attr for found in _parsed(name).find_all(nodes.Getattr)}
    assert used - set(_fields()) - methods - loops == set()


@pytest.mark.parametrize("name", TEMPLATES)
def test_names_in_templates_are_given_to_them(name: str) -> None:
    status = service_view()
    _, values = compactord.service.page.overview.overview(
        status, compactord.service.page.overview.TableFilter(), 0
    )
    parsed = _parsed(name)
    given = {*VALUES, *values, *environment().globals, "caller"}
    # Blocks see what the template defines, which Jinja2's search does not.
    given |= {found.name for found in parsed.find_all(nodes.Name) if found.ctx == "store"}
    given |= {found.name for found in parsed.find_all(nodes.Macro)}
    given |= {str(each) for found in parsed.find_all(nodes.FromImport) for each in found.names}
    assert meta.find_undeclared_variables(parsed) - given == set()


@pytest.mark.parametrize("name", TEMPLATES)
def test_imported_macros_are_there_and_used(name: str) -> None:
    parsed = _parsed(name)
    used = {found.name for found in parsed.find_all(nodes.Name)}
    for imported in parsed.find_all(nodes.FromImport):
        assert isinstance(imported.template, nodes.Const)
        found = environment().get_template(imported.template.value).module
        assert [each for each in imported.names if not hasattr(found, str(each))] == []
        assert set(imported.names) - used == set()


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_turns_escaping_off(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert not {"safe", "forceescape", "tojson", "xmlattr"} & {
        found.name for found in _parsed(name).find_all(nodes.Filter)
    }
    assert "autoescape" not in text
    assert list(_parsed(name).find_all(nodes.TemplateData))


def test_files_of_the_page_are_package_data() -> None:
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "compactord"
    packaged = {
        path for pattern in settings["package-data"]["compactord"] for path in package.glob(pattern)
    }
    assert set(FOLDER.iterdir()) <= packaged
    assert {path.suffix for path in FOLDER.iterdir()} == {".j2", ".css", ".js", ".svg"}
