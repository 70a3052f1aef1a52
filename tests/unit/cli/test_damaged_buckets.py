"""Commands about a table with one damaged bucket name it, and tell of the others as always."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from compactord.paimon.schema import TableRef
from tests import builders
from tests.damage import DAMAGE, Spoil, spoil
from tests.unit.cli.warehouses import LOCAL, answered, configuration, said

RESCALED: Spoil = lambda entry: replace(entry, total_buckets=9)  # noqa: E731
CASES = {**DAMAGE, "buckets": (RESCALED, "disagree about the number of buckets: 8, 9")}
Table = Callable[[Spoil], tuple[str, ...]]


@pytest.fixture
def damaged(tmp_path: Path) -> Table:
    """The arguments that name a table of eight buckets, of which number 3 is damaged."""

    def made(how: Spoil) -> tuple[str, ...]:
        location = f"{tmp_path}/wh/d.db/t"
        table = builders.keyed_table(LOCAL, location, buckets=8)
        builders.fill_keyed(builders.writer(LOCAL, table), commits=6, keys=200)
        spoil(LOCAL, TableRef(database="d", name="t", location=location), 3, how)
        return ("--warehouse", f"{tmp_path}/wh", "--table", "d.t")

    return made


@pytest.mark.parametrize(("how", "text"), CASES.values(), ids=CASES)
def test_plan_goes_on_with_the_others(
    how: Spoil, text: str, damaged: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answered(capsys, "plan", *damaged(how))
    assert {each["bucket"] for each in found["compactions"]} == {*range(8)} - {3}
    (note,) = found["notes"]
    assert note.startswith("bucket 3: cannot be planned: ")
    assert text in note


@pytest.mark.parametrize(("how", "text"), CASES.values(), ids=CASES)
def test_inspect_shows_all_and_names_the_damage(
    how: Spoil, text: str, damaged: Table, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = damaged(how)
    found = answered(capsys, "inspect", *arguments)
    assert [each["bucket"] for each in found["buckets"]] == [*range(8)]
    (note,) = found["damaged"]
    assert note.startswith("bucket 3: ")
    assert text in note
    assert f"note: {note}" in said(capsys, "inspect", *arguments)


@pytest.mark.parametrize(("how", "text"), CASES.values(), ids=CASES)
def test_why_says_what_is_wrong_with_it_and_when_it_goes_on(
    how: Spoil,
    text: str,
    tmp_path: Path,
    damaged: Table,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damaged(how)
    config = configuration(tmp_path, "catalogs: {lake: {warehouse: WH}}\n")
    found = answered(capsys, "why", "d.t", "--config", config, "--worst", "8")
    buckets = {each["bucket"]: each for each in found["buckets"]}
    assert buckets.keys() == {*range(8)}
    assert text in buckets[3]["why"]
    assert (buckets[3]["reason"], buckets[3]["what"]) == (None, "")
    assert "until its files change" in buckets[3]["later"]
    assert {each["reason"] for number, each in buckets.items() if number != 3} == {"size_amp"}
