"""Files with keys of many types, written in many ways."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.errors import FormatError
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.thrift import Chunk, File, Group
from compactord.model import InputFile
from compactord.paimon.types import DataField, file_schema, from_nanoseconds
from tests.unit.rewrite.builders import fields, input_file, write_parquet

ROWS = 4_000
PAGE_ROWS = 200
VALUES = {
    "v": "STRING",
    "c": "STRING",
    "d": "DECIMAL(30, 2)",
    "t": "TIMESTAMP(9)",
    "n": "INT",
    "b": "BOOLEAN",
}
# How a file is written: what is no option of Arrow's writer is the number of rows of a page.
WRITERS: dict[str, dict[str, Any]] = {
    "pages of the same rows": {},
    "pages of the same bytes": {"max_rows_per_page": ROWS, "data_page_size": 4 << 10},
    "pages of version 2": {"data_page_version": "2.0"},
    "uncompressed": {"compression": "none"},
    "one page": {"max_rows_per_page": ROWS},
    "no page index": {"write_page_index": False},
    "no dictionaries": {"use_dictionary": False},
    "full dictionaries": {"use_dictionary": True, "dictionary_pagesize_limit": 2_000},
    "several row groups": {"row_group_size": 900},
    "larger pages than batches": {"max_rows_per_page": 1_500},
}
KEYS: dict[str, tuple[tuple[str, ...], Any]] = {
    "number": (("BIGINT NOT NULL",), lambda n: (3 * n - ROWS,)),
    "text": (("STRING NOT NULL",), lambda n: (f"key {n:09}",)),
    "text with a long prefix": (("STRING NOT NULL",), lambda n: ("é" * 70 + f"{n:09}",)),
    "decimal": (("DECIMAL(9, 2) NOT NULL",), lambda n: (Decimal(n - 2_000).scaleb(-2),)),
    "wide decimal": (
        ("DECIMAL(38, 0) NOT NULL",),
        lambda n: (Decimal(n - 2_000) * 10**30,),
    ),
    "float": (("DOUBLE NOT NULL",), lambda n: (n - 2_000.5,)),
    "date": (("DATE NOT NULL",), lambda n: (n - 2_000,)),
    "two columns": (("STRING NOT NULL", "INT NOT NULL"), lambda n: (f"k{n // 700}", n % 700)),
    "pairs": (("INT NOT NULL", "INT NOT NULL"), lambda n: (n // 2, n % 2)),
    "a column of one value": (("INT NOT NULL", "INT NOT NULL"), lambda n: (7, n)),
}


def columns_of(key: str) -> tuple[tuple[DataField, ...], list[str]]:
    names = [f"k{place}" for place in range(len(KEYS[key][0]))]
    types = dict(zip(names, KEYS[key][0], strict=True))
    return fields(**types, **VALUES), names


def key_column(key: str, values: list[Any]) -> list[Any]:
    """The values as Arrow takes them."""
    if key != "date":
        return values
    return [datetime.date(1970, 1, 1) + datetime.timedelta(days=value) for value in values]


def write(
    path: Path, key: str = "number", numbers: Sequence[int] = range(ROWS), **options: Any
) -> InputFile:
    """A file with the keys of these numbers, nulls among the values."""
    rows = len(numbers)
    columns, names = columns_of(key)
    seeded = random.Random(5)
    made: dict[str, list[Any]] = {
        "v": [
            seeded.choice([None, seeded.randbytes(seeded.randrange(1_200)).hex()]) for _ in numbers
        ],
        "c": [seeded.choice([None, *(f"category {n}" for n in range(40))]) for _ in numbers],
        "d": [Decimal(seeded.randrange(10**20)).scaleb(-2) for _ in numbers],
        "n": [seeded.choice([None, n]) for n in numbers],
        "b": [seeded.random() < 0.5 for _ in numbers],
    }
    made["_SEQUENCE_NUMBER"], made["_VALUE_KIND"] = list(range(rows)), [0] * rows
    for place, name in enumerate(names):
        values = [KEYS[key][1](number)[place] for number in numbers]
        made[name] = made[f"_KEY_{name}"] = key_column(key, values)
    schema = file_schema(columns, names, thin=False)
    table = pa.Table.from_arrays(
        [
            from_nanoseconds([None if n % 5 else n for n in numbers])
            if field.name == "t"
            else pa.array(made[field.name], field.type)
            for field in schema
        ],
        schema=schema,
    )
    settings = {
        "row_group_size": ROWS,
        "max_rows_per_page": PAGE_ROWS,
        "write_batch_size": 100,
        "write_page_index": True,
        "write_page_checksum": True,
        "use_dictionary": ["c", "_VALUE_KIND"],
    }
    write_parquet(path, table, **settings | options)
    return input_file(path, rows, 0, rows - 1)


def decoded(table: pa.Table) -> pa.Table:
    """Without dictionaries, which may have other values."""
    place = table.schema.get_field_index("c")
    return table.set_column(place, "c", table.column("c").cast(pa.string()))


def footer_leaf(path: Path, column: str) -> int:
    return int(pq.ParquetFile(path).schema.names.index(column))


def refusals_of_damaged_indexes(path: Path, column: str, check: Callable[[], None]) -> list[str]:
    """What is refused while a bit of the column's page indexes is flipped; else `check` holds."""
    sound = path.read_bytes()
    refused = []
    for start, size in indexes(path, footer_leaf(path, column)).values():
        for bit in range(0, 8 * size, max(5, 8 * size // 60)):
            damaged = bytearray(sound)
            damaged[start + bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            try:
                check()
            except FormatError as error:
                refused.append(str(error))
    assert all(str(path) in error for error in refused)
    return refused


def indexes(path: Path, leaf: int) -> dict[int, tuple[int, int]]:
    """Where the two page indexes of a column lie, by the fields of `Chunk` that say so."""
    group = footer_of(path.read_bytes())[File.GROUPS].value.values[0]
    chunk = group[Group.COLUMNS].value.values[leaf]
    return {
        at: (chunk[at].value, chunk[length].value)
        for at, length in (
            (Chunk.COLUMN_INDEX_AT, Chunk.COLUMN_INDEX_LENGTH),
            (Chunk.OFFSET_INDEX_AT, Chunk.OFFSET_INDEX_LENGTH),
        )
    }
