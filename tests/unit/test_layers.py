"""The table "Packages" of docs/design.md, held against what modules really import."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "compactord"
FOUNDATION = {"errors", "clock", "ids", "text"}


def _table() -> dict[str, str]:
    """Package -> the text of "may import"."""
    text = (ROOT / "docs" / "design.md").read_text()
    section = text.split("## Packages", 1)[1].split("\n## ", 1)[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            for name in re.findall(r"`(\w+)`", cells[0]):
                found[name] = cells[2]
    return found


def _allowed(name: str, table: dict[str, str]) -> set[str]:
    if name in FOUNDATION:
        return FOUNDATION
    if table[name] == "all of the above":
        above = list(table)[: list(table).index(name)]
        return {*above, name}
    listed = set(re.findall(r"`(\w+)`", table[name]))
    return {*listed, *FOUNDATION, name}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _home(path: Path) -> str:
    """The package of a module, or its own name at the top."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Full names of imported modules; relative imports do not exist (ruff TID)."""
    return tuple(_read_imports(ast.parse(path.read_text())))


def _read_imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                for alias in names:
                    inside = PACKAGE.parent / module.replace(".", "/") / f"{alias.name}.py"
                    package = inside.with_suffix("") / "__init__.py"
                    is_module = inside.exists() or package.exists()
                    yield f"{module}.{alias.name}" if is_module else module


def _inner_homes(path: Path) -> set[str]:
    names = (name.split(".") for name in _imports(path))
    return {parts[1] for parts in names if parts[0] == "compactord" and len(parts) > 1}


def test_every_package_is_in_the_table() -> None:
    homes = {_home(path) for path in _modules()} - {"__init__", "__main__"}
    assert homes == set(_table())


@pytest.mark.parametrize("home", sorted(_table()))
def test_a_package_imports_only_what_the_table_allows(home: str) -> None:
    allowed = _allowed(home, _table())
    for path in _modules():
        if _home(path) == home:
            assert _inner_homes(path) <= allowed, path.relative_to(ROOT)


def test_nothing_imports_the_demo() -> None:
    for path in _modules():
        assert not any(name.startswith("compactord_demo") for name in _imports(path)), path


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("pyspark", {"engine"}),
        ("py4j", {"engine"}),
        ("fastavro", {"paimon"}),
        ("sqlalchemy", {"catalog"}),
        ("urllib3", {"catalog"}),
        (
            "structlog",
            {
                "catalog",
                "state",
                "commit",
                "maintenance",
                "engine",
                "service",
                "table",
                "cli",
                "verify",
            },
        ),
        ("pydantic", {"config"}),
        ("yaml", {"config"}),
        ("apscheduler", {"service"}),
        ("prometheus_client", {"service"}),
        ("waitress", {"service"}),
        ("jinja2", {"service"}),
        ("markupsafe", {"service"}),
        ("rich", {"top"}),
    ],
)
def test_a_library_has_its_home(library: str, homes: set[str]) -> None:
    users = {
        _home(path)
        for path in _modules()
        if any(name.split(".")[0] == library for name in _imports(path))
    }
    assert users <= homes


def test_the_catalog_of_a_folder_is_known_to_what_opens_it() -> None:
    module = "compactord.catalog.filesystem"
    assert {_home(path) for path in _modules() if module in _imports(path)} == {"catalog"}


def test_a_file_format_is_known_by_name_to_the_registry_alone() -> None:
    parquet = PACKAGE / "formats" / "parquet"
    users = {
        str(path.relative_to(PACKAGE))
        for path in _modules()
        if any(name.startswith("compactord.formats.parquet") for name in _imports(path))
        and not path.is_relative_to(parquet)
    }
    assert users == {"formats/registry.py"}


class _WithoutTypes(ast.NodeTransformer):
    """Drops what a type checker alone runs."""

    def visit_If(self, node: ast.If) -> ast.If | None:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return None
        self.generic_visit(node)
        return node


def test_no_module_needs_itself() -> None:
    """Not by way of others, and not when a function of it runs either."""
    needed = {}
    for path in _modules():
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        tree = _WithoutTypes().visit(ast.parse(path.read_text()))
        needed[".".join(parts).removesuffix(".__init__")] = set(_read_imports(tree))
    # Raises `CycleError`, which names them.
    TopologicalSorter(needed).prepare()


def test_a_store_is_known_to_what_opens_it() -> None:
    rooms = ("local", "objects", "hdfs", "fsspec")
    users = {
        (str(path.relative_to(PACKAGE)), name.removeprefix("compactord.storage."))
        for path in _modules()
        for name in _imports(path)
        if name.startswith(tuple(f"compactord.storage.{room}" for room in rooms))
        and _home(path) != "storage"
    }
    assert users == {
        # A merge that spills writes temporary files of its machine.
        ("rewrite/merging.py", "local"),
        # An option of the catalog's own that stands for one of the store's.
        ("catalog/rest/vended.py", "objects.oss"),
    }


@pytest.mark.parametrize("home", ["plan", "kernels"])
def test_decisions_and_merging_know_neither_time_nor_owner_nor_store(home: str) -> None:
    for path in _modules():
        if _home(path) == home:
            assert not _inner_homes(path) & {"clock", "ids", "storage"}, path.relative_to(ROOT)
            assert not {"time", "random", "uuid"} & set(_imports(path)), path.relative_to(ROOT)
