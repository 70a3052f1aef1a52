from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from compactord.state.base_files import PackedRecords

RECORDS = st.lists(st.binary(max_size=40), max_size=70)


@given(RECORDS, st.data())
def test_records_are_read_back_in_any_order(records: list[bytes], data: st.DataObject) -> None:
    packed = PackedRecords.of(pa.array(records, pa.large_binary()))
    assert len(packed) == len(records)
    assert list(packed.read(range(len(records)))) == records
    if records:
        some = data.draw(st.lists(st.integers(0, len(records) - 1)))
        assert list(packed.read(some)) == [records[position] for position in some]
        assert list(packed.take(some).read(range(len(some)))) == [records[p] for p in some]


def test_a_slice_of_an_array_is_packed_as_the_slice() -> None:
    records = pa.array([b"a", b"bb", b"", b"ccc"], pa.large_binary())[1:3]
    assert list(PackedRecords.of(records).read([0, 1])) == [b"bb", b""]


def test_records_that_resemble_each_other_take_little() -> None:
    records = [b"data-8a1f3c5e-0000-4000-8000-00000000000a-%d.parquet" % n * 8 for n in range(160)]
    packed = PackedRecords.of(pa.array(records, pa.large_binary()))
    assert sum(map(len, packed._groups)) < sum(map(len, records)) / 4
