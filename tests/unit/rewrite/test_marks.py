"""What a merge replaces above it is marked there, against the definition in plain Python."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.formats.registry import FORMATS
from compactord.model import (
    CHANGELOG,
    ChangelogSpec,
    InputFile,
    MergeSpec,
    Subcompaction,
    SubcompactionResult,
)
from compactord.paimon.options.merge import ChangelogRule
from compactord.paimon.options.table_options import RecordExpire
from compactord.rewrite.split import cut_ranges
from compactord.rewrite.subcompaction import rewrite
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests.deletions import numbers_in
from tests.sampling import examples
from tests.storages import RequestCounter
from tests.unit.formats.arrow_files import ARROW, as_arrow
from tests.unit.rewrite.builders import (
    KIND,
    SEQUENCE,
    fields,
    files_left,
    merge_subcompaction,
    output_rows,
    without_rows,
    write_run,
)

BOTH = {**FORMATS, "arrow": ARROW}
FIELDS = fields(k="BIGINT NOT NULL", t="INT", v="STRING")
OLDER = (replace(FIELDS[0], name="old key"), FIELDS[1])
# Of a table whose records of the time 1 have expired, at any time.
EXPIRES = RecordExpire(field="t", seconds=1_000)
KEYS = 30


@dataclass(frozen=True)
class Record:
    key: int
    sequence: int
    kind: int
    has_expired: bool
    is_deleted: bool

    @property
    def is_retract(self) -> bool:
        return self.kind in (1, 3)


@dataclass(frozen=True)
class Stored:
    """A file's records in their order, and how it is stored."""

    name: str
    level: int
    records: tuple[Record, ...]
    group: int
    is_older: bool
    is_other: bool

    def write(self, folder: Path) -> InputFile:
        columns = OLDER if self.is_older else FIELDS
        names = [column.name for column in columns]
        rows = []
        for each in self.records:
            values = {
                columns[0].name: each.key,
                "t": 1 if each.has_expired else None,
                "v": str(each.sequence),
            }
            system = {SEQUENCE: each.sequence, KIND: each.kind}
            rows.append({name: values[name] for name in names} | system)
        path = folder / f"{self.name}.parquet"
        file = write_run(path, columns, names[:1], rows, row_group_size=self.group)
        file = as_arrow(file) if self.is_other else file
        deleted = [place for place, each in enumerate(self.records) if each.is_deleted]
        file = replace(file, level=self.level, older_schema=0 if self.is_older else None)
        return without_rows(file, deleted)


@dataclass(frozen=True)
class History:
    """Runs of a merge, those above it, and how it is made."""

    runs: tuple[tuple[Stored, ...], ...]
    above: tuple[tuple[Stored, ...], ...]
    ignores_deletes: bool
    expires: bool
    finds_values: bool
    only_marks: bool


@st.composite
def histories(draw: st.DrawFn) -> History:
    only_marks = draw(st.booleans())
    levels = [0] if only_marks else draw(st.sampled_from([[0], [0, 0], [0, 0, 2], [0, 1, 2]]))
    numbers = iter(draw(st.permutations(range(KEYS * 7))))
    count = itertools.count()

    def file(level: int, keys: Sequence[int]) -> Stored:
        records = tuple(
            Record(
                key,
                next(numbers),
                draw(st.sampled_from([0, 0, 0, 3] if level == 0 else [0, 0, 0, 0, 0, 3])),
                draw(st.sampled_from([False, False, True])),
                draw(st.sampled_from([False, False, True])),
            )
            for key in keys
        )
        return Stored(
            f"{next(count)}",
            level,
            records,
            draw(st.integers(1, 6)),
            draw(st.booleans()),
            draw(st.booleans()),
        )

    def run(level: int) -> tuple[Stored, ...]:
        keys = sorted(draw(st.sets(st.integers(0, KEYS - 1), min_size=1)))
        cut = draw(st.integers(0, len(keys))) if level else 0
        return tuple(file(level, part) for part in (keys[:cut], keys[cut:]) if part)

    return History(
        runs=tuple(run(level) for level in levels),
        above=tuple(run(level) for level in range(3, 3 + draw(st.integers(0, 3)))),
        ignores_deletes=draw(st.booleans()),
        expires=draw(st.booleans()),
        finds_values=draw(st.booleans()),
        only_marks=only_marks,
    )


def definition(history: History) -> tuple[dict[str, list[int]], list[tuple[int, int, int]]]:
    """The positions that are marked by file, and key, sequence number and kind of what is written.

    Of keys alone it cannot be told what has expired; where deletes are ignored, more is read.
    """
    expires = history.expires and not history.only_marks
    finds_values = history.ignores_deletes or (history.finds_values and not history.only_marks)

    def counts(record: Record) -> bool:
        return not (record.is_deleted or (expires and record.has_expired))

    marks: dict[str, list[int]] = {}
    rows = []
    for key in range(KEYS):
        of_level = {
            (file.level, file.name): record
            for run in history.runs
            for file in run
            for record in file.records
            if record.key == key and counts(record)
        }
        records = [record for (level, _), record in of_level.items() if level == 0]
        states = [
            record
            for (level, _), record in sorted(of_level.items())
            if level and not (history.ignores_deletes and record.is_retract)
        ]
        if states:
            records.append(states[0])
        elif of_level:
            for file in itertools.chain(*history.above):
                places = [n for n, each in enumerate(file.records) if each.key == key]
                if not places or file.records[places[0]].is_deleted:
                    continue
                found = file.records[places[0]]
                marks.setdefault(file.name, []).append(places[0])
                if finds_values and not counts(found):
                    continue
                if history.ignores_deletes and found.is_retract:
                    continue
                if finds_values:
                    records.append(found)
                break
        records = [each for each in records if not (history.ignores_deletes and each.is_retract)]
        if records and not history.only_marks:
            last = max(records, key=lambda each: each.sequence)
            rows.append((key, last.sequence, last.kind))
    return marks, rows


def subcompaction_of(folder: Path, history: History) -> Subcompaction:
    runs = [[file.write(folder) for file in run] for run in history.runs]
    made = merge_subcompaction(folder, FIELDS, ["k"], runs, ignore_delete=history.ignores_deletes)
    assert isinstance(made.source, MergeSpec)
    source = replace(
        made.source,
        looks_up=True,
        marks=True,
        finds_values=history.finds_values,
        keeps_inputs=history.only_marks,
        above=tuple(tuple(file.write(folder) for file in run) for run in history.above),
        record_expire=EXPIRES if history.expires else None,
    )
    return replace(made, source=source, older_schemas=(OLDER,))


def positions(results: Sequence[SubcompactionResult]) -> dict[str, list[int]]:
    """By file; those of several parts."""
    found: dict[str, list[int]] = {}
    for name, bitmap in itertools.chain(*(result.marks for result in results)):
        found.setdefault(name, []).extend(numbers_in(bitmap))
    return found


def named(marks: Mapping[str, list[int]], source: MergeSpec) -> dict[str, list[int]]:
    """With the whole names of files."""
    files = [Path(file.path).name for run in source.above for file in run]
    by_stem = {Path(name).stem: name for name in files}
    return {by_stem[stem]: places for stem, places in marks.items()}


@settings(max_examples=examples(150), deadline=None)
@given(histories(), st.integers(1, 3), st.booleans())
def test_marks_and_rows_are_those_of_the_definition(history, parts, threaded):
    with tempfile.TemporaryDirectory() as name:
        whole = subcompaction_of(Path(name), history)
        source = whole.source
        assert isinstance(source, MergeSpec)
        ranges = cut_ranges(
            source, parts, FIELDS, LocalStorage(), older=whole.older_schemas, formats=BOTH
        )
        rows, results = [], []
        for key_range in ranges:
            part = replace(whole, source=replace(source, key_range=key_range))
            result = rewrite(part, formats=BOTH, threaded=threaded)
            results.append(result)
            rows += [(row["k"], row[SEQUENCE], row[KIND]) for row in output_rows(part, result)]
            assert all(each.file_name for each in result.marks)
            assert len({each.file_name for each in result.marks}) == len(result.marks)
        marks, expected = definition(history)
        assert positions(results) == named(marks, source)
        assert rows == expected
        assert not history.only_marks or files_left(whole) == []


# --- what is read, and what is told ---------------------------------------------------------------

WIDE = fields(k="BIGINT NOT NULL", v="STRING", w="STRING")


def wide(path: Path, keys: Sequence[int], first: int, level: int) -> InputFile:
    rows = [
        {
            "k": key,
            "v": f"{hash((key, first)):x}" * 4,
            "w": f"{key * 7919:x}" * 4,
            SEQUENCE: first + n,
        }
        for n, key in enumerate(keys)
    ]
    file = write_run(path, WIDE, ["k"], rows, row_group_size=7_000, write_page_index=True)
    return replace(file, level=level)


def marking(
    folder: Path, *, tells: bool = False, storage: Storage | None = None, **how: Any
) -> Subcompaction:
    """A file of level 0 that has every second key of one above."""
    (folder / "in").mkdir(parents=True)
    new = wide(folder / "in" / "new.parquet", range(0, 20_000, 2), 20_000, 0)
    old = wide(folder / "in" / "old.parquet", range(20_000), 0, 5)
    made = merge_subcompaction(folder, WIDE, ["k"], [[new]], storage=storage)
    assert isinstance(made.source, MergeSpec)
    told = ChangelogSpec(
        before_level=None,
        write=replace(made.write, file_prefix="changelog-"),
        rule=ChangelogRule(compared=None),
    )
    above = ((without_rows(old, range(100)),),)
    how = {"marks": True, "changelog": told if tells else None, **how}
    return replace(made, source=replace(made.source, looks_up=True, above=above, **how))


@pytest.mark.parametrize("is_remote", [False, True])
def test_no_more_is_read_than_is_needed(tmp_path, is_remote):
    read = {}
    for case, how in {
        "values": {},
        "positions": {"finds_values": False},
        "only marks": {"keeps_inputs": True},
    }.items():
        storage = RequestCounter(LocalStorage()) if is_remote else None
        made = marking(tmp_path / case, storage=storage, **how)
        assert isinstance(made.source, MergeSpec)
        result = rewrite(made)
        assert positions([result]) == {"old.parquet": list(range(100, 20_000, 2))}
        assert len(result.outputs) == (case != "only marks")
        read[case] = result.stats.input_bytes - made.source.files[0].size_bytes
    assert 4 * read["positions"] < read["values"]
    assert read["only marks"] == read["positions"]


@pytest.mark.parametrize("keeps_inputs", [False, True])
def test_what_is_marked_is_told_too(tmp_path, keeps_inputs):
    made = marking(tmp_path, tells=True, keeps_inputs=keeps_inputs)
    result = rewrite(made)
    assert positions([result]) == {"old.parquet": list(range(100, 20_000, 2))}
    [told] = [output.file for output in result.outputs if output.kind == CHANGELOG]
    # What the vector deletes is nothing that keys had before.
    assert told.row_count == 50 + 2 * 9_950
    assert len(result.after) == (0 if keeps_inputs else 1)


def test_nothing_is_marked_unless_it_is_asked_for(tmp_path):
    assert rewrite(marking(tmp_path, marks=False)).marks == ()


def test_nothing_found_is_no_mark(tmp_path):
    made = marking(tmp_path, finds_values=False)
    assert isinstance(made.source, MergeSpec)
    [[old]] = made.source.above
    above = ((without_rows(old, range(20_000)),),)
    found = rewrite(replace(made, source=replace(made.source, above=above)))
    assert found.marks == ()
    assert found.after[0].row_count == 10_000
    assert rewrite(replace(made, source=replace(made.source, above=()))).marks == ()
