"""`--help` of `compactord` and of every command, as it is on a terminal of 100 columns."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest

from compactord.cli.command import _parser
from tests.unit.golden.recorded import check, check_names


def _parsers(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield "-".join(words) or "compactord", parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _parsers(sub, (*words, name))


_PARSERS = dict(_parsers(_parser()))


@pytest.mark.parametrize("name", _PARSERS)
def test_help(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    check(f"help/{name}.txt", _PARSERS[name].format_help())


def test_every_file_is_of_a_command() -> None:
    check_names("help", {f"{name}.txt" for name in _PARSERS})
