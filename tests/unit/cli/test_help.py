"""`--help` of every command for tables: what it does, with examples that the parser takes."""

from __future__ import annotations

import re
import shlex

import pytest

from compactord.cli.command import _parser, main
from compactord.cli.maintain import choices
from compactord.config.model import Recovery
from compactord.maintenance.registry import maintenance_kinds

COMMANDS = (
    "compact",
    "plan",
    "inspect",
    "tables",
    "why",
    "maintain",
    "expire",
    "orphans",
    "doctor",
)


def test_the_help_of_maintain_says_what_each_kind_does_in_their_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["maintain", "--help"])
    _, _, said = capsys.readouterr().out.partition("\nkinds, in this order:\n")
    names = list(choices(maintenance_kinds(Recovery())))
    assert re.findall(r"^  (\w+) +\w", said, re.MULTILINE) == names


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_that_it_takes(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    examples = said[said.index("\nexamples:\n") :].replace("\\\n", " ")
    lines = re.findall(r"^  compactord (.*)$", examples, re.MULTILINE)
    assert len(lines) >= 2
    for line in lines:
        arguments = shlex.split(line.partition(" | ")[0].replace("     #", " #"), comments=True)
        assert arguments[0] == command
        _parser().parse_args(arguments)
