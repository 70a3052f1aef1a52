"""The index files that a commit leaves: nothing that anybody deleted comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from compactord.commit.changes import BucketChange, CommitOutcome, Committed, NothingCommitted
from compactord.model import Conflict
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile
from compactord.paimon.deletion_vectors import VectorKind, kind_of, read_stored
from compactord.paimon.manifest.index_manifest import read_index_entries
from compactord.storage.base import Storage
from tests.builders import FIRST
from tests.deletions import LOCATION, Deletions, marks
from tests.lineage import APPENDED, DYNAMIC, KEYED, Kind, bucket_id
from tests.storages import RequestCounter

KINDS = (KEYED, APPENDED)


def _commit(
    table: Deletions, *changes: BucketChange, storage: Storage | None = None, **settings: object
) -> CommitOutcome:
    committer = table.committer(FIRST, storage)
    known = replace(table.settings, **settings)  # type: ignore[arg-type]
    return committer.commit(table.state(), changes, known)[0]


def _index_manifest(table: Deletions) -> str | None:
    snapshot = table.state().snapshot
    assert snapshot is not None
    return snapshot.index_manifest


def _leftovers(table: Deletions, *dropped: BucketChange) -> None:
    """Of what was committed nothing is left but the outputs of dropped changes."""
    outputs = {file.file_name for change in dropped for file in change.after}
    assert table.leftovers(FIRST) == outputs


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_change_of_vectors_the_index_manifest_stays(kind: Kind) -> None:
    table = Deletions(kind)
    a, b, c = table.append(3)
    table.delete_rows({c.file_name: [0]})
    table.delete_rows({c.file_name: [1]}, bucket=0)
    before = _index_manifest(table)
    assert isinstance(_commit(table, table.compaction([a, b], owner=FIRST)), Committed)
    assert _index_manifest(table) == before
    table.check()
    _leftovers(table)


@pytest.mark.parametrize(
    ("bucketed", "others", "left"),
    [
        (True, False, [[]]),
        (False, False, []),
        (True, True, [["c", "d"]]),
        (False, True, [["c"], ["d"]]),
    ],
)
def test_vectors_of_what_was_rewritten_go_and_the_others_stay(
    *, bucketed: bool, others: bool, left: list[list[str]]
) -> None:
    """Without buckets only the index file that had one of them is another one."""
    table = Deletions(KEYED if bucketed else APPENDED)
    files = dict(zip("abcd", table.append(4), strict=True))
    if others:
        table.delete_rows({files["d"].file_name: [4, 5]})
    first = {files["a"].file_name: [0, 9]} | ({files["c"].file_name: [3]} if others else {})
    table.delete_rows(first)
    before = table.index_files()
    change = table.compaction([files["a"], files["b"]], owner=FIRST)
    assert isinstance(_commit(table, change), Committed)
    now = table.index_files()
    names = [[files[each].file_name for each in one] for one in left]
    assert sorted(map(sorted, now.values())) == sorted(map(sorted, names))
    untouched = {name for name, here in before.items() if here == [files["d"].file_name]}
    assert now.keys() & before.keys() == (set() if bucketed else untouched)
    table.check()
    _leftovers(table)


def test_a_file_without_vectors_is_one_byte_long() -> None:
    table = Deletions(KEYED)
    files = table.append(2)
    table.delete_rows({files[0].file_name: [1]})
    _commit(table, table.compaction(files, owner=FIRST))
    (entry,) = table.state().indexes.entries
    assert (entry.file_size, entry.row_count, entry.vectors) == (1, 0, ())
    assert table.storage.read(paths.index_path(LOCATION, entry.file_name)) == b"\x01"


@pytest.mark.parametrize(
    ("rows", "kind", "found"),
    [
        ({"c": [1, 3]}, VectorKind.BITS_32, {"a": [5], "c": [1, 3]}),
        ({"c": [1, 3]}, VectorKind.BITS_64, {"a": [5], "c": [1, 3]}),
        ({"a": [5, 2], "b": [0]}, VectorKind.BITS_64, {"a": [2, 5], "b": [0]}),
        ({"a": [5]}, VectorKind.BITS_64, None),
        ({"a": []}, VectorKind.BITS_64, None),
    ],
)
@pytest.mark.parametrize("buckets", [KEYED, DYNAMIC])
def test_marks_are_added_in_the_kind_of_the_vector(
    rows: Mapping[str, list[int]],
    kind: VectorKind,
    found: Mapping[str, list[int]] | None,
    buckets: Kind,
) -> None:
    """What is marked already changes nothing. Java reads on from one index file of a bucket."""
    table = Deletions(buckets)
    table.vector_kind = kind
    above = [table.new_file(level=5, keys=(20 * n, 20 * n + 9)) for n in range(1, 4)]
    table.commit_as("w", 1, files=above)
    names = {letter: file.file_name for letter, file in zip("abc", above, strict=True)}
    table.delete_rows({names["a"]: [5]})
    before = _index_manifest(table)
    here = table.append(2)
    marked = {names[each]: positions for each, positions in rows.items()}
    change = table.compaction(here, owner=FIRST, marked=marked, only_read=above)
    assert isinstance(_commit(table, change), Committed)
    table.check()
    assert table.deleted() == {names[each]: rows for each, rows in (found or {"a": [5]}).items()}
    assert (_index_manifest(table) == before) == (found is None)
    assert len(table.index_files()) == 1
    vectors = table.state().indexes.vectors(bucket_id(0))
    for each in found or ():
        stored = read_stored(table.storage, vectors[names[each]])
        assert kind_of(stored) is (kind if each == "a" else VectorKind.BITS_32)
    _leftovers(table)


def test_a_bucket_of_an_older_release_gets_one_index_file_without_vectors_of_dead_files() -> None:
    table = Deletions(KEYED)
    files = table.append(4)
    names = [file.file_name for file in files]
    table.delete_rows({names[0]: [1]})
    table.rows["gone"] = frozenset(range(-10, 0))
    dead = table.write_vectors("index-java-x", {"gone": [1, 2], names[3]: [7]})
    table.expected.subtract(table.rows_of(names[3])[7:8])
    table.index_changed([dead])
    assert len(table.index_files()) == 2
    assert isinstance(_commit(table, table.compaction(files[:2], owner=FIRST)), Committed)
    assert list(table.index_files().values()) == [[names[3]]]
    table.check()


def test_entries_of_other_buckets_and_kinds_are_carried_as_they_are() -> None:
    table = Deletions(KEYED)
    table.write_index_manifest("i", ["hash-1", "hash-2"])
    files = table.append(2)
    other = table.append(1, bucket=1)
    newest = table.history.snapshot
    assert newest is not None
    table._foreign([], newest.commit_kind, index_manifest="i")
    table.delete_rows({files[0].file_name: [1]})
    table.delete_rows({other[0].file_name: [1]}, bucket=1)
    before = read_index_entries(table.storage, LOCATION, str(_index_manifest(table)))
    assert isinstance(_commit(table, table.compaction(files, owner=FIRST)), Committed)
    after = read_index_entries(table.storage, LOCATION, str(_index_manifest(table)))
    assert [each.index_type for each in before] == [*["HASH"] * 2, *["DELETION_VECTORS"] * 2]
    assert after[:-1] == (*before[:2], before[3])
    assert (after[-1].bucket, after[-1].row_count) == (bucket_id(0), 0)


@pytest.mark.parametrize(
    ("kind", "level", "with_vectors", "found"),
    [
        ("btree", 0, True, []),
        ("bitmap", 5, True, []),
        ("btree", 4, True, ["i-1", "i-2"]),
        ("btree", 5, False, None),
        ("btree", None, True, None),
        ("full-text", 5, True, None),
    ],
)
def test_sorted_indexes_of_levels_that_change_go(
    *, kind: str, level: int | None, with_vectors: bool, found: list[str] | None
) -> None:
    """From level 0 to level 5. None: the change is dropped."""
    table = Deletions(KEYED)
    files = table.append(2)
    change = table.compaction(files, owner=FIRST)
    assert {file.level for file in (*change.before, *change.after)} == {0, 5}
    table.write_index_manifest("i", ["i-1", "i-2"], kind, level=level)
    newest = table.history.snapshot
    assert newest is not None
    table._foreign([], newest.commit_kind, index_manifest="i")
    options = table.settings.options
    settings = {"options": options if with_vectors else replace(options, vectors=None)}
    outcome = _commit(table, change, **settings)
    assert isinstance(outcome, NothingCommitted if found is None else Committed)
    entries = read_index_entries(table.storage, LOCATION, str(_index_manifest(table)))
    assert [each.file_name for each in entries] == (["i-1", "i-2"] if found is None else found)
    if found is None:
        assert [each.conflict for each in outcome.dropped] == [Conflict.OTHER]
    _leftovers(table, *([change] if found is None else []))


def test_without_buckets_changes_that_share_an_index_file_are_published_together() -> None:
    table = Deletions(APPENDED)
    files = table.append(6)
    table.delete_rows({file.file_name: [n] for n, file in enumerate(files)})
    changes = [table.compaction(files[at : at + 2], owner=FIRST) for at in (0, 2)]
    outcome = _commit(table, *changes)
    assert isinstance(outcome, Committed)
    assert outcome.published == tuple(changes)
    assert list(table.index_files().values()) == [[each.file_name for each in files[4:]]]
    table.check()
    _leftovers(table)


@pytest.mark.parametrize(("target_size", "counts"), [("1 b", [1, 1, 1]), ("60 b", [2, 1])])
def test_without_buckets_index_files_end_with_the_vector_that_is_too_much(
    target_size: str, counts: list[int]
) -> None:
    table = Deletions(APPENDED, {"deletion-vector.index-file.target-size": target_size})
    files = table.append(5)
    table.delete_rows({file.file_name: [n] for n, file in enumerate(files)})
    assert isinstance(_commit(table, table.compaction(files[:2], owner=FIRST)), Committed)
    assert sorted(map(len, table.index_files().values()), reverse=True) == counts
    table.check()


def _gone(table: Deletions, a: DataFile, b: DataFile) -> None:
    table.delete_rows({a.file_name: [0]})
    for name in [path for path in table.storage.objects if "/index/index-java-" in path][:1]:
        table.storage.delete(name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("act", "is_published"),
    [
        (lambda table, a, c: table.delete_rows({c.file_name: [7, 8]}), True),
        (lambda table, a, c: table.rewrite_vectors(), True),
        (lambda table, a, c: table.delete_rows({a.file_name: [7]}), False),
        (lambda table, a, c: table.delete_rows({a.file_name: [7], c.file_name: [7]}), False),
        (lambda table, a, c: _gone(table, a, c), False),
    ],
    ids=["another file", "the same again", "an input", "both", "nobody can tell"],
)
def test_a_change_is_dropped_only_when_rows_of_its_inputs_were_deleted(
    kind: Kind, act: Callable[[Deletions, DataFile, DataFile], object], *, is_published: bool
) -> None:
    table = Deletions(kind)
    a, b, c = table.append(3)
    table.delete_rows({a.file_name: [1], c.file_name: [2]})
    change = table.compaction([a, b], owner=FIRST)
    act(table, a, c)
    outcome = _commit(table, change)
    if is_published:
        assert isinstance(outcome, Committed)
    else:
        assert isinstance(outcome, NothingCommitted)
        assert [drop.conflict for drop in outcome.dropped] == [Conflict.DV_CHANGED]
    table.check()
    _leftovers(table, *(() if is_published else (change,)))


def test_a_bucketed_append_table_has_one_index_file_for_each_bucket() -> None:
    """It has no key; a bucket of it is as one of a table that has."""
    table = Deletions(KEYED)
    files = table.append(4)
    table.delete_rows({files[0].file_name: [1]})
    change = table.compaction(files[:2], owner=FIRST)
    table.delete_rows({files[2].file_name: [3]})
    table.delete_rows({files[3].file_name: [4]})
    assert isinstance(_commit(table, change, key_of=None), Committed)
    assert [len(names) for names in table.index_files().values()] == [2]
    table.check()


@pytest.mark.parametrize(
    ("marked", "conflict"),
    [
        ({"above": [10]}, Conflict.OTHER),
        ({"above": [0], "elsewhere": [1]}, Conflict.FILE_REMOVED),
        ({"a": [1]}, Conflict.FILE_REMOVED),
    ],
)
def test_marks_must_be_of_rows_of_live_files(
    marked: Mapping[str, list[int]], conflict: Conflict
) -> None:
    table = Deletions(KEYED)
    above = table.new_file(level=5, keys=(50, 60))
    table.commit_as("w", 1, files=[above])
    here = table.append(2)
    names = {"above": above.file_name, "a": here[0].file_name}
    change = table.compaction(here, owner=FIRST, only_read=[above])
    rows = {names.get(each, each): positions for each, positions in marked.items()}
    outcome = _commit(table, replace(change, marks=marks(rows)))
    assert isinstance(outcome, NothingCommitted)
    assert [drop.conflict for drop in outcome.dropped] == [conflict]
    table.check()
    _leftovers(table, change)


def test_a_table_whose_vectors_are_off_now_drops_marks_and_buckets_that_have_some() -> None:
    table = Deletions(KEYED)
    files, others = table.append(2), table.append(2, bucket=1)
    change = replace(table.compaction(files, owner=FIRST), marks=marks({"x": [1]}))
    other = table.compaction(others, owner=FIRST, bucket=1)
    table.delete_rows({table.append(1, bucket=1)[0].file_name: [1]}, bucket=1)
    options = replace(table.settings.options, vectors=None)
    outcome = _commit(table, change, other, options=options)
    assert isinstance(outcome, NothingCommitted)
    assert [drop.conflict for drop in outcome.dropped] == [Conflict.DV_CHANGED] * 2


def _damage(table: Deletions, path: str, offset: int, damage: str) -> None:
    """Of the index file, or of the vector at `offset` in it."""
    data, at = table.storage.read(path), offset + 10
    if damage == "gone":
        table.storage.delete(path)
    else:
        flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        table.storage.overwrite(path, data[:-1] if damage == "cut" else flipped)


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_index_file_drops_the_changes_of_its_bucket_alone(damage: str) -> None:
    table = Deletions(KEYED)
    files, others = table.append(3), table.append(3, bucket=1)
    for bucket, here in ((0, files), (1, others)):
        table.delete_rows({here[0].file_name: [1]}, bucket=bucket)
        table.delete_rows({here[2].file_name: [2]}, bucket=bucket)
    change = table.compaction(files[:2], owner=FIRST)
    other = table.compaction(others[:2], owner=FIRST, bucket=1)
    (entry,) = table.state().indexes.of(bucket_id(0))
    path = paths.index_path(LOCATION, entry.file_name)
    data = table.storage.read(path)
    _damage(table, path, entry.vectors[-1].offset, damage)
    outcome = _commit(table, change, other)
    assert isinstance(outcome, Committed)
    assert outcome.published == (other,)
    assert [drop.conflict for drop in outcome.dropped] == [Conflict.BUCKET_DAMAGED]
    assert entry.file_name in outcome.dropped[0].why
    table.storage.overwrite(path, data)
    table.check()
    _leftovers(table, change)


@pytest.mark.parametrize(
    ("damage", "is_old", "conflict"),
    [
        ("gone", False, Conflict.BUCKET_DAMAGED),
        ("cut", False, Conflict.BUCKET_DAMAGED),
        ("flipped", False, Conflict.BUCKET_DAMAGED),
        ("gone", True, Conflict.DV_CHANGED),
        ("cut", True, Conflict.DV_CHANGED),
        ("flipped", True, Conflict.DV_CHANGED),
    ],
)
def test_of_inputs_whose_vectors_cannot_be_compared_only_their_changes_are_dropped(
    damage: str, conflict: Conflict, *, is_old: bool
) -> None:
    table = Deletions(KEYED)
    files, others = table.append(2), table.append(2, bucket=1)
    table.delete_rows({files[0].file_name: [1]})
    change = table.compaction(files, owner=FIRST)
    other = table.compaction(others, owner=FIRST, bucket=1)
    (old,) = table.index_files()
    table.rewrite_vectors()
    (new,) = table.index_files()
    path = paths.index_path(LOCATION, old if is_old else new)
    _damage(table, path, 1, damage)
    outcome = _commit(table, change, other)
    assert isinstance(outcome, Committed)
    assert outcome.published == (other,)
    assert [drop.conflict for drop in outcome.dropped] == [conflict]


def test_an_index_file_is_read_once_however_many_of_its_vectors_are_compared() -> None:
    table = Deletions(KEYED)
    files = table.append(9)
    table.delete_rows({file.file_name: [1] for file in files})
    change = table.compaction(files, owner=FIRST)
    (old,) = table.index_files()
    table.rewrite_vectors()
    (new,) = table.index_files()
    storage = RequestCounter(table.storage)
    assert isinstance(_commit(table, change, storage=storage), Committed)
    read = [call.path for call in storage.requests if call.method == "read"]
    assert [read.count(paths.index_path(LOCATION, each)) for each in (old, new)] == [1, 1]
    table.check()
