"""The loop: retries and their pauses, unknown outcomes, identifiers."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager, nullcontext

import pytest
from structlog.testing import capture_logs

from compactord.catalog.access import table_in_folder
from compactord.commit.changes import BucketChange, Committed
from compactord.commit.committer import Committer, commit_user
from compactord.commit.publish import Delta, StorePublisher
from compactord.errors import (
    AccessDenied,
    CatalogDown,
    CommitGaveUp,
    CommitUnknown,
    FormatError,
    ObjectNotFound,
    StorageError,
    StoreFull,
    TransientStorageError,
)
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, parse_snapshot, read_snapshot
from compactord.state.follower import Follower
from compactord.storage.base import Creation, Storage
from tests.builders import FIRST, VirtualClock
from tests.lineage import TABLE, Lineage, bucket_id
from tests.storages import (
    Call,
    Fault,
    FaultyStorage,
    HookedStorage,
    OrderedStorage,
    RecordingStorage,
    WatchedStorage,
)


def _table(**options: str) -> tuple[Lineage, BucketChange]:
    table = Lineage(options=options)
    return table, table.change(table.append(2), owner=FIRST)


def _commit(
    table: Lineage,
    change: BucketChange,
    storage: WatchedStorage | None = None,
    *,
    clock: VirtualClock | None = None,
    committer: Committer | None = None,
) -> Committed:
    committer = committer or table.committer(FIRST, storage, clock)
    outcome, _ = committer.commit(table.state(), [change], table.settings)
    assert isinstance(outcome, Committed)
    return outcome


def _losing(table: Lineage) -> HookedStorage:
    """Another commit comes first, each time."""

    def append_first(call: Call) -> None:
        if call.method == "create_if_absent":
            table.append(1)

    return HookedStorage(table.storage, before=append_first)


def _creates(call: Call) -> bool:
    return call.method == "create_if_absent"


def test_it_gives_up_after_the_last_retry_and_leaves_the_table_as_it_was() -> None:
    table, change = _table(**{"commit.max-retries": "3"})
    with pytest.raises(CommitGaveUp, match=r"4 attempts.*another commit came first") as raised:
        _commit(table, change, _losing(table))
    assert "db.t" in str(raised.value)
    table.check()
    assert table.leftovers(FIRST) == {change.after[0].file_name}


def test_pauses_double_up_to_the_largest_with_jitter_of_a_fifth() -> None:
    table, change = _table(
        **{
            "commit.max-retries": "6",
            "commit.min-retry-wait": "100 ms",
            "commit.max-retry-wait": "1 s",
        }
    )
    clock = VirtualClock()
    with pytest.raises(CommitGaveUp):
        _commit(table, change, _losing(table), clock=clock)
    assert len(clock.sleeps) == 6
    for pause, least in zip(clock.sleeps, (0.1, 0.2, 0.4, 0.8, 1.0, 1.0), strict=True):
        assert least <= pause < least * 1.2
    assert any(pause not in (0.1, 0.2, 0.4, 0.8, 1.0) for pause in clock.sleeps)


def test_two_committers_do_not_wait_the_same_time() -> None:
    def pauses(seed: int) -> list[float]:
        table, change = _table(**{"commit.min-retry-wait": "1 s", "commit.max-retries": "5"})
        storage, clock = _losing(table), VirtualClock()
        committer = Committer(
            storage=storage,
            publisher=StorePublisher(storage),
            follower=Follower(table_in_folder(storage, TABLE), user=commit_user(FIRST, None)),
            clock=clock,
            owner=FIRST,
            jitter=random.Random(seed),
        )
        with pytest.raises(CommitGaveUp):
            _commit(table, change, committer=committer)
        return clock.sleeps

    assert pauses(1) == pauses(1)
    assert pauses(1) != pauses(2)


def test_the_timeout_ends_it_before_the_retries_do() -> None:
    table, change = _table(
        **{
            "commit.max-retries": "1000",
            "commit.min-retry-wait": "100 ms",
            "commit.max-retry-wait": "100 ms",
            "commit.timeout": "1 s",
        }
    )
    clock = VirtualClock()
    with pytest.raises(CommitGaveUp):
        _commit(table, change, _losing(table), clock=clock)
    assert 9 <= len(clock.sleeps) <= 10


class _Down:
    """A publisher whose catalog is down until a moment of a clock."""

    excludes_writers = False
    settle_ms = 0

    def __init__(self, storage: Storage, clock: VirtualClock, until_s: float) -> None:
        self._publisher = StorePublisher(storage)
        self._clock = clock
        self._until_s = until_s

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        if self._clock.monotonic_s() < self._until_s:
            raise CatalogDown("jdbc:x", "the database system is starting up")
        return self._publisher.publish(table, snapshot, delta, owner=owner)


_GIVEN_UP = pytest.raises(CommitGaveUp, match="the database system is starting up")


@pytest.mark.parametrize(
    ("down_s", "options", "ends"),
    [
        pytest.param(0.3, {}, nullcontext(), id="a blink"),
        pytest.param(0.3, {"commit.max-retries": "0"}, nullcontext(), id="races alone count"),
        pytest.param(60, {}, nullcontext(), id="a restart"),
        pytest.param(60, {"commit.timeout": "2 min"}, nullcontext(), id="within the time-out"),
        pytest.param(60, {"commit.timeout": "30 s"}, _GIVEN_UP, id="beyond the time-out"),
        pytest.param(3600, {}, _GIVEN_UP, id="for good"),
        pytest.param(900, {"commit.timeout": "1 h"}, nullcontext(), id="as long as it is told"),
    ],
)
def test_a_catalog_that_is_down_is_waited_for(
    down_s: float, options: dict[str, str], ends: AbstractContextManager[object]
) -> None:
    table, change = _table(**options)
    clock = VirtualClock()
    committer = Committer(
        storage=table.storage,
        publisher=_Down(table.storage, clock, down_s),
        follower=Follower(table_in_folder(table.storage, TABLE), user=commit_user(FIRST, None)),
        clock=clock,
        owner=FIRST,
    )
    with ends:
        _commit(table, change, committer=committer)
    table.check()
    is_published = isinstance(ends, nullcontext)
    assert table.leftovers(FIRST) == (set() if is_published else {change.after[0].file_name})
    assert clock.monotonic_s() < max(2 * down_s + 1, 40 if "30 s" in options.values() else 0, 320)


@pytest.mark.parametrize("retries", ["0", "-1", "-2147483648"])
def test_no_retries_means_one_attempt(retries: str) -> None:
    table, change = _table(**{"commit.max-retries": retries})
    clock = VirtualClock()
    with pytest.raises(CommitGaveUp, match="1 attempts"):
        _commit(table, change, _losing(table), clock=clock)
    assert clock.sleeps == []


def test_giving_up_says_what_failed_last() -> None:
    table, change = _table(**{"commit.max-retries": "2"})
    fault = Fault(
        at=1,
        error=TransientStorageError,
        lasts=True,
        concerns=lambda call: call.method == "write_new",
    )
    with pytest.raises(CommitGaveUp, match="write_new failed"):
        _commit(table, change, FaultyStorage(table.storage, fault))
    table.check()


@pytest.mark.parametrize("kind", [TransientStorageError, StoreFull, StorageError])
def test_a_snapshot_that_was_created_in_spite_of_an_error_is_ours(kind: type[StorageError]) -> None:
    table, change = _table()
    fault = Fault(at=1, error=kind, after_effect=True, concerns=_creates)
    outcome = _commit(table, change, FaultyStorage(table.storage, fault))
    assert outcome.attempts == 1
    table.check()
    assert table.leftovers(FIRST) == set()


def test_a_snapshot_that_is_not_found_and_yet_listed_was_created() -> None:
    """One false answer in place of our snapshot must not delete what it names."""
    table, change = _table()
    refused = Fault(at=1, error=StoreFull, after_effect=True, concerns=_creates)
    missing = Fault(
        at=1,
        error=ObjectNotFound,
        concerns=lambda call: call.method == "read" and call.path.endswith("/snapshot-2"),
    )
    storage = FaultyStorage(FaultyStorage(table.storage, refused), missing)
    assert _commit(table, change, storage).snapshot_id == 2
    assert storage.failed
    table.check()


def test_a_snapshot_that_was_not_created_is_created_by_asking_again() -> None:
    table, change = _table()
    storage = FaultyStorage(
        table.storage, Fault(at=1, error=TransientStorageError, concerns=_creates)
    )
    outcome = _commit(table, change, storage)
    assert (outcome.attempts, outcome.snapshot_id) == (1, 2)
    table.check()


def test_an_error_that_says_no_ends_the_commit_and_removes_its_metadata() -> None:
    table, change = _table()
    storage = FaultyStorage(table.storage, Fault(at=1, error=StoreFull, concerns=_creates))
    with pytest.raises(StoreFull):
        _commit(table, change, storage)
    table.check()
    assert table.leftovers(FIRST) == {change.after[0].file_name}


@pytest.mark.parametrize("kind", [StoreFull, AccessDenied])
def test_a_no_from_the_store_is_no_unknown_outcome(kind: type[StorageError]) -> None:
    table, change = _table()
    storage = FaultyStorage(table.storage, Fault(at=1, error=kind, concerns=_creates))
    with capture_logs() as events, pytest.raises(kind, match="no snapshot was published") as raised:
        _commit(table, change, storage)
    assert "there is no snapshot 2, no snapshot was published" in str(raised.value)
    assert raised.value.path.endswith("/snapshot-2")
    assert events == []


def test_a_no_after_a_call_that_may_take_effect_late_removes_nothing() -> None:
    table, change = _table()
    known = set(table.storage.objects)
    late = Fault(at=1, error=TransientStorageError, concerns=_creates)
    refused = Fault(at=2, error=StoreFull, concerns=_creates)
    storage = FaultyStorage(FaultyStorage(table.storage, late), refused)
    with capture_logs() as events, pytest.raises(CommitUnknown, match="no file was deleted"):
        _commit(table, change, storage)
    assert len({path for path in set(table.storage.objects) - known if "/manifest/" in path}) == 3
    assert [event["event"] for event in events] == ["commit_outcome_unknown"]


def test_a_no_in_spite_of_which_a_snapshot_is_there_is_logged() -> None:
    table, change = _table()
    fault = Fault(at=1, error=StoreFull, after_effect=True, concerns=_creates)
    with capture_logs() as events:
        _commit(table, change, FaultyStorage(table.storage, fault))
    assert [event["event"] for event in events] == ["commit_outcome_unknown"]


@pytest.mark.parametrize("after_effect", [False, True], ids=["not created", "created"])
def test_an_outcome_that_cannot_be_read_is_unknown_and_nothing_is_deleted(
    after_effect: bool,
) -> None:
    table, change = _table()
    down: list[Call] = []

    def before(call: Call) -> None:
        if down or (_creates(call) and not after_effect):
            down.append(call)
            raise TransientStorageError(call.path, "no answer")

    def after(call: Call) -> None:
        if _creates(call):
            down.append(call)
            before(call)

    storage = HookedStorage(table.storage, before=before, after=after)
    known = set(table.storage.objects)
    with pytest.raises(CommitUnknown, match="snapshot-2"):
        _commit(table, change, storage)
    written = {path.rsplit("/", 2)[1] for path in set(table.storage.objects) - known}
    assert written == ({"manifest", "snapshot"} if after_effect else {"manifest"})
    assert not any(call.method == "delete" for call in down)
    table.check()


@pytest.mark.parametrize("there", [b"{", b'{"version": 4}'], ids=["damaged", "newer format"])
def test_a_name_taken_by_what_cannot_be_read_leaves_the_outcome_unknown(there: bytes) -> None:
    table, change = _table()
    known = set(table.storage.objects)

    def come_first(call: Call) -> None:
        if _creates(call):
            table.storage.overwrite(call.path, there)

    with pytest.raises(CommitUnknown, match="cannot be read"):
        _commit(table, change, HookedStorage(table.storage, before=come_first))
    assert len({path for path in set(table.storage.objects) - known if "/manifest/" in path}) == 3


def test_doubt_followed_by_another_writers_snapshot_keeps_the_metadata() -> None:
    """Ours may have stood there for a moment, long enough for somebody to build upon it."""
    table, change = _table()
    armed = iter([True])

    def replaced(call: Call) -> None:
        if _creates(call) and next(armed, False):
            rename()
            raise TransientStorageError(call.path, "no answer")

    rename = table.prepare_replacement()
    outcome = _commit(table, change, HookedStorage(table.storage, after=replaced))
    assert (outcome.snapshot_id, outcome.attempts) == (3, 2)
    table.expected.update(table.rows[table.replacement_file.file_name])
    table.check()
    # Base list, delta manifest and delta list of the first attempt.
    assert len(table.leftovers(FIRST)) == 3


def test_outputs_that_turn_out_to_be_live_are_never_dropped() -> None:
    """Our unconfirmed snapshot was replaced, after another writer had built upon it."""
    table, change = _table()
    first = _commit(table, change)
    with pytest.raises(CommitUnknown, match="is live although"):
        _commit(table, change)
    assert first.published == (change,)
    table.check()


def test_a_transient_error_while_preparing_is_another_attempt_and_leaves_nothing() -> None:
    table, change = _table()
    fault = Fault(
        at=3, error=TransientStorageError, concerns=lambda call: call.method == "write_new"
    )
    outcome = _commit(table, change, FaultyStorage(table.storage, fault))
    assert outcome.attempts == 2
    table.check()
    assert table.leftovers(FIRST) == set()


def test_metadata_that_expires_under_an_attempt_is_another_attempt() -> None:
    table, change = _table()
    fault = Fault(
        at=1,
        error=ObjectNotFound,
        concerns=lambda call: call.method == "read" and "/manifest/manifest-list" in call.path,
    )
    state = table.state()
    committer = table.committer(FIRST, FaultyStorage(table.storage, fault))
    outcome, _ = committer.commit(state, [change], table.settings)
    assert isinstance(outcome, Committed)
    assert outcome.attempts == 2
    table.check()
    assert table.leftovers(FIRST) == set()


def test_what_others_added_is_told_once_although_an_attempt_fails_after_it() -> None:
    table, change = _table()
    state = table.state()
    (added,) = table.append(1)
    newest = table.state().snapshot
    assert newest is not None
    fault = Fault(
        at=2,
        error=TransientStorageError,
        concerns=lambda call: call.path.endswith(newest.delta_manifest_list),
    )
    committer = table.committer(FIRST, FaultyStorage(table.storage, fault))
    outcome, _ = committer.commit(state, [change], table.settings)
    assert isinstance(outcome, Committed)
    assert outcome.attempts == 2
    assert committer.follower.drain_stats().appended_bytes == added.file_size
    table.check()


def test_a_damaged_table_is_an_error_and_leaves_nothing() -> None:
    table, change = _table()
    state = table.state()
    assert state.snapshot is not None
    path = paths.manifest_path(TABLE.location, state.snapshot.delta_manifest_list)
    table.storage.overwrite(path, table.storage.read(path)[:-1])
    before = set(table.storage.objects)
    committer = table.committer(FIRST)
    with pytest.raises(FormatError, match="bytes"):
        committer.commit(state, [change], table.settings)
    assert set(table.storage.objects) == before


def test_a_hint_that_cannot_be_written_does_not_matter() -> None:
    table, change = _table()
    fault = Fault(
        at=1, error=StorageError, lasts=True, concerns=lambda call: call.method == "overwrite"
    )
    _commit(table, change, FaultyStorage(table.storage, fault))
    table.check()
    assert table.state().snapshot == read_snapshot(table.storage, TABLE.location, 2)


def test_looking_back_may_fail_for_good_and_the_commit_stands() -> None:
    table, change = _table()
    published: list[Call] = []

    def before(call: Call) -> None:
        if published:
            raise TransientStorageError(call.path, "no answer")

    def after(call: Call) -> None:
        if _creates(call):
            published.append(call)

    outcome = _commit(table, change, HookedStorage(table.storage, before=before, after=after))
    assert outcome.snapshot_id == 2
    table.check()


@pytest.mark.parametrize(
    ("interval", "identifiers"),
    [(None, [1, 2, 3, 4]), (2, [1, 3, 5, 7]), (3, [1, 2, 4, 5]), (1, [1, 2, 3, 4])],
)
def test_identifiers_grow_and_never_claim_a_full_compaction(
    interval: int | None, identifiers: list[int]
) -> None:
    options = {} if interval is None else {"full-compaction.delta-commits": str(interval)}
    table = Lineage(options=options)
    committer = table.committer(FIRST)
    found = []
    for bucket in range(4):
        change = table.change(table.append(2, bucket=bucket), owner=FIRST, bucket=bucket)
        outcome = _commit(table, change, committer=committer)
        snapshot = read_snapshot(table.storage, TABLE.location, outcome.snapshot_id)
        assert snapshot.commit_user == committer.follower.user
        found.append(snapshot.commit_identifier)
    assert found == identifiers


class _LosingOnce(WatchedStorage):
    """Keeps what was to be published; another commit comes before the first of it."""

    def __init__(self, table: Lineage) -> None:
        super().__init__(table.storage)
        self._table = table
        self.published: list[Snapshot] = []

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        self.published.append(parse_snapshot(data, path))
        if len(self.published) == 1:
            self._table.append(1)
        return super().create_if_absent(path, data, temporary=temporary)


def test_attempts_of_one_commit_share_the_identifier_but_not_the_uuid() -> None:
    table, change = _table()
    storage = _LosingOnce(table)
    _commit(table, change, storage)
    first, second = storage.published
    assert (first.commit_identifier, second.commit_identifier) == (1, 1)
    assert first.uuid != second.uuid
    assert (first.id, second.id) == (2, 3)


def test_the_users_prefix_is_kept() -> None:
    assert commit_user(FIRST, "night").startswith("night_c0ac7d")


class _Unlucky(Owner):
    """Whose names are always the same."""

    def unique_name(self) -> str:
        return "c0ac7d22-2222-8000-8000-040000100000"


def test_commits_of_one_process_never_write_a_name_twice() -> None:
    table = Lineage()
    storage = RecordingStorage(table.storage)
    committer = table.committer(_Unlucky(host=1, start_ticks=1, pid=1), storage)
    for bucket in range(4):
        change = table.change(table.append(2, bucket=bucket), owner=FIRST, bucket=bucket)
        _commit(table, change, committer=committer)
    written = [call.path for call in storage.log if call.method == "write_new"]
    assert len(written) == len(set(written)) == 12
    table.check()


def test_a_snapshot_below_ours_that_is_not_found_and_yet_listed_was_not_rolled_back() -> None:
    table, change = _table()
    published: list[Call] = []

    def note(call: Call) -> None:
        if _creates(call):
            published.append(call)

    def miss(call: Call) -> None:
        if published and (call.method, call.path[-11:]) == ("read", "/snapshot-1"):
            raise ObjectNotFound(call.path, "no such object")

    storage = HookedStorage(table.storage, before=miss, after=note)
    with capture_logs() as events:
        assert _commit(table, change, storage).snapshot_id == 2
    assert [event["event"] for event in events] == ["confirmation_failed"]


@pytest.mark.parametrize("options", [{}, {"manifest.delete-file-drop-stats": "true"}])
def test_the_state_after_a_commit_is_what_a_reader_finds(options: dict[str, str]) -> None:
    table = Lineage(options=options)
    storage = RecordingStorage(table.storage)
    committer = table.committer(FIRST, storage)
    for _ in range(3):
        for bucket in range(2):
            table.append(2, bucket=bucket)
            base = table.state()
            live = base.files.files_in(bucket_id(bucket))
            change = table.change(live, owner=FIRST, bucket=bucket)
            committer.follower.drain_stats()
            storage.log.clear()
            outcome, state = committer.commit(base, [change], table.settings)
            assert isinstance(outcome, Committed)
            found = table.state()
            assert state.snapshot == found.snapshot
            assert state.files.bucket_ids() == found.files.bucket_ids()
            for each in found.files.bucket_ids():
                assert state.files.bucket(each) == found.files.bucket(each)
                assert state.files.summary(each) == found.files.summary(each)
            assert committer.follower.drain_stats().changed == {change.bucket}
            written = {call.path for call in storage.log if call.method == "write_new"}
            assert not written & {call.path for call in storage.log if call.method == "read"}


def test_a_rollback_between_the_looks_at_our_snapshot_and_at_the_one_below_had_its_effect() -> None:
    table = Lineage()
    before = table.append(2, commits=2)
    change = table.change(before, owner=FIRST)
    storage = OrderedStorage(
        table.storage,
        first=("read", "/snapshot-3"),
        then=("read", "/snapshot-2"),
        meanwhile=lambda: table.roll_back(1),
        begins=lambda: paths.snapshot_path(TABLE.location, 3) in table.storage.objects,
    )
    committer = table.committer(FIRST, storage)
    _, state = committer.commit(table.state(), [change], table.settings)
    assert storage.happened
    assert state.snapshot == read_snapshot(table.storage, TABLE.location, 1)
    assert committer.follower.lost_snapshots == []
