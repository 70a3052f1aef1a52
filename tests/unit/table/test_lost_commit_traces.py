"""What looks like a lost commit, or hides one: rollbacks, merged manifests, expired snapshots."""

from __future__ import annotations

import pytest

from compactord.commit.changes import LossOutcome
from compactord.errors import TransientStorageError
from compactord.paimon import paths
from compactord.paimon.snapshot import CommitKind, snapshot_json
from tests.builders import SECOND
from tests.late import Process
from tests.lineage import TABLE, Lineage
from tests.sampling import CutPoints
from tests.storages import Fault, FaultyStorage
from tests.unit.table.test_lost_commits import Case, lost_case


def test_a_writer_that_replaces_what_we_committed_again_is_counted_each_time() -> None:
    case = lost_case()
    for round_ in range(3):
        (lost,) = case.ours.look()
        assert lost.again_id is not None
        # A rename over it by one that had looked before.
        objects = dict(case.table.storage.objects)
        path = paths.snapshot_path(TABLE.location, lost.again_id)
        case.table.storage.delete(path)
        hint = paths.latest_hint(TABLE.location)
        case.table.storage.overwrite(hint, str(lost.again_id - 1).encode())
        rename = case.table.prepare_replacement(commit_user=f"other-{round_}", bucket=3)
        other = case.table.replacement_file
        case.table.storage.objects.update({path: objects[path], hint: objects[hint]})
        rename()
        case.table.expected.update(case.table.rows[other.file_name])
        case.check()
    assert case.ours.follower.replaced_snapshots == 2, "the third is not looked at yet"
    (lost,) = case.found()
    assert lost.outcome is LossOutcome.HEALED
    assert case.ours.follower.replaced_snapshots == 3
    case.check()


def test_a_rolled_back_table_or_one_made_anew_has_lost_nothing() -> None:
    case = Case()
    case.publish()
    case.table.roll_back(2)
    case.table.append(1, bucket=3, commits=3)
    assert case.ours.look() == []
    assert Process(case.table, owner=SECOND).look() == []


def test_what_was_made_for_a_snapshot_that_was_rolled_back_is_not_committed_again() -> None:
    case = Case()
    case.table.roll_back(1)
    case.table.expected.clear()
    case.table.expected.update(
        row for file in case.table.files(0) for row in case.table.rows[file.file_name]
    )
    case.table.append(2, bucket=1)
    case.publish()
    case.late = case.rename()
    (lost,) = case.found()
    assert lost.outcome is LossOutcome.HALTED
    case.check()


@pytest.mark.parametrize("merge_min_count", ["1", "2", "3", "4"])
def test_merged_manifests_hide_nothing(merge_min_count: str) -> None:
    """By whichever of the snapshots manifests are merged."""
    options = {"manifest.merge-min-count": merge_min_count, "manifest.target-file-size": "1 gb"}
    case = lost_case(options=options)
    restarted = case.table.fork()
    (lost,) = case.found()
    assert lost.outcome is LossOutcome.HEALED
    case.check()
    assert Process(case.table, owner=SECOND).look() == [], "a restart sees that it is there"
    case.ours.merge(case.bucket)
    assert Process(case.table, owner=SECOND).look() == [], "also when it has been merged"
    case.check()
    (lost,) = Process(restarted, owner=SECOND).look()
    assert +restarted.rows_now() >= +restarted.expected


def test_expired_and_unreadable_snapshots_are_passed_over() -> None:
    case = lost_case()
    case.table.storage.delete(paths.snapshot_path(TABLE.location, 3))
    assert case.ours.look() == []
    torn = lost_case()
    torn.table.storage.overwrite(paths.snapshot_path(TABLE.location, 3), b"{")
    assert torn.ours.look() == []
    torn.table.storage.overwrite(paths.snapshot_path(TABLE.location, 3), snapshot_json(torn.late))
    assert len(torn.found()) == 1, "half of a copy is read again"
    torn.check()


def test_what_must_wait_is_said_once() -> None:
    case = lost_case()
    for _ in range(3):
        case.ours.look(may_commit=False)
    assert len(case.ours.follower.lost_snapshots) == 1


def test_an_empty_table_may_expire() -> None:
    table = Lineage()
    process = Process(table)
    assert process.look() == []
    assert process.lost_commits.expiry_blocker() is None


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_failure_in_the_middle_of_a_look_forgets_nothing(
    cut_points: CutPoints, *, after_effect: bool
) -> None:
    """A storage call of a look fails; a later look finds what there is.

    It is every second call.
    """
    for number in cut_points(2):
        case = lost_case()
        fault = Fault(at=number, error=TransientStorageError, after_effect=after_effect)
        storage = FaultyStorage(case.table.storage, fault)
        process = Process(case.table, owner=SECOND, storage=storage)
        for _ in range(3):
            process.look_at(case.table.state())
        assert [each.outcome for each in process.lost_commits.found] == [LossOutcome.HEALED]
        case.table.expected.update(case.table.rows[case.file.file_name])
        case.check()
        if not storage.failed:
            break
    assert number > 20


def test_a_gap_that_a_rollback_left_is_no_loss() -> None:
    case = Case(options={"manifest.merge-min-count": "1"})
    case.publish()
    case.table.storage.delete(paths.snapshot_path(TABLE.location, 3))
    assert Process(case.table, owner=SECOND).look() == []


def test_files_of_which_some_are_there_are_not_added_again() -> None:
    table = Lineage()
    table.append(2)
    files = [table.new_file(), table.new_file()]
    rename = table.prepare_replacement(file=files[0], also=files[1:], commit_user="writer")
    ours = Process(table)
    ours.merge(0)
    table.commit_as("a repair by hand", 1, files=files[1:])
    rename()
    (lost,) = ours.look()
    assert "is live, others of its files are not" in lost.why
    assert +table.rows_now() == +table.expected


def test_who_was_replaced_is_asked_and_what_cannot_be_known_is_not_assumed() -> None:
    """A job's commit 3 is replaced by the same job's, which was thought dead, after our 4."""
    table = Lineage()
    table.append(2)
    rename = table.prepare_replacement(commit_user="writer", commit_identifier=7)
    table.commit_as("writer", 7, bucket=1)
    ours = Process(table)
    ours.look()
    ours.merge(0)
    rename()
    assert ours.look() == [], "it is the same commit, done again"
    # The replaced snapshot is gone: another process cannot know whose it was.
    (lost,) = Process(table, owner=SECOND).look()
    assert lost.outcome is LossOutcome.HALTED
    assert "not known what snapshot" in lost.why
    assert +table.rows_now() == +table.expected


def test_what_others_did_to_each_other_since_may_hide_anything() -> None:
    """Snapshot 5 is not the one that 6 was built on: nobody knows what that one did."""
    case = Case()
    case.publish()
    rename = case.table.prepare_replacement(bucket=3, commit_user="a", kind=CommitKind.OVERWRITE)
    case.table.append(1, bucket=3, commits=2)
    rename()
    case.late = case.rename()
    (lost,) = case.found()
    assert lost.why == "snapshot 6 was not built on 5"
    case.check()
