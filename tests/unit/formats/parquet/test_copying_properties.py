"""Any table, written in any way: copying makes the rows and records that decoding makes."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import event, given, settings
from hypothesis import strategies as st

from compactord.paimon.data_file import parse_stats_mode
from compactord.paimon.types import value_schema
from tests.sampling import examples
from tests.unit.formats.parquet.small_files import (
    FLAT,
    PAD,
    assert_same_as_by_decoding,
    padded,
    table_of,
    write_small,
)
from tests.unit.formats.parquet.stored_pages import assert_healthy, is_copied
from tests.unit.rewrite.builders import concat_subcompaction, output_paths

LIST = {"type": "ARRAY", "element": "STRING"}
types = st.sampled_from([*FLAT.values(), *(f"{type_} NOT NULL" for type_ in FLAT.values()), LIST])
tables = st.lists(types, max_size=4).map(
    lambda drawn: padded(**{f"c{number}": type_ for number, type_ in enumerate(drawn)})
)
odd_ways: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "use_dictionary": st.sampled_from([True, ["c0"], ["c1", PAD]]),
        "compression": st.sampled_from(["zstd", "snappy", "gzip", "none", "lz4"]),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "write_statistics": st.sampled_from([True, [PAD], False]),
        "store_decimal_as_integer": st.booleans(),
        "write_page_checksum": st.booleans(),
    },
)
page_ways = st.fixed_dictionaries(
    {},
    optional={
        "max_rows_per_page": st.integers(200, 3_000),
        "row_group_size": st.integers(300, 3_000),
        "write_page_index": st.booleans(),
        "store_schema": st.booleans(),
    },
)


@dataclass(frozen=True)
class Made:
    """How a file is made."""

    rows: int
    nulls: float
    seed: int
    way: dict[str, Any]


def _files(ways: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[list[Made]]:
    made = st.builds(
        Made,
        rows=st.integers(2_000, 3_000),
        nulls=st.sampled_from([0.0, 0.0, 0.05, 0.5, 0.99, 1.0]),
        seed=st.integers(0, 1 << 30),
        way=ways,
    )
    return st.lists(made, min_size=1, max_size=4)


# By our own writer most of the time, or nothing would be copied.
files = st.one_of(
    _files(page_ways),
    _files(page_ways),
    _files(st.builds(lambda pages, odd: pages | odd, page_ways, odd_ways)),
)


def lists(rows: int) -> list[Any]:
    return [None if n % 7 == 0 else [None, str(n)][: n % 3] for n in range(rows)]


@given(
    columns=tables,
    made=files,
    codec=st.sampled_from(["zstd", "zstd", "snappy", "none", "gzip"]),
    stats_mode=st.sampled_from(["truncate(16)", "full", "counts", "none"]),
    continues=st.booleans(),
    target=st.sampled_from([1 << 30, 1 << 20]),
    group_bytes=st.sampled_from([1 << 30, 300_000]),
)
@settings(max_examples=examples(60), deadline=None)
def test_copied_files_are_those_that_decoding_makes(
    columns, made, *, codec, stats_mode, continues, target, group_bytes
):
    schema = value_schema(columns)
    nested = [field.name for field in schema if pa.types.is_list(field.type)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = []
        for number, each in enumerate(made):
            given_ = {n: pa.array(lists(each.rows), schema.field(n).type) for n in nested}
            table = table_of(columns, each.rows, each.seed, nulls=each.nulls, **given_)
            way = {"compression": codec} | each.way
            written.append(write_small(folder / f"{number}.parquet", table, **way))
        subcompaction = concat_subcompaction(
            folder,
            columns,
            written,
            keeps_encoding=True,
            continues=continues,
            compression=codec,
            target_file_size=target,
            group_bytes=group_bytes,
            stats_modes=tuple((f.name, parse_stats_mode(stats_mode)) for f in columns),
        )
        result = assert_same_as_by_decoding(subcompaction)
        knows = all(
            each.way.get("write_page_index", True) or each.nulls in (0.0, 1.0) for each in made
        )
        for path in output_paths(subcompaction, result):
            assert_healthy(path, knows_null_pages=knows)
            assert pq.read_schema(path).names == [field.name for field in columns]
        if len(made) > 1:
            event("pages copied" if is_copied(subcompaction, result, PAD) else "pages encoded")
