"""One storage call fails, any of them, in any way: nothing is lost and the next run heals all."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compactord.errors import (
    AccessDenied,
    CompactordError,
    StorageError,
    StoreFull,
    TransientStorageError,
)
from compactord.paimon.schema import TableRef
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests import builders
from tests.builders import FIRST, SECOND
from tests.faults import tables
from tests.faults.tables import Given
from tests.sampling import CutPoints
from tests.storages import Call, Fault, FaultyStorage, HookedStorage

LOCAL = LocalStorage()


def _anything(call: Call) -> bool:
    return True


def _mutation(call: Call) -> bool:
    return call.is_mutation


def _cases() -> list[object]:
    """A failed read is the same whether it comes before or after its effect, and of any kind.

    The last figure makes a sample, a smaller one of those that have failed with another error
    already.
    """
    cases: list[tuple[type[StorageError], Callable[[Call], bool], bool, bool, int]] = [
        (TransientStorageError, _anything, False, False, 4),
        (TransientStorageError, _anything, False, True, 12),
        (AccessDenied, _anything, False, False, 12),
    ]
    kinds = (TransientStorageError, StoreFull, AccessDenied, StorageError)
    for kind, after_effect, lasts in itertools.product(kinds, (False, True), (False, True)):
        if after_effect or kind is not TransientStorageError:
            cases.append(
                (kind, _mutation, after_effect, lasts, 2 if kind is TransientStorageError else 6)
            )
    return [
        pytest.param(
            *case,
            id="-".join(
                (
                    case[0].__name__,
                    case[1].__name__.strip("_"),
                    "after" if case[2] else "before",
                    "lasting" if case[3] else "once",
                )
            ),
        )
        for case in cases
    ]


def _copy(template: Path, target: Path) -> TableRef:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(template, target)
    return TableRef(database="db", name="t", location=str(target))


def _run(storage: Storage, table: TableRef) -> None:
    """A first process: whatever it says, it must not raise anything but our own errors."""
    with contextlib.suppress(CompactordError):
        builders.compact(storage, table, owner=FIRST)


def _heal(table: TableRef) -> None:
    """A second process, with a store that works, and an owner that knows the first one dead."""
    builders.remove_leftovers(LOCAL, table, myself=SECOND)
    totals = builders.compact(LOCAL, table, owner=SECOND)
    assert totals.failures == []
    assert totals.lost_snapshots == []


@pytest.fixture(scope="module", params=tables.KINDS)
def template(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Given]:
    location = tmp_path_factory.mktemp("template") / "t"
    return location, tables.given(str(location), request.param)


@pytest.mark.parametrize(("kind", "concerns", "after_effect", "lasts", "step"), _cases())
def test_a_failing_call_loses_nothing_and_the_next_run_heals(
    template: tuple[Path, Given],
    tmp_path: Path,
    cut_points: CutPoints,
    *,
    kind: type[StorageError],
    concerns: Callable[[Call], bool],
    after_effect: bool,
    lasts: bool,
    step: int,
) -> None:
    """Every `step`-th call that it concerns. More, at random: `make faults`."""
    location, given = template
    least = 40 if concerns is _anything else 6
    # Wherever it begins, some call fails.
    step = min(step * given.kind.step, least)
    for at in cut_points(step):
        table = _copy(location, tmp_path / "t")
        fault = Fault(at=at, error=kind, after_effect=after_effect, lasts=lasts, concerns=concerns)
        storage = FaultyStorage(LOCAL, fault)
        _run(storage, table)
        what = str(storage.failed[:1])
        given.check(table, what)
        _heal(table)
        given.check_compacted(table, what)
        assert builders.leftovers(LOCAL, table, [FIRST, SECOND]) == set(), what
        if not storage.failed:
            break
    assert at > least, "the faults reached the whole run"


@pytest.mark.parametrize("template", ["full-compaction", "vectors"], indirect=True)
@pytest.mark.parametrize("is_compacted", [False, True], ids=["rows", "compacted rows"])
def test_what_arrives_between_any_two_steps_is_neither_lost_nor_told_twice(
    template: tuple[Path, Given], tmp_path: Path, cut_points: CutPoints, *, is_compacted: bool
) -> None:
    """Before every twelfth step."""
    location, given = template
    expected = {key: row for key, row in given.rows.items() if key != 3} | {5: -5, 2000: -1}
    for at in cut_points(12):
        table = _copy(location, tmp_path / "t")

        def arrive(call: Call, at: int = at, table: TableRef = table) -> None:
            if call.number == at:
                rows = builders.rows_of([(3, -3), (5, -5), (2000, -1)])
                builders.writer(LOCAL, table).write(rows, kinds=builders.kinds_of([3, 0, 0]))
                if is_compacted:
                    builders.compact(LOCAL, table, owner=SECOND)

        storage = HookedStorage(LOCAL, before=arrive)
        _run(storage, table)
        if storage.calls < at:
            break
        assert builders.read_keyed(LOCAL, table) == expected, at
        _heal(table)
        assert builders.read_keyed(LOCAL, table) == expected, at
        builders.check_chain(LOCAL, table)
        changes = builders.read_changes(LOCAL, table)
        assert builders.replayed(changes) == expected, at
        assert 0 not in _levels(table), at
    assert at > 40


def _levels(table: TableRef) -> list[int]:
    """Of all files."""
    files = load_state(LOCAL, table).files
    return sorted(file.level for bucket in files.bucket_ids() for file in files.files_in(bucket))


@pytest.mark.parametrize("template", ["full-compaction", "vectors", "dynamic"], indirect=True)
@pytest.mark.parametrize("kind", [TransientStorageError, StoreFull])
def test_removing_leftovers_may_fail_at_any_call_and_never_removes_what_is_named(
    template: tuple[Path, Given], tmp_path: Path, cut_points: CutPoints, kind: type[StorageError]
) -> None:
    """Every fourth call."""
    location, given = template
    left = _copy(location, tmp_path / "left")
    # Published files of the dead process and files that it never published.
    builders.compact(LOCAL, left, owner=FIRST)
    stray = f"data-{FIRST.unique_name()}-0.parquet"
    LOCAL.write_new(f"{left.location}/bucket-0/{stray}", b"half a file")
    for at in cut_points(4):
        table = _copy(Path(left.location), tmp_path / "t")
        # Uploads that cannot be listed are left: files are swept all the same.
        fault = Fault(at=at, error=kind, concerns=lambda call: call.method != "unfinished_uploads")
        storage = FaultyStorage(LOCAL, fault)
        try:
            builders.remove_leftovers(storage, table, myself=SECOND)
        except kind:
            assert storage.failed
        given.check(table, at)
        is_there = LOCAL.status(f"{table.location}/bucket-0/{stray}") is not None
        assert is_there == bool(storage.failed)
        if not storage.failed:
            break
    assert at > 10


def test_a_dropped_result_whose_removal_fails_is_left_to_the_next_run(tmp_path: Path) -> None:
    table = builders.append_table(LOCAL, str(tmp_path / "t"))
    target = builders.writer(LOCAL, table)
    expected = [(commit, commit) for commit in range(6)]
    for pair in expected:
        target.write(builders.rows_of([pair]))

    def let_a_rival_be_first(call: Call) -> None:
        if call.method == "close_output":
            builders.compact(LOCAL, table, owner=SECOND)

    storage = FaultyStorage(
        HookedStorage(LOCAL, after=let_a_rival_be_first),
        Fault(
            at=1,
            error=TransientStorageError,
            lasts=True,
            concerns=lambda call: call.method == "delete",
        ),
    )
    totals = builders.compact(storage, table, owner=FIRST)
    assert (totals.dropped, totals.snapshots, totals.failures) == (1, [], [])
    assert totals.wasted_bytes > 0
    assert len(builders.leftovers(LOCAL, table, [FIRST])) == 1
    builders.remove_leftovers(LOCAL, table, myself=SECOND)
    assert builders.leftovers(LOCAL, table, [FIRST, SECOND]) == set()
    assert sorted(builders.read_appended(LOCAL, table).elements()) == expected
