"""Files of primary-key tables that are large enough for merges to copy their pages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import Location, decoded_locations, footer_of
from compactord.formats.parquet.thrift import Chunk, File, Group, Kind, Meta, Statistics
from compactord.model import (
    ChangelogSpec,
    FailureKind,
    InputFile,
    Subcompaction,
    SubcompactionFailure,
)
from compactord.paimon.options.merge import ChangelogRule
from compactord.paimon.types import DataField, file_schema
from compactord.rewrite.subcompaction import run_subcompaction
from tests.unit.formats.parquet.small_files import AS_WE_WRITE, assert_same_as_by_decoding
from tests.unit.formats.parquet.stored_pages import bodies, with_footer
from tests.unit.rewrite.builders import (
    KIND,
    SEQUENCE,
    fields,
    files_left,
    input_file,
    merge_subcompaction,
    output_paths,
    write_parquet,
)

# The fewest rows of a row group that is copied.
N = 64 << 10
COLUMNS = fields(k="BIGINT NOT NULL", n="BIGINT NOT NULL", s="STRING", d="DOUBLE")
# Pages of other sizes than ours, so that an encoded one is told from a copied one.
PAGES = {"max_rows_per_page": 5_000, "row_group_size": N}
WORDS = pa.array(["red", "green", None, "blue"])


def run(
    path: Path,
    keys: Sequence[Any],
    sequence: int,
    *,
    columns: Sequence[DataField] = COLUMNS,
    kinds: Any = 0,
    thin: bool = False,
    **options: Any,
) -> InputFile:
    """A file with these keys and rising sequence numbers; other columns follow from the numbers."""
    rows = len(keys)
    numbers = np.arange(sequence, sequence + rows)
    schema = file_schema(columns, ["k"], thin=thin)
    keys = pa.array(keys, schema.field("k").type)
    values = {
        SEQUENCE: pa.array(numbers),
        KIND: pa.array(np.broadcast_to(np.int8(kinds), rows)),
        "k": keys,
        "_KEY_k": keys,
        "n": pa.array(numbers * 7_919 % 1_000_003),
        "s": WORDS.take(pa.array(numbers % 4)),
        "d": pa.array(numbers / 3).cast(pa.float64()),
    }
    arrays = [values[field.name].cast(field.type) for field in schema]
    settings = AS_WE_WRITE | PAGES | {"use_dictionary": [KIND, "s"]} | options
    table = pa.Table.from_arrays(arrays, schema=schema)
    write_parquet(path, table, **settings)
    return input_file(path, rows, sequence, sequence + rows - 1)


def large(folder: Path, **how: Any) -> InputFile:
    """Two row groups: keys 0 to 2N - 2 and 2N to 4N - 2, all even."""
    return run(folder / "large.parquet", range(0, 4 * N, 2), 0, **how)


def small(folder: Path, keys: Sequence[Any] = (2 * N + 2, 2 * N + 3), **how: Any) -> InputFile:
    """Newer records; by default of keys in the second row group."""
    return run(folder / "small.parquet", keys, how.pop("sequence", 1 << 20), **how)


def merge(folder: Path, *runs: Sequence[InputFile], **how: Any) -> Subcompaction:
    how = {"keeps_encoding": True, "drop_deletes": True} | how
    return merge_subcompaction(folder, how.pop("columns", COLUMNS), ["k"], list(runs), **how)


def claiming(file: InputFile, column: str, low: bytes, high: bytes, group: int = 0) -> InputFile:
    """The file, whose footer has these bounds of a column."""
    path = Path(file.path)
    footer = footer_of(path.read_bytes())
    groups = list(footer[File.GROUPS].value.values)
    chunks = []
    for chunk in groups[group][Group.COLUMNS].value.values:
        meta = chunk[Chunk.META].value
        if meta[Meta.PATH].value.values == [column.encode()]:
            bounds = {Statistics.MIN: thrift.binary(low), Statistics.MAX: thrift.binary(high)}
            said = dict(sorted((meta[Meta.STATISTICS].value | bounds).items()))
            meta = {**meta, Meta.STATISTICS: thrift.struct(said)}
        chunks.append({**chunk, Chunk.META: thrift.struct(meta)})
    groups[group] = {**groups[group], Group.COLUMNS: thrift.items(Kind.STRUCT, chunks)}
    changed = {**footer, File.GROUPS: thrift.items(Kind.STRUCT, groups)}
    sizes = with_footer(path, changed, file.row_count)
    return replace(file, size_bytes=sizes.size_bytes)


def number(value: int) -> bytes:
    return struct.pack("<q", value)


PAGE = 5_000
# Rows of the large file: 40 pages, in one row group as Java writes it.
ROWS = 40 * PAGE
LAST = 2 * ROWS - 2
# The first key of each page.
BEGIN = [2 * PAGE * page for page in range(40)]
ALL = [(0, 40)]
NONE: list[tuple[int, int]] = []


def huge(folder: Path, keys: Sequence[Any] = range(0, 2 * ROWS, 2), **how: Any) -> InputFile:
    """One row group of pages of 5,000 rows; keys are even by default.

    Its pages are compressed in another way, so that the same rows encoded anew differ.
    """
    how = {"row_group_size": ROWS, "compression_level": 9} | how
    return run(folder / "huge.parquet", keys, how.pop("sequence", 0), **how)


def copied_pages(
    subcompaction: Subcompaction, column: str = "n", **how: Any
) -> list[tuple[int, int]]:
    """The pages of the first input that are in the outputs, as ranges of their numbers; rewritten
    both ways, with equal rows and records.
    """
    result = assert_same_as_by_decoding(subcompaction, **how)
    paths = output_paths(subcompaction, result)
    outputs = {body for path in paths for body in bodies(path, column)}
    found: list[tuple[int, int]] = []
    for page, body in enumerate(bodies(subcompaction.source.files[0].path, column)):
        if body in outputs:
            begin = found.pop()[0] if found and found[-1][1] == page else page
            found.append((begin, page + 1))
    return found


def locations(path: Path, name: str) -> list[Location]:
    """The pages of a column in a file of one row group."""
    content = path.read_bytes()
    (group,) = footer_of(content)[File.GROUPS].value.values
    for chunk in group[Group.COLUMNS].value.values:
        if chunk[Chunk.META].value[Meta.PATH].value.values == [name.encode()]:
            start = chunk[Chunk.OFFSET_INDEX_AT].value
            end = start + chunk[Chunk.OFFSET_INDEX_LENGTH].value
            return decoded_locations(content[start:end])
    raise AssertionError(name)


def with_changelog_of(found: Subcompaction) -> Subcompaction:
    """The same, which also writes a changelog."""
    write = replace(found.write, file_prefix="changelog-")
    spec = ChangelogSpec(before_level=5, write=write, rule=ChangelogRule(compared=None))
    return replace(found, source=replace(found.source, changelog=spec))


def assert_refused(subcompaction: Subcompaction, message: str) -> None:
    """It fails for good with this message, and leaves no file behind."""
    outcome = run_subcompaction(subcompaction)
    assert isinstance(outcome, SubcompactionFailure)
    assert outcome.kind is FailureKind.POISON
    assert message in outcome.message
    assert files_left(subcompaction) == []
