"""Row groups that merges copy, and every reason for which one is decoded and encoded instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
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
from compactord.paimon.types import DataField, parse_type
from compactord.rewrite.subcompaction import rewrite
from tests.unit.formats.parquet.small_files import (
    assert_same_as_by_decoding,
    decoding,
    described,
    rows_of,
)
from tests.unit.formats.parquet.stored_pages import (
    assert_healthy,
    bodies,
    is_copied,
)
from tests.unit.rewrite.builders import (
    KIND,
    SEQUENCE,
    output_paths,
    with_groups_of,
    without_rows,
)
from tests.unit.rewrite.large_files import (
    COLUMNS,
    PAGES,
    N,
    assert_refused,
    claiming,
    large,
    merge,
    number,
    run,
    small,
    with_changelog_of,
)


def copied_groups(subcompaction: Subcompaction, column: str = "n") -> list[tuple[int, int]]:
    """The inputs' row groups whose pages are in the outputs, as file and group; rewritten both
    ways, with equal rows and records.
    """
    result = assert_same_as_by_decoding(subcompaction)
    outputs = set()
    for path in output_paths(subcompaction, result):
        outputs |= set(bodies(path, column))
    found = []
    for place, file in enumerate(subcompaction.source.files):
        pages = iter(bodies(file.path, column))
        footer = pq.read_metadata(file.path)
        for group in range(footer.num_row_groups):
            rows = footer.row_group(group).num_rows
            own = [next(pages) for _ in range(-(-rows // PAGES["max_rows_per_page"]))]
            if outputs >= set(own):
                found.append((place, group))
    return found


# --- what is copied -------------------------------------------------------------------------------

FIRST, BOTH = [(0, 0)], [(0, 0), (0, 1)]


def test_row_groups_that_no_other_run_touches_are_copied(tmp_path):
    assert copied_groups(merge(tmp_path, [large(tmp_path)], [small(tmp_path)])) == FIRST


def test_each_column_is_copied(tmp_path):
    """Those with a dictionary as well: a row group has one of its own."""
    subcompaction = merge(tmp_path, [large(tmp_path)])
    result = assert_same_as_by_decoding(subcompaction)
    names = ["_KEY_k", SEQUENCE, KIND, "k", "n", "s", "d"]
    assert [name for name in names if not is_copied(subcompaction, result, name)] == []
    (path,) = output_paths(subcompaction, result)
    assert_healthy(path)


@pytest.mark.parametrize("threaded", [False, True])
def test_files_of_several_runs_are_copied_in_the_order_of_keys(tmp_path, threaded):
    runs = [
        [run(tmp_path / f"{n}.parquet", range(start * N, (start + 1) * N), n * N)]
        for n, start in enumerate((4, 0, 2))
    ]
    subcompaction = merge(tmp_path, *runs)
    result = assert_same_as_by_decoding(subcompaction, threaded=threaded)
    assert copied_groups(subcompaction) == [(0, 0), (1, 0), (2, 0)]
    keys = rows_of(subcompaction, result).column("k").to_numpy()
    assert (np.diff(keys) > 0).all()
    assert len(keys) == 3 * N


@pytest.mark.parametrize("thin", [False, True])
@pytest.mark.parametrize("kinds", [0, 3])
def test_records_around_a_copied_row_group_are_merged(tmp_path, thin, kinds):
    """Below, between and above the row groups, where deletes are dropped."""
    first = run(tmp_path / "a.parquet", range(10, 2 * N + 10, 2), 0, thin=thin)
    second = run(tmp_path / "b.parquet", range(3 * N, 5 * N, 2), N, thin=thin)
    keys = [1, 5, 2 * N + 11, 2 * N + 500, 5 * N, 5 * N + 1]
    new = small(tmp_path, keys, kinds=kinds, thin=thin, row_group_size=2)
    subcompaction = merge(tmp_path, [first, second], [new], thin_mode=thin)
    # Pages of two rows are the same either way.
    assert copied_groups(subcompaction)[:2] == [(0, 0), (1, 0)]


def last_value(column: DataField) -> ColumnRule:
    how = "primary-key" if column.name == "k" else "last_value"
    return ColumnRule(column=column.name, aggregator=how)


@pytest.mark.parametrize(
    ("engine", "rules"),
    [
        ("deduplicate", MergeRules()),
        ("first-row", MergeRules()),
        ("partial-update", MergeRules(remove_on_delete=True)),
        ("aggregation", MergeRules(columns=tuple(map(last_value, COLUMNS)))),
    ],
)
def test_every_merge_engine_keeps_an_insert_without_another_record(tmp_path, engine, rules):
    runs = [large(tmp_path)], [small(tmp_path)]
    assert copied_groups(merge(tmp_path, *runs, merge_engine=engine, rules=rules)) == FIRST


KEYS: dict[str, Callable[[int], Any]] = {
    "INT": int,
    "DATE": int,
    "TIMESTAMP(3)": lambda n: n * 1_000,
    "TIMESTAMP(6)": lambda n: (n - N) * 1_000_003,
    "STRING": lambda n: f"{n:08}",
    "BYTES": lambda n: (n * 97).to_bytes(8, "big"),
    "DECIMAL(9, 2)": lambda n: Decimal(n - N).scaleb(-2),
    "DECIMAL(30, 2)": lambda n: Decimal(n - N).scaleb(-2),
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_any_type_are_compared(tmp_path, kind):
    columns = (replace(COLUMNS[0], type=parse_type(f"{kind} NOT NULL")), *COLUMNS[1:])
    made = KEYS[kind]

    def keys(numbers: Sequence[int]) -> pa.Array:
        found = pa.array([made(n) for n in numbers])
        return found.cast(pa.int32()) if kind == "DATE" else found

    old = large_of(tmp_path, keys(range(0, 4 * N, 2)), columns)
    new = small(tmp_path, keys([2 * N + 2, 2 * N + 3]), columns=columns)
    assert copied_groups(merge(tmp_path, [old], [new], columns=columns)) == FIRST


def large_of(folder: Path, keys: Any, columns: Sequence[DataField]) -> InputFile:
    return run(folder / "large.parquet", keys, 0, columns=columns)


def test_outputs_end_nearest_to_the_target(tmp_path):
    """Described as the files that decoding makes of their rows."""
    files = [run(tmp_path / f"{n}.parquet", range(n * N, (n + 1) * N), n * N) for n in range(10)]
    target = 4 * max(each.size_bytes for each in files)
    subcompaction = merge(tmp_path, files, target_file_size=target)
    result = rewrite(subcompaction)
    assert [each.row_count for each in result.after] == [4 * N, 4 * N, 2 * N]
    for place, output in enumerate(result.after):
        section = [files[4 * place : 4 * place + 4]]
        (expected,) = rewrite(decoding(merge(tmp_path, *section))).after
        assert described(output) == described(expected)


# --- what is not ----------------------------------------------------------------------------------

Made: TypeAlias = Callable[[Path], Subcompaction]


def of(**how: Any) -> Made:
    """The large and the small run, merged in this way."""
    return lambda folder: merge(folder, [large(folder)], [small(folder)], **how)


def written(keys: Sequence[Any] = (2 * N + 2,), **how: Any) -> Made:
    """The large run written in this way."""
    return lambda folder: merge(folder, [large(folder, **how)], [small(folder, keys)])


def with_input(**how: Any) -> Made:
    return lambda folder: merge(folder, [replace(large(folder), **how)], [small(folder)])


def with_source(**how: Any) -> Made:
    def made(folder: Path) -> Subcompaction:
        found = of()(folder)
        return replace(found, source=replace(found.source, **how))

    return made


def with_changelog(folder: Path) -> Subcompaction:
    return with_changelog_of(of()(folder))


def with_older_schema(folder: Path) -> Subcompaction:
    found = with_input(older_schema=0)(folder)
    older = (*COLUMNS[:3], replace(COLUMNS[3], type=parse_type("DOUBLE NOT NULL")))
    older = (*older, DataField(id=9, name="dropped", type=parse_type("INT")))
    return replace(found, older_schemas=(older,))


def with_vector(folder: Path) -> Subcompaction:
    return merge(folder, [without_rows(large(folder), [1, N, N + 1])], [small(folder)])


def with_kind(kind: int) -> Made:
    kinds = np.zeros(2 * N, np.int8)
    kinds[7] = kind
    return written(kinds=kinds)


def with_floats(folder: Path) -> Subcompaction:
    columns = (replace(COLUMNS[0], type=parse_type("DOUBLE NOT NULL")), *COLUMNS[1:])
    old = large_of(folder, [float(n) for n in range(0, 4 * N, 2)], columns)
    new = small(folder, [2.5 + 2 * N], columns=columns)
    return merge(folder, [old], [new], columns=columns)


def with_unordered_bounds(folder: Path) -> Subcompaction:
    """Two files of a run whose keys are not in the order of the run."""
    low, high = (run(folder / f"{n}.parquet", range(n * N, n * N + N), n * N) for n in range(2))
    return merge(folder, [low, high], [small(folder, [N // 2, N + N // 2])])


def cut_at(key: int) -> Made:
    key_range = KeyRange(lower=encode_row([key], [COLUMNS[0].type]))
    return of(key_range=key_range)


REFUSED: dict[str, Made] = {
    # of the run and the table
    "the run wants another encoding": of(keeps_encoding=False),
    "another codec": of(compression="snappy"),
    "a changelog": with_changelog,
    "records expire": with_source(record_expire=RecordExpire(field="n", seconds=1 << 40)),
    "rows of other levels are looked up": with_source(looks_up=True),
    "the target is too small": of(target_file_size=1 << 20),
    "row groups are to be smaller": lambda folder: with_groups_of(of()(folder), 200 << 10),
    "too little memory": of(memory_bytes=12 << 20),
    # of the file
    "an older schema": with_older_schema,
    "deleted rows": with_vector,
    "a sequence number for all rows": with_input(sequence_number=5),
    "no checksums of pages": written(write_page_checksum=False),
    "pages of version 2": written(data_page_version="2.0"),
    "no statistics": written(write_statistics=False),
    "no statistics of kinds": written(write_statistics=["k", "n", SEQUENCE]),
    # of the row group
    "a delete": with_kind(3),
    "an update": with_kind(2),
    "an update's earlier row": with_kind(1),
    "few rows": written(row_group_size=N - 1),
    "the first keys": written([0, 2 * N]),
    "keys between those of the row groups": written([1, 2 * N + 1]),
    "the last keys": written([2 * N - 2, 4 * N - 2]),
    "cut by a range of keys": cut_at(2),
    # of the section
    "floats as keys": with_floats,
    "sequence numbers may be equal": lambda folder: merge(
        folder, [large(folder)], [small(folder, sequence=7)]
    ),
    "records of both files": with_unordered_bounds,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_row_group_is_not_copied(tmp_path, reason):
    assert copied_groups(REFUSED[reason](tmp_path)) == []


# --- footers that are wrong, which no checksum covers ---------------------------------------------


def wrong_kinds(folder: Path) -> Subcompaction:
    kinds = np.zeros(2 * N, np.int8)
    kinds[N - 1] = 3
    old = claiming(large(folder, kinds=kinds), KIND, bytes(4), bytes(4))
    return merge(folder, [old], [small(folder)])


def wrong_keys(folder: Path) -> Subcompaction:
    """The other run has a key that was said not to be among them."""
    old = claiming(large(folder), "k", number(0), number(2 * N - 6))
    return merge(folder, [old], [small(folder, [2 * N - 4, 2 * N - 2])])


def wrong_keys_of_the_other_run(folder: Path) -> Subcompaction:
    """It deletes a key of the copied row group: the delete, merged alone, would be dropped."""
    new = small(folder, [2], kinds=3)
    new = claiming(new, "k", number(4 * N), number(4 * N + 1))
    return merge(folder, [large(folder)], [new])


def wrong_numbers(folder: Path) -> Subcompaction:
    """Files are ordered by the numbers that the manifest has of them."""
    return merge(folder, [claiming(large(folder), SEQUENCE, number(1), number(N - 1))])


def wrong_page(folder: Path) -> Subcompaction:
    old = large(folder)
    content = bytearray(Path(old.path).read_bytes())
    place = content.index(bodies(old.path, "n")[3]) + 100
    content[place] ^= 1
    Path(old.path).write_bytes(content)
    return merge(folder, [old], [small(folder)])


def wrong_rows(folder: Path) -> Subcompaction:
    return merge(folder, [replace(large(folder), row_count=2 * N - 1)], [small(folder)])


def null_in_not_null(folder: Path) -> Subcompaction:
    columns = (*COLUMNS[:2], replace(COLUMNS[2], type=parse_type("STRING NOT NULL")), COLUMNS[3])
    return merge(folder, [large(folder)], [small(folder)], columns=columns)


DAMAGED: dict[str, tuple[Made, str]] = {
    "kinds": (wrong_kinds, "its kinds are not its statistics'"),
    "keys": (wrong_keys, "keys are not within their statistics"),
    "keys of the other run": (wrong_keys_of_the_other_run, "keys are not within their statistics"),
    "sequence numbers": (wrong_numbers, "its sequence numbers are not its statistics'"),
    "a page": (wrong_page, "column n: a page's checksum is wrong"),
    "rows": (wrong_rows, f"the manifest records {2 * N - 1} rows"),
    "null in a NOT NULL column": (null_in_not_null, "null"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_not_as_declared_is_refused(tmp_path, what):
    made, message = DAMAGED[what]
    assert_refused(made(tmp_path), message)
