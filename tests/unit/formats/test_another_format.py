"""A format is a class that reads and one that writes: with no more than these a rewrite works."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from compactord.errors import FormatError, SubcompactionError
from compactord.formats.registry import FORMATS
from compactord.model import InputFile, MergeSpec, Subcompaction, SubcompactionResult
from compactord.rewrite.split import cut_ranges
from compactord.rewrite.subcompaction import rewrite
from compactord.storage.local import LocalStorage
from tests.unit.formats.arrow_files import ARROW, ArrowEncoding, arrow_rows, as_arrow
from tests.unit.formats.parquet.small_files import FLAT, bits, described, inputs, padded, rows_of
from tests.unit.rewrite.builders import (
    KEY_VALUE,
    KIND,
    SEQUENCE,
    concat_subcompaction,
    fields,
    files_left,
    merge_subcompaction,
    output_paths,
    row,
    write_append,
    write_run,
)

BOTH = {**FORMATS, "arrow": ARROW}
TO_ARROW = {
    "file_format": "arrow",
    "file_suffix": ".arrow",
    "encoding": ArrowEncoding("none", 1 << 20),
}
# Java's Parquet files store TIMESTAMP(7..9) in a type without statistics.
BOUNDED = {
    name.replace(" ", "_"): type_
    for name, type_ in FLAT.items()
    if not any(f"({precision})" in type_ and "TIMESTAMP" in type_ for precision in (7, 8, 9))
}


def arrow_table(subcompaction: Subcompaction, result: SubcompactionResult) -> pa.Table:
    return pa.concat_tables(arrow_rows(path) for path in output_paths(subcompaction, result))


def overlapping(folder: Path) -> list[list[InputFile]]:
    """Three runs of 4,000 keys that share many; the newest deletes some."""
    chance = random.Random(3)
    runs = []
    for number in range(3):
        keys = sorted(chance.sample(range(6_000), 4_000))
        kinds = [3 if number == 2 and key % 5 == 0 else 0 for key in keys]
        rows = [
            row(key, None if key % 7 == 0 else f"{number}-{key}", 4_000 * number + place, kind)
            for place, (key, kind) in enumerate(zip(keys, kinds, strict=True))
        ]
        runs.append([write_run(folder / f"{number}.parquet", KEY_VALUE, ["k"], rows)])
    return runs


@pytest.mark.parametrize("drop_deletes", [False, True])
@pytest.mark.parametrize("thin", [False, True])
def test_a_merge_makes_the_rows_and_the_record_that_parquet_makes(tmp_path, drop_deletes, thin):
    runs = overlapping(tmp_path)
    how = {"drop_deletes": drop_deletes, "thin_mode": thin}
    twin = merge_subcompaction(tmp_path / "twin", KEY_VALUE, ["k"], runs, **how)
    ours = [[as_arrow(file) for file in run] for run in runs]
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], ours, **how, **TO_ARROW)
    found, expected = rewrite(subcompaction, formats=BOTH), rewrite(twin)
    assert arrow_table(subcompaction, found).to_pylist() == rows_of(twin, expected).to_pylist()
    (file,) = found.after
    assert described(file) == described(expected.after[0])
    assert file.file_size == output_paths(subcompaction, found)[0].stat().st_size
    assert file.delete_row_count == (0 if drop_deletes else pytest.approx(800, rel=0.2))
    assert found.stats.input_records == 12_000
    assert found.stats.input_bytes == sum(file.size_bytes for run in ours for file in run)


def test_an_append_subcompaction_has_statistics_of_all_types_out_of_its_rows(tmp_path):
    columns = padded(**BOUNDED)
    files = inputs(tmp_path, columns, 2)
    twin = concat_subcompaction(tmp_path / "twin", columns, files)
    subcompaction = concat_subcompaction(
        tmp_path, columns, [as_arrow(file) for file in files], **TO_ARROW
    )
    found, expected = rewrite(subcompaction, formats=BOTH), rewrite(twin)
    assert bits(arrow_table(subcompaction, found)).equals(bits(rows_of(twin, expected)))
    assert [described(file) for file in found.after] == [described(f) for f in expected.after]


def test_files_are_closed_at_their_target(tmp_path):
    columns = fields(a="BIGINT")
    rows = [{"a": n * 7919} for n in range(60_000)]
    file = as_arrow(write_append(tmp_path / "in.parquet", columns, rows))
    subcompaction = concat_subcompaction(
        tmp_path,
        columns,
        [file],
        first_sequence_number=5,
        continues=True,
        target_file_size=100 << 10,
        **TO_ARROW,
    )
    result = rewrite(subcompaction, formats=BOTH)
    assert len(result.after) == 5
    assert arrow_table(subcompaction, result).to_pylist() == rows
    sequences = [(file.min_sequence_number, file.max_sequence_number) for file in result.after]
    assert sequences[0][0] == 5
    assert sequences[-1][1] == 60_004
    assert all(low[1] + 1 == high[0] for low, high in itertools.pairwise(sequences))


def test_key_ranges_are_cut_and_read(tmp_path):
    runs = [[as_arrow(file) for file in run] for run in overlapping(tmp_path)]
    whole = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], runs, **TO_ARROW)
    source = whole.source
    assert isinstance(source, MergeSpec)
    expected = rewrite(whole, formats=BOTH)
    keys, size = [], 0
    ranges = cut_ranges(source, 3, KEY_VALUE, LocalStorage(), formats=BOTH)
    assert len(ranges) == 3
    for number, key_range in enumerate(ranges):
        write = replace(whole.write, folder=str(tmp_path / f"out-{number}"))
        subcompaction = replace(whole, source=replace(source, key_range=key_range), write=write)
        result = rewrite(subcompaction, formats=BOTH)
        keys += arrow_table(subcompaction, result).column("k").to_pylist()
        size += result.stats.input_bytes
    assert keys == arrow_table(whole, expected).column("k").to_pylist()
    assert size == expected.stats.input_bytes


@pytest.mark.parametrize("write", [{}, TO_ARROW], ids=["to Parquet", "to Arrow"])
def test_a_subcompaction_may_have_files_of_several_formats(tmp_path, write):
    runs = overlapping(tmp_path)
    expected = rewrite(merge_subcompaction(tmp_path / "twin", KEY_VALUE, ["k"], runs))
    mixed = [[as_arrow(runs[0][0])], *runs[1:]]
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], mixed, **write)
    result = rewrite(subcompaction, formats=BOTH)
    assert [described(file) for file in result.after] == [described(f) for f in expected.after]


def test_files_of_another_format_than_the_output_are_not_copied(tmp_path):
    files = inputs(tmp_path, padded(n="BIGINT"), 2)
    subcompaction = concat_subcompaction(
        tmp_path, padded(n="BIGINT"), files, keeps_encoding=True, **TO_ARROW
    )
    found = arrow_table(subcompaction, rewrite(subcompaction, formats=BOTH))
    twin = concat_subcompaction(tmp_path / "twin", padded(n="BIGINT"), files)
    assert found.equals(rows_of(twin, rewrite(twin)))


def test_a_file_that_cannot_be_read_is_named_with_its_format(tmp_path):
    file = as_arrow(write_append(tmp_path / "in.parquet", fields(a="INT"), [{"a": 1}]))
    Path(file.path).write_bytes(bytes(file.size_bytes))
    subcompaction = concat_subcompaction(tmp_path, fields(a="INT"), [file], **TO_ARROW)
    with pytest.raises(FormatError, match=r"not a readable Arrow file .*in\.arrow"):
        rewrite(subcompaction, formats=BOTH)
    assert files_left(subcompaction) == []


def test_a_file_with_fewer_rows_than_recorded_is_refused_and_nothing_stays(tmp_path):
    rows = [{"k": n, "v": "a", SEQUENCE: n, KIND: 0} for n in range(3)]
    file = as_arrow(write_run(tmp_path / "in.parquet", KEY_VALUE, ["k"], rows))
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], [[replace(file, row_count=4)]], **TO_ARROW
    )
    with pytest.raises(FormatError, match="3 rows were read instead of 4"):
        rewrite(subcompaction, formats=BOTH)
    assert files_left(subcompaction) == []


def test_a_format_that_there_is_not_is_an_error(tmp_path):
    file = as_arrow(write_append(tmp_path / "in.parquet", fields(a="INT"), [{"a": 1}]))
    with pytest.raises(SubcompactionError, match="files of format arrow are not supported"):
        rewrite(concat_subcompaction(tmp_path, fields(a="INT"), [file]))
