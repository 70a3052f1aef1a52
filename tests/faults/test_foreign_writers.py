"""A foreign writer appends, overwrites, replaces or rolls back between any two steps of a commit.

The committer publishes two changes, of bucket 0 and of bucket 1. Each test repeats the commit, with
the foreign act before the first storage call, before the second, and so on until after the last.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

from compactord.commit.changes import (
    BucketChange,
    CommitOutcome,
    Committed,
    NothingCommitted,
    Replaced,
)
from compactord.commit.committer import Committer
from compactord.paimon.snapshot import read_snapshot, snapshot_ids
from tests.builders import FIRST
from tests.lineage import TABLE, Lineage
from tests.storages import Call, HookedStorage


class Trial:
    """One commit of two changes with acts before chosen storage calls."""

    def __init__(self) -> None:
        self.table = Lineage()
        self.left = self.table.append(2, bucket=0)
        self.right = self.table.append(2, bucket=1)
        self.changes = (
            self.table.change(self.left, owner=FIRST, bucket=0),
            self.table.change(self.right, owner=FIRST, bucket=1),
        )
        self.published_before: dict[int, bool] = {}
        self.committer: Committer | None = None

    def run(self, acts: dict[int, Callable[[], object]]) -> tuple[CommitOutcome, int]:
        """The outcome and the number of storage calls; acts beyond the last happen afterwards.

        `published_before[n]`: whether our snapshot was there before call n.
        """
        storage = HookedStorage(self.table.storage, before=lambda call: self._before(call, acts))
        self.committer = self.table.committer(FIRST, storage)
        outcome, _ = self.committer.commit(
            self.table.state(), list(self.changes), self.table.settings
        )
        for number, act in sorted(acts.items()):
            if number > storage.calls:
                self.published_before[number] = True
                act()
        return outcome, storage.calls

    def _before(self, call: Call, acts: dict[int, Callable[[], object]]) -> None:
        if call.number in acts:
            self.published_before[call.number] = self._is_published()
            acts[call.number]()

    def _is_published(self) -> bool:
        assert self.committer is not None
        return any(
            read_snapshot(self.table.storage, TABLE.location, id_).commit_user
            == self.committer.follower.user
            for id_ in snapshot_ids(self.table.storage, TABLE.location)
        )

    def outputs_there(self) -> list[bool]:
        return [
            self.table.storage.status(self.table.data_path(n, change.after[0])) is not None
            for n, change in enumerate(self.changes)
        ]


def _every_step(act: Callable[[Trial], None]) -> Iterator[tuple[Trial, CommitOutcome, bool]]:
    """The end of each trial, and whether our snapshot was there before the act."""
    for number in itertools.count(1):
        trial = Trial()
        outcome, calls = trial.run({number: lambda trial=trial: act(trial)})
        yield trial, outcome, trial.published_before[number]
        if number > calls:
            break


def _names(changes: tuple[BucketChange, ...]) -> list[int]:
    return [change.bucket.bucket for change in changes]


def test_an_append_between_any_two_steps_is_kept_and_so_is_the_compaction() -> None:
    attempts = Counter[int]()
    for trial, outcome, _ in _every_step(lambda trial: trial.table.append(1)):
        assert isinstance(outcome, Committed)
        assert _names(outcome.published) == [0, 1]
        trial.table.check()
        assert trial.table.leftovers(FIRST) == set()
        attempts[outcome.attempts] += 1
    assert attempts[1] > 5
    assert attempts[2] > 5
    assert set(attempts) == {1, 2}


def test_an_append_before_each_publication_makes_the_committer_try_again_until_there_is_peace() -> (
    None
):
    trial = Trial()
    races = iter(range(5))

    def append_first(call: Call) -> None:
        if call.method == "create_if_absent" and next(races, None) is not None:
            trial.table.append(1)

    storage = HookedStorage(trial.table.storage, before=append_first)
    committer = trial.table.committer(FIRST, storage)
    outcome, _ = committer.commit(trial.table.state(), list(trial.changes), trial.table.settings)
    assert isinstance(outcome, Committed)
    assert outcome.attempts == 6
    trial.table.check()
    assert trial.table.leftovers(FIRST) == set()


def test_an_overwrite_between_any_two_steps_costs_its_bucket_only() -> None:
    seen = Counter[str]()
    for trial, outcome, was_published in _every_step(lambda trial: trial.table.overwrite(0)):
        assert isinstance(outcome, Committed)
        if was_published:
            assert _names(outcome.published) == [0, 1]
        else:
            assert _names(outcome.published) == [1]
            assert [drop.change for drop in outcome.dropped] == [trial.changes[0]]
            assert "no longer live" in outcome.dropped[0].why
            # The dropped output is the caller's to remove.
            assert trial.table.leftovers(FIRST) == {trial.changes[0].after[0].file_name}
        trial.table.check()
        seen["after" if was_published else "before"] += 1
    assert min(seen["after"], seen["before"]) > 3


def test_a_foreign_compaction_of_all_inputs_between_any_two_steps_wins() -> None:
    def compact_all(trial: Trial) -> None:
        for bucket in (0, 1):
            files = trial.table.files(bucket)
            trial.table.compacted_by_others(files, bucket=bucket)

    for trial, outcome, was_published in _every_step(compact_all):
        assert isinstance(outcome, Committed if was_published else NothingCommitted)
        trial.table.check()
        names = {change.after[0].file_name for change in trial.changes}
        assert trial.table.leftovers(FIRST) == (set() if was_published else names)


def test_a_rollback_between_any_two_steps_stands_but_for_one_instant_and_that_is_reported() -> None:
    """Bucket 1 goes with the rollback; its inputs are no longer there to be compacted."""
    undone = 0
    for trial, outcome, was_published in _every_step(lambda trial: trial.table.roll_back(1)):
        assert trial.committer is not None
        table, lost = trial.table, trial.committer.follower.lost_snapshots
        ids = snapshot_ids(table.storage, TABLE.location)
        if ids == (1, 3):
            # Between the last look and the publication: no store can tell us in time.
            undone += 1
            assert lost == [
                "snapshot 2 was rolled back while we published 3 on top of it: "
                "the rollback has no effect"
            ]
            assert +table.rows_now() == +table.expected
            continue
        table.expected.subtract(row for file in trial.right for row in table.rows[file.file_name])
        table.check()
        assert isinstance(outcome, Committed)
        assert _names(outcome.published) == ([0, 1] if was_published else [0])
        assert lost == []
    assert undone == 1


def test_a_replaced_snapshot_is_reported_and_nothing_is_deleted_whenever_it_happens() -> None:
    """Java looks before call n and renames before call m: a pair of loops over all steps."""
    _, calls = Trial().run({})
    seen = Counter[str]()
    for looks in range(1, calls + 2):
        for renames in range(looks, calls + 2):
            seen[_one_replacement(looks, renames)] += 1
    assert set(seen) == {"came first", "replaced", "replaced later", "came after"}, seen


def _one_replacement(looks: int, renames: int) -> str:
    trial = Trial()
    table = trial.table
    rename: list[Callable[[], object]] = []

    def look() -> None:
        rename.append(table.prepare_replacement())

    def act() -> None:
        rename[0]()

    if looks == renames:
        outcome, calls = trial.run({looks: lambda: (look(), act())})
    else:
        outcome, calls = trial.run({looks: look, renames: act})
    assert trial.committer is not None
    table.expected.update(table.rows[table.replacement_file.file_name])
    table.check()
    state = table.state()
    assert state.snapshot is not None
    is_ours_there = any(
        read_snapshot(table.storage, TABLE.location, id_).commit_user
        == trial.committer.follower.user
        for id_ in snapshot_ids(table.storage, TABLE.location)
    )
    # Whoever came first: no output has gone that a snapshot named even for an instant.
    assert trial.outputs_there() == [True, True]
    if is_ours_there:
        assert isinstance(outcome, Committed)
        assert trial.committer.follower.lost_snapshots == []
        return "came after" if trial.published_before[looks] else "came first"
    if isinstance(outcome, Replaced):
        assert len(trial.committer.follower.lost_snapshots) == 1
        assert "which we published" in outcome.why
        _assert_can_go_on(trial)
        return "replaced"
    assert isinstance(outcome, Committed), "it was replaced after we had looked"
    _assert_can_go_on(trial)
    assert trial.committer.follower.lost_snapshots == [] or renames <= calls
    return "replaced later"


def _assert_can_go_on(trial: Trial) -> None:
    """The inputs are live again and can be compacted anew."""
    table = trial.table
    assert trial.committer is not None
    again = [
        table.change(trial.left, owner=FIRST, bucket=0),
        table.change(trial.right, owner=FIRST, bucket=1),
    ]
    outcome, _ = trial.committer.commit(table.state(), again, table.settings)
    assert isinstance(outcome, Committed)
    assert len(outcome.published) == 2
    table.check()


def test_a_replacement_found_by_the_next_commit_is_reported_by_then() -> None:
    trial = Trial()
    table = trial.table
    rename = table.prepare_replacement()
    committer = table.committer(FIRST)
    first, state = committer.commit(table.state(), [trial.changes[0]], table.settings)
    assert isinstance(first, Committed)
    rename()
    table.expected.update(table.rows[table.replacement_file.file_name])
    second, _ = committer.commit(state, [trial.changes[1]], table.settings)
    assert isinstance(second, Committed)
    assert _names(second.published) == [1]
    assert len(committer.follower.lost_snapshots) == 1
    assert (
        f"snapshot {first.snapshot_id}, which we published" in committer.follower.lost_snapshots[0]
    )
    table.check()


def test_a_base_replaced_in_the_last_instant_is_reported_with_what_it_costs() -> None:
    """Java's rename over our first snapshot during our second commit, before each of its calls."""
    seen = Counter[str]()
    for number in itertools.count(1):
        trial = Trial()
        table = trial.table
        rename = table.prepare_replacement()
        first_committer = table.committer(FIRST)
        first, state = first_committer.commit(table.state(), [trial.changes[0]], table.settings)
        assert isinstance(first, Committed)

        published: list[int] = []

        def act(
            call: Call,
            number: int = number,
            rename: Callable[[], object] = rename,
            published: list[int] = published,
        ) -> None:
            if call.number == number:
                rename()
            if call.method == "create_if_absent":
                published.append(call.number)

        storage = HookedStorage(table.storage, before=act)
        committer = table.committer(FIRST, storage)
        second, _ = committer.commit(state, [trial.changes[1]], table.settings)
        assert isinstance(second, Committed)
        if number > storage.calls:
            break
        replacement_rows = table.rows[table.replacement_file.file_name]
        if not replacement_rows & set(table.rows_now()):
            # Java's snapshot is history without a future. That is said when it happened before we
            # looked back, beside the hint; later ones are found by those who look back again.
            if number <= published[0]:
                assert any("was replaced by" in why for why in committer.follower.lost_snapshots)
                seen["reported"] += 1
        else:
            table.expected.update(replacement_rows)
            table.check()
            seen["tried again"] += 1
    assert seen["tried again"] > 5
    assert seen["reported"] == 1
