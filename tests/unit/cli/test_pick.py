"""Which release's picks a command makes: its argument's, else the table's rule's, else 2.1's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.warehouses import LOCAL, answered, configuration, said
from tests.unit.table.test_pick import uneven_table

# The highest level is taken along.
OLD, NEW = 4, 3


@pytest.mark.parametrize(
    ("arguments", "rules", "level"),
    [
        ((), None, NEW),
        (("--pick", "2.0"), None, OLD),
        (("--pick", "2.1"), None, NEW),
        ((), "", NEW),
        ((), "defaults: {pick: '2.0'}", OLD),
        ((), "rules: [{match: {table: 'd\\.t'}, set: {pick: 2.0}}]", OLD),
        (("--pick", "2.1"), "defaults: {pick: 2.0}", NEW),
        (("--set", "defaults.pick=2.0"), "", OLD),
    ],
)
def test_plan_and_why_pick_by_the_argument_or_the_rule(
    arguments: tuple[str, ...],
    rules: str | None,
    level: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    uneven_table(LOCAL, f"{tmp_path}/wh/d.db/t")
    where = ("--warehouse", f"{tmp_path}/wh")
    if rules is not None:
        config = configuration(tmp_path, f"catalogs: {{lake: {{warehouse: WH}}}}\n{rules}")
        where = ("--config", config)
    (compaction,) = answered(capsys, "plan", "--table", "d.t", *where, *arguments)["compactions"]
    assert (compaction["reason"], compaction["output_level"]) == ("size_ratio", level)
    (bucket,) = answered(capsys, "why", "d.t", *where, *arguments)["buckets"]
    assert f"to level {level}" in bucket["what"]


@pytest.mark.parametrize("command", [("compact", "--table"), ("plan", "--table"), ("why",)])
def test_other_releases_are_refused(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, *command, "d.t", "--warehouse", str(tmp_path), "--pick", "2", code=2)
    assert "--pick 2: unknown; it is one of 2.0, 2.1" in text


def test_a_service_is_asked_for_its_own_picks_only(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "why", "d.t", "--url", "http://127.0.0.1:1", "--pick", "2.0", code=2)
    assert "--pick need" in text
