"""A writer deletes rows, or a call fails, at any moment of a commit: no row comes back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import pytest

from compactord.commit.changes import BucketChange, CommitOutcome, Committed, NothingCommitted
from compactord.errors import (
    CommitUnknown,
    CompactordError,
    StorageError,
    StoreFull,
    TransientStorageError,
)
from compactord.model import Conflict
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile
from compactord.storage.base import Storage
from tests.builders import FIRST, SECOND
from tests.deletions import LOCATION, Deletions
from tests.lineage import APPENDED, KEYED, Kind
from tests.storages import Call, Fault, FaultyStorage, HookedStorage


@dataclass(frozen=True)
class Trial:
    """A table with a compaction of `inputs`; `other` stays, and so does `seen`, which has marks."""

    table: Deletions
    inputs: list[DataFile]
    other: DataFile
    seen: DataFile | None
    change: BucketChange

    def again(self) -> Trial:
        """The same trial, apart from this one."""
        return replace(self, table=cast(Deletions, self.table.fork()))

    def commit(self, storage: Storage) -> CommitOutcome:
        table = self.table
        committer = table.committer(FIRST, storage)
        return committer.commit(table.state(), [self.change], table.settings)[0]


def _trial(kind: Kind) -> Trial:
    """All files but the second input have had rows deleted."""
    table = Deletions(kind)
    a, b, other = table.append(3)
    rows = {a.file_name: [1], other.file_name: [2]}
    seen = None
    if kind is KEYED:
        seen = table.new_file(level=5, keys=(50, 60))
        table.commit_as("w", 1, files=[seen])
        rows[seen.file_name] = [3]
    table.delete_rows(rows)
    change = table.compaction(
        [a, b],
        owner=FIRST,
        marked={seen.file_name: [5, 6]} if seen else None,
        only_read=[seen] if seen else [],
    )
    return Trial(table, [a, b], other, seen, change)


def _other(trial: Trial) -> None:
    trial.table.delete_rows({trial.other.file_name: [7]})


def _again(trial: Trial) -> None:
    trial.table.rewrite_vectors()


def _input(trial: Trial) -> None:
    """One that had no vector, unless it is gone."""
    table, name = trial.table, trial.inputs[1].file_name
    if name in {file.file_name for file in table.files()}:
        table.delete_rows({name: [7]})


def _looked_up(trial: Trial) -> None:
    """A row of the file that was only read, which nobody has marked."""
    assert trial.seen is not None
    trial.table.delete_rows({trial.seen.file_name: [8]})


def _compacted(trial: Trial) -> None:
    """Another process of ours replaces the file that stays, and the index file of all."""
    table = trial.table
    change = table.compaction([trial.other], owner=SECOND)
    done, _ = table.committer(SECOND).commit(table.state(), [change], table.settings)
    assert isinstance(done, Committed)


def _moments(kind: Kind, act: Callable[[Trial], None]) -> Iterator[tuple[Trial, CommitOutcome]]:
    """What comes of it, with the act before the first call, the second, and so on."""
    template = _trial(kind)
    for moment in itertools.count(1):
        trial = template.again()

        def before(call: Call, moment: int = moment, trial: Trial = trial) -> None:
            if call.number == moment:
                act(trial)

        storage = HookedStorage(trial.table.storage, before=before)
        yield trial, trial.commit(storage)
        if storage.calls < moment:
            return


@pytest.mark.parametrize(
    ("kind", "act", "drops"),
    [
        (KEYED, _other, False),
        (KEYED, _again, False),
        (KEYED, _input, True),
        (KEYED, _looked_up, True),
        (APPENDED, _other, False),
        (APPENDED, _again, False),
        (APPENDED, _compacted, False),
        (APPENDED, _input, True),
    ],
)
def test_a_delete_at_any_moment_is_kept(
    kind: Kind, act: Callable[[Trial], None], *, drops: bool
) -> None:
    seen = set()
    for trial, outcome in _moments(kind, act):
        trial.table.check()
        dropped = outcome.dropped if not isinstance(outcome, Committed) else ()
        assert [drop.conflict for drop in dropped] in ([], [Conflict.DV_CHANGED])
        left = {trial.change.after[0].file_name} if dropped else set()
        assert trial.table.leftovers(FIRST) == left
        attempts = outcome.attempts if isinstance(outcome, Committed) else 0
        seen.add((type(outcome), attempts))
    wanted = {(Committed, 1), (NothingCommitted, 0)} if drops else {(Committed, 1), (Committed, 2)}
    assert seen == wanted


def _anything(call: Call) -> bool:
    return True


def _is_mutation(call: Call) -> bool:
    return call.is_mutation


@pytest.mark.parametrize("kind", [KEYED, APPENDED], ids=["keyed", "appended"])
@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [TransientStorageError, StoreFull])
def test_a_failing_call_takes_back_index_files_unless_they_may_be_needed(
    kind: Kind, error: type[StorageError], *, after_effect: bool
) -> None:
    template = _trial(kind)
    failed: set[str] = set()
    for at in itertools.count(1):
        trial = template.again()
        concerns = _is_mutation if after_effect else _anything
        fault = Fault(at=at, error=error, after_effect=after_effect, concerns=concerns)
        storage = FaultyStorage(trial.table.storage, fault)
        is_unknown = False
        try:
            trial.commit(storage)
        except CommitUnknown:
            is_unknown = True
        except CompactordError:
            pass
        trial.table.check()
        here = {call.path.rpartition("/")[2] for call in storage.failed}
        # A file that failed with another error may belong to another process.
        may_stay = here if after_effect and error is not TransientStorageError else set()
        left = trial.table.leftovers(FIRST) - {trial.change.after[0].file_name}
        assert is_unknown or left <= may_stay, storage.failed
        failed |= here
        if not here:
            break
    kinds = ("index-manifest-", "index-", "manifest-list-", "snapshot-")
    assert all(any(name.startswith(each) for name in failed) for each in kinds)


@pytest.mark.parametrize("kind", [KEYED, APPENDED], ids=["keyed", "appended"])
def test_an_unconfirmed_commit_deletes_none_of_its_files(kind: Kind) -> None:
    trial = _trial(kind)
    before = set(trial.table.storage.objects)
    is_silent = False

    def fail(call: Call) -> None:
        nonlocal is_silent
        is_silent = is_silent or call.method == "create_if_absent"
        if is_silent:
            raise TransientStorageError(call.path, "no answer")

    with pytest.raises(CommitUnknown):
        trial.commit(HookedStorage(trial.table.storage, before=fail))
    written = set(trial.table.storage.objects) - before
    assert {path.rpartition("/")[0] for path in written} == {
        paths.manifest_folder(LOCATION),
        paths.index_folder(LOCATION),
    }
