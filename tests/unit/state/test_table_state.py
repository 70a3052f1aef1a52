from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from compactord.errors import FormatError, ObjectNotFound
from compactord.paimon import paths
from compactord.paimon.data_file import BucketId, ManifestEntry
from compactord.paimon.snapshot import CommitKind, snapshot_json
from compactord.state.live_files import UnknownFile
from compactord.state.loading import load_live_files, no_files
from compactord.state.table_state import TableState, data_manifests, load_state, refresh_state
from tests.lineage import Lineage
from tests.storages import RecordingStorage
from tests.unit.paimon.table_builder import TABLE, UNPARTITIONED, History, data_file, deleted, entry

BUCKET = BucketId(UNPARTITIONED, 0)


def _file(name: str, **fields: object) -> ManifestEntry:
    return entry(data_file(name, **fields))


def _names(state: TableState, bucket: BucketId = BUCKET) -> list[str]:
    return [file.file_name for file in state.files.files_in(bucket)]


def _history(*names: str) -> tuple[History, TableState]:
    history = History()
    for name in names:
        history.commit([_file(name)])
    return history, load_state(history.storage, history.table)


def _manifests_read(history: History) -> list[str]:
    return [path for path in history.storage.reads if "/manifest/" in path]


def test_a_table_without_snapshots_is_empty_and_can_be_refreshed() -> None:
    history, state = _history()
    assert (state.snapshot, state.files.file_count, state.files.bucket_ids()) == (None, 0, [])
    history.storage.reads.clear()
    assert refresh_state(history.storage, state).changed == frozenset()
    assert len(history.storage.reads) == 1, "and the first snapshot is asked for"
    history.commit([_file("a")])
    history.storage.delete(paths.latest_hint(history.table.location))
    refreshed = refresh_state(history.storage, state)
    assert (_names(refreshed.state), refreshed.changed) == (["a"], None)


def test_an_unchanged_table_costs_two_small_reads() -> None:
    history, state = _history("a", "b")
    history.storage.reads.clear()
    refreshed = refresh_state(history.storage, state)
    assert refreshed.state.files is state.files
    assert refreshed.changed == frozenset()
    asked = [path.rsplit("/", 1)[1] for path in history.storage.reads]
    assert asked == ["snapshot-2", "snapshot-3"]
    # A hint that is old, wrong or gone changes nothing.
    for hint in (b"1", b"9", b"LATEST"):
        history.storage.overwrite(paths.latest_hint(history.table.location), hint)
        assert refresh_state(history.storage, state).changed == frozenset()


@pytest.mark.parametrize("hint", [b"4", b"3", b"2", None])
def test_whoever_commits_does_not_take_a_snapshot_that_is_missing_for_the_next_one(
    hint: bytes | None,
) -> None:
    """Snapshots 2 and 4 are there: a table that somebody damaged."""
    history, state = _history("a", "b")
    location = history.table.location
    history.commit([_file("c")])
    history.commit([_file("d")])
    history.storage.delete(paths.snapshot_path(location, 3))
    path = paths.latest_hint(location)
    if hint is None:
        history.storage.delete(path)
    else:
        history.storage.overwrite(path, hint)
    assert _names(refresh_state(history.storage, state).state) == ["a", "b"]
    refreshed = refresh_state(history.storage, state, checks_hint=True)
    is_told = hint in (b"4", b"3")
    assert _names(refreshed.state) == (["a", "b", "c", "d"] if is_told else ["a", "b"])


def test_what_is_published_between_the_probe_and_the_hint_is_followed() -> None:
    history, state = _history("a", "b")
    storage, read = history.storage, history.storage.read

    def read_in_between(path: str) -> bytes:
        if path == paths.latest_hint(history.table.location):
            storage.read = read  # type: ignore[method-assign]
            history.commit([_file("c")])
        return read(path)

    storage.read = read_in_between  # type: ignore[method-assign]
    refreshed = refresh_state(storage, state, checks_hint=True)
    assert (_names(refreshed.state), refreshed.changed) == (["a", "b", "c"], {BUCKET})


def test_new_snapshots_cost_their_delta_lists_and_manifests_only() -> None:
    history, state = _history("a", "b", "c")
    history.commit([_file("d")])
    history.commit([_file("e")])
    history.storage.reads.clear()
    refreshed = refresh_state(history.storage, state)
    assert _names(refreshed.state) == ["a", "b", "c", "d", "e"]
    assert refreshed.changed == {BUCKET}
    assert len(_manifests_read(history)) == 4


def test_the_buckets_of_all_new_snapshots_have_changed() -> None:
    history, state = _history("a")
    history.commit([_file("b")])
    history.commit([entry(data_file("c"), bucket=1)])
    refreshed = refresh_state(history.storage, state)
    assert refreshed.changed == {BUCKET, BucketId(UNPARTITIONED, 1)}


def test_new_snapshots_take_no_memory_for_the_files_that_were_there() -> None:
    assert _refresh_peak_bytes(10_000) < _refresh_peak_bytes(400) + (16 << 10)


def _refresh_peak_bytes(files: int) -> int:
    """What a refresh after one more file allocates."""
    history = History()
    buckets = range(files // 10)
    old = [entry(data_file(f"{b}-{n}"), bucket=b) for b in buckets for n in range(10)]
    history.commit(old)
    state = load_state(history.storage, history.table)
    history.commit([_file("new")])
    tracemalloc.start()
    try:
        assert refresh_state(history.storage, state).changed == {BUCKET}
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_files_of_every_kind_of_snapshot_count() -> None:
    history, state = _history("a")
    for kind in CommitKind:
        history.commit([_file(f"of-{kind.value}")], kind)
        state = refresh_state(history.storage, state).state
    assert state.files.summary(BUCKET).level0_count == 5
    assert set(_names(state)) == {"a", *(f"of-{kind.value}" for kind in CommitKind)}


def test_an_overwrite_that_replaces_the_base_silently_is_seen() -> None:
    history, state = _history("a", "b")
    # The base list of the new snapshot lacks what it overwrote; its delta does not say so.
    history.commit_on(history.write_manifests([_file("b")]), [_file("c")], CommitKind.OVERWRITE)
    refreshed = refresh_state(history.storage, state)
    assert (_names(refreshed.state), refreshed.changed) == (["b", "c"], None)


def test_a_rollback_is_seen_and_reported() -> None:
    history, _ = _history("a")
    first = history.snapshot
    assert first is not None
    second = history.commit([_file("b")])
    state = load_state(history.storage, history.table)
    history.rollback(first)
    refreshed = refresh_state(history.storage, state)
    assert (_names(refreshed.state), refreshed.changed, refreshed.lost) == (["a"], None, second)


@pytest.mark.parametrize("with_uuid", [True, False])
def test_a_snapshot_that_another_one_replaced_is_reported_lost(with_uuid: bool) -> None:
    history, _ = _history("a")
    first = history.snapshot
    assert first is not None
    second = history.commit([_file("b")], with_uuid=with_uuid)
    state = load_state(history.storage, history.table)
    history.rollback(first)
    history.commit([_file("c")], with_uuid=with_uuid)
    history.commit([_file("d")], with_uuid=with_uuid)
    refreshed = refresh_state(history.storage, state)
    assert (_names(refreshed.state), refreshed.lost) == (["a", "c", "d"], second)


def test_a_dropped_and_recreated_table_is_not_mistaken_for_the_old_one() -> None:
    history, state = _history("a", "b")
    fresh = History()
    fresh.commit([_file("x")])
    fresh.commit([_file("y")])
    refreshed = refresh_state(fresh.storage, state)
    assert (_names(refreshed.state), refreshed.changed) == (["x", "y"], None)
    assert refreshed.lost == state.snapshot == history.snapshot


def test_an_expired_known_snapshot_means_reading_anew_and_is_not_lost() -> None:
    history, state = _history("a", "b")
    history.commit([_file("c")])
    history.storage.delete(paths.snapshot_path(history.table.location, 2))
    refreshed = refresh_state(history.storage, state)
    assert (_names(refreshed.state), refreshed.changed) == (["a", "b", "c"], None)
    assert refreshed.lost is None


def test_a_delta_manifest_that_is_gone_means_reading_anew() -> None:
    history, state = _history("a")
    gone = history.commit([_file("b")])
    history.merge_manifests()
    history.storage.delete(paths.manifest_path(history.table.location, gone.delta_manifest_list))
    refreshed = refresh_state(history.storage, state)
    assert (_names(refreshed.state), refreshed.changed) == (["a", "b"], None)


def test_a_delta_that_deletes_what_is_not_live_means_reading_anew() -> None:
    history, state = _history("a")
    history.commit([deleted(_file("never added", row_count=0)), _file("b")])
    refreshed = refresh_state(history.storage, state)
    assert (_names(refreshed.state), refreshed.changed) == (["a", "b"], None)


@pytest.mark.parametrize("is_in_base", [True, False])
def test_a_file_that_was_deleted_is_not_found_again(*, is_in_base: bool) -> None:
    file, other = _file("a"), _file("b")
    files = _history("a")[1].files if is_in_base else no_files("/t").applied([file])
    files = files.applied([other]).applied([deleted(file)])
    assert not files.contains(file.identity)
    assert files.contains(other.identity)
    with pytest.raises(UnknownFile):
        files.applied([deleted(file)])


def test_record_counts_that_do_not_add_up_mean_reading_anew() -> None:
    history, state = _history("a")
    wrong = replace(history.commit([_file("b")]), total_record_count=7)
    path = paths.snapshot_path(history.table.location, wrong.id)
    history.storage.overwrite(path, snapshot_json(wrong))
    assert refresh_state(history.storage, state).changed is None


@pytest.mark.parametrize("at", [3, 4])
def test_a_rollback_while_snapshots_are_followed_means_reading_anew(at: int) -> None:
    history, _ = _history("a")
    first = history.snapshot
    assert first is not None
    history.commit([_file("b")])
    state = load_state(history.storage, history.table)
    history.commit([_file("c")])
    history.commit([_file("d")])
    storage, read = history.storage, history.storage.read

    def read_in_between(path: str) -> bytes:
        if path == paths.snapshot_path(history.table.location, at):
            storage.read = read  # type: ignore[method-assign]
            history.rollback(first)
            # As many rows as before: no count tells.
            for name in ("b'", "c'", "d'"):
                history.commit([_file(name)])
        return read(path)

    storage.read = read_in_between  # type: ignore[method-assign]
    refreshed = refresh_state(storage, state)
    assert (_names(refreshed.state), refreshed.changed) == (["a", "b'", "c'", "d'"], None)


@pytest.mark.parametrize(("behind", "changed"), [(200, {BUCKET}), (201, None)])
def test_far_behind_means_reading_anew(behind: int, changed: set[BucketId] | None) -> None:
    history, state = _history("a")
    names = [f"{number:03}" for number in range(behind)]
    for name in names:
        history.commit([_file(name)])
    refreshed = refresh_state(history.storage, state)
    assert (_names(refreshed.state), refreshed.changed) == (["a", *names], changed)


def test_a_snapshot_that_expires_while_it_is_loaded_is_not_the_end() -> None:
    history, state = _history("a", "b")
    assert state.snapshot is not None
    name = paths.manifest_path(history.table.location, state.snapshot.delta_manifest_list)
    storage = history.storage
    read = storage.read

    def expiring_read(path: str) -> bytes:
        if path == name:
            storage.read = read  # type: ignore[method-assign]
            storage.delete(name)
            # The next snapshot does not need the list that went.
            history.commit_on(history.write_manifests([_file("a"), _file("b")]), [_file("c")])
        return read(path)

    storage.read = expiring_read  # type: ignore[method-assign]
    assert _names(load_state(storage, history.table)) == ["a", "b", "c"]


def test_a_missing_manifest_of_the_newest_snapshot_is_an_error() -> None:
    history, state = _history("a", "b")
    assert state.snapshot is not None
    history.storage.delete(
        paths.manifest_path(history.table.location, state.snapshot.delta_manifest_list)
    )
    with pytest.raises(ObjectNotFound):
        load_state(history.storage, history.table)


def test_a_file_added_twice_is_a_format_error_when_loaded_and_when_followed() -> None:
    history, state = _history("a")
    history.commit([_file("a")])
    with pytest.raises(FormatError, match="a is added twice"):
        refresh_state(history.storage, state)
    with pytest.raises(FormatError, match="a is added twice"):
        load_state(history.storage, history.table)


def test_a_file_added_twice_by_one_snapshot_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="b is added twice"):
        no_files("/t").applied([_file("b"), _file("b")])


def test_the_same_name_in_another_bucket_or_on_another_level_is_another_file() -> None:
    files = no_files("/t").applied(
        [_file("a"), _file("a", level=5), entry(data_file("a"), bucket=1)]
    )
    assert files.file_count == 3


def test_a_file_that_one_snapshot_adds_and_deletes_was_never_there() -> None:
    history, state = _history("a")
    passing = _file("b", level=1)
    history.commit([passing, deleted(passing), _file("b", level=5)])
    refreshed = refresh_state(history.storage, state)
    assert refreshed.changed == {BUCKET}
    for seen in (refreshed.state, load_state(history.storage, TABLE)):
        assert [file.level for file in seen.files.files_in(BUCKET)] == [0, 5]
        assert seen.files.file_count == 2


def test_a_delete_without_its_add_has_no_effect_on_a_load() -> None:
    history = History()
    history.commit([deleted(_file("old")), _file("a")])
    assert _names(load_state(history.storage, history.table)) == ["a"]
    with pytest.raises(UnknownFile):
        no_files("/t").applied([deleted(_file("old"))])


@pytest.mark.parametrize(
    "other",
    [
        {"extra_files": ("a.index",)},
        {"embedded_file_index": b""},
        {"external_path": "s3://b/a"},
        {"level": 1},
    ],
    ids=lambda other: next(iter(other)),
)
@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
def test_a_delete_must_repeat_the_whole_identity(other: dict[str, Any], cursors: int) -> None:
    history = History()
    history.commit([_file("a"), _file("b", **other)])
    history.commit([deleted(_file("a", **other)), deleted(_file("b", **other))])
    assert history.snapshot is not None
    location = history.table.location
    manifests = data_manifests(history.storage, location, history.snapshot)
    live = load_live_files(history.storage, location, manifests, min_cursors=cursors)
    assert [file.file_name for file in live.files_in(BUCKET)] == ["a"]


def test_entries_keep_everything_the_manifest_said() -> None:
    rich = _file(
        "a",
        extra_files=("a.index",),
        embedded_file_index=b"\x00",
        value_stats_columns=("k",),
        external_path="file:/x/a",
        first_row_id=3,
        write_columns=("k", "v"),
        creation_time_ms=5,
        delete_row_count=1,
        file_source=0,
    )
    history, state = History(), None
    history.commit([rich])
    state = load_state(history.storage, history.table)
    assert state.files.entries(BUCKET) == (rich,)
    assert state.files.contains(rich.identity)


def test_files_of_a_bucket_are_in_order_of_arrival() -> None:
    history = History()
    history.commit([entry(data_file(f"f-{n}"), bucket=n % 3) for n in range(99)])
    state = load_state(history.storage, history.table)
    history.commit([_file("newer")])
    state = refresh_state(history.storage, state).state
    assert _names(state) == [*(f"f-{n}" for n in range(0, 99, 3)), "newer"]


def test_small_files_can_be_asked_for_alone() -> None:
    history = History()
    history.commit([_file("small", file_size=9), _file("large", file_size=10)])
    state = load_state(history.storage, history.table)
    history.commit([_file("new small", file_size=1), _file("new large", file_size=11)])
    state = refresh_state(history.storage, state).state
    some = state.files.bucket(BUCKET, smaller_than=10)
    assert [file.file_name for file in some.files] == ["small", "new small"]
    assert some.total_buckets == 4
    assert (state.files.count_smaller(10), state.files.count_smaller(10, [BUCKET])) == (2, 2)
    history.commit([deleted(_file("small", file_size=9))])
    state = refresh_state(history.storage, state).state
    assert (state.files.count_smaller(10), state.files.count_smaller(10, [BUCKET])) == (1, 1)


def test_entries_that_disagree_about_the_bucket_count_are_refused() -> None:
    files = no_files("/t").applied([_file("a"), replace(_file("b"), total_buckets=8)])
    with pytest.raises(FormatError, match="number of buckets: 4, 8"):
        files.bucket(BUCKET)


def test_layers_stay_few() -> None:
    files = no_files("/t")
    most_layers = 0
    for number in range(1000):
        files = files.applied([entry(data_file(f"f-{number}"), bucket=number)])
        most_layers = max(most_layers, len(files.layers))
        assert files.file_count == number + 1
    assert most_layers <= 10
    assert len(files.bucket_ids()) == 1000


def test_an_index_manifest_is_read_once_by_whoever_follows_the_table() -> None:
    table = Lineage()
    for name, kind in (("i-1", "HASH"), ("i-2", "DELETION_VECTORS")):
        table.write_index_manifest(name, [f"{name}-file"], kind)
    storage, history = RecordingStorage(table.storage), table.history
    history.commit([_file("a")], index_manifest="i-1")
    state = load_state(storage, TABLE)
    assert state.indexes.entries == ()
    seen = []
    for name, index in (("b", "i-1"), ("c", "i-2"), ("d", "i-2"), ("e", None)):
        history.commit([_file(name)], index_manifest=index)
        state = refresh_state(storage, state).state
        assert state.indexes == load_state(table.storage, TABLE).indexes
        seen.append([entry.file_name for entry in state.indexes.entries])
    assert seen == [[], ["i-2-file"], ["i-2-file"], []]
    read = [call.path.rsplit("/", 1)[1] for call in storage.log if "/manifest/i-" in call.path]
    assert read == ["i-1", "i-2"]
