from __future__ import annotations

import math
import resource
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.errors import FormatError, StoreFull, SubcompactionError
from compactord.ids import owner_of, this_process
from compactord.model import FailureKind, KeyRange, SubcompactionFailure
from compactord.paimon.binary_row import decode_row, encode_row
from compactord.paimon.data_file import EMPTY_ROW, EMPTY_STATS, FileSource
from compactord.paimon.types import file_schema, value_schema
from compactord.rewrite.split import cut_ranges
from compactord.rewrite.subcompaction import rewrite, run_subcompaction
from compactord.storage.local import LocalStorage
from tests.unit.rewrite.builders import (
    KEY_VALUE,
    KIND,
    SEQUENCE,
    concat_subcompaction,
    fields,
    files_left,
    input_file,
    merge_subcompaction,
    output_paths,
    output_rows,
    row,
    two_runs,
    write_append,
    write_parquet,
    write_run,
)


def written(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"_KEY_k": r["k"], SEQUENCE: r[SEQUENCE], KIND: r[KIND], **r} for r in rows]


def test_the_latest_record_of_each_key_is_written_with_its_own_sequence_and_kind(tmp_path):
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], two_runs(tmp_path))
    result = rewrite(subcompaction)
    assert output_rows(subcompaction, result) == written(
        row(1, "A", 2, 2), row(2, "b", 3), row(3, None, 4, 3)
    )


def test_retracts_go_when_deletes_are_dropped(tmp_path):
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], two_runs(tmp_path), drop_deletes=True
    )
    result = rewrite(subcompaction)
    assert [r["k"] for r in output_rows(subcompaction, result)] == [1, 2]
    assert result.after[0].delete_row_count == 0


def test_nothing_is_written_when_no_row_is_left(tmp_path):
    run = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, None, 0, 3)])
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[run]], drop_deletes=True)
    result = rewrite(subcompaction)
    assert result.after == ()
    assert (result.stats.input_records, result.stats.output_records, result.stats.output_bytes) == (
        1,
        0,
        0,
    )
    assert files_left(subcompaction) == []


def test_the_record_of_a_merged_file_tells_what_is_in_it(tmp_path):
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], two_runs(tmp_path), creation_zone_offset_ms=3_600_000
    )
    clock = FixedClock(1_700_000_000_000)
    (file,) = rewrite(subcompaction, clock=clock).after
    types = [KEY_VALUE[0].type]
    assert file.file_size == (Path(subcompaction.write.folder) / file.file_name).stat().st_size
    assert (file.row_count, file.delete_row_count) == (3, 1)
    assert (decode_row(file.min_key, types), decode_row(file.max_key, types)) == ((1,), (3,))
    assert (file.min_sequence_number, file.max_sequence_number) == (2, 4)
    assert (file.schema_id, file.level, file.file_source) == (3, 5, FileSource.COMPACT)
    assert file.creation_time_ms == 1_700_003_600_000
    assert file.key_stats.null_counts == (0,)
    assert decode_row(file.key_stats.max_values, types) == (3,)
    value_types = [field.type for field in KEY_VALUE]
    assert decode_row(file.value_stats.min_values, value_types) == (1, "A")
    assert decode_row(file.value_stats.max_values, value_types) == (3, "b")
    assert (file.value_stats.null_counts, file.value_stats_columns) == ((0, 1), None)
    assert (file.extra_files, file.embedded_file_index, file.external_path) == ((), None, None)


@pytest.mark.parametrize("target", [10_000, 1 << 20])
def test_records_of_files_of_several_row_groups_tell_of_all_of_them(tmp_path, target):
    rows = [row(k, f"v{k:010}", 9000 - k, 3 if k % 7 == 0 else 0) for k in range(6000)]
    run = [write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], rows)]
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], [run], group_bytes=8000, target_file_size=target
    )
    result = rewrite(subcompaction)
    types = [KEY_VALUE[0].type]
    assert (len(result.after) > 1) == (target == 10_000)
    for path, file in zip(output_paths(subcompaction, result), result.after, strict=True):
        parquet = pq.ParquetFile(path)
        assert parquet.num_row_groups > 1 or file is not result.after[0]
        found = parquet.read().to_pylist()
        assert decode_row(file.min_key, types) == (found[0]["k"],)
        assert decode_row(file.max_key, types) == (found[-1]["k"],)
        assert file.delete_row_count == sum(each[KIND] == 3 for each in found) > 0
        assert file.min_sequence_number == found[-1][SEQUENCE]
        assert file.max_sequence_number == found[0][SEQUENCE]
        assert file.row_count == len(found)
    assert [each["k"] for each in output_rows(subcompaction, result)] == list(range(6000))


@pytest.mark.parametrize("thin", [False, True])
def test_columns_of_a_key_stand_in_the_order_of_the_key(tmp_path, thin):
    columns = fields(a="INT NOT NULL", z="BIGINT NOT NULL", v="STRING")
    rows = [{"z": n, "a": -n, "v": None, SEQUENCE: n} for n in range(3)]
    run = [write_run(tmp_path / "a.parquet", columns, ["z", "a"], rows)]
    subcompaction = merge_subcompaction(tmp_path, columns, ["z", "a"], [run], thin_mode=thin)
    result = rewrite(subcompaction)
    found = output_rows(subcompaction, result)
    assert [(r["a"], r["z"]) for r in found] == [(0, 0), (-1, 1), (-2, 2)]
    if not thin:
        assert [(r["_KEY_z"], r["_KEY_a"]) for r in found] == [(0, 0), (1, -1), (2, -2)]
    (file,) = result.after
    types = [columns[1].type, columns[0].type]
    assert (decode_row(file.min_key, types), decode_row(file.max_key, types)) == ((0, 0), (2, -2))
    assert decode_row(file.key_stats.min_values, types) == (0, -2)
    assert decode_row(file.key_stats.max_values, types) == (2, 0)


def test_statistics_of_keys_are_longer_than_those_of_values(tmp_path):
    columns = fields(k="STRING NOT NULL")
    run = [write_run(tmp_path / "a.parquet", columns, ["k"], [{"k": "b" * 20}])]
    (file,) = rewrite(merge_subcompaction(tmp_path, columns, ["k"], [run])).after
    types = [columns[0].type]
    assert decode_row(file.key_stats.max_values, types) == ("b" * 20,)
    assert decode_row(file.value_stats.max_values, types) == ("b" * 15 + "c",)


def test_names_are_of_the_owner_with_prefix_and_suffix(tmp_path):
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], two_runs(tmp_path), file_prefix="d-", file_suffix=".zst.parquet"
    )
    (file,) = rewrite(subcompaction).after
    assert file.file_name.startswith("d-")
    assert file.file_name.endswith("-0.zst.parquet")
    assert owner_of(file.file_name) == this_process()


def test_sections_follow_each_other_in_one_output(tmp_path):
    first = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "a", 0)])
    second = write_run(tmp_path / "b.parquet", KEY_VALUE, ["k"], [row(2, "b", 1)])
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[first]], [[second]])
    result = rewrite(subcompaction)
    assert len(result.after) == 1
    assert [r["k"] for r in output_rows(subcompaction, result)] == [1, 2]


def test_files_of_a_run_are_read_one_after_the_other(tmp_path):
    one = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "a", 0), row(2, "b", 1)])
    two = write_run(tmp_path / "b.parquet", KEY_VALUE, ["k"], [row(5, "e", 2)])
    over = write_run(tmp_path / "c.parquet", KEY_VALUE, ["k"], [row(2, "B", 7), row(5, "E", 8)])
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[one, two], [over]])
    assert [r["v"] for r in output_rows(subcompaction, rewrite(subcompaction))] == ["a", "B", "E"]


@pytest.mark.parametrize(("descending", "winner"), [(False, "high"), (True, "low")])
def test_sequence_fields_come_before_sequence_numbers(tmp_path, descending, winner):
    columns = fields(k="INT NOT NULL", v="STRING", s="INT")
    high = write_run(
        tmp_path / "a.parquet", columns, ["k"], [{"k": 1, "v": "high", "s": 9, SEQUENCE: 0}]
    )
    low = write_run(
        tmp_path / "b.parquet", columns, ["k"], [{"k": 1, "v": "low", "s": 4, SEQUENCE: 5}]
    )
    subcompaction = merge_subcompaction(
        tmp_path,
        columns,
        ["k"],
        [[high], [low]],
        sequence_fields=["s"],
        sequence_descending=descending,
    )
    assert [r["v"] for r in output_rows(subcompaction, rewrite(subcompaction))] == [winner]


def test_overlapping_sequence_ranges_are_compared_row_by_row(tmp_path):
    one = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "old", 0), row(2, "new", 9)])
    two = write_run(tmp_path / "b.parquet", KEY_VALUE, ["k"], [row(1, "new", 5), row(2, "old", 4)])
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[one], [two]])
    assert [r["v"] for r in output_rows(subcompaction, rewrite(subcompaction))] == ["new", "new"]


@pytest.mark.parametrize("turned", [False, True])
def test_ranges_of_sequences_that_touch_hold_ties(tmp_path, turned):
    """Of two records with one number Java keeps that of the first run here, not of the last."""
    first = [row(1, "a", 5), row(2, "a", 0)]
    runs = [
        [write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], first)],
        [write_run(tmp_path / "b.parquet", KEY_VALUE, ["k"], [row(1, "b", 5), row(3, "b", 6)])],
    ]
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], runs[::-1] if turned else runs)
    found = [r["v"] for r in output_rows(subcompaction, rewrite(subcompaction))]
    assert found == ["b" if turned else "a", "a", "b"]


def test_ranges_of_sequences_are_compared_of_all_runs(tmp_path):
    given = [
        [row(1, "a", 0)],
        [row(1, "b", 9), row(2, "b", 2)],
        [row(1, "c", 4), row(3, "c", 3)],
    ]
    runs = [
        [write_run(tmp_path / f"{n}.parquet", KEY_VALUE, ["k"], rows)]
        for n, rows in enumerate(given)
    ]
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], runs)
    assert [r["v"] for r in output_rows(subcompaction, rewrite(subcompaction))] == ["b", "b", "c"]


def test_runs_need_not_come_in_the_order_of_their_sequences(tmp_path):
    newer = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "new", 10)])
    older = write_run(tmp_path / "b.parquet", KEY_VALUE, ["k"], [row(1, "old", 3)])
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[newer], [older]])
    assert [r["v"] for r in output_rows(subcompaction, rewrite(subcompaction))] == ["new"]


def test_thin_and_normal_inputs_mix_and_thin_outputs_have_no_key_columns(tmp_path):
    thin = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "a", 0)], thin=True)
    full = write_run(tmp_path / "b.parquet", KEY_VALUE, ["k"], [row(2, "b", 1)])
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], [[thin], [full]], thin_mode=True
    )
    result = rewrite(subcompaction)
    (path,) = output_paths(subcompaction, result)
    assert pq.read_schema(path).names == [SEQUENCE, KIND, "k", "v"]
    types = [KEY_VALUE[0].type]
    assert decode_row(result.after[0].key_stats.min_values, types) == (1,)
    assert decode_row(result.after[0].max_key, types) == (2,)


def test_append_files_keep_their_order_and_count_sequences(tmp_path):
    columns = fields(a="INT", b="STRING")
    files = [
        write_append(tmp_path / "a.parquet", columns, [{"a": 5, "b": "x"}, {"a": 1, "b": None}]),
        write_append(tmp_path / "b.parquet", columns, [{"a": 3, "b": "y"}]),
    ]
    subcompaction = concat_subcompaction(tmp_path, columns, files, first_sequence_number=40)
    result = rewrite(subcompaction)
    assert [r["a"] for r in output_rows(subcompaction, result)] == [5, 1, 3]
    (file,) = result.after
    assert (file.min_sequence_number, file.max_sequence_number) == (40, 42)
    assert (file.min_key, file.max_key, file.key_stats) == (EMPTY_ROW, EMPTY_ROW, EMPTY_STATS)
    assert (file.level, file.delete_row_count, file.file_source) == (0, 0, FileSource.COMPACT)
    assert file.value_stats.null_counts == (0, 1)


@pytest.mark.parametrize("continues", [False, True])
def test_sequences_of_several_append_outputs(tmp_path, continues):
    columns = fields(a="BIGINT")
    file = write_append(tmp_path / "a.parquet", columns, [{"a": n * 7919} for n in range(60_000)])
    subcompaction = concat_subcompaction(
        tmp_path,
        columns,
        [file],
        first_sequence_number=100,
        continues=continues,
        target_file_size=file.size_bytes // 4,
    )
    result = rewrite(subcompaction)
    assert len(result.after) > 1
    assert [r["a"] for r in output_rows(subcompaction, result)] == [n * 7919 for n in range(60_000)]
    expected = 100
    for out in result.after:
        assert out.min_sequence_number == expected
        assert out.max_sequence_number == expected + out.row_count - 1
        expected = out.max_sequence_number + 1 if continues else 100


def test_stats_add_up(tmp_path):
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], two_runs(tmp_path))
    result = rewrite(subcompaction)
    (runs,) = subcompaction.source.sections
    assert result.stats.input_records == 5
    assert result.stats.output_records == 3
    assert result.stats.input_bytes == sum(file.size_bytes for run in runs for file in run)
    assert result.stats.output_bytes == result.after[0].file_size
    assert result.stats.cpu_s > 0
    assert result.stats.peak_rss_bytes > 10 << 20
    assert (result.compaction_id, result.index) == (7, 2)


def test_ranges_together_do_what_the_whole_does(tmp_path):
    runs = [
        [
            write_run(
                tmp_path / f"{n}.parquet",
                KEY_VALUE,
                ["k"],
                [row(k, f"{n}-{k}", 1000 * n + k) for k in range(n, 900, n + 1)],
                row_group_size=50,
            )
        ]
        for n in range(3)
    ]
    whole = merge_subcompaction(tmp_path / "w", KEY_VALUE, ["k"], runs)
    ranges = cut_ranges(whole.source, 3, KEY_VALUE, LocalStorage())
    assert len(ranges) == 3
    rows, stats = [], []
    for number, bounds in enumerate(ranges):
        subcompaction = merge_subcompaction(
            tmp_path / f"p{number}", KEY_VALUE, ["k"], runs, key_range=bounds
        )
        result = rewrite(subcompaction)
        rows += output_rows(subcompaction, result)
        stats.append(result.stats)
    expected = rewrite(whole)
    assert rows == output_rows(whole, expected)
    assert sum(s.input_records for s in stats) == expected.stats.input_records
    assert sum(s.input_bytes for s in stats) == expected.stats.input_bytes


def test_row_groups_outside_a_range_are_not_decoded(tmp_path):
    rows = [row(k, str(k), k) for k in range(1000)]
    file = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], rows, row_group_size=100)
    metadata = pq.ParquetFile(file.path).metadata
    # Break a page of the last row group: who decodes it fails.
    start = metadata.row_group(9).column(3).data_page_offset
    content = bytearray(Path(file.path).read_bytes())
    content[start : start + 40] = b"\xff" * 40
    Path(file.path).write_bytes(content)
    types = [KEY_VALUE[0].type]
    bounds = KeyRange(lower=encode_row([150], types), upper=encode_row([320], types))
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[file]], key_range=bounds)
    assert [r["k"] for r in output_rows(subcompaction, rewrite(subcompaction))] == list(
        range(150, 320)
    )
    with pytest.raises(FormatError):
        rewrite(replace(subcompaction, source=replace(subcompaction.source, key_range=KeyRange())))


def _many_runs(folder, count=40, *, disjoint=True):
    return [
        [
            write_run(
                folder / f"{n}.parquet",
                KEY_VALUE,
                ["k"],
                [
                    row(k, f"{n}", 100 * n + k if disjoint else 7 * n % count + count * k)
                    for k in range(n % 5, 60, 3)
                ],
            )
        ]
        for n in range(count)
    ]


@pytest.mark.parametrize("disjoint", [True, False])
@pytest.mark.parametrize(("count", "memory_bytes"), [(40, 900_000), (41, 900_000), (41, 800_000)])
def test_many_runs_are_merged_in_passes_when_memory_is_short(
    tmp_path, count, memory_bytes, disjoint
):
    runs = _many_runs(tmp_path, count, disjoint=disjoint)
    roomy = merge_subcompaction(tmp_path / "a", KEY_VALUE, ["k"], runs)
    tight = merge_subcompaction(tmp_path / "b", KEY_VALUE, ["k"], runs, memory_bytes=memory_bytes)
    one, other = rewrite(roomy), rewrite(tight)
    assert output_rows(roomy, one) == output_rows(tight, other)
    assert other.stats.input_records == one.stats.input_records


def test_passes_of_more_rows_than_a_window_do_not_overwrite_what_they_read(tmp_path):
    rows = [[row(k, f"{n}", 20_000 * n + k) for k in range(n, 40_000, 5)] for n in range(5)]
    runs = [
        [write_run(tmp_path / f"{n}.parquet", KEY_VALUE, ["k"], run, max_rows_per_page=500)]
        for n, run in enumerate(rows)
    ]
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], runs, memory_bytes=1_400_000)
    assert [r["k"] for r in output_rows(subcompaction, rewrite(subcompaction))] == list(
        range(40_000)
    )


def test_ignored_deletes_that_stay_alone_are_not_merged_in_passes(tmp_path):
    runs = [
        [write_run(Path(f"{run[0].path}.2"), KEY_VALUE, ["k"], [row(n, None, n, 3)])]
        for n, run in enumerate(_many_runs(tmp_path))
    ]
    for drops in (False, True):
        subcompaction = merge_subcompaction(
            tmp_path,
            KEY_VALUE,
            ["k"],
            runs,
            memory_bytes=900_000,
            ignore_delete=True,
            drop_deletes=drops,
        )
        if drops:
            assert rewrite(subcompaction).after == ()
        else:
            with pytest.raises(SubcompactionError, match="ignore-delete cannot be merged"):
                rewrite(subcompaction)


def test_a_full_temporary_folder_is_named(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    tight = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], _many_runs(tmp_path), memory_bytes=900_000
    )
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, limits[1]))
    try:
        with pytest.raises(StoreFull, match="temporary rows") as raised:
            rewrite(tight)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.path.startswith(str(temporary))
    assert list(temporary.iterdir()) == files_left(tight) == []


@pytest.mark.parametrize(("rows_per_page", "fits"), [(10_000, True), (300_000, False)])
def test_large_pages_need_memory_and_small_ones_do_not(tmp_path, rows_per_page, fits):
    columns = fields(k="BIGINT NOT NULL")
    rows = 300_000
    runs = []
    for run in range(2):
        keys = pa.array(range(run, 2 * rows, 2))
        sequences = pa.array(range(run * rows, (run + 1) * rows))
        table = pa.Table.from_arrays(
            [keys, sequences, pa.array([0] * rows, pa.int8()), keys],
            schema=file_schema(columns, ["k"], thin=False),
        )
        path = tmp_path / f"{run}.parquet"
        write_parquet(
            path,
            table,
            compression="none",
            use_dictionary=False,
            data_page_size=64 << 20,
            max_rows_per_page=rows_per_page,
        )
        runs.append([input_file(path, rows, run * rows, (run + 1) * rows - 1)])
    subcompaction = merge_subcompaction(tmp_path, columns, ["k"], runs, memory_bytes=8 << 20)
    if fits:
        assert rewrite(subcompaction).stats.output_records == 2 * rows
    else:
        with pytest.raises(SubcompactionError, match="raise --memory"):
            rewrite(subcompaction)


def test_a_subcompaction_that_cannot_run_in_its_memory_says_how_much_it_needs(tmp_path):
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], two_runs(tmp_path), memory_bytes=1000
    )
    outcome = run_subcompaction(subcompaction)
    assert isinstance(outcome, SubcompactionFailure)
    assert outcome.kind is FailureKind.POISON
    assert "needs at least" in outcome.message
    assert files_left(subcompaction) == []


def test_ignored_deletes_lose_to_older_rows_but_stay_alone(tmp_path):
    old = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "a", 0)])
    new = write_run(
        tmp_path / "b.parquet", KEY_VALUE, ["k"], [row(1, None, 1, 3), row(2, "x", 2, 3)]
    )
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], [[old], [new]], ignore_delete=True
    )
    assert output_rows(subcompaction, rewrite(subcompaction)) == written(
        row(1, "a", 0), row(2, "x", 2, 3)
    )


# --- sizes and threads ------------------------------------------------------------------------


def test_outputs_come_close_to_the_target(tmp_path):
    columns = fields(k="BIGINT NOT NULL", v="DOUBLE")
    rows = [{"k": k, "v": math.sin(k), SEQUENCE: k, KIND: 0} for k in range(200_000)]
    file = write_run(tmp_path / "a.parquet", columns, ["k"], rows)
    target = file.size_bytes // 5
    subcompaction = merge_subcompaction(tmp_path, columns, ["k"], [[file]], target_file_size=target)
    result = rewrite(subcompaction)
    sizes = [out.file_size for out in result.after]
    assert all(0.95 * target < size < 1.1 * target for size in sizes[:-1]), (target, sizes)
    assert sum(out.row_count for out in result.after) == 200_000
    types = [columns[0].type]
    keys = [k for out in result.after for k in (out.min_key, out.max_key)]
    decoded = [decode_row(key, types) for key in keys]
    assert decoded == sorted(decoded)
    assert [r["k"] for r in output_rows(subcompaction, result)] == list(range(200_000))


def test_threads_change_nothing(tmp_path):
    runs = [
        [
            write_run(
                tmp_path / f"{n}.parquet",
                KEY_VALUE,
                ["k"],
                [row(k, f"{n}", 1000 * n + k) for k in range(n, 900, n + 1)],
            )
        ]
        for n in range(3)
    ]
    alone = merge_subcompaction(tmp_path / "a", KEY_VALUE, ["k"], runs)
    expected = output_rows(alone, rewrite(alone))
    threaded = merge_subcompaction(tmp_path / "b", KEY_VALUE, ["k"], runs)
    assert output_rows(threaded, rewrite(threaded, threaded=True)) == expected


def test_the_last_row_group_is_waited_for(tmp_path):
    columns = fields(k="BIGINT NOT NULL", v="STRING")
    table = pa.table(
        [pa.array(range(200_000)), pa.array([f"{k * 7919:030}" for k in range(200_000)])],
        schema=value_schema(columns),
    )
    write_parquet(tmp_path / "a.parquet", table)
    subcompaction = concat_subcompaction(
        tmp_path, columns, [input_file(tmp_path / "a.parquet", 200_000)], compression_level=9
    )
    result = rewrite(subcompaction, threaded=True)
    (path,) = output_paths(subcompaction, result)
    assert pq.ParquetFile(path).read().equals(table)
    assert [file.row_count for file in result.after] == [200_000]


class FixedClock:
    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return 0.0


def test_a_column_of_the_files_is_written_as_the_schema_says(tmp_path):
    table = pa.table(
        {
            SEQUENCE: pa.array([0], pa.int64()),
            KIND: pa.array([0], pa.int8()),
            "k": pa.array([1], pa.int64()),
            "v": pa.array(["x"], pa.large_string()),
        }
    )
    write_parquet(tmp_path / "a.parquet", table, store_schema=True)
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], [[input_file(tmp_path / "a.parquet", 1)]]
    )
    result = rewrite(subcompaction)
    (path,) = output_paths(subcompaction, result)
    assert pq.read_schema(path).field("v").type == pa.string()
    assert pq.read_metadata(path).metadata is None
