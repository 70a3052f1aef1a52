"""Two compactors on one table, in every order in which their racing calls can happen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from compactord.commit.changes import (
    BucketChange,
    CommitOutcome,
    Committed,
    NothingCommitted,
    Removal,
)
from compactord.model import Conflict
from tests.builders import FIRST, SECOND
from tests.deletions import Deletions
from tests.lineage import APPENDED, DYNAMIC, KEYED, Kind, Lineage
from tests.storages import Call, Schedule, StoppingStorage, all_schedules
from tests.unit.paimon.table_builder import UNPARTITIONED

Build = Callable[[Lineage], tuple[BucketChange | Removal, BucketChange]]
# From the newest snapshot at the start: which calls of one process race.
Races = Callable[[int], Callable[[Call], bool]]


def _two_buckets(table: Lineage) -> tuple[BucketChange, BucketChange]:
    left = table.append(2, bucket=0)
    right = table.append(2, bucket=1)
    return (
        table.change(left, owner=FIRST, bucket=0),
        table.change(right, owner=SECOND, bucket=1),
    )


def _one_bucket(table: Lineage) -> tuple[BucketChange, BucketChange]:
    files = table.append(3)
    return table.change(files, owner=FIRST), table.change(files, owner=SECOND)


def _overlapping_appends(table: Lineage) -> tuple[BucketChange, BucketChange]:
    files = table.append(5)
    return table.change(files[:3], owner=FIRST), table.change(files[2:], owner=SECOND)


def _separate_appends(table: Lineage) -> tuple[BucketChange, BucketChange]:
    files = table.append(4)
    return table.change(files[:2], owner=FIRST), table.change(files[2:], owner=SECOND)


def _files_of_one_index_file(table: Lineage) -> tuple[BucketChange, BucketChange]:
    assert isinstance(table, Deletions)
    files = table.append(4)
    table.delete_rows({file.file_name: [2] for file in files})
    return (
        table.compaction(files[:2], owner=FIRST),
        table.compaction(files[2:], owner=SECOND),
    )


def _marks_and_a_rewrite_of_what_is_marked(table: Lineage) -> tuple[BucketChange, BucketChange]:
    assert isinstance(table, Deletions)
    above = table.new_file(level=5, keys=(50, 60))
    table.commit_as("w", 1, files=[above])
    here = table.append(2)
    table.delete_rows({above.file_name: [3], here[0].file_name: [1]})
    marked = {above.file_name: [5, 6]}
    change = table.compaction(here, owner=FIRST, marked=marked, only_read=[above])
    return change, table.compaction([above], owner=SECOND)


def _writes_and_hints(newest: int) -> Callable[[Call], bool]:
    """Publishing, the hint written, and each look for the newest snapshot."""
    return lambda call: (
        "/snapshot/" in call.path
        and (call.is_mutation or (call.method == "read" and call.path.endswith("LATEST")))
    )


def _writes_and_probes(newest: int) -> Callable[[Call], bool]:
    """Publishing, and the first question for each snapshot that did not exist at the start."""
    asked: set[int] = set()

    def races(call: Call) -> bool:
        if call.method == "read" and "/snapshot-" in call.path:
            number = int(call.path.rpartition("-")[2])
            is_first = number > newest and number not in asked
            asked.add(number)
            return is_first
        return call.method == "create_if_absent"

    return races


def _run_all(
    table: Lineage, build: Build, races: Races
) -> list[tuple[Lineage, Schedule, list[CommitOutcome]]]:
    """Every schedule's end."""
    ends = []
    current: list[tuple[Lineage, list[CommitOutcome]]] = []

    changes = build(table)
    state, settings = table.state(), table.settings
    assert state.snapshot is not None
    newest = state.snapshot.id

    def run(schedule: Schedule) -> None:
        fork = table.fork()
        outcomes: dict[str, CommitOutcome] = {}

        def commit(name: str, number: int) -> None:
            owner = (FIRST, SECOND)[number]
            storage = StoppingStorage(fork.storage, name, schedule, races(newest))
            committer = fork.committer(owner, storage)
            change = changes[number]
            published = change if isinstance(change, Removal) else [change]
            outcomes[name], _ = committer.commit(state, published, settings)

        schedule.run({"a": lambda: commit("a", 0), "b": lambda: commit("b", 1)})
        current.append((fork, [outcomes["a"], outcomes["b"]]))

    for schedule in all_schedules(run):
        fork, outcomes = current.pop()
        ends.append((fork, schedule, outcomes))
    return ends


@pytest.mark.parametrize(
    ("kind", "build", "races"),
    [
        (KEYED, _two_buckets, _writes_and_hints),
        (KEYED, _two_buckets, _writes_and_probes),
        (DYNAMIC, _two_buckets, _writes_and_hints),
        (APPENDED, _separate_appends, _writes_and_hints),
    ],
    ids=["buckets and hints", "buckets and probes", "dynamic buckets", "separate append files"],
)
def test_changes_that_do_not_meet_are_both_published_whoever_comes_first(
    kind: Kind, build: Build, races: Races
) -> None:
    attempts: set[tuple[int, ...]] = set()
    ids: set[tuple[int, ...]] = set()
    for table, schedule, outcomes in _run_all(Lineage(**kind), build, races):
        committed = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
        assert len(committed) == 2, schedule.trace
        table.check()
        assert table.leftovers(FIRST, SECOND) == set(), schedule.trace
        attempts.add(tuple(outcome.attempts for outcome in committed))
        ids.add(tuple(outcome.snapshot_id for outcome in committed))
    # Both orders happened, with a lost race on either side and without one.
    assert len(ids) == 2
    assert attempts == {(1, 1), (1, 2), (2, 1)}


@pytest.mark.parametrize("races", [_writes_and_hints, _writes_and_probes])
@pytest.mark.parametrize(
    ("kind", "build"),
    [
        (KEYED, _one_bucket),
        (DYNAMIC, _one_bucket),
        (APPENDED, _overlapping_appends),
    ],
    ids=["one bucket", "a dynamic bucket", "overlapping append files"],
)
def test_of_changes_that_meet_one_is_published_and_one_dropped(
    kind: Kind, build: Build, races: Races
) -> None:
    winners: set[int] = set()
    for table, schedule, outcomes in _run_all(Lineage(**kind), build, races):
        won = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Committed)]
        lost = [outcome for outcome in outcomes if isinstance(outcome, NothingCommitted)]
        assert (len(won), len(lost)) == (1, 1), schedule.trace
        assert "no longer live" in lost[0].dropped[0].why
        table.check()
        # The output of the loser belongs to the caller, who removes it; metadata has gone.
        loser = (FIRST, SECOND)[1 - won[0]]
        assert {name[:4] for name in table.leftovers(FIRST, SECOND)} == {"data"}
        assert table.leftovers(loser) == table.leftovers(FIRST, SECOND)
        winners.add(won[0])
    assert winners == {0, 1}


def test_no_row_comes_back_whoever_replaces_an_index_file_first() -> None:
    firsts: set[int] = set()
    build = _files_of_one_index_file
    for table, schedule, outcomes in _run_all(Deletions(APPENDED), build, _writes_and_hints):
        committed = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
        assert len(committed) == 2, schedule.trace
        table.check()
        assert table.leftovers(FIRST, SECOND) == set(), schedule.trace
        firsts.add(min((0, 1), key=lambda n: committed[n].snapshot_id))
    assert firsts == {0, 1}


def test_of_marks_and_a_rewrite_of_what_is_marked_one_is_published() -> None:
    losers: set[int] = set()
    build = _marks_and_a_rewrite_of_what_is_marked
    for table, schedule, outcomes in _run_all(Deletions(KEYED), build, _writes_and_hints):
        [loser] = [n for n, end in enumerate(outcomes) if isinstance(end, NothingCommitted)]
        table.check()
        assert {name[:4] for name in table.leftovers(FIRST, SECOND)} == {"data"}, schedule.trace
        losers.add(loser)
    assert losers == {0, 1}


def _a_partition_that_goes(table: Lineage) -> tuple[Removal, BucketChange]:
    removal = Removal(lambda state: [UNPARTITIONED])
    return removal, table.change(table.append(2), owner=SECOND)


@pytest.mark.parametrize("kind", [KEYED, APPENDED])
def test_a_partition_goes_before_its_compaction_or_after_it(kind: Kind) -> None:
    committed: set[bool] = set()
    for table, schedule, outcomes in _run_all(
        Lineage(**kind), _a_partition_that_goes, _writes_and_hints
    ):
        removal, compaction = outcomes
        assert isinstance(removal, Committed), schedule.trace
        if isinstance(compaction, NothingCommitted):
            assert compaction.dropped[0].conflict is Conflict.PARTITION_EXPIRED, schedule.trace
        assert not table.rows_now(), schedule.trace
        table.expected.clear()
        table.check()
        assert {name[:4] for name in table.leftovers(FIRST, SECOND)} <= {"data"}, schedule.trace
        committed.add(isinstance(compaction, Committed))
    assert committed == {True, False}


def test_the_schedules_are_all_there_are() -> None:
    """The harness itself: two actors with two and three steps can take turns in ten ways."""
    traces = set()

    def run(schedule: Schedule) -> None:
        def act(name: str, steps: Sequence[int]) -> None:
            for step in steps:
                schedule.wait(name, str(step))

        schedule.run({"a": lambda: act("a", [1]), "b": lambda: act("b", [1, 2])})

    for schedule in all_schedules(run):
        traces.add(tuple(schedule.trace))
    assert len(traces) == 10
