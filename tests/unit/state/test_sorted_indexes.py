"""Which levels lack an index of a column, by the entries of the index manifest."""

from __future__ import annotations

import struct

import pytest

from compactord.paimon.data_file import EMPTY_ROW, BucketId, FileSource
from compactord.paimon.manifest.index_manifest import IndexEntry
from compactord.state.index_files import IndexFiles
from tests.unit.plan.builders import data_file

BUCKET = BucketId(EMPTY_ROW, 0)
APPEND, COMPACT = FileSource.APPEND, FileSource.COMPACT
Entry = tuple[str, int, int, str, int]
BTREE: Entry = ("btree", 1, 5, "f", 7)
BITMAP: Entry = ("bitmap", 2, 5, "f", 7)


def _entry(kind: str, field_id: int, level: int, name: str, rows: int) -> IndexEntry:
    head = struct.pack(">iiih", 1, level, 1, len(name))
    return IndexEntry(
        bucket=BUCKET,
        index_type=kind,
        file_name=f"index-{field_id}-{level}-{name}",
        file_size=9,
        row_count=rows,
        canonical=b"",
        level=level,
        field_id=field_id,
        sources=head + name.encode() + struct.pack(">q", rows),
    )


@pytest.mark.parametrize(
    ("entries", "source", "lacking"),
    [
        ([BTREE, BITMAP], COMPACT, 0),
        ([], COMPACT, 1),
        ([BTREE], COMPACT, 1),
        ([BTREE, ("btree", 2, 5, "f", 7)], COMPACT, 1),
        ([BTREE, ("bitmap", 3, 5, "f", 7)], COMPACT, 1),
        ([BTREE, ("bitmap", 2, 4, "f", 7)], COMPACT, 1),
        ([BTREE, ("bitmap", 2, 5, "gone", 7)], COMPACT, 1),
        ([BTREE, ("bitmap", 2, 5, "f", 6)], COMPACT, 1),
        # What was moved up unread is in no index.
        ([BTREE, BITMAP], APPEND, 1),
    ],
)
def test_a_level_has_an_index_that_names_all_its_files(
    entries: list[Entry], source: FileSource, lacking: int
) -> None:
    files = [data_file("new", level=0), data_file("f", level=5, rows=7, source=source)]
    indexes = IndexFiles("/t", tuple(_entry(*each) for each in entries))
    assert indexes.levels_without(BUCKET, files, {1: "btree", 2: "bitmap"}) == lacking
    assert indexes.levels_without(BUCKET, files, {}) == 0
    other = data_file("g", level=5, source=COMPACT)
    more = [*files, other, data_file("h", level=4, source=COMPACT)]
    assert indexes.levels_without(BUCKET, more, {1: "btree", 2: "bitmap"}) == 2
