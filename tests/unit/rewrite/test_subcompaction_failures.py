from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactord.errors import FormatError, ObjectNotFound, StoreFull, SubcompactionError
from compactord.model import ChangelogSpec, FailureKind, SubcompactionFailure, SubcompactionResult
from compactord.paimon.options.merge import ChangelogRule
from compactord.rewrite.subcompaction import failure_kind, rewrite, run_subcompaction
from compactord.storage.local import LocalStorage
from tests.unit.rewrite.builders import (
    KEY_VALUE,
    files_left,
    merge_subcompaction,
    row,
    two_runs,
    write_run,
)


def test_a_truncated_input_is_poison_that_names_the_file(tmp_path):
    file = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "a", 0)])
    Path(file.path).write_bytes(Path(file.path).read_bytes()[:-30])
    outcome = run_subcompaction(merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[file]]))
    assert isinstance(outcome, SubcompactionFailure)
    assert (outcome.kind, outcome.error) == (FailureKind.POISON, "DataFileDamaged")
    assert file.path in outcome.message
    assert outcome.path == file.path
    assert (outcome.compaction_id, outcome.index) == (7, 2)
    assert "Traceback" in outcome.traceback


def test_garbage_of_the_right_size_is_poison(tmp_path):
    file = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "a", 0)])
    Path(file.path).write_bytes(b"\x00" * file.size_bytes)
    outcome = run_subcompaction(merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[file]]))
    assert isinstance(outcome, SubcompactionFailure)
    assert (outcome.kind, outcome.error) == (FailureKind.POISON, "DataFileDamaged")


def test_another_number_of_rows_than_planned_is_an_error(tmp_path):
    file = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "a", 0)])
    with pytest.raises(FormatError, match="2 rows"):
        rewrite(merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[replace(file, row_count=2)]]))


def test_a_missing_input_is_transient(tmp_path):
    file = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "a", 0)])
    Path(file.path).unlink()
    outcome = run_subcompaction(merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[file]]))
    assert isinstance(outcome, SubcompactionFailure)
    assert (outcome.kind, outcome.error) == (FailureKind.TRANSIENT, "ObjectNotFound")


@pytest.mark.parametrize(("low", "high"), [(0, 6), (8, 9)])
def test_sequences_outside_the_manifests_range_are_an_error(tmp_path, low, high):
    file = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(1, "a", 7)])
    wrong = replace(file, min_sequence_number=low, max_sequence_number=high)
    with pytest.raises(FormatError, match=f"sequence numbers {low} to {high}"):
        rewrite(merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[wrong]]))


@pytest.mark.parametrize("threaded", [False, True], ids=["alone", "threads"])
def test_a_broken_page_far_into_the_input_leaves_nothing_behind(tmp_path, threaded):
    rows = [row(k, str(k * 7919), k) for k in range(30_000)]
    file = write_run(
        tmp_path / "a.parquet",
        KEY_VALUE,
        ["k"],
        rows,
        row_group_size=5000,
        write_page_checksum=True,
    )
    start = pq.ParquetFile(file.path).metadata.row_group(5).column(4).data_page_offset
    content = bytearray(Path(file.path).read_bytes())
    content[start + 100] ^= 1
    Path(file.path).write_bytes(content)
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], [[file]], target_file_size=file.size_bytes // 5
    )
    outcome = run_subcompaction(subcompaction, threaded=threaded)
    assert isinstance(outcome, SubcompactionFailure)
    assert (outcome.kind, outcome.error) == (FailureKind.POISON, "DataFileDamaged")
    assert files_left(subcompaction) == []


def test_an_unsorted_input_is_refused(tmp_path):
    file = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], [row(5, "a", 0), row(1, "b", 1)])
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[file]])
    outcome = run_subcompaction(subcompaction)
    assert isinstance(outcome, SubcompactionFailure)
    assert outcome.kind is FailureKind.POISON
    assert files_left(subcompaction) == []


def _gone(path: Path) -> None:
    path.unlink()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def _turned(path: Path) -> None:
    pq.write_table(pq.read_table(path)[::-1], path, store_schema=False)


def _as_it_is(path: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("damage", "how", "said"),
    [
        pytest.param(_gone, {}, "a.parquet", id="gone"),
        pytest.param(_cut, {}, "a.parquet", id="cut"),
        pytest.param(_turned, {}, "a.parquet", id="not sorted"),
        pytest.param(_as_it_is, {"row_count": 41}, "a.parquet", id="another number of rows"),
        pytest.param(_as_it_is, {"max_sequence_number": 3}, "a.parquet", id="other numbers"),
        # By the ranges in the manifest, which are wrong, the next file comes after it.
        pytest.param(_as_it_is, {}, "b.parquet", id="keys of the next file"),
    ],
)
def test_a_file_above_that_is_not_what_it_should_be_fails_what_looks_rows_up_in_it(
    tmp_path, damage, how, said
):
    last = 100 if said == "b.parquet" else 40
    rows = [row(key, "a", key) for key in range(0, last, 2)]
    files = [write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], rows, row_group_size=7)]
    rows = [row(key, "b", key) for key in range(41, 80, 2)]
    files.append(write_run(tmp_path / "b.parquet", KEY_VALUE, ["k"], rows, row_group_size=7))
    damage(Path(files[0].path))
    size = Path(files[0].path).stat().st_size if damage is _turned else files[0].size_bytes
    files[0] = replace(files[0], size_bytes=size, **how)
    news = [row(key, "new", 100 + key) for key in (4, 20, 60, 75)]
    new = write_run(tmp_path / "c.parquet", KEY_VALUE, ["k"], news)
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], [[new]])
    told = ChangelogSpec(
        before_level=None,
        write=replace(subcompaction.write, file_prefix="changelog-"),
        rule=ChangelogRule(compared=None),
    )
    above = (tuple(replace(file, level=5) for file in files),)
    source = replace(subcompaction.source, looks_up=True, above=above, changelog=told)
    outcome = run_subcompaction(replace(subcompaction, source=source))
    assert isinstance(outcome, SubcompactionFailure)
    assert said in outcome.message
    assert files_left(subcompaction) == []


class _FailingSink:
    """A file that takes `good_writes` writes and then fails with `error`."""

    def __init__(self, path: str, good_writes: int, error: BaseException) -> None:
        self._file = open(path, "xb")  # noqa: SIM115 - closed by Arrow
        self._left = good_writes
        self._error = error
        self.closed = False

    def write(self, data: bytes) -> int:
        self._left -= 1
        if self._left < 0:
            raise self._error
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self.closed = True
        self._file.close()


@dataclass(frozen=True, slots=True)
class FailingStorage(LocalStorage):
    """Writing fails at the n-th write of the n-th output."""

    good_files: int = 0
    good_writes: int = 0
    error: BaseException | None = None

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        if not path.endswith(f"-{self.good_files}.parquet"):
            with LocalStorage.open_output(self, path) as stream:
                yield stream
            return
        Path(path).parent.mkdir(exist_ok=True, parents=True)
        assert self.error is not None
        sink = _FailingSink(path, self.good_writes, self.error)
        try:
            yield pa.PythonFile(sink, mode="w")
        except BaseException:
            sink.close()
            self.delete(path)
            raise
        sink.close()


@pytest.mark.parametrize("error", [StoreFull("x", "no space"), KeyboardInterrupt()])
@pytest.mark.parametrize("good_files", [0, 2])
@pytest.mark.parametrize("good_writes", [0, 1, 4, 12])
@pytest.mark.parametrize("threaded", [False, True], ids=["alone", "threads"])
def test_a_failed_write_leaves_nothing_behind(tmp_path, error, good_files, good_writes, threaded):
    rows = [row(k, str(k * 7919), k) for k in range(30_000)]
    file = write_run(tmp_path / "a.parquet", KEY_VALUE, ["k"], rows)
    storage = FailingStorage(good_files, good_writes, error)
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], [[file]], target_file_size=file.size_bytes // 5, storage=storage
    )
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            run_subcompaction(subcompaction, threaded=threaded)
    else:
        outcome = run_subcompaction(subcompaction, threaded=threaded)
        assert isinstance(outcome, SubcompactionFailure)
        assert (outcome.kind, outcome.error) == (FailureKind.TRANSIENT, "StoreFull")
    assert files_left(subcompaction) == []


class _InterruptedStorage(LocalStorage):
    """A stop signal comes while a file is created."""

    def open_output(self, path: str) -> contextlib.AbstractContextManager[pa.NativeFile]:
        Path(path).parent.mkdir(exist_ok=True, parents=True)
        Path(path).touch()
        raise KeyboardInterrupt


def test_a_file_that_was_being_created_is_removed(tmp_path):
    subcompaction = merge_subcompaction(
        tmp_path, KEY_VALUE, ["k"], two_runs(tmp_path), storage=_InterruptedStorage()
    )
    with pytest.raises(KeyboardInterrupt):
        run_subcompaction(subcompaction)
    assert files_left(subcompaction) == []


def test_a_name_that_is_taken_is_left_alone(tmp_path):
    subcompaction = merge_subcompaction(tmp_path, KEY_VALUE, ["k"], two_runs(tmp_path))
    taken = rewrite(subcompaction).after[0].file_name
    uuid = taken[len("data-") : -len("-0.parquet")]
    again = replace(subcompaction, owner=_FixedOwner(uuid))
    outcome = run_subcompaction(again)
    assert isinstance(outcome, SubcompactionFailure)
    assert files_left(subcompaction) == [taken]


@dataclass(frozen=True)
class _FixedOwner:
    uuid: str

    def unique_name(self) -> str:
        return self.uuid


def test_failures_are_poison_unless_a_store_or_the_machine_failed():
    assert failure_kind(FormatError("p", "m")) is FailureKind.POISON
    assert failure_kind(SubcompactionError("m")) is FailureKind.POISON
    assert failure_kind(AssertionError()) is FailureKind.POISON
    assert failure_kind(ObjectNotFound("p", "m")) is FailureKind.TRANSIENT
    assert failure_kind(StoreFull("p", "m")) is FailureKind.TRANSIENT
    assert failure_kind(MemoryError()) is FailureKind.TRANSIENT


def test_subcompactions_and_outcomes_travel(tmp_path):
    subcompaction = pickle.loads(
        pickle.dumps(merge_subcompaction(tmp_path, KEY_VALUE, ["k"], two_runs(tmp_path)))
    )
    outcome = pickle.loads(pickle.dumps(run_subcompaction(subcompaction)))
    assert isinstance(outcome, SubcompactionResult)
    failure = run_subcompaction(replace(subcompaction, memory_bytes=1))
    assert pickle.loads(pickle.dumps(failure)) == failure
