"""The page's templates held against the records that they render, and their files as a package."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from inspect import isclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from jinja2 import meta, nodes

from compactord.service.page.lsm import Drawing
from compactord.service.page.notices import Notice
from compactord.service.page.overview import Column, TableFilter, overview
from compactord.service.page.pages import environment
from compactord.service.view import ServiceView, TableDetail
from tests.views import service_view

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "compactord" / "service" / "page" / "templates"
TEMPLATES = sorted(path.name for path in FOLDER.glob("*.j2"))
# Records that templates are given; those in their fields are found by their types.
RECORDS = (ServiceView, TableDetail, TableFilter, Column, Notice, Drawing)
# Values of a rendering that `pages` passes, on top of those that `overview` returns.
VALUES = {"title", "view", "filter", "now_ms", "table", "buckets", "bucket_count", "plan_link"}
VALUES |= {"alert", "text", "meanings", "name"}


def _parsed(name: str) -> nodes.Template:
    return environment().parse((FOLDER / name).read_text())


def _record_types(kinds: Iterable[Any], found: set[Any]) -> set[Any]:
    for kind in kinds:
        _record_types(get_args(kind), found)
        if isclass(kind) and kind.__module__.startswith("compactord.") and kind not in found:
            found.add(kind)
            _record_types(get_type_hints(kind).values(), found)
    return found


def _fields() -> Iterator[str]:
    """Fields and properties of all records that a template may be given."""
    for kind in _record_types(RECORDS, set()):
        yield from (*vars(kind), *get_type_hints(kind))
        if issubclass(kind, enum.Enum):
            yield from (each for member in kind for each in (*dir(member), *vars(member)))


@pytest.mark.parametrize("name", TEMPLATES)
def test_attributes_in_templates_are_those_of_records(name: str) -> None:
    methods = {each for kind in (str, dict) for each in dir(kind)}
    loops = {"first", "last", "index0"}
    used = {found.attr for found in _parsed(name).find_all(nodes.Getattr)}
    assert used - set(_fields()) - methods - loops == set()


@pytest.mark.parametrize("name", TEMPLATES)
def test_names_in_templates_are_given_to_them(name: str) -> None:
    _, values = overview(service_view(), TableFilter(), 0)
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
    filters = {found.name for found in _parsed(name).find_all(nodes.Filter)}
    assert not {"safe", "forceescape", "tojson", "xmlattr"} & filters
    assert "autoescape" not in (FOLDER / name).read_text()


def test_only_style_and_script_are_markup_by_themselves() -> None:
    sources = "".join(path.read_text() for path in sorted(FOLDER.parent.glob("*.py")))
    assert sorted(re.findall(r"Markup\((.*?)\)", sources)) == ["SCRIPT", "STYLE"]


def test_files_of_the_page_are_package_data() -> None:
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = ROOT / "compactord"
    packaged = {
        path for pattern in settings["package-data"]["compactord"] for path in package.glob(pattern)
    }
    assert set(FOLDER.iterdir()) <= packaged
    assert {path.suffix for path in FOLDER.iterdir()} == {".j2", ".css", ".js", ".svg"}
