"""Maps whose keys are declared optional, as release 0.8 writes them, are named and not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactord.errors import FormatError
from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.thrift import Converted, Element, File, Kind, Repetition, Struct
from compactord.model import InputFile
from compactord.paimon.types import value_schema
from tests.unit.formats.parquet.stored_pages import parquet_input, with_footer
from tests.unit.rewrite.builders import fields, write_parquet

MAP: Any = {"type": "MAP", "key": "STRING NOT NULL", "value": "INT"}
COLUMNS = fields(
    k="INT",
    m=MAP,
    r={"type": "ROW", "fields": [{"id": 9, "name": "inside", "type": MAP}]},
)


def with_elements(path: Path, change: dict[bytes, Struct]) -> InputFile:
    """A file whose maps have other elements in the schema, those of keys under the map's name."""
    table = pa.Table.from_pylist([{"k": 1, "m": [("a", 1)], "r": None}], value_schema(COLUMNS))
    write_parquet(path, table)
    footer = footer_of(path.read_bytes())
    elements = list(footer[File.SCHEMA].value.values)
    for number, element in enumerate(elements[:-2]):
        for place, changed in change.items():
            name, _, which = place.partition(b".")
            if element[Element.NAME].value == name:
                of = number + 2 if which else number
                elements[of] = {**elements[of], **changed}
                for gone in [field for field, value in changed.items() if value is None]:
                    del elements[of][gone]
    changed_footer = {**footer, File.SCHEMA: thrift.items(Kind.STRUCT, elements)}
    return with_footer(path, changed_footer, 1)


OPTIONAL = {Element.REPETITION: thrift.i32(Repetition.OPTIONAL)}
OLD: Any = {Element.CONVERTED: thrift.i32(Converted.MAP), Element.LOGICAL: None}
NEW: Any = {Element.CONVERTED: None}


@pytest.mark.parametrize("annotation", [OLD, NEW, {}], ids=["old", "new", "both"])
@pytest.mark.parametrize("name", ["m", "inside"])
def test_a_map_whose_keys_may_be_null_is_named(tmp_path: Path, name: str, annotation: Any) -> None:
    encoded = name.encode()
    file = with_elements(tmp_path / "f", {encoded: annotation, encoded + b".key": OPTIONAL})
    with pytest.raises(
        FormatError, match=f"MAP {name} has keys that are declared optional"
    ) as raised:
        parquet_input(file).footer()
    assert raised.value.path == file.path


@pytest.mark.parametrize("annotation", [OLD, NEW, {}], ids=["old", "new", "both"])
def test_other_maps_are_read(tmp_path: Path, annotation: Any) -> None:
    file = with_elements(tmp_path / "f", {b"m": annotation, b"inside": annotation})
    assert parquet_input(file).footer().arrow.num_rows == 1
