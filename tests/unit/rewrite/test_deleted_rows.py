"""Files with deletion vectors are rewritten as if they had only the rows that are left."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.formats.registry import FORMATS
from compactord.model import FailureKind, InputFile, MergeSpec, Subcompaction, SubcompactionFailure
from compactord.paimon.deletion_vectors import VectorKind
from compactord.paimon.options.table_options import RecordExpire
from compactord.rewrite.split import cut_ranges
from compactord.rewrite.subcompaction import rewrite, run_subcompaction
from compactord.storage.local import LocalStorage
from tests.sampling import examples
from tests.unit.formats.arrow_files import ARROW, as_arrow
from tests.unit.formats.parquet.small_files import inputs, padded
from tests.unit.formats.parquet.stored_pages import is_copied
from tests.unit.rewrite.builders import (
    KEY_VALUE,
    KIND,
    SEQUENCE,
    concat_subcompaction,
    fields,
    files_left,
    merge_subcompaction,
    output_rows,
    row,
    two_runs,
    without_rows,
    write_append,
    write_run,
)

BOTH = {**FORMATS, "arrow": ARROW}
FIELDS = fields(k="BIGINT NOT NULL", t="INT", v="STRING")
OLDER = (replace(FIELDS[0], name="old key"), FIELDS[1])
# Of a table whose records of the time 1 have expired, at any time.
EXPIRES = RecordExpire(field="t", seconds=1_000)


FileDraw = tuple[dict[int, tuple[int, bool, bool]], int, bool, bool, VectorKind]
# Of each key its kind, whether it has expired, and whether its row is deleted; rows of a row group;
# whether the file has the older schema or another format; the kind of its vector.
files = st.tuples(
    st.dictionaries(
        st.integers(0, 25),
        st.tuples(
            st.sampled_from([0, 0, 2, 3]), st.sampled_from([False, False, True]), st.booleans()
        ),
        min_size=1,
    ),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
    st.sampled_from(VectorKind),
)


def written(
    path: Path, drawn: FileDraw, sequences: list[int], *, leaves_out: bool
) -> InputFile | None:
    """The file with a vector, or, if it `leaves_out` what is deleted, without; None: no rows."""
    records, group, is_older, is_other, kind = drawn
    columns = OLDER if is_older else FIELDS
    rows, deleted = [], []
    for key in sorted(records):
        (of_key, has_expired, is_deleted), sequence = records[key], sequences.pop(0)
        if is_deleted and not leaves_out:
            deleted.append(len(rows))
        if not (is_deleted and leaves_out):
            values = {columns[0].name: key, "t": 1 if has_expired else None, "v": str(sequence)}
            names = [column.name for column in columns]
            rows.append({name: values[name] for name in names} | {SEQUENCE: sequence, KIND: of_key})
    if not rows:
        return None
    file = write_run(path, columns, [columns[0].name], rows, row_group_size=group)
    file = as_arrow(file) if is_other else file
    file = replace(file, older_schema=0 if is_older else None)
    return file if leaves_out else without_rows(file, deleted, kind)


def merged(
    folder: Path, runs: Sequence[Sequence[InputFile]], parts: int, how: dict[str, Any]
) -> tuple[list[Any], int]:
    """The rows that a merge writes, in parts, and the number of rows that it reads."""
    made = merge_subcompaction(folder, FIELDS, ["k"], runs, **how)
    assert isinstance(made.source, MergeSpec)
    made = replace(made, older_schemas=(OLDER,), source=replace(made.source, record_expire=EXPIRES))
    ranges = cut_ranges(
        made.source, parts, FIELDS, LocalStorage(), older=made.older_schemas, formats=BOTH
    )
    rows, count = [], 0
    for key_range in ranges:
        part = replace(made, source=replace(made.source, key_range=key_range))
        result = rewrite(part, formats=BOTH)
        rows += output_rows(part, result)
        count += result.stats.input_records
    return rows, count


@settings(max_examples=examples(60), deadline=None)
@given(
    runs=st.lists(files, min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
    parts=st.integers(1, 3),
    drops=st.booleans(),
    ignores=st.booleans(),
)
def test_a_merge_is_that_of_the_rows_that_are_left(runs, order, parts, drops, ignores):
    sequences = list(range(sum(len(records) for records, *_ in runs)))
    order.shuffle(sequences)
    how = {"drop_deletes": drops, "ignore_delete": ignores}
    with tempfile.TemporaryDirectory() as name:
        made = {}
        for leaves_out in (False, True):
            (folder := Path(name) / str(leaves_out)).mkdir()
            left = [*sequences]
            run_files = [
                written(folder / f"{number}.parquet", drawn, left, leaves_out=leaves_out)
                for number, drawn in enumerate(runs)
            ]
            made[leaves_out] = [[file] for file in run_files if file is not None]
        found, count = merged(Path(name) / "a", made[False], parts, how)
        expected, _ = merged(Path(name) / "b", made[True], 1, how) if made[True] else ([], 0)
    assert found == expected
    # As if no row were deleted: what is read is compared with the counts of the manifest.
    assert count == len(sequences)


@pytest.mark.parametrize("kind", VectorKind)
@pytest.mark.parametrize("is_other", [False, True])
@pytest.mark.parametrize(
    "deleted",
    [{0}, {9_999}, range(3_000, 7_000), range(0, 10_000, 3), {*range(9_999)}, set()],
    ids=["first", "last", "middle", "many", "all but one", "none"],
)
def test_a_concatenation_leaves_rows_out(tmp_path, deleted, is_other, kind):
    columns = fields(a="BIGINT", s="STRING")
    rows = [{"a": n, "s": f"{n % 7}"} for n in range(10_000)]
    file = write_append(tmp_path / "a.parquet", columns, rows)
    other = write_append(tmp_path / "b.parquet", columns, rows[:10])
    file = without_rows(as_arrow(file) if is_other else file, deleted, kind)
    subcompaction = concat_subcompaction(tmp_path, columns, [other, file, other])
    result = rewrite(subcompaction, formats=BOTH)
    left = [each for number, each in enumerate(rows) if number not in deleted]
    assert output_rows(subcompaction, result) == [*rows[:10], *left, *rows[:10]]
    assert result.stats.input_records == 10_020
    assert result.after[0].row_count == len(left) + 20


def test_pages_of_deleted_rows_are_not_copied(tmp_path):
    columns = padded(n="BIGINT", s="STRING")
    plain = inputs(tmp_path, columns, 3)
    whole = concat_subcompaction(tmp_path / "whole", columns, plain, keeps_encoding=True)
    expected = output_rows(whole, result := rewrite(whole))
    assert is_copied(whole, result, "n")
    some = [plain[0], without_rows(plain[1], {5}), plain[2]]
    subcompaction = concat_subcompaction(tmp_path, columns, some, keeps_encoding=True)
    found = output_rows(subcompaction, result := rewrite(subcompaction))
    del expected[plain[0].row_count + 5]
    assert list(map(repr, found)) == list(map(repr, expected))
    assert not is_copied(subcompaction, result, "n")


def all_deleted(folder: Path) -> list[list[InputFile]]:
    return [[without_rows(file, range(file.row_count)) for file in run] for run in two_runs(folder)]


@pytest.mark.parametrize("threaded", [False, True], ids=["alone", "threads"])
@pytest.mark.parametrize("engine", ["deduplicate", "partial-update", "first-row"])
def test_nothing_is_written_if_all_rows_are_deleted(tmp_path, engine, threaded):
    runs = all_deleted(tmp_path)
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], runs, merge_engine=engine)
    result = rewrite(subcompaction, threaded=threaded)
    assert (result.outputs, result.stats.input_records) == ((), 5)
    columns = fields(k="BIGINT", v="STRING")
    appended = [
        without_rows(write_append(tmp_path / "c.parquet", columns, [{"k": 1}] * 9), range(9))
    ]
    concatenated = concat_subcompaction(tmp_path, columns, appended, keeps_encoding=True)
    assert rewrite(concatenated, threaded=threaded).outputs == ()
    assert files_left(subcompaction) == []


def test_runs_of_which_nothing_is_left_are_merged_in_several_passes(tmp_path):
    runs = []
    for run in range(41):
        rows = [row(key, f"{run}", 300 * run + key) for key in range(300)]
        file = write_run(tmp_path / f"{run}.parquet", KEY_VALUE, ["k"], rows)
        runs.append([without_rows(file, range(300) if run else range(1, 300))])
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], runs, memory_bytes=2_200_000)
    [found] = output_rows(subcompaction, rewrite(subcompaction))
    assert (found["k"], found["v"]) == (0, "0")


def test_what_is_deleted_need_not_be_convertible(tmp_path):
    old, new = fields(a="STRING"), fields(a="INT")
    rows = [{"a": text} for text in ("1", "two", "3")]
    file = replace(write_append(tmp_path / "a.parquet", old, rows), older_schema=0)
    subcompaction = concat_subcompaction(tmp_path, new, [without_rows(file, {1})])
    subcompaction = replace(subcompaction, older_schemas=(old,))
    assert [each["a"] for each in output_rows(subcompaction, rewrite(subcompaction))] == [1, 3]


def test_ranges_are_cut_by_all_rows_whatever_is_deleted(tmp_path):
    columns = fields(k="STRING NOT NULL")
    rows = [{"k": f"{n:04}", SEQUENCE: n} for n in range(1_000)]
    file = write_run(tmp_path / "a.parquet", columns, ["k"], rows)
    ranges = []
    for each in (file, without_rows(file, range(1_000))):
        source = merge_subcompaction(tmp_path, columns, ["k"], [[each]]).source
        assert isinstance(source, MergeSpec)
        ranges.append(cut_ranges(source, 4, columns, LocalStorage()))
    assert ranges[0] == ranges[1]
    assert len(ranges[0]) == 4


def _spoilt(change: Callable[[bytes], bytes]) -> Callable[[InputFile], InputFile]:
    def spoil(file: InputFile) -> InputFile:
        assert file.vector is not None
        path = Path(file.vector.path)
        path.write_bytes(change(path.read_bytes()))
        return file

    return spoil


def _gone(file: InputFile) -> InputFile:
    assert file.vector is not None
    Path(file.vector.path).unlink()
    return file


def _of_another(file: InputFile) -> InputFile:
    assert file.vector is not None
    return replace(file, vector=replace(file.vector, cardinality=2))


def _beyond(file: InputFile) -> InputFile:
    return without_rows(file, {file.row_count})


DAMAGE: dict[str, tuple[Callable[[InputFile], InputFile], FailureKind]] = {
    "gone": (_gone, FailureKind.TRANSIENT),
    "cut": (_spoilt(lambda data: data[:-1]), FailureKind.POISON),
    "flipped": (
        _spoilt(lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:]),
        FailureKind.POISON,
    ),
    "another file": (_spoilt(lambda data: b"PAR1" * 20), FailureKind.POISON),
    "more rows": (_of_another, FailureKind.POISON),
    "beyond the file": (_beyond, FailureKind.POISON),
}


def _merging(folder: Path, file: InputFile, others: Collection[InputFile]) -> Subcompaction:
    return merge_subcompaction(folder, KEY_VALUE, ["k"], [[file], *([each] for each in others)])


def _concatenating(folder: Path, file: InputFile, others: Collection[InputFile]) -> Subcompaction:
    return concat_subcompaction(folder, KEY_VALUE, [*others, file], target_file_size=1)


def _looking_up(folder: Path, file: InputFile, others: Collection[InputFile]) -> Subcompaction:
    made = merge_subcompaction(folder, KEY_VALUE, ["k"], [[each] for each in others])
    assert isinstance(made.source, MergeSpec)
    return replace(made, source=replace(made.source, looks_up=True, marks=True, above=((file,),)))


@pytest.mark.parametrize("made", [_merging, _concatenating, _looking_up])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_vector_that_is_not_what_it_should_be_fails_and_leaves_nothing(tmp_path, damage, made):
    spoil, kind = DAMAGE[damage]
    [[old], [new]] = two_runs(tmp_path)
    spoilt = spoil(without_rows(old, {1}))
    subcompaction = made(tmp_path, spoilt, [new])
    outcome = run_subcompaction(subcompaction)
    assert isinstance(outcome, SubcompactionFailure)
    assert outcome.kind is kind, outcome.message
    assert f"{old.path}.index" in outcome.message
    assert files_left(subcompaction) == []
