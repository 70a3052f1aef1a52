"""Expiry of snapshots that were replaced, rolled back, or lost some of their metadata."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.paimon import paths
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.manifest.manifest_files import read_entries
from compactord.paimon.snapshot import CommitKind, read_tags, snapshot_json
from compactord.state.table_state import data_manifests, delta_manifests
from tests.lineage import Lineage
from tests.storages import RecordingStorage
from tests.unit.maintenance.expiring import (
    HOME,
    check,
    data_files,
    expire,
    lacks,
    make_tag,
    snapshot_of,
    snapshots_of,
    some_table,
    with_data,
)
from tests.unit.paimon.table_builder import deleted

# When the builder's tables begin.
START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


@pytest.mark.parametrize(("tagged", "later"), [(4, 0), (4, 2), (6, 2)])
def test_a_tag_on_a_snapshot_that_was_replaced_keeps_its_files(tagged: int, later: int) -> None:
    """The tag's id is that of another snapshot now, or of none yet."""
    table = Lineage()
    table.append(2, commits=tagged)
    lost = snapshot_of(table, tagged)
    make_tag(table, lost)
    with_data(table)
    table.roll_back(2)
    table.compacted_by_others(table.files())
    if later:
        table.history.snapshot = snapshots_of(table)[-1]
        table.history.merge_manifests()
        table.append(1)
    with_data(table)
    assert expire(table).snapshots == 2 + later
    assert lacks(table.storage, [lost]) == []


def _added(table: Lineage, snapshot_id: int) -> list[ManifestEntry]:
    return [
        e
        for m in delta_manifests(table.storage, HOME, snapshot_of(table, snapshot_id))
        for e in read_entries(table.storage, HOME, m)
    ]


def test_a_file_that_a_later_snapshot_brings_back_stays() -> None:
    table = some_table()
    back = _added(table, 1)
    now = [deleted(table._entry(file, 0)) for file in table.files()]
    table._foreign([*now, *back], CommitKind.OVERWRITE)
    for keep in (2, 1):
        fork = table.fork()
        expire(fork, keep=keep)
        check(fork)
    # Deleted once more, they go.
    table.compacted_by_others([e.file for e in back])
    with_data(table)
    expire(table)
    check(table)
    assert not {e.file.file_name for e in back} & data_files(table)


@pytest.mark.parametrize("made", [None, -HOUR_MS, 47 * HOUR_MS])
def test_a_tag_keeps_what_was_brought_back_although_a_later_tag_lacks_it(made: int | None) -> None:
    """Whatever the clock of the file's writer said, as hours before or after the tag."""
    table = Lineage()
    file = table.new_file()
    if made is not None:
        file = replace(file, creation_time_ms=START_MS + made)
    added = table._entry(file, 0)
    table._foreign([added], CommitKind.APPEND)
    table._foreign([deleted(added), table._entry(table.new_file(), 0)], CommitKind.OVERWRITE)
    first, second = snapshot_of(table, 1), snapshot_of(table, 2)
    make_tag(table, first, "first")
    make_tag(table, second, "second")
    # What goes with it is newer than all tags.
    new = replace(table.new_file(), creation_time_ms=START_MS + 99 * HOUR_MS)
    table._foreign([added, table._entry(new, 0)], CommitKind.OVERWRITE)
    table.compacted_by_others([file, new])
    with_data(table)
    expire(table)
    assert lacks(table.storage, [first, second]) == []
    assert new.file_name not in data_files(table)


def test_the_last_tag_keeps_its_files_whatever_the_clock_of_their_writer_said() -> None:
    table = Lineage()
    file = replace(table.new_file(), creation_time_ms=START_MS + 99 * HOUR_MS)
    table._foreign([table._entry(file, 0)], CommitKind.APPEND)
    make_tag(table, snapshot_of(table, 1))
    table.compacted_by_others([file])
    with_data(table)
    expire(table)
    check(table)


@pytest.mark.parametrize("tagged", [1, 2, 3])
def test_a_tag_keeps_the_manifests_that_others_have_merged(tagged: int) -> None:
    table = Lineage()
    table.append(1, commits=3)
    table.history.snapshot = snapshots_of(table)[-1]
    table.history.merge_manifests()
    table.append(1)
    make_tag(table, snapshot_of(table, tagged))
    with_data(table)
    expire(table)
    check(table)


def test_tags_that_are_older_than_all_that_goes_are_not_read() -> None:
    table = Lineage()
    table.append(1)
    make_tag(table, snapshot_of(table, 1), "old")
    # The next one has other manifests.
    table.history.merge_manifests()
    make_tag(table, snapshot_of(table, 2), "nearest")
    new = replace(table.new_file(), creation_time_ms=START_MS + 49 * HOUR_MS)
    table._foreign([table._entry(new, 0)], CommitKind.APPEND)
    table.compacted_by_others([new])
    with_data(table)
    storage = RecordingStorage(table.storage)
    assert expire(table, storage).data_files == 1
    [manifest] = delta_manifests(table.storage, HOME, snapshot_of(table, 4))[:1]
    read = {call.path.rsplit("/", 1)[1] for call in storage.log if call.method == "read"}
    assert manifest.file_name in read
    old = data_manifests(table.storage, HOME, read_tags(table.storage, HOME)["old"])
    assert not {m.file_name for m in old} & read


def test_a_snapshot_that_was_replaced_after_its_successor_was_made_deletes_nothing_live() -> None:
    table = Lineage()
    files = table.append(2)
    foreign = table.fork()
    table.append(1, commits=2)
    with_data(table)
    # Another writer's rename replaces snapshot 2 by a merge that snapshot 3 knows nothing of.
    foreign.compacted_by_others(files)
    for path, data in foreign.storage.objects.items():
        if "/manifest/" in path:
            table.storage.objects.setdefault(path, data)
    intruder = foreign.storage.read(paths.snapshot_path(HOME, 2))
    table.storage.overwrite(paths.snapshot_path(HOME, 2), intruder)
    with_data(table)
    done = expire(table)
    assert done.snapshots == 2
    check(table)


def test_a_snapshot_without_changes_does_not_hide_that_an_earlier_one_was_replaced() -> None:
    table = Lineage()
    files = table.append(2)
    foreign = table.fork()
    table.append(1, commits=3)
    with_data(table)
    foreign.compacted_by_others(files)
    foreign._foreign([], CommitKind.COMPACT)
    for path, data in foreign.storage.objects.items():
        if "/manifest/" in path:
            table.storage.objects.setdefault(path, data)
    for id_ in (2, 3):
        path = paths.snapshot_path(HOME, id_)
        table.storage.overwrite(path, foreign.storage.read(path))
    assert expire(table).snapshots == 3
    check(table)


def test_a_snapshot_that_is_missing_in_between_may_have_brought_files_back() -> None:
    table = Lineage()
    files = table.append(2)
    back = [table._entry(file, 0) for file in files]
    table._foreign([deleted(entry) for entry in back], CommitKind.OVERWRITE)
    table._foreign(back, CommitKind.OVERWRITE)
    table.append(1, commits=2)
    with_data(table)
    table.storage.delete(paths.snapshot_path(HOME, 3))
    assert expire(table).snapshots == 3
    names = {file.file_name for file in files}
    assert names <= data_files(table)


def test_half_of_a_delta_is_not_taken_for_all_of_it() -> None:
    """An expiry that was cut short has removed the manifest that adds an upgraded file again."""
    table = Lineage()
    [file] = table.append(1)
    entry = table._entry(file, 0)
    upgraded = replace(entry, file=replace(file, level=5))
    history = table.history
    history.snapshot = snapshots_of(table)[-1]
    base = data_manifests(table.storage, HOME, history.snapshot)
    snapshot = history.commit_on(base, [deleted(entry)], CommitKind.COMPACT)
    [adding] = history.write_manifests([upgraded])
    deleting = delta_manifests(table.storage, HOME, snapshot)
    name, size = history._write_list([*deleting, adding])
    whole = replace(snapshot, delta_manifest_list=name, delta_manifest_list_size=size)
    table.storage.overwrite(paths.snapshot_path(HOME, 2), snapshot_json(whole))
    history.snapshot = whole
    history.merge_manifests()
    with_data(table)
    table.storage.delete(paths.manifest_path(HOME, adding.file_name))
    assert expire(table).snapshots == 2
    check(table)
