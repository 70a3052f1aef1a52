"""What keeps expiry from beginning, and what stops it on its way."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

import pytest

from compactord.errors import (
    CompactordError,
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
    UnsupportedTable,
    UsageError,
)
from compactord.maintenance.used_names import hint_trouble
from compactord.paimon import paths
from compactord.paimon.snapshot import (
    CommitKind,
    snapshot_ids,
)
from compactord.state.table_state import data_manifests, delta_manifests
from compactord.storage.calls import AT_ONCE
from tests.builders import consumer_path
from tests.lineage import Lineage
from tests.storages import (
    Call,
    Fault,
    FaultyStorage,
    HookedStorage,
    LateListings,
    MemoryStorage,
)
from tests.unit.maintenance.expiring import (
    HOME,
    change,
    check,
    data_files,
    expire,
    make_tag,
    snapshot_of,
    some_table,
    with_data,
)
from tests.unit.paimon.table_builder import deleted


def _damage(table: Lineage, what: str) -> None:
    end = snapshot_of(table, 5)
    path = {
        "snapshot": paths.snapshot_path(HOME, 2),
        "tag": paths.tag_path(HOME, "v2"),
        "branch tag": paths.tag_path(paths.branch_root(HOME, "dev"), "v2"),
        "consumer": consumer_path(HOME, "app"),
        "expiring list": paths.manifest_path(HOME, snapshot_of(table, 2).base_manifest_list),
        "remaining list": paths.manifest_path(HOME, end.delta_manifest_list),
        "expiring manifest": paths.manifest_path(
            HOME, delta_manifests(table.storage, HOME, snapshot_of(table, 3))[0].file_name
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
    table = some_table()
    make_tag(table, snapshot_of(table, 1))
    _damage(table, what)
    before = dict(table.storage.objects)
    with pytest.raises(FormatError):
        expire(table)
    assert table.storage.objects == before


@pytest.mark.parametrize("what", ["remaining list", "tag's manifest", "remaining delta"])
def test_metadata_that_is_missing_where_it_must_not_be_stops_it(what: str) -> None:
    table = some_table()
    make_tag(table, snapshot_of(table, 1))
    end = snapshot_of(table, 5)
    tagged = data_manifests(table.storage, HOME, snapshot_of(table, 1))[0].file_name
    name = {
        "remaining list": end.base_manifest_list,
        "tag's manifest": tagged,
        "remaining delta": delta_manifests(table.storage, HOME, end)[0].file_name,
    }[what]
    table.storage.delete(paths.manifest_path(HOME, name))
    before = dict(table.storage.objects)
    with pytest.raises(ObjectNotFound):
        expire(table)
    assert table.storage.objects == before


@pytest.mark.parametrize("folder", ["tag", "branch", "consumer", "changelog"])
def test_a_listing_that_fails_stops_it(folder: str) -> None:
    table = some_table()
    before = dict(table.storage.objects)
    fault = Fault(
        at=1, error=TransientStorageError, concerns=lambda c: c.path == f"{HOME}/{folder}"
    )
    with pytest.raises(TransientStorageError):
        expire(table, FaultyStorage(table.storage, fault))
    assert table.storage.objects == before


def test_files_outside_of_the_table_are_refused() -> None:
    table = Lineage()
    file = replace(table.new_file(), external_path="/elsewhere/data-0.parquet")
    table._foreign([table._entry(file, 0)], CommitKind.APPEND)
    table._foreign([deleted(table._entry(file, 0))], CommitKind.OVERWRITE)
    before = dict(table.storage.objects)
    with pytest.raises(UnsupportedTable, match="/elsewhere/"):
        expire(table)
    assert table.storage.objects == before


def test_options_that_contradict_each_other_are_refused() -> None:
    table = some_table()
    with pytest.raises(UsageError):
        expire(table, keep=3, num_retained_max=2)


def test_the_snapshot_that_a_hint_names_stays_until_the_hint_has_moved() -> None:
    """A writer was killed before it moved it; the table must not pass for one that is restored."""
    table = some_table()
    for hinted in (3, 3, 5):
        table.storage.overwrite(paths.latest_hint(HOME), str(hinted).encode())
        done = expire(table)
        assert done.why_not is None
        assert snapshot_ids(table.storage, HOME)[0] == hinted


@pytest.mark.parametrize("hint", [b"", b"\0\0", b"4x"])
@pytest.mark.parametrize("branch", [paths.MAIN_BRANCH, "dev"])
def test_a_hint_without_a_number_lags(hint: bytes, branch: str) -> None:
    """A full disk, or a kill, while it is truncated and written, as Java does it."""
    table = some_table()
    root = paths.branch_root(HOME, branch)
    if branch != paths.MAIN_BRANCH:
        table.storage.overwrite(
            paths.snapshot_path(root, 2), table.storage.read(paths.snapshot_path(HOME, 2))
        )
    table.storage.overwrite(paths.latest_hint(root), hint)
    assert hint_trouble(table.storage, root, None, snapshot_ids(table.storage, root)) is None
    done = expire(table)
    assert (done.why_not, done.snapshots) == (None, 4)


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
    change(table, 5, uuid="another")


def _tag_oldest(table: Lineage) -> None:
    make_tag(table, snapshot_of(table, 1), "late")


def _branch_from_oldest(table: Lineage) -> None:
    root = paths.branch_root(HOME, "dev")
    oldest = table.storage.read(paths.snapshot_path(HOME, 1))
    table.storage.write_new(paths.snapshot_path(root, 1), oldest)


def _roll_back(table: Lineage) -> None:
    table.roll_back(2)


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (_replace_end, "snapshot 5 was replaced"),
        (_roll_back, "snapshot 5 is gone"),
        (_tag_oldest, "tags"),
        (_branch_from_oldest, "branches"),
    ],
)
def test_a_table_that_changed_meanwhile_loses_nothing(
    act: Callable[[Lineage], None], named: str
) -> None:
    table = some_table()
    before = data_files(table)
    storage = HookedStorage(table.storage, before=_before_first_deletion(lambda: act(table)))
    done = expire(table, storage)
    assert named in str(done.why_not)
    assert (done.snapshots, done.data_files, done.more) == (0, 0, False)
    assert data_files(table) == before
    check(table)


def test_no_further_round_is_asked_for_when_the_table_changed_meanwhile() -> None:
    table = some_table()
    before = _before_first_deletion(lambda: _tag_oldest(table), end=3)
    done = expire(table, HookedStorage(table.storage, before=before), limit=2)
    assert (done.end, done.more) == (3, False)
    assert done.why_not is not None


# Other threads delete one more each while one looks.
@pytest.mark.parametrize(("files", "left"), [(2, {2}), (150, range(54 - AT_ONCE, 54))])
def test_a_change_after_the_first_deletion_stops_the_rest_soon(
    files: int, left: Container[int]
) -> None:
    table = Lineage()
    table.compacted_by_others(table.append(files))
    table.append(1)
    with_data(table)
    count = len(data_files(table))

    def after(call: Call) -> None:
        if call.method == "delete":
            make_tag(table, snapshot_of(table, 3), "late")

    done = expire(table, HookedStorage(table.storage, after=after))
    assert "tags" in str(done.why_not)
    assert (done.manifests, done.snapshots) == (0, 0)
    assert done.data_files == count - len(data_files(table))
    assert len(data_files(table)) in left


def test_another_expiry_at_any_moment_does_no_harm() -> None:
    expected = some_table()
    expire(expected)
    for at in range(1, 1000):
        table = some_table()

        def other(call: Call, table: Lineage = table, at: int = at) -> None:
            if call.number == at:
                expire(table)

        storage = HookedStorage(table.storage, before=other)
        expire(table, storage)
        assert _shape(table.storage) == _shape(expected.storage), at
        check(table)
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
        table = some_table()

        methods: list[str] = []

        def other(call: Call, table: Lineage = table, at: int = at, m: list[str] = methods) -> None:
            m.append(call.method)
            if call.number == at:
                expire(table)

        storage = HookedStorage(table.storage, before=other)
        expire(table, storage, keep_from=3)
        check(table)
        if storage.calls < at:
            break
        assert snapshot_ids(table.storage, HOME) == (5,), at
        # Between the last look (tags, then branches) and the writing of the hint nobody can tell.
        if "overwrite" not in methods[at - 1 : at + 2]:
            assert table.storage.read(paths.earliest_hint(HOME)) == b"5", at
    assert at > 40


def test_a_deletion_that_fails_is_an_error_and_the_next_round_goes_on() -> None:
    expected = some_table()
    expire(expected)
    table = some_table()
    fault = Fault(at=3, error=StorageError, concerns=lambda c: c.method == "delete")
    with pytest.raises(CompactordError):
        expire(table, FaultyStorage(table.storage, fault))
    expire(table)
    assert _shape(table.storage) == _shape(expected.storage)


def test_a_hint_that_cannot_be_written_is_no_failure() -> None:
    table = some_table()
    fault = Fault(at=1, error=StorageError, concerns=lambda c: c.method == "overwrite")
    done = expire(table, FaultyStorage(table.storage, fault))
    assert done.snapshots == 4
    assert snapshot_ids(table.storage, HOME) == (5,)


@pytest.mark.parametrize("name", ["../../other.db/data-0.parquet", ".."])
@pytest.mark.parametrize("is_extra", [False, True])
def test_a_manifest_does_not_lead_to_files_of_another_table(name: str, is_extra: bool) -> None:
    table = Lineage()
    named = {"extra_files": (name,)} if is_extra else {"file_name": name}
    file = replace(table.new_file(), **named)  # type: ignore[arg-type]
    table._foreign([table._entry(file, 0)], CommitKind.APPEND)
    table._foreign([deleted(table._entry(file, 0))], CommitKind.OVERWRITE)
    before = dict(table.storage.objects)
    with pytest.raises(FormatError, match="is not a plain file name"):
        expire(table)
    assert table.storage.objects == before


@pytest.mark.parametrize(
    ("unlisted", "left", "why"),
    [
        # What it named is taken for needed no longer if it is not seen.
        ({5}, (1, 2, 3, 4, 5), "LATEST names snapshot 5, which is missing"),
        # They are expired next time.
        ({1, 2}, (1, 2, 5), None),
    ],
)
def test_a_store_that_lists_late_costs_nothing_that_is_needed(
    unlisted: set[int], left: tuple[int, ...], why: str | None
) -> None:
    table = some_table()
    late = LateListings(table.storage, {paths.snapshot_path(HOME, id_) for id_ in unlisted})
    done = expire(table, late)
    assert (done.why_not is None) is (why is None)
    assert why is None or why in str(done.why_not)
    assert snapshot_ids(table.storage, HOME) == left
    check(table)
    expire(table)
    assert snapshot_ids(table.storage, HOME) == (5,)
    check(table)
