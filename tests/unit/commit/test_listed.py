"""Which list of a snapshot names a file, by its kind; one kind is the tests' own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.commit.attempt import LISTS, SnapshotList, listed_entries
from compactord.commit.changes import BucketChange
from compactord.errors import CommitError
from compactord.model import CHANGELOG, DATA, Output
from compactord.paimon.data_file import EMPTY_STATS, EntryKind
from tests.lineage import bucket_id
from tests.unit.paimon.table_builder import data_file

OLD, LIFTED, NEW, TOLD, AUDIT = (
    data_file(name, level=level)
    for name, level in (("old", 0), ("lifted", 0), ("new", 5), ("told", 5), ("audit", 5))
)
CHANGE = BucketChange(
    bucket=bucket_id(3),
    total_buckets=4,
    output_level=5,
    before=(OLD, LIFTED),
    upgraded=(replace(LIFTED, level=5),),
    outputs=(Output(CHANGELOG, TOLD), Output(DATA, NEW)),
    files_above=frozenset(),
)


def test_each_kind_is_in_its_list_and_deletions_come_first():
    listed = listed_entries([CHANGE], drop_stats=True)
    assert [(entry.kind, entry.file.file_name) for entry in listed.delta] == [
        (EntryKind.DELETE, "old"),
        (EntryKind.DELETE, "lifted"),
        (EntryKind.ADD, "lifted"),
        (EntryKind.ADD, "new"),
    ]
    assert [(entry.kind, entry.file) for entry in listed.changelog] == [(EntryKind.ADD, TOLD)]
    assert listed.delta[0].file.value_stats == EMPTY_STATS
    places = {
        (entry.bucket_id, entry.total_buckets) for entry in (*listed.delta, *listed.changelog)
    }
    assert places == {(bucket_id(3), 4)}
    assert listed.delta_rows == NEW.row_count - OLD.row_count
    assert listed.changelog_rows == TOLD.row_count


def test_a_kind_is_a_line_of_the_table():
    change = replace(CHANGE, outputs=(*CHANGE.outputs, Output("audit", AUDIT)))
    with pytest.raises(CommitError, match="audit is of kind audit, which no manifest lists"):
        listed_entries([change], drop_stats=False)
    lists = {**LISTS, "audit": SnapshotList.CHANGELOG}
    listed = listed_entries([change], drop_stats=False, lists=lists)
    assert [entry.file for entry in listed.changelog] == [TOLD, AUDIT]
