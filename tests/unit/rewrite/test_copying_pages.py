"""Pages that merges copy from row groups of which another run touches a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from compactord.model import (
    InputFile,
    KeyRange,
    Subcompaction,
)
from compactord.paimon.binary_row import encode_row
from compactord.paimon.options.merge import ColumnRule, MergeRules
from compactord.paimon.options.table_options import RecordExpire
from compactord.paimon.types import DataField, file_schema, from_parts, parse_type
from compactord.storage.local import LocalStorage
from tests.storages import RequestCounter
from tests.unit.formats.parquet.small_files import AS_WE_WRITE, assert_same_as_by_decoding
from tests.unit.formats.parquet.stored_pages import assert_healthy, bodies
from tests.unit.rewrite.builders import (
    KIND,
    SEQUENCE,
    fields,
    input_file,
    merge_subcompaction,
    output_paths,
    without_rows,
    write_parquet,
)
from tests.unit.rewrite.large_files import (
    ALL,
    BEGIN,
    COLUMNS,
    LAST,
    NONE,
    PAGE,
    ROWS,
    N,
    copied_pages,
    huge,
    locations,
    merge,
    run,
    small,
    with_changelog_of,
)

# --- where the small run is -----------------------------------------------------------------------

PLACES: dict[str, tuple[Sequence[int], list[tuple[int, int]]]] = {
    "before all": ([-3, -1], ALL),
    "after all": ([LAST + 1, LAST + 9], ALL),
    "the first key": ([0], [(1, 40)]),
    "before all and the first key": ([-5, 0], [(1, 40)]),
    "the last key": ([LAST], [(0, 39)]),
    "one key in the middle": ([BEGIN[20] + 500], [(0, 20), (21, 40)]),
    "a new key in the middle": ([BEGIN[20] + 501], [(0, 20), (21, 40)]),
    "the first key of a page": ([BEGIN[20]], [(0, 20), (21, 40)]),
    "the last key of a page": ([BEGIN[20] - 2], [(0, 19), (20, 40)]),
    "between two pages": ([BEGIN[20] - 1], ALL),
    "both sides of a border": ([BEGIN[20] - 2, BEGIN[20]], [(0, 19), (21, 40)]),
    "several pages": ([BEGIN[14], BEGIN[17]], [(0, 14), (18, 40)]),
    "few pages are left before": ([BEGIN[13] - 2], [(13, 40)]),
    "few pages are left after": ([BEGIN[27]], [(0, 27)]),
    "few pages are left on both sides": ([BEGIN[13] - 2, BEGIN[27]], NONE),
    "all pages": ([0, LAST], NONE),
}


@pytest.mark.parametrize("kinds", [0, 3])
@pytest.mark.parametrize("place", PLACES)
def test_pages_that_no_other_run_touches_are_copied(tmp_path, place, kinds):
    """Whether the small run has inserts or deletes."""
    keys, expected = PLACES[place]
    subcompaction = merge(tmp_path, [huge(tmp_path)], [small(tmp_path, keys, kinds=kinds)])
    assert copied_pages(subcompaction) == expected


def test_deletes_that_are_kept(tmp_path):
    new = small(tmp_path, [BEGIN[20], BEGIN[20] + 1], kinds=3)
    subcompaction = merge(tmp_path, [huge(tmp_path)], [new], drop_deletes=False)
    assert copied_pages(subcompaction) == [(0, 20), (21, 40)]


def test_each_column_is_copied(tmp_path):
    subcompaction = merge(tmp_path, [huge(tmp_path)], [small(tmp_path, [BEGIN[20]])])
    result = assert_same_as_by_decoding(subcompaction)
    (path,) = output_paths(subcompaction, result)
    assert_healthy(path)
    for name in ("_KEY_k", SEQUENCE, KIND, "k", "n", "s", "d"):
        before = bodies(subcompaction.source.files[0].path, name)
        assert [name, set(before[:20]) | set(before[21:])] == [
            name,
            {*before[:20], *before[21:]} & set(bodies(path, name)),
        ]


@pytest.mark.parametrize("threaded", [False, True])
def test_several_small_runs(tmp_path, threaded):
    """In one gap between pages, and in pages far from each other."""
    keys = [[-7, -3], [BEGIN[15] + 3], [BEGIN[15] - 1, BEGIN[15]], [LAST + 5]]
    runs = [
        [run(tmp_path / f"{n}.parquet", each, (1 << 20) + 10 * n)] for n, each in enumerate(keys)
    ]
    subcompaction = merge(tmp_path, [huge(tmp_path)], *runs)
    assert copied_pages(subcompaction, threaded=threaded) == [(0, 15), (16, 40)]


def test_small_runs_that_overlap(tmp_path):
    """One of them has keys between two keys of the other."""
    keys = [[BEGIN[14], LAST], [BEGIN[15] + 1], [BEGIN[38]]]
    runs = [
        [run(tmp_path / f"{n}.parquet", each, (1 << 20) + 10 * n)] for n, each in enumerate(keys)
    ]
    assert copied_pages(merge(tmp_path, [huge(tmp_path)], *runs)) == [(0, 14)]


def test_two_large_runs_that_overlap(tmp_path):
    """The pages of each that are beyond the other."""
    new = run(
        tmp_path / "b.parquet",
        range(BEGIN[30] + 1, BEGIN[30] + 2 * ROWS, 2),
        1 << 20,
        row_group_size=ROWS,
    )
    old = huge(tmp_path)
    assert copied_pages(merge(tmp_path, [old], [new])) == [(0, 30)]
    assert copied_pages(merge(tmp_path, [new], [old])) == [(10, 40)]


def test_files_of_a_run_are_one_after_the_other(tmp_path):
    """The second is whole, the third has few rows."""
    old = huge(tmp_path)
    second = run(tmp_path / "b.parquet", range(2 * ROWS, 2 * ROWS + N), ROWS, max_rows_per_page=N)
    third = run(tmp_path / "c.parquet", range(4 * ROWS, 4 * ROWS + 10), ROWS + N)
    new = small(tmp_path, [BEGIN[20]])
    newer = run(tmp_path / "newer.parquet", [4 * ROWS + 3], 1 << 21)
    subcompaction = merge(tmp_path, [old, second, third], [new], [newer])
    assert copied_pages(subcompaction) == [(0, 20), (21, 40)]
    result = assert_same_as_by_decoding(subcompaction)
    (path,) = output_paths(subcompaction, result)
    assert set(bodies(second.path, "n")) <= set(bodies(path, "n"))


def test_a_row_group_that_is_too_large_is_copied_in_parts(tmp_path):
    """Of similar size, though no other run touches it."""
    old = huge(tmp_path)
    subcompaction = merge(tmp_path, [old], target_file_size=2 * old.size_bytes)
    assert copied_pages(subcompaction) == ALL
    result = assert_same_as_by_decoding(subcompaction)
    (path,) = output_paths(subcompaction, result)
    footer = pq.read_metadata(path)
    rows = [footer.row_group(group).num_rows for group in range(footer.num_row_groups)]
    assert sum(rows) == ROWS
    assert len(rows) == 3 - 1
    assert max(rows) - min(rows) <= PAGE


# --- keys -----------------------------------------------------------------------------------------


def composite(folder: Path, per_first: int, new: Sequence[tuple[int, int]]) -> Subcompaction:
    """A key of two columns, of which the first has the same value in so many rows."""
    columns = fields(a="INT NOT NULL", b="INT NOT NULL", v="STRING")

    def written(name: str, a: Any, b: Any, sequence: int) -> InputFile:
        rows = len(a)
        values = {
            "a": pa.array(a, pa.int32()),
            "b": pa.array(b, pa.int32()),
            SEQUENCE: pa.array(np.arange(sequence, sequence + rows)),
            KIND: pa.array(np.zeros(rows, np.int8)),
            "v": pc.cast(pa.array(np.arange(rows) * 7_919), pa.string()),
        }
        schema = file_schema(columns, ["a", "b"], thin=False)
        arrays = [values[field.name.removeprefix("_KEY_")] for field in schema]
        settings = AS_WE_WRITE | {"max_rows_per_page": PAGE, "use_dictionary": [KIND]}
        path = folder / name
        write_parquet(path, pa.Table.from_arrays(arrays, schema=schema), **settings)
        return input_file(path, rows, sequence, sequence + rows - 1)

    numbers = np.arange(ROWS)
    old = written("huge.parquet", numbers // per_first, numbers % per_first * 2, 0)
    firsts, seconds = zip(*new, strict=True)
    tiny = written("small.parquet", firsts, seconds, 1 << 20)
    return merge_subcompaction(
        folder, columns, ["a", "b"], [[old], [tiny]], keeps_encoding=True, drop_deletes=True
    )


COMPOSITE: dict[str, tuple[int, list[tuple[int, int]], list[tuple[int, int]]]] = {
    "the first column changes inside a page": (3_000, [(34, 1)], [(0, 20), (21, 40)]),
    "it changes in many pages": (3_000, [(33, 1)], [(0, 19), (21, 40)]),
    "it changes at a border": (PAGE, [(20, 5)], [(0, 20), (21, 40)]),
    "it is in two pages": (PAGE + 1_000, [(16, 8)], [(0, 19), (21, 40)]),
    "it is in many pages": (4 * PAGE, [(5, 7)], [(0, 20), (24, 40)]),
    "it is in all pages": (ROWS, [(0, 7)], NONE),
    "a new one between two others": (PAGE, [(-1, 0)], ALL),
}


@pytest.mark.parametrize("case", COMPOSITE)
def test_bounds_of_the_first_key_column_decide(tmp_path, case):
    """Equal bounds count as overlapping, as the other key columns decide there."""
    per_first, new, expected = COMPOSITE[case]
    assert copied_pages(composite(tmp_path, per_first, new), "v") == expected


def with_text_keys(folder: Path, prefix: str) -> Subcompaction:
    columns = (replace(COLUMNS[0], type=parse_type("STRING NOT NULL")), *COLUMNS[1:])

    def keys(numbers: Any) -> pa.Array:
        texts = pc.utf8_lpad(pc.cast(pa.array(np.asarray(numbers)), pa.string()), 8, "0")
        return pc.binary_join_element_wise(prefix, texts, "")

    old = huge(folder, keys(range(0, 2 * ROWS, 2)), columns=columns)
    new = small(folder, keys([BEGIN[20] + 1]), columns=columns)
    return merge(folder, [old], [new], columns=columns)


@pytest.mark.parametrize("prefix", ["", "é", "x" * 100])
def test_keys_of_texts(tmp_path, prefix):
    assert copied_pages(with_text_keys(tmp_path, prefix)) == [(0, 20), (21, 40)]


# --- columns whose pages begin at different rows --------------------------------------------------

MORE = (
    *COLUMNS,
    *(
        replace(each, id=each.id + 10)
        for each in fields(
            t="STRING", w="TIMESTAMP(9)", y="DECIMAL(30, 2)", b="BOOLEAN", f="FLOAT", e="INT"
        )
    ),
)


def irregular(folder: Path, keys: Sequence[int], sequence: int, **options: Any) -> InputFile:
    """Columns of different widths, with nulls, and pages by size: each begins pages elsewhere."""
    rows = len(keys)
    chance = np.random.default_rng(rows)
    numbers = pa.array(np.arange(rows))
    sizes = chance.integers(0, 40, rows)
    nulls = pa.array(chance.integers(0, 4, rows) == 0)
    texts = pc.binary_repeat(
        pa.array(["é", "a", "zz"]).take(pa.array(np.arange(rows) % 3)), pa.array(sizes)
    )

    def some(values: pa.Array) -> pa.Array:
        return pc.if_else(nulls, pa.scalar(None, values.type), values)

    spread = pa.array(chance.integers(-(1 << 40), 1 << 40, rows))
    values = {
        SEQUENCE: pa.array(np.arange(sequence, sequence + rows)),
        KIND: pa.array(np.zeros(rows, np.int8)),
        "k": pa.array(np.asarray(keys)),
        "n": spread,
        "s": some(pa.array(["red", "green", "blue"]).take(pa.array(np.arange(rows) % 3))),
        "d": some(spread.cast(pa.float64(), safe=False)),
        "t": some(texts),
        "w": from_parts(numbers.to_numpy() * 1_000_003, np.arange(rows), np.zeros(rows, bool)),
        "y": some(spread.cast(pa.decimal128(30, 2))),
        "b": some(pa.array(chance.integers(0, 2, rows) == 0)),
        "f": some(spread.cast(pa.float32(), safe=False)),
        # No value at all in some pages.
        "e": pc.if_else(
            pc.less(numbers, rows // 2), pa.scalar(None, pa.int32()), numbers.cast(pa.int32())
        ),
    }
    schema = file_schema(MORE, ["k"], thin=False)
    arrays = [values[field.name.removeprefix("_KEY_")] for field in schema]
    settings = AS_WE_WRITE | {
        "use_dictionary": [KIND, "s"],
        "data_page_size": 24_000,
        "write_batch_size": 100,
        "row_group_size": ROWS,
        "compression_level": 9,
    }
    path = folder / f"{sequence}.parquet"
    write_parquet(path, pa.Table.from_arrays(arrays, schema=schema), **settings | options)
    return input_file(path, rows, sequence, sequence + rows - 1)


def irregular_runs(folder: Path, *keys: Sequence[int]) -> Subcompaction:
    old = irregular(folder, range(0, 2 * ROWS, 2), 0)
    runs = [[irregular(folder, each, (1 << 20) + 10 * n)] for n, each in enumerate(keys)]
    return merge(folder, [old], *runs, columns=MORE)


# How many of the large file's pages are copied at least; columns with nulls but without counts of
# them in pages (INT96), or with a dictionary that pages begin beside, are encoded.
IRREGULAR = {
    "k": 0.95,
    SEQUENCE: 0.95,
    "n": 0.95,
    "d": 0.9,
    "t": 0.9,
    "y": 0.9,
    "b": 0.5,
    "f": 0.9,
    "e": 0.9,
    "w": 0.9,
}


@pytest.mark.parametrize("keys", [[[ROWS - 6, ROWS - 5, ROWS, ROWS + 1]], [[0, 1], [LAST]]])
def test_pages_of_columns_begin_at_different_rows(tmp_path, keys):
    """Whole pages are copied, the rows before and after them are encoded."""
    subcompaction = irregular_runs(tmp_path, *keys)
    old = Path(subcompaction.source.files[0].path)
    firsts = {
        tuple(each.first_row for each in locations(old, name)) for name in ("k", "t", "y", "b", "f")
    }
    assert len(firsts) == 5
    result = assert_same_as_by_decoding(subcompaction)
    (path,) = output_paths(subcompaction, result)
    assert_healthy(path)
    shares = {}
    for name in IRREGULAR:
        before, after = bodies(old, name), set(bodies(path, name))
        shares[name] = sum(body in after for body in before) / len(before)
    assert {name: share for name, share in shares.items() if share < IRREGULAR[name]} == {}
    assert max(shares.values()) < 1


# --- merge engines, and pages with deletes --------------------------------------------------------


def last_value(column: DataField) -> ColumnRule:
    how = "primary-key" if column.name == "k" else "last_value"
    return ColumnRule(column=column.name, aggregator=how)


ENGINES = {
    "deduplicate": MergeRules(),
    "first-row": MergeRules(),
    "partial-update": MergeRules(remove_on_delete=True),
    "aggregation": MergeRules(columns=tuple(map(last_value, COLUMNS))),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_merge_engine_keeps_the_inserts_of_a_page(tmp_path, engine):
    runs = [huge(tmp_path)], [small(tmp_path, [BEGIN[20], BEGIN[20] + 1])]
    subcompaction = merge(tmp_path, *runs, merge_engine=engine, rules=ENGINES[engine])
    assert copied_pages(subcompaction) == [(0, 20), (21, 40)]


@pytest.mark.parametrize("drop_deletes", [False, True])
@pytest.mark.parametrize("kind", [1, 2, 3])
def test_pages_of_which_a_row_is_no_insert_are_merged(tmp_path, kind, drop_deletes):
    kinds = np.zeros(ROWS, np.int8)
    kinds[20 * PAGE + 7] = kind
    old = huge(tmp_path, kinds=kinds)
    subcompaction = merge(tmp_path, [old], [small(tmp_path, [-5])], drop_deletes=drop_deletes)
    assert copied_pages(subcompaction) == [(0, 20), (21, 40)]


@pytest.mark.parametrize("thin", [False, True])
def test_thin_files(tmp_path, thin):
    runs = [huge(tmp_path, thin=thin)], [small(tmp_path, [BEGIN[20]], thin=thin)]
    assert copied_pages(merge(tmp_path, *runs, thin_mode=thin)) == [(0, 20), (21, 40)]


@pytest.mark.parametrize("codec", ["zstd", "snappy", "gzip", "none"])
def test_codecs(tmp_path, codec):
    level = {} if codec in ("snappy", "none") else {"compression_level": 9}
    old = huge(tmp_path, compression=codec, compression_level=level.get("compression_level"))
    subcompaction = merge(tmp_path, [old], [small(tmp_path, [BEGIN[20]])], compression=codec)
    copied = copied_pages(subcompaction)
    # Pages that are encoded anew in the same way equal the copied ones.
    assert copied == ([(0, 20), (21, 40)] if level else copied)


def test_a_dictionary_that_is_larger_than_the_pages_is_not_copied(tmp_path):
    """Each row group would have all its words."""
    columns = (*COLUMNS[:2], replace(COLUMNS[2], name="u"), COLUMNS[3])
    for words, is_copied in ((10, True), (ROWS - 1, False)):
        folder = tmp_path / str(words)
        folder.mkdir()
        old = worded(folder, columns, words)
        new = worded(folder, columns, 3, keys=[BEGIN[20]], sequence=1 << 20)
        subcompaction = merge(folder, [old], [new], columns=columns)
        assert copied_pages(subcompaction) == [(0, 20), (21, 40)]
        assert bool(copied_pages(subcompaction, "u")) == is_copied


def worded(
    folder: Path,
    columns: Sequence[DataField],
    words: int,
    *,
    keys: Sequence[int] = range(0, 2 * ROWS, 2),
    sequence: int = 0,
) -> InputFile:
    """A file with so many long words."""
    rows = len(keys)
    numbers = np.arange(rows)
    texts = pc.binary_repeat(pc.cast(pa.array(numbers % words), pa.string()), 5)
    values = {
        SEQUENCE: pa.array(numbers + sequence),
        KIND: pa.array(np.zeros(rows, np.int8)),
        "k": pa.array(np.asarray(keys)),
        "n": pa.array(numbers * 7_919 % 1_000_003),
        "u": texts,
        "d": pa.array(numbers / 3),
    }
    schema = file_schema(columns, ["k"], thin=False)
    arrays = [values[field.name.removeprefix("_KEY_")] for field in schema]
    path = folder / f"{sequence}.parquet"
    write_parquet(
        path,
        pa.Table.from_arrays(arrays, schema=schema),
        **AS_WE_WRITE
        | {
            "use_dictionary": [KIND, "u"],
            "dictionary_pagesize_limit": 1 << 30,
            "max_rows_per_page": PAGE,
            "compression_level": 9,
        },
    )
    return input_file(path, rows, sequence, sequence + rows - 1)


# --- what is not copied ---------------------------------------------------------------------------

ARRAY = {"type": "ARRAY", "element": "INT"}
Made: TypeAlias = Callable[[Path], Subcompaction]


def of(**how: Any) -> Made:
    """The huge and the small run, merged in this way."""
    return lambda folder: merge(folder, [huge(folder)], [small(folder, [BEGIN[20]])], **how)


def written(**how: Any) -> Made:
    """The huge run written in this way."""
    return lambda folder: merge(folder, [huge(folder, **how)], [small(folder, [BEGIN[20]])])


def with_source(**how: Any) -> Made:
    def made(folder: Path) -> Subcompaction:
        found = of()(folder)
        return replace(found, source=replace(found.source, **how))

    return made


def with_changelog(folder: Path) -> Subcompaction:
    return with_changelog_of(of()(folder))


def with_nested_column(folder: Path) -> Subcompaction:
    columns = (*COLUMNS, *(replace(each, id=9) for each in fields(a=ARRAY)))

    def written(path: Path, keys: Sequence[int], sequence: int) -> InputFile:
        rows = len(keys)
        numbers = np.arange(rows)
        offsets = np.minimum(np.arange(rows + 1), 10)
        values = {
            SEQUENCE: pa.array(numbers + sequence),
            KIND: pa.array(np.zeros(rows, np.int8)),
            "k": pa.array(np.asarray(keys)),
            "n": pa.array(numbers * 7_919 % 1_000_003),
            "s": pa.nulls(rows, pa.string()),
            "d": pa.array(numbers / 3),
        }
        schema = file_schema(columns, ["k"], thin=False)
        nested = schema.field("a").type
        values["a"] = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.array(np.arange(10), pa.int32())
        ).cast(nested)
        arrays = [values[field.name.removeprefix("_KEY_")] for field in schema]
        options = AS_WE_WRITE | {"max_rows_per_page": PAGE, "compression_level": 9}
        write_parquet(path, pa.Table.from_arrays(arrays, schema=schema), **options)
        return input_file(path, rows, sequence, sequence + rows - 1)

    old = written(folder / "huge.parquet", range(0, 2 * ROWS, 2), 0)
    new = written(folder / "small.parquet", [BEGIN[20]], 1 << 20)
    return merge(folder, [old], [new], columns=columns)


def with_older_schema(folder: Path) -> Subcompaction:
    old = replace(huge(folder), older_schema=0)
    found = merge(folder, [old], [small(folder, [BEGIN[20]])])
    older = (*COLUMNS[:3], replace(COLUMNS[3], type=parse_type("DOUBLE NOT NULL")))
    older = (*older, DataField(id=9, name="dropped", type=parse_type("INT")))
    return replace(found, older_schemas=(older,))


def with_vector(folder: Path) -> Subcompaction:
    old = without_rows(huge(folder), [1, N, N + 1])
    return merge(folder, [old], [small(folder, [BEGIN[20]])])


def with_own_number(folder: Path) -> Subcompaction:
    old = replace(huge(folder), sequence_number=5)
    return merge(folder, [old], [small(folder, [BEGIN[20]])])


def with_floats(folder: Path) -> Subcompaction:
    columns = (replace(COLUMNS[0], type=parse_type("DOUBLE NOT NULL")), *COLUMNS[1:])
    old = huge(folder, [float(n) for n in range(0, 2 * ROWS, 2)], columns=columns)
    new = small(folder, [float(BEGIN[20])], columns=columns)
    return merge(folder, [old], [new], columns=columns)


def with_ties(folder: Path) -> Subcompaction:
    return merge(folder, [huge(folder)], [small(folder, [BEGIN[20]], sequence=7)])


def cut_at(key: int) -> Made:
    key_range = KeyRange(lower=encode_row([key], [COLUMNS[0].type]))
    return of(key_range=key_range)


REFUSED: dict[str, Made] = {
    "the run wants another encoding": of(keeps_encoding=False),
    "another codec": of(compression="snappy"),
    "a changelog": with_changelog,
    "a nested column": with_nested_column,
    "records expire": with_source(record_expire=RecordExpire(field="n", seconds=1 << 40)),
    "rows of other levels are looked up": with_source(looks_up=True),
    "the target is too small": of(target_file_size=1 << 18),
    "too little memory": of(memory_bytes=12 << 20),
    "an older schema": with_older_schema,
    "deleted rows": with_vector,
    "a sequence number for all rows": with_own_number,
    "no checksums of pages": written(write_page_checksum=False),
    "pages of version 2": written(data_page_version="2.0"),
    "no page indexes": written(write_page_index=False),
    "no statistics": written(write_statistics=False),
    "no statistics of kinds": written(write_statistics=["k", "n", SEQUENCE]),
    "one page": written(max_rows_per_page=ROWS, write_batch_size=ROWS, data_page_size=1 << 30),
    "floats as keys": with_floats,
    "sequence numbers may be equal": with_ties,
    "cut by a range of keys": cut_at(2),
    "files in an object store": of(storage=RequestCounter(LocalStorage())),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_pages_are_not_copied(tmp_path, reason):
    assert copied_pages(REFUSED[reason](tmp_path)) == NONE
