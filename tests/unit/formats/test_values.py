from __future__ import annotations

import pytest

from compactord.formats.layout import cell, one_row, value_order
from compactord.formats.parquet.statistics import from_statistics, statistics_order
from compactord.paimon.types import AtomicType, DataField, parse_type


@pytest.mark.parametrize("text", ["CHAR(3)", "VARCHAR(9)", "STRING"])
@pytest.mark.parametrize("value", ["é", b"\xffb"])
def test_text_is_carried_over_whether_it_is_utf8_or_not(text: str, value: str | bytes) -> None:
    type_ = parse_type(text)
    assert isinstance(type_, AtomicType)
    raw = value if isinstance(value, bytes) else value.encode()
    row = one_row([value], [DataField(id=0, name="a", type=type_)])
    assert cell(row.column(0), 0, type_) == value
    assert cell(row.column(0).dictionary_encode(), 0, type_) == value
    assert from_statistics(raw, type_) == value
    assert value_order(value, type_) == statistics_order(raw, type_)
