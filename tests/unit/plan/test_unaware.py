"""Packing without buckets: what is picked, and that files are not made objects for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.model import Compaction, Concat, TableKind
from compactord.paimon.avro.columns import Ints
from compactord.paimon.data_file import BucketFiles, DataFile, FileSource
from compactord.plan.append import pack_unaware, pack_unaware_full
from compactord.plan.table import PlanRequest, Strategy, plan_bucket
from compactord.state.files_by_size import FilesBySize, SizeColumns, names_of
from tests.sampling import examples
from tests.unit.plan.builders import (
    BUCKET,
    MB,
    NOW_MS,
    append_options,
    bucket_of,
    data_file,
    names,
    plan_request,
)
from tests.unit.plan.plain_packing import plain_pack, plain_pack_full
from tests.unit.plan.test_table_properties import TARGET, requests

SMALL = [data_file(f"f{n}", sequences=(n, n)) for n in range(7)]
LONG_MAX = (1 << 63) - 1


def pack(files: list[DataFile], **changed: object) -> tuple[list[list[str]], list[str]]:
    final = changed.pop("final", frozenset())
    packed, left = pack_unaware(
        FilesBySize.of(bucket_of(files)),
        append_options(**changed),
        now_local_ms=NOW_MS,
        wait_ms=60_000,
        final=final,
    )
    waiting = packed.files.read(len(packed.files) - left, len(packed.files))
    return [names(one.inputs) for one in packed], names(waiting)


def test_files_without_creation_time_have_waited() -> None:
    files = [replace(file, creation_time_ms=None) for file in SMALL[:2]]
    assert pack(files) == ([["f0", "f1"]], [])
    assert pack([files[0], SMALL[1]]) == ([], ["f0", "f1"])


def test_settled_files_are_no_candidates() -> None:
    assert pack(SMALL[:5], final={"f3"}) == ([], ["f0", "f1", "f2", "f4"])
    files = FilesBySize.of(bucket_of(SMALL[:3]))
    picks = pack_unaware_full(files, append_options(), final={"f1"})
    assert [names(pick.inputs) for pick in picks] == [["f0", "f2"]]


def test_bins_that_would_leave_as_many_small_files_are_not_picked() -> None:
    files = [data_file(f"f{n}", size=256 * MB) for n in range(2)]
    assert pack(files, small_file_ratio=1.5) == ([], [])
    mixed = [data_file("large", size=256 * MB), *SMALL[:4]]
    assert pack(mixed, small_file_ratio=1.5)[0] == [["f0", "f1", "f2", "f3", "large"]]


def test_a_file_of_the_size_that_counts_as_full_is_not_small() -> None:
    limit = append_options().small_file_size
    files = [data_file("full", size=limit), data_file("below", size=limit - 1), *SMALL[:4]]
    assert pack(files) == ([["f0", "f1", "f2", "f3", "below"]], [])


def test_a_bin_has_two_files_though_one_would_fill_it() -> None:
    assert pack(SMALL[:5], open_file_cost=600 * MB) == ([["f0", "f1"], ["f2", "f3"]], ["f4"])


def test_numbers_beyond_those_of_the_format_are_added_up() -> None:
    huge = {"target_file_size": LONG_MAX, "small_file_ratio": 1.0, "min_file_num": 9}
    files = [data_file(f"f{n}", size=LONG_MAX - 9 + n) for n in range(4)]
    assert pack(files, **huge, open_file_cost=LONG_MAX) == ([["f0", "f1"], ["f2", "f3"]], [])
    assert pack(files, **huge, open_file_cost=0)[0] == [["f0", "f1", "f2"]]


@st.composite
def many_files(draw: st.DrawFn) -> list[DataFile]:
    """Few distinct sizes and sequence numbers, so that ties are common, at bounds of bins too."""
    sizes = st.integers(0, 3 * TARGET) | st.integers(0, 20) | st.sampled_from([10, 20])
    numbers = draw(st.permutations(range(draw(st.integers(0, 6) | st.integers(0, 60)))))
    return [
        data_file(
            f"f{number}",
            level=draw(st.sampled_from([0, 0, 0, 2])),
            size=draw(sizes),
            sequences=(draw(st.integers(-1, 1)), number),
            created_ms=draw(
                st.sampled_from([None, NOW_MS - 5000, NOW_MS - 10, NOW_MS, NOW_MS + 5000])
            ),
            source=draw(st.sampled_from(FileSource)),
        )
        for number in numbers
    ]


def settled_of(files: Sequence[DataFile]) -> st.SearchStrategy[frozenset[str]]:
    """Some of them, and names that are not there: rarely more than there are files."""
    others = [f"other{n}" for n in range(len(files) + 3)]
    return st.frozensets(st.sampled_from([*names(files), *others]), max_size=4) | st.just(
        frozenset([*names(files)[:3], *others])
    )


def plainly(files: Sequence[DataFile], request: PlanRequest) -> list[Compaction]:
    """What the plain packing decides, as the planner tells it."""
    options, final = request.options, request.final
    if request.strategy is Strategy.FULL:
        picks = plain_pack_full(files, options, final=final)
    else:
        picks, _ = plain_pack(
            files,
            options,
            now_local_ms=request.now_local_ms,
            wait_ms=request.append_wait_ms,
            final=final,
        )
    return [
        Compaction(
            bucket=BUCKET,
            total_buckets=1,
            reason=reason,
            actions=(Concat(files=inputs, ordered=False),),
        )
        for inputs, reason in picks
    ]


@settings(max_examples=examples(400), deadline=None)
@given(st.data(), many_files(), requests(TableKind.APPEND_UNAWARE))
def test_columns_are_packed_as_files_one_by_one_are(
    data: st.DataObject, files: list[DataFile], request: PlanRequest
) -> None:
    request = replace(
        request,
        final=data.draw(settled_of(files)),
        append_wait_ms=data.draw(st.sampled_from([None, 0, 10, 5000])),
    )
    plan = plan_bucket(FilesBySize.of(bucket_of(files)), request)
    assert list(plan.compactions) == plainly(files, request)
    if request.strategy is not Strategy.FULL:
        _, waiting = plain_pack(
            files,
            request.options,
            now_local_ms=request.now_local_ms,
            wait_ms=request.append_wait_ms,
            final=request.final,
        )
        noted = [f"{len(waiting)} small files wait for"] if len(waiting) > 1 else []
        assert [note.partition(" compaction.")[0] for note in plan.notes] == noted


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), many_files(), requests(TableKind.APPEND_UNAWARE))
def test_what_runs_is_planned_beside_as_if_it_were_not_there(
    data: st.DataObject, files: list[DataFile], request: PlanRequest
) -> None:
    busy = data.draw(settled_of(files))
    plan = plan_bucket(FilesBySize.of(bucket_of(files)).without(busy), request)
    free = [file for file in files if file.file_name not in busy]
    assert list(plan.compactions) == plainly(free, request)


class Reads:
    """Files that note which of them were made objects."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.made: list[str] = []
        self.files = files
        columns = SizeColumns.of(files)
        self.by_size = FilesBySize.ordered(BUCKET, -1, columns, names_of(files), self._read)

    def _read(self, rows: Ints) -> list[DataFile]:
        found = [self.files[row] for row in rows.tolist()]
        self.made += names(found)
        return found


def test_only_files_of_a_task_that_is_asked_for_become_objects() -> None:
    reads = Reads([data_file(f"f{n:04}", sequences=(n, n)) for n in range(1000)])
    request = plan_request(TableKind.APPEND_UNAWARE)
    plan = plan_bucket(reads.by_size, request)
    # Of 1 MB, and 4 MB for opening each: a bin of 512 MB has 103 files.
    assert (len(plan.compactions), bool(plan.compactions), reads.made) == (10, True, [])
    assert plan_bucket(reads.by_size, replace(request, strategy=Strategy.FULL)).compactions
    assert reads.made == []
    third = plan.compactions[2]
    assert reads.made == names(third.inputs) == [f"f{n:04}" for n in range(206, 309)]
    assert [len(one.inputs) for one in plan.compactions[-2:]] == [103, 73]


def test_files_are_in_order_whatever_their_order_was() -> None:
    files = [
        data_file("b", size=2, sequences=(1, 1)),
        data_file("a", size=2, sequences=(1, 1)),
        data_file("é", size=2, sequences=(1, 1)),
        data_file("c", size=2, sequences=(0, 0)),
        data_file("z", size=1, sequences=(9, 9)),
    ]
    ordered = FilesBySize.of(bucket_of(files))
    assert names(ordered.read(0, 5)) == ["z", "c", "a", "b", "é"]
    assert names(ordered.smaller_than(2).read(0, 5)) == ["z"]
    assert names(ordered.without({"a", "x"}).read(1, 3)) == ["c", "b"]
    assert names(ordered.take(slice(1, 4)).without({"a"}).read(0, 9)) == ["c", "b"]


def test_formats_are_told_by_all_names() -> None:
    def formats(*file_names: str) -> set[str]:
        files = tuple(data_file(name) for name in file_names)
        return FilesBySize.of(BucketFiles(bucket=BUCKET, total_buckets=-1, files=files)).formats()

    assert formats() == set()
    assert formats("a.parquet", "b.zst.parquet", "my.c.parquet") == {"parquet"}
    assert formats("a.csv.gz", "b.json.gz", "c.gz.csv", "d.csv") == {"csv", "json"}
    assert formats("a.parquet", "b.orc", "c.parquet", "d.parquet.orc") == {"parquet", "orc"}
