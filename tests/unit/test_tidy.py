"""Habits that a test can watch."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
_TEXT = {".py", ".md", ".toml", ".txt", ".cfg", ".yml", ".yaml", ".java", ".json", ""}
_VAGUE = re.compile(r"utils?|helpers?|common|managers?|misc|.*_(utils?|helpers?|manager)")
# Paths of somebody's machine, and hosts that only one network knows.
_MACHINE = re.compile(
    r"(?<![\w.])/(?:home|root|Users|work|opt/homebrew)/\w"
    r"|https?://[\w.-]+\.(?:internal|local|corp)\b"
    r"|(?:index-url|registry)\s*=\s*[\"']?https?"
)


def _files() -> Iterator[Path]:
    """What is, or is about to be, in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in sorted(listed.stdout.splitlines()):
        if (path := ROOT / name).is_file():
            yield path


def _sources() -> list[Path]:
    return [path for path in _files() if path.suffix == ".py"]


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_module_of_the_product_is_longer_than_700_lines() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in _sources()
        if path.is_relative_to(ROOT / "compactord")
    }
    assert [name for name, length in lengths.items() if length > 700] == []


def test_no_feature_has_more_lines_than_its_budget() -> None:
    """The budget is `line_budget.yaml`; it also names each module's feature."""
    budget = yaml.safe_load((ROOT / "tests/unit/line_budget.yaml").read_text())
    features = {path: name for name, given in budget.items() for path in given["paths"]}
    lines: Counter[str] = Counter()
    for path in _sources():
        if path.is_relative_to(ROOT / "compactord"):
            module = path.relative_to(ROOT / "compactord")
            place = next(each for each in (module, *module.parents) if str(each) in features)
            lines[features[str(place)]] += len(path.read_text().splitlines())
    over = {name: n for name, n in lines.items() if n > budget[name]["lines"]}
    assert over == {}
    assert [each for each in features if not (ROOT / "compactord" / each).exists()] == []
    assert set(lines) == set(budget)


def test_no_function_of_the_product_is_longer_than_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in _sources()
        if path.is_relative_to(ROOT / "compactord")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert long == []


def test_public_functions_that_raise_say_what() -> None:
    silent = [
        f"{path.relative_to(ROOT)}:{function.name}"
        for path in _sources()
        if path.is_relative_to(ROOT / "compactord")
        for owners, function in _public_functions(ast.parse(path.read_text()), ())
        if any(map(_tells, _own_statements(function)))
        if not any(_says_what(each) for each in (*owners, function))
    ]
    assert silent == []


_Owner = ast.Module | ast.ClassDef


def _public_functions(
    owner: _Owner, above: tuple[_Owner, ...]
) -> Iterator[tuple[tuple[_Owner, ...], ast.FunctionDef]]:
    """With the module and classes around each. A class with a base leaves errors to the base."""
    for each in owner.body:
        if isinstance(each, ast.ClassDef) and not each.bases and each.name[0] != "_":
            yield from _public_functions(each, (*above, owner))
        if isinstance(each, ast.FunctionDef) and (each.name[0] != "_" or each.name == "__init__"):
            yield (*above, owner), each


def _own_statements(function: ast.AST) -> Iterator[ast.AST]:
    for each in ast.iter_child_nodes(function):
        if not isinstance(each, ast.FunctionDef | ast.ClassDef | ast.Lambda):
            yield each
            yield from _own_statements(each)


def _tells(statement: ast.AST) -> bool:
    """Whether it raises an error of its own, for a caller and not for who reads the code."""
    if not isinstance(statement, ast.Raise) or not isinstance(statement.exc, ast.Call):
        return False
    return ast.unparse(statement.exc.func) not in ("AssertionError", "NotImplementedError")


def _says_what(owner: _Owner | ast.FunctionDef) -> bool:
    said = ast.get_docstring(owner) or ""
    # "See `Catalog`": the protocol says it.
    return re.search(r"[Rr]aise|Error|Unknown|refus|^See `", said) is not None


def test_every_module_has_a_name_that_says_what_it_is() -> None:
    vague = [str(path) for path in _sources() if _VAGUE.fullmatch(path.stem)]
    assert vague == []


def test_every_module_of_the_product_is_used_by_something() -> None:
    used = {"compactord.cli.command", "compactord.__main__"}
    for path in _sources():
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Import(names=names):
                    used.update(alias.name for alias in names)
                case ast.ImportFrom(module=str(module), names=names):
                    used.update({module, *(f"{module}.{alias.name}" for alias in names)})
        if path.is_relative_to(ROOT / "compactord"):
            # Workers import their task by name, when the first subcompaction arrives.
            used.update(re.findall(r'"(compactord(?:\.\w+)+)"', text))
            # And what carries out a command, when it is run.
            carried = re.findall(r'_Command\(\s*"[\w ]+", "(\w+)"', text)
            used.update(f"compactord.cli.{name}" for name in carried)
    modules = {
        _module(path)
        for path in _sources()
        if path.is_relative_to(ROOT / "compactord") and path.name != "__init__.py"
    }
    assert modules - used == set()


def test_the_tree_names_no_machine_and_no_private_registry() -> None:
    found = []
    for path in _files():
        if path == Path(__file__).resolve() or path.suffix not in _TEXT:
            continue
        text = path.read_text(errors="ignore")
        for number, line in enumerate(text.splitlines(), 1):
            if match := _MACHINE.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match.group()}")
    assert found == []


def test_no_large_file_is_in_the_tree() -> None:
    large = [str(path.relative_to(ROOT)) for path in _files() if path.stat().st_size > 1 << 20]
    assert large == []


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX"])
def test_nothing_is_left_for_later_in_a_comment(word: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in _sources()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(rf"#.*\b{word}\b", line)
    ]
    assert found == []
