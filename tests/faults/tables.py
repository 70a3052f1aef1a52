"""Tables whose compactions meet faults and kills, and what must hold of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from compactord.paimon.schema import TableRef
from compactord.state.table_state import load_state
from compactord.storage.local import LocalStorage
from tests import builders
from tests.deletions import ENABLED, delete_first

LOCAL = LocalStorage()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """`levels` are those of the files after a compaction.

    `is_told`: of each change, by changelogs. `is_merged`: no key is twice in what readers see who
    merge no levels. `step`: a smaller sample of faults, which other kinds or runs meet.
    """

    levels: list[int]
    is_told: bool = False
    is_merged: bool = True
    step: int = 1


# What is looked up on level 5 stays there.
KINDS: Mapping[str, Kind] = {
    "full-compaction": Kind(levels=[5], is_told=True, step=2),
    "vectors": Kind(levels=[4, 5], is_told=True, step=3),
    "lookup": Kind(levels=[4, 5], is_told=True, is_merged=False, step=6),
    "dynamic": Kind(levels=[5], step=2),
    "append": Kind(levels=[0, 0], step=6),
    "unaware": Kind(levels=[0, 0], step=4),
}
_APPENDED: Mapping[str, Mapping[str, str]] = {
    "append": {"bucket": "1", "bucket-key": "k"},
    "unaware": {"bucket": "-1"},
}


@dataclass(frozen=True, kw_only=True)
class Given:
    """A table with one bucket, and the rows that must be read of it."""

    kind: Kind
    rows: Mapping[int, int]

    def check(self, table: TableRef, what: object) -> None:
        """Each row is there once, and the chain is whole."""
        if 0 in self.kind.levels:
            assert builders.read_appended(LOCAL, table) == Counter(self.rows.items()), what
        else:
            assert builders.read_keyed(LOCAL, table) == self.rows, what
        builders.check_chain(LOCAL, table)

    def check_compacted(self, table: TableRef, what: object) -> None:
        """That, what is told of changes leads to these rows, and no file is left to merge."""
        self.check(table, what)
        changes = builders.replayed(builders.read_changes(LOCAL, table))
        assert changes == (self.rows if self.kind.is_told else {}), what
        state = load_state(LOCAL, table)
        [bucket] = state.files.bucket_ids()
        files = state.files.files_in(bucket)
        assert sorted(file.level for file in files) == self.kind.levels, what
        if self.kind.is_merged:
            vectors = state.indexes.vectors(bucket).values()
            deleted = sum(ref.cardinality or 0 for ref in vectors)
            assert sum(file.row_count for file in files) - deleted == len(self.rows), what


def given(location: str, name: str) -> Given:
    """Make one of `KINDS` that is to be compacted."""
    if name in _APPENDED:
        rows = _appended(location, _APPENDED[name])
    elif name == "dynamic":
        table = builders.keyed_table(LOCAL, location, buckets=-1)
        rows = builders.fill_keyed(builders.writer(LOCAL, table), commits=5, keys=20)
    else:
        rows = builders.told_table(LOCAL, location, name)[1]
    return Given(kind=KINDS[name], rows=rows)


def _appended(location: str, buckets: Mapping[str, str]) -> dict[int, int]:
    """A large file and four small ones, with rows deleted from each, in one index file.

    The large one is not merged: what a compaction does not read keeps its deleted rows.
    """
    options = {**ENABLED, **buckets, "compaction.min.file-num": "4"}
    table = builders.append_table(LOCAL, location, options=options)
    writer = builders.writer(LOCAL, table)
    rows: dict[int, int] = {}
    for number, count in enumerate((1000, 10, 10, 10, 10)):
        batch = {10_000 * number + row: row * 2654435761 % 2**40 for row in range(count)}
        writer.write(builders.rows_of(batch.items()))
        rows |= batch
    # Had its writer known of this, the large file would be several.
    builders.set_options(LOCAL, table, {"target-file-size": "4 kb"})
    state = load_state(LOCAL, table)
    [bucket] = state.files.bucket_ids()
    files = sorted(state.files.files_in(bucket), key=lambda file: file.min_sequence_number)
    places = ([0, 7, 999], [0], [*range(10)], [3, 4], [9])
    deleted = dict(zip((file.file_name for file in files), places, strict=True))
    delete_first(LOCAL, table, deleted)
    for number, positions in enumerate(places):
        for position in positions:
            del rows[10_000 * number + position]
    return rows
