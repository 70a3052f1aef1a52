"""Names of tables and values of partitions come from stores: they control no terminal."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from compactord.cli.command import main
from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord_demo.writer import create_table
from tests import builders
from tests.unit.cli.warehouses import LOCAL, answered, configuration, said

_HOSTILE = "\x1b]0;owned\x07\u202e\u2066\x9b2J"
_SHOWN = r"\x1b]0;owned\x07\u202e\u2066\x9b2J"
# Commands take no such name; tables have it nevertheless.
_NAME = f"d.t{_HOSTILE}"
_FIELDS = (
    DataField(
        id=0, name="p", type=AtomicType(root=TypeRoot.VARCHAR, nullable=False, precision=2**31 - 1)
    ),
    DataField(id=1, name="k", type=AtomicType(root=TypeRoot.INT, nullable=False)),
)


def _hostile(folder: Path) -> tuple[str, ...]:
    """The arguments that name a warehouse: such a table, and `d.plain` with such a partition."""
    for name in (_NAME[2:], "plain"):
        _filled(TableRef(database="d", name=name, location=f"{folder}/wh/d.db/{name}"))
    return "--warehouse", f"{folder}/wh"


def _filled(ref: TableRef) -> None:
    options = {"bucket": "1", "write-only": "true"}
    create_table(
        LOCAL, ref, _FIELDS, partition_keys=["p"], primary_keys=["p", "k"], options=options
    )
    writer = builders.writer(LOCAL, ref)
    schema = pa.schema(
        [pa.field("p", pa.string(), nullable=False), pa.field("k", pa.int32(), nullable=False)]
    )
    for number in range(6):
        writer.write(pa.table({"p": [_HOSTILE], "k": [number]}, schema))


@pytest.mark.parametrize(
    "command",
    [
        ("tables",),
        ("inspect", "--table", "d.plain"),
        ("inspect", "--database", "d"),
        ("plan", "--table", "d.plain"),
        ("plan", "--database", "d"),
        ("why", "d.plain"),
        ("expire", "--database", "d"),
        ("orphans", "--database", "d"),
        ("maintain", "--database", "d"),
        ("top", "--once", "--width", "200"),
    ],
)
def test_commands_escape_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]
) -> None:
    found = said(capsys, *command, *_hostile(tmp_path))
    assert found.replace("\n", "").isprintable()
    assert _SHOWN in found


def test_errors_escape_them_and_json_has_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = _hostile(tmp_path)
    absent = f"{_NAME}\nx"
    found = said(capsys, "inspect", "--table", absent, *where, code=2)
    assert found.endswith("\n")
    assert found[:-1].isprintable()
    assert answered(capsys, "tables", *where)["tables"][1]["table"] == _NAME
    main(["tables", "--json", *where])
    assert capsys.readouterr().out.isascii()
    broken = LOCAL.list(f"{where[1]}/d.db/{_NAME[2:]}/schema")
    for each in list(broken):
        LOCAL.overwrite(f"{where[1]}/d.db/{_NAME[2:]}/schema/{each.name}", b"{")
    found = said(capsys, "inspect", "--database", "d", *where, code=3)
    assert found.replace("\n", "").isprintable()
    assert _SHOWN in found


def test_problems_of_a_configuration_are_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configuration(tmp_path, 'catalogs: {lake: {warehouse: WH}}\n"a\\u202e\\nb": 1\nc: 2\n')
    found = said(capsys, "config", "check", "--config", config, code=2)
    assert len(found.splitlines()) == 3
    assert r"a\u202e\nb" in found
