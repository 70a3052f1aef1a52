from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from compactord.formats.layout import scalar_value
from compactord.paimon.types import (
    FIELD_ID,
    WIDE_TIMESTAMP,
    AtomicType,
    DataField,
    arrow_field,
    arrow_type,
    file_schema,
    from_nanoseconds,
    parse_field,
    parse_type,
    value_schema,
)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("BOOLEAN", pa.bool_()),
        ("TINYINT", pa.int8()),
        ("SMALLINT", pa.int16()),
        ("INT", pa.int32()),
        ("BIGINT", pa.int64()),
        ("FLOAT", pa.float32()),
        ("DOUBLE", pa.float64()),
        ("DECIMAL(20, 2)", pa.decimal128(20, 2)),
        ("CHAR(3)", pa.string()),
        ("STRING", pa.string()),
        ("BINARY(3)", pa.binary()),
        ("BYTES", pa.binary()),
        ("DATE", pa.date32()),
        ("TIME(6)", pa.time32("ms")),
        ("TIMESTAMP(3)", pa.timestamp("ms")),
        ("TIMESTAMP(4)", pa.timestamp("us")),
        ("TIMESTAMP(6)", pa.timestamp("us")),
        ("TIMESTAMP(7)", WIDE_TIMESTAMP),
        ("TIMESTAMP_LTZ(0)", pa.timestamp("ms", "UTC")),
        ("TIMESTAMP_LTZ(9)", WIDE_TIMESTAMP),
    ],
)
def test_each_type_has_the_unit_that_java_reads(text: str, kind: pa.DataType) -> None:
    assert arrow_type(parse_type(text)) == kind


def test_nested_columns_carry_ids_and_nullability_on_every_level() -> None:
    rows = {"type": "ROW", "fields": [{"id": 31, "name": "x", "type": "INT NOT NULL ARRAY"}]}
    field = arrow_field(
        parse_field({"id": 30, "name": "m", "type": {"type": "MAP", "key": "INT", "value": rows}})
    )
    key, value = field.type.key_field, field.type.item_field
    inner = value.type.field("x")
    element = inner.type.value_field
    ids = [f.metadata[FIELD_ID] for f in (field, key, value, inner, element)]
    assert ids == [b"30", b"536840190", b"536901632", b"31", b"536902656"]
    assert [f.nullable for f in (field, key, value, inner, element)] == [
        True,
        False,
        True,
        True,
        False,
    ]
    assert element.name == "element"


def test_types_alone_carry_no_ids() -> None:
    kind = arrow_type(parse_type({"type": "ARRAY", "element": "INT"}))
    assert kind.value_field.metadata is None


def test_multisets_are_maps_to_counts() -> None:
    kind = arrow_type(parse_type("STRING MULTISET"))
    assert (kind.key_type, kind.item_type) == (pa.string(), pa.int32())
    assert not kind.item_field.nullable


FIELDS = [
    parse_field({"id": 0, "name": "pt", "type": "STRING NOT NULL"}),
    parse_field({"id": 1, "name": "id", "type": "INT NOT NULL"}),
    parse_field({"id": 2, "name": "k", "type": "STRING NOT NULL"}),
    parse_field({"id": 3, "name": "v", "type": "DECIMAL(20, 2)"}),
]


def shown(schema: pa.Schema) -> list[tuple[str, str, bool]]:
    return [(f.name, f.metadata[FIELD_ID].decode(), f.nullable) for f in schema]


VALUES = [("pt", "0", False), ("id", "1", False), ("k", "2", False), ("v", "3", True)]
SYSTEM = [("_SEQUENCE_NUMBER", "2147483646", False), ("_VALUE_KIND", "2147483645", False)]


def test_files_lead_with_key_and_system_columns() -> None:
    keys = [("_KEY_k", "1073741825", False), ("_KEY_id", "1073741824", False)]
    assert shown(file_schema(FIELDS, ["k", "id"], thin=False)) == [*keys, *SYSTEM, *VALUES]


def test_thin_files_have_no_copies_of_the_key() -> None:
    assert shown(file_schema(FIELDS, ["id", "k"], thin=True)) == [*SYSTEM, *VALUES]
    assert shown(value_schema(FIELDS)) == VALUES


@pytest.mark.parametrize(
    ("text", "array", "values"),
    [
        ("DATE", pa.array([19000, None], pa.int32()).cast(pa.date32()), [19000, None]),
        ("TIME(3)", pa.array([5], pa.int32()).cast(pa.time32("ms")), [5]),
        ("TIMESTAMP(3)", pa.array([-1, None]).cast(pa.timestamp("ms")), [-1_000_000, None]),
        ("TIMESTAMP(6)", pa.array([7]).cast(pa.timestamp("us")), [7000]),
        ("TIMESTAMP_LTZ(9)", from_nanoseconds([7, None, -(10**24)]), [7, None, -(10**24)]),
        ("DECIMAL(4, 2)", pa.array([Decimal("1.50")], pa.decimal128(4, 2)), [Decimal("1.50")]),
        ("STRING", pa.array(["a", None]), ["a", None]),
    ],
)
def test_values_leave_arrow_in_the_form_of_rows(
    text: str, array: pa.Array, values: list[Any]
) -> None:
    kind = parse_type(text)
    assert isinstance(kind, AtomicType)
    assert [scalar_value(each, kind) for each in array] == values


@pytest.mark.parametrize("text", ["VARIANT", "BLOB", "VECTOR<FLOAT, 2>"])
def test_refused_types_have_no_column(text: str) -> None:
    with pytest.raises(AssertionError, match="refused"):
        arrow_field(DataField(id=0, name="x", type=parse_type(text)))
