from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon.schema import TableSchema, parse_schema
from compactord.paimon.types import DataField
from compactord_demo.schema_files import schema_json
from tests.unit.paimon.values import nested_types

PATH = "/t/schema/schema-7"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def schemas(draw: st.DrawFn) -> TableSchema:
    names = draw(st.lists(TEXTS, min_size=1, max_size=5, unique=True))
    fields = tuple(
        DataField(
            id=index,
            name=name,
            type=draw(nested_types()),
            description=draw(st.none() | TEXTS),
            default_value=draw(st.none() | TEXTS),
        )
        for index, name in enumerate(names)
    )
    return TableSchema(
        id=draw(st.integers(0, 2**40)),
        version=3,
        fields=fields,
        highest_field_id=draw(st.integers(0, 2**31 - 1)),
        partition_keys=tuple(draw(st.lists(st.sampled_from(names), unique=True))),
        primary_keys=tuple(draw(st.lists(st.sampled_from(names), unique=True))),
        options=draw(st.dictionaries(TEXTS, TEXTS, max_size=3)),
        comment=draw(st.none() | TEXTS),
        time_ms=draw(st.integers(0, 2**45)),
    )


@given(schemas())
def test_every_schema_survives_its_file(schema: TableSchema) -> None:
    assert parse_schema(schema_json(schema), PATH) == schema


@given(schemas(), st.data())
def test_damaged_files_are_refused_or_read_but_never_crash(
    schema: TableSchema, data: st.DataObject
) -> None:
    broken = bytearray(schema_json(schema))
    for _ in range(data.draw(st.integers(0, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    try:
        found = parse_schema(cut, PATH)
    except (FormatError, UnsupportedTable) as error:
        assert "/t" in str(error)  # noqa: PT017 - both outcomes are right, a crash is not
        return
    assert isinstance(found, TableSchema)
