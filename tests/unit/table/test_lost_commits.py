"""A writer renames over our snapshot 3 after our 4: what is proved to be safe, and what is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from compactord.catalog.access import TableAccess
from compactord.commit.changes import Committed, LossOutcome, LostCommit, Removal
from compactord.commit.publish import StorePublisher
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile
from compactord.paimon.snapshot import CommitKind, Snapshot, read_snapshot, snapshot_ids
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from tests.builders import FIRST, SECOND, VirtualClock
from tests.late import DELAY_MS, Process
from tests.lineage import TABLE, Lineage, bucket_id
from tests.storages import Call, HookedStorage, RecordingStorage
from tests.unit.paimon.table_builder import UNPARTITIONED

LONG_MAX = (1 << 63) - 1


class Case:
    """Two files in each of two buckets; the writer looks at snapshot 2, and adds a file.

    `late` is how its snapshot differs, `file` how its file does.
    """

    def __init__(
        self,
        *,
        is_keyed: bool = True,
        bucket: int = 2,
        options: dict[str, str] | None = None,
        file: Callable[[DataFile], DataFile] = lambda file: file,
        total_buckets: int | None = None,
        **late: object,
    ) -> None:
        self.table = Lineage(is_keyed=is_keyed, options=options)
        self.bucket = bucket
        self.clock = VirtualClock()
        for number in (0, 1):
            self.table.append(2, bucket=number)
        self.ours = Process(self.table, clock=self.clock)
        late = {"commit_user": "writer", "commit_identifier": 7, **late}
        buckets = self.table.buckets
        self.table.buckets = total_buckets or buckets
        self.rename = self.table.prepare_replacement(
            bucket=bucket,
            file=file(self.table.new_file()),
            **late,  # type: ignore[arg-type]
        )
        self.table.buckets = buckets
        self.file = self.table.replacement_file
        # Its snapshot, once it is there.
        self.late: Snapshot

    def publish(self) -> None:
        """Our snapshots 3 and 4: the two files of each bucket, merged."""
        for number in (0, 1):
            files = [file for file in self.table.files(number) if file.level == 0][:2]
            self.ours.commit(self.table.change(files, owner=FIRST, bucket=number))

    def found(self) -> list[LostCommit]:
        """What a look finds; what it has committed again is there."""
        found = self.ours.look()
        for each in found:
            if each.outcome is LossOutcome.HEALED:
                self.table.expected.update(self.table.rows[self.file.file_name])
        return found

    def check(self) -> None:
        """Every row that must be there is, once."""
        assert +self.table.rows_now() == +self.table.expected


def _nothing(case: Case) -> None:
    pass


def _others_append(case: Case) -> None:
    case.table.append(1, bucket=case.bucket)


def _others_append_and_we_merge(case: Case) -> None:
    _others_append(case)
    case.ours.merge(case.bucket)


def _others_overwrite(case: Case) -> None:
    case.table.overwrite(3)


def _others_delete(case: Case) -> None:
    case.table.delete(case.table.append(1, bucket=3)[0], bucket=3)


def _its_job_goes_on(case: Case) -> None:
    case.table.commit_as("writer", 8, bucket=case.bucket)


def _another_job_goes_on(case: Case) -> None:
    case.table.commit_as("somebody", 8, bucket=case.bucket)


def _its_file_goes(case: Case) -> None:
    case.table.storage.delete(case.table.data_path(case.bucket, case.file))


def _its_file_is_cut(case: Case) -> None:
    case.table.storage.overwrite(case.table.data_path(case.bucket, case.file), b"cut")


def _its_list_goes(case: Case) -> None:
    case.table.storage.delete(paths.manifest_path(TABLE.location, case.late.delta_manifest_list))


def _its_list_is_damaged(case: Case) -> None:
    path = paths.manifest_path(TABLE.location, case.late.delta_manifest_list)
    case.table.storage.overwrite(path, b"damaged")


def _its_keys_may_move(case: Case) -> None:
    path = paths.schema_path(TABLE.root, 0)
    schema = json.loads(case.table.storage.read(path))
    schema |= {"partitionKeys": ["v"], "options": {"bucket": "-1"}}
    case.table.storage.overwrite(path, json.dumps(schema).encode())


Act = Callable[[Case], None]


@pytest.mark.parametrize(
    ("case", "since", "act", "why"),
    [
        pytest.param(Case(), _nothing, _nothing, None, id="a bucket of its own"),
        pytest.param(Case(bucket=0), _nothing, _nothing, None, id="a bucket that we merged"),
        pytest.param(Case(is_keyed=False, bucket=0), _nothing, _nothing, None, id="no buckets"),
        pytest.param(
            Case(commit_identifier=LONG_MAX), _nothing, _nothing, None, id="of a batch job"
        ),
        pytest.param(Case(), _others_append, _nothing, None, id="others append beside it"),
        pytest.param(Case(), _another_job_goes_on, _nothing, None, id="another job goes on"),
        pytest.param(
            Case(is_keyed=False, bucket=0),
            _others_append_and_we_merge,
            _nothing,
            None,
            id="no buckets, others append and we merge",
        ),
        pytest.param(
            Case(), _others_append_and_we_merge, _nothing, "has been merged since", id="merged"
        ),
        pytest.param(Case(), _others_overwrite, _nothing, "overwrote data", id="overwritten"),
        pytest.param(
            Case(is_keyed=False, bucket=0),
            _others_overwrite,
            _nothing,
            "overwrote data",
            id="overwritten without buckets",
        ),
        pytest.param(
            Case(), _its_job_goes_on, _nothing, "has committed identifier 8", id="its job goes on"
        ),
        pytest.param(
            Case(bucket=0, file=lambda file: replace(file, min_sequence_number=0)),
            _nothing,
            _nothing,
            "whose records may be newer",
            id="numbers that others had",
        ),
        pytest.param(
            Case(bucket=0, options={"sequence.field": "v"}),
            _nothing,
            _nothing,
            "sequence fields order records",
            id="sequence fields",
        ),
        pytest.param(
            Case(bucket=2, options={"sequence.field": "v"}),
            _nothing,
            _nothing,
            None,
            id="sequence fields, and nothing merged",
        ),
        pytest.param(
            Case(kind=CommitKind.OVERWRITE), _nothing, _nothing, "kind OVERWRITE", id="overwrite"
        ),
        pytest.param(
            Case(kind=CommitKind.COMPACT), _nothing, _nothing, "kind COMPACT", id="compaction"
        ),
        pytest.param(
            Case(changelog_manifest_list="manifest-list-c"),
            _nothing,
            _nothing,
            "a changelog",
            id="changelog",
        ),
        pytest.param(
            Case(index_manifest="index-manifest-i"), _nothing, _nothing, "index files", id="index"
        ),
        pytest.param(Case(), _others_delete, _nothing, "deleted files", id="deleted"),
        pytest.param(
            Case(total_buckets=8), _nothing, _nothing, "a bucket count of 8", id="buckets"
        ),
        pytest.param(
            Case(), _nothing, _its_keys_may_move, "into other partitions", id="keys that move"
        ),
        pytest.param(Case(next_row_id=4), _nothing, _nothing, "row ids", id="row ids"),
        pytest.param(
            Case(file=lambda file: replace(file, level=5)), _nothing, _nothing, "on level 5",
            id="level",
        ),
        pytest.param(
            Case(file=lambda file: replace(file, extra_files=("x.index",))),
            _nothing,
            _nothing,
            "companion files",
            id="extra files",
        ),
        pytest.param(
            Case(file=lambda file: replace(file, schema_id=3)), _nothing, _nothing,
            "has schema 3", id="schema",
        ),
        pytest.param(Case(), _nothing, _its_file_goes, "was removed", id="file gone"),
        pytest.param(Case(), _nothing, _its_file_is_cut, "has 3 bytes", id="file cut"),
        pytest.param(Case(), _nothing, _its_list_goes, "manifest-list-", id="list gone"),
        pytest.param(Case(), _nothing, _its_list_is_damaged, "manifest-list-", id="list damaged"),
    ],
)  # fmt: skip
def test_what_is_proved_is_committed_again_and_what_is_not_is_named(
    case: Case, since: Act, act: Act, why: str | None
) -> None:
    case.publish()
    since(case)
    case.late = case.rename()
    act(case)
    (lost,) = case.found()
    assert (lost.snapshot_id, lost.above_id) == (3, 4)
    assert (lost.commit_user, lost.rows) == ("writer", 10)
    if why is None:
        assert (lost.outcome, lost.why) == (LossOutcome.HEALED, "")
        assert lost.again_id == max(snapshot_ids(case.table.storage, TABLE.location))
        assert lost.file_names == (case.file.file_name,)
    else:
        assert lost.outcome is LossOutcome.HALTED
        assert why in lost.why
        assert why in str(lost)
    case.check()
    assert case.ours.look() == [], "it is said once"
    # Another process finds the same by the table alone, or that it has been put right.
    again = Process(case.table, owner=SECOND).look()
    if why is None:
        assert again == []
    elif act not in (_its_list_goes, _its_list_is_damaged):
        assert [each.outcome for each in again] == [LossOutcome.HALTED]
    case.check()


def lost_case(**how: object) -> Case:
    """A case whose rename has come."""
    case = Case(**how)  # type: ignore[arg-type]
    case.publish()
    case.late = case.rename()
    return case


@pytest.mark.parametrize("bucket", [0, 2])
@pytest.mark.parametrize("is_keyed", [True, False])
def test_rows_that_a_rename_lost_with_our_removal_of_their_partition_come_after_it(
    bucket: int, *, is_keyed: bool
) -> None:
    case = Case(bucket=bucket, is_keyed=is_keyed)
    case.ours.commit(Removal(lambda state: [UNPARTITIONED]))
    case.table.expected.clear()
    case.table.append(1, bucket=3)
    case.late = case.rename()
    (lost,) = case.found()
    assert (lost.snapshot_id, lost.above_id) == (3, 4)
    assert (lost.outcome, lost.why) == (LossOutcome.HEALED, "")
    case.check()
    assert Process(case.table, owner=SECOND).look() == []


def test_our_removal_that_a_rename_replaced_removes_nothing() -> None:
    case = Case()
    case.ours.commit(Removal(lambda state: [UNPARTITIONED]))
    case.rename()
    case.table.expected.update(case.table.rows[case.file.file_name])
    assert case.ours.look() == []
    case.check()
    assert isinstance(case.ours.commit(Removal(lambda state: [UNPARTITIONED])), Committed)
    assert not case.table.rows_now()


def test_what_is_committed_again_is_the_writers_own() -> None:
    case = lost_case(
        watermark=5_000, properties={"from": "writer"}, operation="WRITE", commit_identifier=7
    )
    (lost,) = case.found()
    assert lost.again_id is not None
    again = read_snapshot(case.table.storage, TABLE.location, lost.again_id)
    assert again.commit_kind is CommitKind.APPEND
    assert (again.commit_user, again.commit_identifier) == ("writer", 7)
    assert (again.watermark, again.properties, again.operation) == (
        5_000,
        {"from": "writer"},
        "WRITE",
    )
    assert (again.delta_record_count, again.total_record_count) == (10, 50)
    assert again.uuid != case.late.uuid
    # Its manifests are new: those of the lost snapshot go when that expires.
    mine = case.ours.committer.follower.loaded().snapshot
    assert mine == again
    assert again.delta_manifest_list != case.late.delta_manifest_list
    assert case.table.storage.status(case.table.data_path(2, case.file)) is not None


@pytest.mark.parametrize("has_same_files", [True, False])
def test_what_a_restarted_job_has_committed_itself_is_left_alone(*, has_same_files: bool) -> None:
    case = Case()
    case.publish()
    files = [case.file] if has_same_files else []
    case.table.commit_as("writer", 7, bucket=2, files=files)
    case.late = case.rename()
    newest = max(snapshot_ids(case.table.storage, TABLE.location))
    assert case.found() == []
    assert Process(case.table, owner=SECOND).look() == []
    assert max(snapshot_ids(case.table.storage, TABLE.location)) == newest
    case.check()


def test_batch_jobs_have_one_identifier_which_proves_nothing() -> None:
    case = Case(commit_identifier=LONG_MAX)
    case.publish()
    case.table.commit_as("writer", LONG_MAX, bucket=2)
    case.late = case.rename()
    (lost,) = case.found()
    assert lost.outcome is LossOutcome.HALTED
    case.check()


def test_a_job_that_commits_it_itself_during_our_attempt_is_heard() -> None:
    """Between the proof and our publication: the next attempt proves anew."""
    case = lost_case()
    acts = [lambda: case.table.commit_as("writer", 7, bucket=2, files=[case.file])]

    def first(call: Call) -> None:
        if call.method == "create_if_absent" and acts:
            acts.pop()()

    process = Process(
        case.table, owner=SECOND, storage=HookedStorage(case.table.storage, before=first)
    )
    assert process.look() == []
    assert process.lost_commits.expiry_blocker() is None
    case.check()


@pytest.mark.parametrize("identifier", [7, LONG_MAX])
def test_of_two_processes_that_find_a_loss_at_once_one_commits_and_none_halts(
    identifier: int,
) -> None:
    case = lost_case(commit_identifier=identifier)
    acts: list[Callable[[], object]] = [case.found]

    def first(call: Call) -> None:
        if call.method == "create_if_absent" and acts:
            acts.pop()()

    storage = HookedStorage(case.table.storage, before=first)
    assert Process(case.table, owner=SECOND, storage=storage).look() == []
    assert not acts
    case.check()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_rollback_between_reading_the_table_and_looking_back_is_no_loss(
    *, is_first: bool
) -> None:
    case = Case()
    case.publish()
    process = Process(case.table, owner=SECOND) if is_first else case.ours
    state = case.table.state()
    case.table.roll_back(2)
    case.table.append(1, bucket=3)
    process.look_at(state)
    assert process.lost_commits.found == []
    assert process.look() == []
    assert process.follower.replaced_snapshots == 0
    case.table.append(1, bucket=3, commits=3)
    assert process.look() == []
    assert process.lost_commits.expiry_blocker() is None


def test_a_rollback_past_what_was_committed_again_does_not_count_as_unsafe() -> None:
    case = lost_case()
    case.found()
    case.table.roll_back(2)
    case.table.append(1, bucket=3, commits=5)
    assert case.ours.look() == []
    assert case.ours.follower.replaced_snapshots == 0


@pytest.mark.parametrize(
    ("bucket", "since", "options", "is_healed"),
    [
        (0, _nothing, {}, True),
        (2, _others_append, {}, False),
        (2, _nothing, {"sequence.field": "v"}, False),
        (3, _nothing, {"sequence.field": "v"}, True),
    ],
    ids=["older records", "newer records", "records in an order of their own", "another bucket"],
)
@pytest.mark.parametrize("is_merged", [True, False])
def test_what_a_running_merge_might_have_met_waits_for_its_end(
    *, bucket: int, since: Act, options: dict[str, str], is_healed: bool, is_merged: bool
) -> None:
    """Buckets 0 and 2 are being merged. A process that starts decides as this one does."""
    case = Case(bucket=bucket, options=options)
    case.table.append(1, bucket=2)
    case.rename = case.table.prepare_replacement(
        bucket=bucket, file=case.table.new_file(), commit_user="writer", commit_identifier=7
    )
    case.file = case.table.replacement_file
    case.publish()
    since(case)
    case.late = case.rename()
    found = case.ours.look(busy=[bucket_id(0), bucket_id(2)])
    assert [each.outcome for each in found] == [LossOutcome.HEALED] * is_healed
    assert (case.ours.lost_commits.expiry_blocker() is None) == is_healed
    if not is_healed:
        if is_merged:
            case.ours.merge(2)
        (lost,) = case.ours.look()
        wanted = LossOutcome.HALTED if is_merged else LossOutcome.HEALED
        assert lost.outcome is wanted
        again = Process(case.table, owner=SECOND).look()
        assert [each.outcome for each in again] == [LossOutcome.HALTED] * is_merged
        case.table.expected.update(() if is_merged else case.table.rows[case.file.file_name])
    else:
        case.table.expected.update(case.table.rows[case.file.file_name])
    case.check()


def test_a_process_that_starts_puts_right_what_the_last_one_did_not_see() -> None:
    case = lost_case()
    (lost,) = Process(case.table, owner=SECOND).look()
    assert lost.outcome is LossOutcome.HEALED
    case.table.expected.update(case.table.rows[case.file.file_name])
    case.check()
    # Its own process says so too, because what it published is gone, and finds the rows there.
    assert case.ours.look() == []
    case.check()


def test_each_process_that_starts_names_what_cannot_be_put_right_until_50_snapshots_later() -> None:
    case = lost_case(kind=CommitKind.OVERWRITE)
    for _ in range(3):
        (lost,) = Process(case.table, owner=SECOND).look()
        assert lost.outcome is LossOutcome.HALTED
    case.table.append(1, bucket=3, commits=50)
    assert Process(case.table, owner=SECOND).look() == []


def test_snapshots_of_other_compactors_and_jobs_alone_are_not_our_business() -> None:
    """Two Java jobs that replace each other's snapshots, and never one of ours."""
    table = Lineage()
    table.append(1)
    rename = table.prepare_replacement()
    table.append(2, bucket=1, commits=2)
    rename()
    assert Process(table).look() == []


@pytest.mark.parametrize(("commits", "asked"), [(2, ["read"] * 3), (4, ["list"])])
def test_a_look_reads_a_few_or_lists_and_after_the_first_reads_only_what_has_changed(
    commits: int, asked: list[str]
) -> None:
    case = Case()
    storage = RecordingStorage(case.table.storage)
    ours = Process(case.table, storage=storage, clock=case.clock)
    ours.look()
    for number in range(commits):
        ours.commit(case.table.change(case.table.files(number % 2), owner=FIRST, bucket=number % 2))
    case.clock.sleep(3)
    ours.look()
    state = ours.follower.loaded()
    storage.log.clear()
    ours.look_at(state)
    assert [call.method for call in storage.log] == asked
    case.clock.sleep(DELAY_MS / 1000 + 1)
    storage.log.clear()
    ours.look_at(state)
    assert storage.log == [], "nothing is remembered any more"


def test_a_rename_within_the_second_of_our_publication_is_found_whatever_size_it_has() -> None:
    """Object stores tell times in seconds."""
    case = Case()
    case.publish()
    assert case.ours.look() == []
    storage = case.table.storage
    path = paths.snapshot_path(TABLE.location, 3)
    ours = storage.read(path)
    case.late = case.rename()
    late = storage.read(path)
    size = max(len(ours), len(late))
    # JSON may end with spaces, so that both have the same size; and the time is the same.
    storage.overwrite(path, ours.ljust(size))
    assert case.ours.look() == []
    storage.overwrite(path, late.ljust(size))
    assert len(case.ours.look()) == 1


def test_looks_are_a_minute_apart_and_the_delay_ends_them() -> None:
    case = Case()
    case.publish()
    assert case.ours.look(interval_ms=60_000) == []
    case.late = case.rename()
    case.clock.sleep(59)
    assert case.ours.look(interval_ms=60_000) == []
    case.clock.sleep(1)
    assert len(case.ours.look(interval_ms=60_000)) == 1

    late = Case()
    late.publish()
    late.ours.look()
    late.clock.sleep(DELAY_MS / 1000 + 1)
    late.late = late.rename()
    assert late.ours.look() == []
    assert len(Process(late.table, owner=SECOND).look()) == 1


def test_nothing_expires_and_nothing_is_committed_while_it_must_wait() -> None:
    case = Case()
    assert case.ours.lost_commits.expiry_blocker() is not None, "nobody has looked"
    case.ours.look()
    case.publish()
    assert case.ours.lost_commits.expiry_blocker() is None
    case.late = case.rename()
    assert case.ours.lost_commits.expiry_blocker() is not None, "not looked at yet"
    assert case.ours.look(may_commit=False) == []
    assert case.ours.lost_commits.expiry_blocker() is not None, "known, and not decided"
    case.check()
    assert len(case.found()) == 1
    case.check()
    assert case.ours.lost_commits.expiry_blocker() is None


def test_where_writers_are_excluded_nobody_looks_back() -> None:
    class Exclusive(StorePublisher):
        excludes_writers = True
        settle_ms = 0

    table = Lineage()
    storage = RecordingStorage(table.storage)
    table.append(1)
    access = TableAccess(ref=TABLE, storage=storage, publisher=Exclusive(storage))
    followed = TableSession(access, CompactRequest(), clock=VirtualClock(), owner=FIRST)
    followed.refresh()
    storage.log.clear()
    followed.look_back(busy=(), may_commit=True)
    assert followed.expiry_blocker() is None
    assert storage.log == []
