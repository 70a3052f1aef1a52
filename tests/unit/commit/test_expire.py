"""What expiry removes, what it spares, and what stops it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from compactord.commit.expire import Expired, expire_snapshots
from compactord.commit.expire_plan import skipping_tags
from compactord.errors import (
    CompactordError,
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
    UnsupportedTable,
    UsageError,
)
from compactord.paimon import paths
from compactord.paimon.avro import codec_of, encode_container
from compactord.paimon.data_file import DataFile, EntryKind
from compactord.paimon.manifest import read_entries
from compactord.paimon.manifest_schema import INDEX_MANIFEST
from compactord.paimon.options import ExpireOptions
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    read_snapshot,
    read_tags,
    snapshot_ids,
    snapshot_json,
)
from compactord.paimon.table import data_manifests, delta_manifests
from compactord.storage.base import Storage
from tests.lineage import TABLE, Lineage, bucket_id
from tests.storages import Call, Fault, FaultyStorage, HookedStorage, MemoryStorage
from tests.unit.paimon.table_builder import deleted

HOME = TABLE.location
LATER_MS = 1_800_000_000_000
ALL_BUT_ONE = ExpireOptions(
    num_retained_min=1,
    num_retained_max=2**31 - 1,
    time_retained_ms=0,
    limit=50,
    clean_empty_directories=False,
    changelog_decoupled=False,
)


def _expire(
    table: Lineage,
    storage: Storage | None = None,
    *,
    keep: int = 1,
    keep_from: int | None = None,
    **options: object,
) -> Expired:
    changed = {"num_retained_min": keep, **options}
    return expire_snapshots(
        storage or table.storage,
        TABLE,
        bucket_folder=lambda bucket: paths.bucket_folder(HOME, "", bucket.bucket),
        options=replace(ALL_BUT_ONE, **changed),  # type: ignore[arg-type]
        now_ms=LATER_MS,
        keep_from=keep_from,
    )


def _table() -> Lineage:
    """Snapshots 1 and 2 add files, 3 merges them, 4 adds one, 5 merges all."""
    table = Lineage()
    first = table.append(2, commits=2)
    merged = table.compacted_by_others(first)
    more = table.append(1)
    table.compacted_by_others([merged, *more])
    return _with_data(table)


def _with_data(table: Lineage) -> Lineage:
    """Make the data files of all snapshots."""
    for snapshot in _snapshots(table):
        for manifest in delta_manifests(table.storage, HOME, snapshot):
            for entry in read_entries(table.storage, HOME, manifest):
                for name in (entry.file.file_name, *entry.file.extra_files):
                    path = f"{HOME}/bucket-{entry.bucket}/{name}"
                    table.storage.objects.setdefault(path, b"rows")
    return table


def _snapshots(table: Lineage) -> list[Snapshot]:
    ids = snapshot_ids(table.storage, HOME)
    return [read_snapshot(table.storage, HOME, id_) for id_ in ids]


def _snapshot(table: Lineage, id_: int) -> Snapshot:
    return read_snapshot(table.storage, HOME, id_)


def _lacks(storage: Storage, snapshots: Sequence[Snapshot]) -> list[str]:
    """Data files of these snapshots that are not there; raises when metadata is not."""
    lacking = []
    for snapshot in snapshots:
        live: dict[object, tuple[int, DataFile]] = {}
        for manifest in data_manifests(storage, HOME, snapshot):
            for entry in read_entries(storage, HOME, manifest):
                if entry.kind is EntryKind.ADD:
                    live[entry.identity] = (entry.bucket, entry.file)
                else:
                    live.pop(entry.identity, None)
        for bucket, file in live.values():
            path = f"{HOME}/bucket-{bucket}/{file.file_name}"
            if storage.status(path) is None:
                lacking.append(f"snapshot {snapshot.id}: {path}")
    return lacking


def _check(table: Lineage) -> None:
    """Every snapshot and tag that is there is whole."""
    kept = [*_snapshots(table), *read_tags(table.storage, HOME).values()]
    assert _lacks(table.storage, kept) == []


def _data(table: Lineage) -> set[str]:
    return {path.rsplit("/", 1)[1] for path in table.storage.objects if "/bucket-" in path}


def _tag(table: Lineage, snapshot: Snapshot, name: str = "v1", root: str = HOME) -> None:
    table.storage.overwrite(paths.tag_path(root, name), snapshot_json(snapshot))


def test_old_snapshots_go_with_what_only_they_needed() -> None:
    table = _table()
    newest = table.files()[0]
    done = _expire(table)
    assert (done.first, done.end, done.snapshots) == (1, 5, 4)
    assert _data(table) == {newest.file_name}
    assert snapshot_ids(table.storage, HOME) == (5,)
    assert done.data_files == 6
    assert done.size_bytes == 6 * 1000
    assert table.storage.read(paths.earliest_hint(HOME)) == b"5"
    # What snapshot 5 needs: two lists and the manifests in its base and delta.
    manifests = [p for p in table.storage.objects if "/manifest/" in p]
    assert len(manifests) == 2 + len(data_manifests(table.storage, HOME, _snapshot(table, 5)))
    _check(table)


@pytest.mark.parametrize("order", [1, -1])
def test_an_upgraded_file_stays(order: int) -> None:
    table = Lineage()
    [file] = table.append(1)
    entry = table._entry(file, 0)
    upgraded = replace(entry, file=replace(file, level=5))
    table._foreign([deleted(entry), upgraded][::order], CommitKind.COMPACT)
    table.append(1, bucket=1)
    _with_data(table)
    assert _expire(table).data_files == 0
    _check(table)


def test_extra_files_go_with_their_data_file() -> None:
    table = Lineage()
    file = replace(table.new_file(), extra_files=("data-0.parquet.index",))
    table._foreign([table._entry(file, 0)], CommitKind.APPEND)
    table._foreign([deleted(table._entry(file, 0))], CommitKind.OVERWRITE)
    _with_data(table)
    assert _expire(table).data_files == 2
    assert _data(table) == set()


def test_what_the_oldest_reader_was_planned_on_stays_with_all_its_files() -> None:
    table = _table()
    planned_on = _snapshot(table, 3)
    done = _expire(table, keep_from=3)
    assert (done.end, done.more) == (3, False)
    assert _lacks(table.storage, [planned_on]) == []
    _check(table)


def test_a_second_round_takes_what_the_limit_left() -> None:
    table = _table()
    first = _expire(table, limit=2)
    assert (first.first, first.end, first.more) == (1, 3, True)
    assert first.data_files == 4
    _check(table)
    second = _expire(table, limit=2)
    assert (second.first, second.end, second.more) == (3, 5, False)
    # The files that snapshot 3 deletes are gone already.
    assert second.data_files == 2
    assert _expire(table).snapshots == 0


def test_a_table_without_snapshots_or_with_one_is_left_alone() -> None:
    table = Lineage()
    assert _expire(table) == Expired()
    table.append(1)
    assert _expire(table).snapshots == 0
    assert table.storage.read(paths.earliest_hint(HOME)) == b"1"


def test_an_earliest_hint_that_is_there_is_not_written_again() -> None:
    table = Lineage()
    table.append(1)
    table.storage.overwrite(paths.earliest_hint(HOME), b"77")
    _expire(table)
    assert table.storage.read(paths.earliest_hint(HOME)) == b"77"


@pytest.mark.parametrize("tagged", [1, 2, 3, 4])
def test_tags_keep_their_files(tagged: int) -> None:
    table = _table()
    _tag(table, _snapshot(table, tagged))
    _expire(table)
    _check(table)
    table.storage.delete(paths.tag_path(HOME, "v1"))


def test_a_tag_on_the_snapshot_that_deletes_does_not_stand_before_an_older_tag() -> None:
    table = _table()
    for id_ in (2, 3):
        _tag(table, _snapshot(table, id_), f"v{id_}")
    _expire(table)
    _check(table)


@pytest.mark.parametrize(("tagged", "later"), [(4, 0), (4, 2), (6, 2)])
def test_a_tag_on_a_snapshot_that_was_replaced_keeps_its_files(tagged: int, later: int) -> None:
    """The tag's id is that of another snapshot now, or of none yet."""
    table = Lineage()
    table.append(2, commits=tagged)
    lost = _snapshot(table, tagged)
    _tag(table, lost)
    _with_data(table)
    table.roll_back(2)
    table.compacted_by_others(table.files())
    if later:
        table.history.snapshot = _snapshots(table)[-1]
        table.history.merge_manifests()
        table.append(1)
    _with_data(table)
    assert _expire(table).snapshots == 2 + later
    assert _lacks(table.storage, [lost]) == []


@pytest.mark.parametrize(
    ("first", "end", "expected"),
    [
        (1, 2, []),
        (1, 3, []),
        (1, 4, [3]),
        (3, 9, [3, 5, 8]),
        (4, 8, [3, 5]),
        (5, 8, [5]),
        (6, 7, [5]),
        (20, 30, [10]),
    ],
)
def test_the_tags_whose_manifests_may_be_met_are_javas(
    first: int, end: int, expected: list[int]
) -> None:
    snapshot = _snapshot(_table(), 1)
    tags = [replace(snapshot, id=id_) for id_ in (3, 5, 8, 10)]
    assert [tag.id for tag in skipping_tags(tags, first, end)] == expected


@pytest.mark.parametrize("keep", ["branch snapshot", "branch tag", "changelog", "branch log"])
def test_branches_and_long_lived_changelogs_keep_their_files(keep: str) -> None:
    table = _table()
    snapshot = _snapshot(table, 2)
    root = paths.branch_root(HOME, "dev")
    path = {
        "branch snapshot": paths.snapshot_path(root, 2),
        "branch tag": paths.tag_path(root, "v1"),
        "changelog": paths.changelog_path(HOME, 2),
        "branch log": paths.changelog_path(root, 2),
    }[keep]
    table.storage.write_new(path, snapshot_json(snapshot))
    _expire(table)
    assert _lacks(table.storage, [snapshot]) == []
    _check(table)


def test_a_branch_does_not_keep_what_it_had_deleted_itself() -> None:
    table = _table()
    root = paths.branch_root(HOME, "dev")
    table.storage.write_new(paths.snapshot_path(root, 4), snapshot_json(_snapshot(table, 4)))
    assert _expire(table).data_files == 4


def test_a_damaged_branch_holds_nothing_up_and_keeps_what_it_still_names() -> None:
    table = _table()
    snapshot = _snapshot(table, 2)
    gone = replace(snapshot, base_manifest_list="manifest-list-gone", base_manifest_list_size=1)
    root = paths.branch_root(HOME, "dev")
    table.storage.write_new(paths.snapshot_path(root, 2), snapshot_json(gone))
    done = _expire(table)
    # Of the four files that snapshot 3 deletes, the branch still names the two of its delta.
    assert (done.snapshots, done.data_files) == (4, 4)


def test_a_file_that_a_later_snapshot_brings_back_stays() -> None:
    table = _table()
    back = [
        e
        for m in delta_manifests(table.storage, HOME, _snapshot(table, 1))
        for e in read_entries(table.storage, HOME, m)
    ]
    now = [deleted(table._entry(file, 0)) for file in table.files()]
    table._foreign([*now, *back], CommitKind.OVERWRITE)
    for keep in (2, 1):
        fork = table.fork()
        _expire(fork, keep=keep)
        _check(fork)
    # Deleted once more, they go.
    table.compacted_by_others([e.file for e in back])
    _with_data(table)
    _expire(table)
    _check(table)
    assert not {e.file.file_name for e in back} & _data(table)


def test_a_snapshot_that_was_replaced_after_its_successor_was_made_deletes_nothing_live() -> None:
    table = Lineage()
    files = table.append(2)
    foreign = table.fork()
    table.append(1, commits=2)
    _with_data(table)
    # Another writer's rename replaces snapshot 2 by a merge that snapshot 3 knows nothing of.
    foreign.compacted_by_others(files)
    for path, data in foreign.storage.objects.items():
        if "/manifest/" in path:
            table.storage.objects.setdefault(path, data)
    intruder = foreign.storage.read(paths.snapshot_path(HOME, 2))
    table.storage.overwrite(paths.snapshot_path(HOME, 2), intruder)
    _with_data(table)
    done = _expire(table)
    assert done.snapshots == 2
    _check(table)


def test_a_snapshot_without_changes_does_not_hide_that_an_earlier_one_was_replaced() -> None:
    table = Lineage()
    files = table.append(2)
    foreign = table.fork()
    table.append(1, commits=3)
    _with_data(table)
    foreign.compacted_by_others(files)
    foreign._foreign([], CommitKind.COMPACT)
    for path, data in foreign.storage.objects.items():
        if "/manifest/" in path:
            table.storage.objects.setdefault(path, data)
    for id_ in (2, 3):
        path = paths.snapshot_path(HOME, id_)
        table.storage.overwrite(path, foreign.storage.read(path))
    assert _expire(table).snapshots == 3
    _check(table)


def test_a_snapshot_that_is_missing_in_between_may_have_brought_files_back() -> None:
    table = Lineage()
    files = table.append(2)
    back = [table._entry(file, 0) for file in files]
    table._foreign([deleted(entry) for entry in back], CommitKind.OVERWRITE)
    table._foreign(back, CommitKind.OVERWRITE)
    table.append(1, commits=2)
    _with_data(table)
    table.storage.delete(paths.snapshot_path(HOME, 3))
    assert _expire(table).snapshots == 3
    names = {file.file_name for file in files}
    assert names <= _data(table)


def test_merged_manifests_do_not_hide_what_may_go() -> None:
    table = _merged_table()
    done = _expire(table)
    assert (done.snapshots, done.data_files) == (6, 6)
    # Five deltas, each with one manifest, and two lists for each snapshot.
    assert done.manifests == 5 + 2 * 6
    assert done.size_bytes > 6 * 1000
    _check(table)


def test_half_of_a_delta_is_not_taken_for_all_of_it() -> None:
    """An expiry that was cut short has removed the manifest that adds an upgraded file again."""
    table = Lineage()
    [file] = table.append(1)
    entry = table._entry(file, 0)
    upgraded = replace(entry, file=replace(file, level=5))
    history = table.history
    history.snapshot = _snapshots(table)[-1]
    base = data_manifests(table.storage, HOME, history.snapshot)
    snapshot = history.commit_on(base, [deleted(entry)], CommitKind.COMPACT)
    [adding] = history.write_manifests([upgraded])
    deleting = delta_manifests(table.storage, HOME, snapshot)
    name, size = history._write_list([*deleting, adding])
    whole = replace(snapshot, delta_manifest_list=name, delta_manifest_list_size=size)
    table.storage.overwrite(paths.snapshot_path(HOME, 2), snapshot_json(whole))
    history.snapshot = whole
    history.merge_manifests()
    _with_data(table)
    table.storage.delete(paths.manifest_path(HOME, adding.file_name))
    assert _expire(table).snapshots == 2
    _check(table)


def _index(table: Lineage, number: int, files: Sequence[str]) -> str:
    name = f"index-manifest-{number}"
    records = [
        {
            "_VERSION": 1,
            "_KIND": 0,
            "_PARTITION": bucket_id(0).partition,
            "_BUCKET": 0,
            "_INDEX_TYPE": "HASH",
            "_FILE_NAME": file,
            "_FILE_SIZE": 1,
            "_ROW_COUNT": 1,
            "_DELETIONS_VECTORS_RANGES": None,
            "_EXTERNAL_PATH": None,
            "_GLOBAL_INDEX": None,
        }
        for file in files
    ]
    data = encode_container(INDEX_MANIFEST, records, codec_of("zstd", 1))
    table.storage.write_new(paths.manifest_path(HOME, name), data)
    for file in files:
        table.storage.objects.setdefault(paths.index_path(HOME, file), b"index")
    return name


def _set(table: Lineage, id_: int, **changed: object) -> None:
    snapshot = replace(_snapshot(table, id_), **changed)  # type: ignore[arg-type]
    if snapshot.statistics is not None:
        path = paths.statistics_path(HOME, snapshot.statistics)
        table.storage.objects.setdefault(path, b"statistics")
    table.storage.overwrite(paths.snapshot_path(HOME, id_), snapshot_json(snapshot))


def _names(table: Lineage, folder: str) -> set[str]:
    return {p.rsplit("/", 1)[1] for p in table.storage.objects if f"/{folder}/" in p}


def test_index_files_and_statistics_go_unless_something_kept_has_them() -> None:
    table = _table()
    tagged = _index(table, 1, ["index-1", "index-2"])
    _set(table, 1, index_manifest=tagged, statistics="stat-1")
    _tag(table, _snapshot(table, 1))
    _set(table, 2, index_manifest=_index(table, 2, ["index-2", "index-3"]), statistics="stat-2")
    _set(table, 3, index_manifest=_index(table, 3, ["index-3", "index-4"]), statistics="stat-3")
    rolled_back = _index(table, 4, ["index-5"])
    _set(table, 4, index_manifest=rolled_back, statistics="stat-4")
    last = _index(table, 5, ["index-4"])
    _set(table, 5, index_manifest=last, statistics="stat-5")
    table.append(1)
    _set(table, 6, index_manifest=rolled_back, statistics="stat-4")
    done = _expire(table, keep=2)
    assert _names(table, "index") == {"index-1", "index-2", "index-4", "index-5"}
    assert _names(table, "statistics") == {"stat-1", "stat-4", "stat-5"}
    kept = {n for n in _names(table, "manifest") if n.startswith("index-manifest")}
    assert kept == {tagged, rolled_back, last}
    assert done.index_files == 1 + 2


def test_changelog_files_go_with_their_snapshot_unless_a_branch_has_it() -> None:
    table = _table()
    for id_ in (1, 2):
        entry = table._entry(replace(table.new_file(), file_name=f"changelog-{id_}.parquet"), 0)
        listed = table.history._write_list(table.history.write_manifests([entry]))
        _set(table, id_, changelog_manifest_list=listed[0], changelog_manifest_list_size=listed[1])
        table.storage.write_new(f"{HOME}/bucket-0/changelog-{id_}.parquet", b"rows")
    root = paths.branch_root(HOME, "dev")
    kept = _snapshot(table, 2)
    table.storage.write_new(paths.snapshot_path(root, 2), snapshot_json(kept))
    done = _expire(table)
    assert done.changelog_files == 1
    assert {n for n in _data(table) if n.startswith("changelog")} == {"changelog-2.parquet"}
    assert kept.changelog_manifest_list in _names(table, "manifest")


def test_consumers_hold_expiry_back() -> None:
    table = _table()
    path = paths.consumer_path(HOME, "app")
    table.storage.overwrite(path, b'{"nextSnapshot": 3}')
    assert _expire(table).end == 3
    table.storage.delete(path)
    assert _expire(table).end == 5


def _damage(table: Lineage, what: str) -> None:
    end = _snapshot(table, 5)
    path = {
        "snapshot": paths.snapshot_path(HOME, 2),
        "tag": paths.tag_path(HOME, "v2"),
        "branch tag": paths.tag_path(paths.branch_root(HOME, "dev"), "v2"),
        "consumer": paths.consumer_path(HOME, "app"),
        "expiring list": paths.manifest_path(HOME, _snapshot(table, 2).base_manifest_list),
        "remaining list": paths.manifest_path(HOME, end.delta_manifest_list),
        "expiring manifest": paths.manifest_path(
            HOME, delta_manifests(table.storage, HOME, _snapshot(table, 3))[0].file_name
        ),
    }[what]
    table.storage.overwrite(path, b"damaged")


@pytest.mark.parametrize(
    "what",
    [
        "snapshot",
        "tag",
        "branch tag",
        "consumer",
        "expiring list",
        "remaining list",
        "expiring manifest",
    ],
)
def test_damage_stops_it_before_anything_is_deleted(what: str) -> None:
    table = _table()
    _tag(table, _snapshot(table, 1))
    _damage(table, what)
    before = dict(table.storage.objects)
    with pytest.raises(FormatError):
        _expire(table)
    assert table.storage.objects == before


@pytest.mark.parametrize("what", ["remaining list", "tag's manifest", "remaining delta"])
def test_metadata_that_is_missing_where_it_must_not_be_stops_it(what: str) -> None:
    table = _table()
    _tag(table, _snapshot(table, 1))
    end = _snapshot(table, 5)
    tagged = data_manifests(table.storage, HOME, _snapshot(table, 1))[0].file_name
    name = {
        "remaining list": end.base_manifest_list,
        "tag's manifest": tagged,
        "remaining delta": delta_manifests(table.storage, HOME, end)[0].file_name,
    }[what]
    table.storage.delete(paths.manifest_path(HOME, name))
    before = dict(table.storage.objects)
    with pytest.raises(ObjectNotFound):
        _expire(table)
    assert table.storage.objects == before


@pytest.mark.parametrize("folder", ["tag", "branch", "consumer", "changelog"])
def test_a_listing_that_fails_stops_it(folder: str) -> None:
    table = _table()
    before = dict(table.storage.objects)
    fault = Fault(
        at=1, error=TransientStorageError, concerns=lambda c: c.path == f"{HOME}/{folder}"
    )
    with pytest.raises(TransientStorageError):
        _expire(table, FaultyStorage(table.storage, fault))
    assert table.storage.objects == before


def test_changelogs_that_shall_outlive_their_snapshots_are_declined_by_name() -> None:
    table = _table()
    before = dict(table.storage.objects)
    done = _expire(table, changelog_decoupled=True)
    assert done.snapshots == 0
    assert "changelogs" in str(done.why_not)
    assert table.storage.objects == before


def test_files_outside_of_the_table_are_refused() -> None:
    table = Lineage()
    file = replace(table.new_file(), external_path="/elsewhere/data-0.parquet")
    table._foreign([table._entry(file, 0)], CommitKind.APPEND)
    table._foreign([deleted(table._entry(file, 0))], CommitKind.OVERWRITE)
    before = dict(table.storage.objects)
    with pytest.raises(UnsupportedTable, match="/elsewhere/"):
        _expire(table)
    assert table.storage.objects == before


def test_options_that_contradict_each_other_are_refused() -> None:
    table = _table()
    with pytest.raises(UsageError):
        _expire(table, keep=3, num_retained_max=2)


def _before_first_deletion(act: Callable[[], None], end: int = 5) -> Callable[[Call], None]:
    """Acts when everything is decided: just before the last look at the table."""
    state = {"reads": 0, "acted": 0}

    def before(call: Call) -> None:
        if call.path == paths.snapshot_path(HOME, end) and call.method == "read":
            state["reads"] += 1
        if state["reads"] == 2 and not state["acted"]:
            state["acted"] = 1
            act()

    return before


def _replace_end(table: Lineage) -> None:
    _set(table, 5, uuid="another")


def _tag_oldest(table: Lineage) -> None:
    _tag(table, _snapshot(table, 1), "late")


def _roll_back(table: Lineage) -> None:
    table.roll_back(2)


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (_replace_end, "snapshot 5 was replaced"),
        (_roll_back, "snapshot 5 is gone"),
        (_tag_oldest, "tags"),
    ],
)
def test_a_table_that_changed_meanwhile_loses_nothing(
    act: Callable[[Lineage], None], named: str
) -> None:
    table = _table()
    before = _data(table)
    storage = HookedStorage(table.storage, before=_before_first_deletion(lambda: act(table)))
    done = _expire(table, storage)
    assert named in str(done.why_not)
    assert (done.snapshots, done.data_files, done.more) == (0, 0, False)
    assert _data(table) == before
    _check(table)


def test_no_further_round_is_asked_for_when_the_table_changed_meanwhile() -> None:
    table = _table()
    before = _before_first_deletion(lambda: _tag_oldest(table), end=3)
    done = _expire(table, HookedStorage(table.storage, before=before), limit=2)
    assert (done.end, done.more) == (3, False)
    assert done.why_not is not None


@pytest.mark.parametrize(("files", "left"), [(2, 2), (150, 53)])
def test_a_change_after_the_first_deletion_stops_the_rest_soon(files: int, left: int) -> None:
    table = Lineage()
    table.compacted_by_others(table.append(files))
    table.append(1)
    _with_data(table)
    count = len(_data(table))

    def after(call: Call) -> None:
        if call.method == "delete":
            _tag(table, _snapshot(table, 3), "late")

    done = _expire(table, HookedStorage(table.storage, after=after))
    assert "tags" in str(done.why_not)
    assert (done.manifests, done.snapshots) == (0, 0)
    assert done.data_files == count - len(_data(table))
    assert len(_data(table)) == left


def test_another_expiry_at_any_moment_does_no_harm() -> None:
    expected = _table()
    _expire(expected)
    for at in range(1, 1000):
        table = _table()

        def other(call: Call, table: Lineage = table, at: int = at) -> None:
            if call.number == at:
                _expire(table)

        storage = HookedStorage(table.storage, before=other)
        _expire(table, storage)
        assert _shape(table.storage) == _shape(expected.storage), at
        _check(table)
        if storage.calls < at:
            break
    assert at > 40


def _shape(storage: MemoryStorage) -> dict[str, bool]:
    """Which paths there are; the hint with its content."""
    return {
        path: path.endswith("EARLIEST") and data == b"5" for path, data in storage.objects.items()
    }


def test_an_expiry_that_goes_further_meanwhile_is_not_an_error() -> None:
    for at in range(1, 1000):
        table = _table()

        methods: list[str] = []

        def other(call: Call, table: Lineage = table, at: int = at, m: list[str] = methods) -> None:
            m.append(call.method)
            if call.number == at:
                _expire(table)

        storage = HookedStorage(table.storage, before=other)
        _expire(table, storage, keep_from=3)
        _check(table)
        if storage.calls < at:
            break
        assert snapshot_ids(table.storage, HOME) == (5,), at
        # Between the last look and the writing of the hint nobody can tell.
        if "overwrite" not in methods[at - 1 : at + 1]:
            assert table.storage.read(paths.earliest_hint(HOME)) == b"5", at
    assert at > 40


def test_a_deletion_that_fails_is_an_error_and_the_next_round_goes_on() -> None:
    expected = _table()
    _expire(expected)
    table = _table()
    fault = Fault(at=3, error=StorageError, concerns=lambda c: c.method == "delete")
    with pytest.raises(CompactordError):
        _expire(table, FaultyStorage(table.storage, fault))
    _expire(table)
    assert _shape(table.storage) == _shape(expected.storage)


def test_a_hint_that_cannot_be_written_is_no_failure() -> None:
    table = _table()
    fault = Fault(at=1, error=StorageError, concerns=lambda c: c.method == "overwrite")
    done = _expire(table, FaultyStorage(table.storage, fault))
    assert done.snapshots == 4
    assert snapshot_ids(table.storage, HOME) == (5,)


def _merged_table() -> Lineage:
    """As `_table`, and two more snapshots: one that merges the manifests and one file more."""
    table = _table()
    table.history.snapshot = _snapshots(table)[-1]
    table.history.merge_manifests()
    table.append(1)
    return _with_data(table)


def test_snapshots_go_last_and_oldest_first_and_lists_after_their_manifests() -> None:
    table = _merged_table()
    order: list[str] = []

    def before(call: Call) -> None:
        if call.method == "delete":
            order.append(call.path)

    _expire(table, HookedStorage(table.storage, before=before))
    kinds = [
        "data" if "/bucket-" in p else "list" if "-list-" in p else p.split("/")[-2] for p in order
    ]
    assert list(dict.fromkeys(kinds)) == ["data", "manifest", "list", "snapshot"]
    assert [p.rsplit("-", 1)[1] for p in order if "/snapshot/" in p] == list("123456")


def test_unknown_keys_of_a_consumer_do_not_matter() -> None:
    table = _table()
    table.storage.overwrite(
        paths.consumer_path(HOME, "app"), json.dumps({"nextSnapshot": 2, "x": 1}).encode()
    )
    assert _expire(table).end == 2
