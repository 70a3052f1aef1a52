"""Divides a section into row groups that are copied and parts that are merged.

A row group of inserts that no other run touches is in the output as it is: a merge function
returns a key's only record unchanged. So its pages can be copied (`formats.base.Copier`). Row
groups are compared by the bounds of their first key column, which may be wider than their keys but
not narrower: strictly disjoint bounds mean disjoint keys. Bounds come from footers, which have no
checksum, so the copied keys and kinds are decoded and compared with them.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from compactord.errors import FormatError
from compactord.formats.base import Copier
from compactord.formats.layout import RowRange
from compactord.model import MergeSpec
from compactord.paimon.types import FLOATS, SEQUENCE_NUMBER, VALUE_KIND, AtomicType
from compactord.rewrite.reader import Input, Section

# The bounds of kinds in a row group of inserts.
_INSERTS = (0, 0)


class Group(NamedTuple):
    """A row group of an input: its number, first row, rows and stored bytes.

    `low` and `high` are the bounds of its first key column, None if unknown; `numbers`
    has the bounds of its sequence numbers.
    """

    source: Input
    number: int
    first_row: int
    rows: int
    size_bytes: int
    low: Any
    high: Any
    has_inserts_only: bool
    numbers: tuple[Any, Any] | None

    def fetched(self, copier: Copier) -> StoredGroup:
        """Raises as `Input.batches`."""
        content = copier.fetch_group(self.source.stored, self.number)
        self.source.count(self.first_row, self.first_row + self.rows)
        return StoredGroup(self, content)


class StoredGroup(NamedTuple):
    """A row group in memory to copy; `content` is the format's."""

    group: Group
    content: Any

    def check(self, decoded: pa.Table) -> None:
        """Raise `FormatError` unless keys, kinds and numbers are as the footer has them.

        The sequence numbers of an output in the manifest, by which runs are ordered, come from it.
        """
        group, path = self.group, self.group.source.file.path
        if any(chunk.to_numpy().any() for chunk in decoded.column(VALUE_KIND.name).chunks):
            raise FormatError(path, f"row group {group.number}: its kinds are not its statistics'")
        if group.low is not None:
            group.source.check_keys(decoded, (group.low, group.high))
        found = pc.min_max(decoded.column(SEQUENCE_NUMBER.name)).as_py()
        if group.numbers not in (None, (found["min"], found["max"])):
            raise FormatError(
                path, f"row group {group.number}: its sequence numbers are not its statistics'"
            )


def keeps_lone_rows(source: MergeSpec) -> bool:
    """Whether a merge only writes rows, and an insert without another record of its key stays.

    Changelogs, lookups and marks need all keys; expiry needs the times of all records.
    """
    return (
        source.changelog is None
        and source.record_expire is None
        and not (source.keeps_inputs or source.looks_up or source.marks or source.above)
    )


class Groups(tuple[Group, ...]):
    """Row groups to copy, one after the other."""


Stretch: TypeAlias = Section | Groups
_Runs: TypeAlias = Sequence[Sequence[Group]]


def stretches(
    section: Section, wants: Callable[[Group], bool], *, may_tie: bool
) -> Sequence[Stretch]:
    """Row groups to copy, if the caller `wants` them, and sections with all other rows.

    They are in key order. `may_tie`: two runs may have equal sequence numbers; their order depends
    on all records of the section, so several runs are not divided. Reads the footers of the files.
    """
    row_range = section[0][0].row_range
    is_one_run = len(section) == 1
    if may_tie and not is_one_run:
        return [section]
    runs = [[group for each in run for group in _groups(each)] for run in section]
    if not is_one_run or row_range is not None:
        if not all(map(_ascends, runs)):
            return [section]
        runs = [[each for each in run if not _is_outside(each, row_range)] for run in runs]
    copied = [
        (run, place)
        for run, groups in enumerate(runs)
        for place, group in enumerate(groups)
        if group.has_inserts_only
        and wants(group)
        and _is_inside(group, row_range)
        and not any(_overlaps(other, group) for n, other in enumerate(runs) if n != run)
    ]
    if not copied:
        return [section]
    if not is_one_run:
        copied.sort(key=lambda each: runs[each[0]][each[1]].low)
    found: list[Stretch] = []
    together: list[Group] = []
    starts = [0] * len(runs)
    for run, place in copied:
        group = runs[run][place]
        ends = [place if n == run else _count_below(each, group) for n, each in enumerate(runs)]
        between = _section(runs, starts, ends)
        if between and together:
            found.append(Groups(together))
            together = []
        found += between
        together.append(group)
        starts = [end + (n == run) for n, end in enumerate(ends)]
    return [*found, Groups(together), *_section(runs, starts, list(map(len, runs)))]


def _groups(source: Input) -> Iterator[Group]:
    """The row groups that are not empty."""
    key = source.first_key
    assert isinstance(key.type, AtomicType), "keys are not nested"
    # Bounds of floats may exclude NaN.
    of_keys = source.row_groups(None if key.type.root in FLOATS else key)
    columns = (of_keys, source.row_groups(VALUE_KIND), source.row_groups(SEQUENCE_NUMBER))
    first_row = 0
    for number, (keys, kinds, numbers, size) in enumerate(
        zip(*columns, source.group_bytes(), strict=True)
    ):
        low, high = keys.bounds or (None, None)
        inserts = kinds.bounds == _INSERTS and source.is_unchanged
        if keys.rows:
            yield Group(
                source, number, first_row, keys.rows, size, low, high, inserts, numbers.bounds
            )
        first_row += keys.rows


def _ascends(groups: Sequence[Group]) -> bool:
    """Whether all bounds are known, and ascend."""
    return all(group.low is not None for group in groups) and all(
        before.high <= after.low for before, after in itertools.pairwise(groups)
    )


def _is_inside(group: Group, bounds: RowRange | None) -> bool:
    return bounds is None or (
        (bounds.lower is None or group.low > bounds.first_lower)
        and (bounds.upper is None or group.high < bounds.first_upper)
    )


def _is_outside(group: Group, bounds: RowRange | None) -> bool:
    return bounds is not None and (
        (bounds.lower is not None and group.high < bounds.first_lower)
        or (bounds.upper is not None and group.low > bounds.first_upper)
    )


def _overlaps(groups: Sequence[Group], group: Group) -> bool:
    """Whether a group of another run may have keys of this one; equal bounds count."""
    place = bisect.bisect_left(groups, group.low, key=lambda each: each.high)
    return place < len(groups) and groups[place].low <= group.high


def _count_below(groups: Sequence[Group], group: Group) -> int:
    """How many groups of another run are below this one; none overlaps it."""
    return bisect.bisect_left(groups, group.low, key=lambda each: each.low)


def _section(runs: _Runs, starts: Sequence[int], ends: Sequence[int]) -> list[Section]:
    """The groups of each run from a start to an end as a section, or nothing if there are none."""
    parts = [
        tuple(
            _part(source, list(of_file))
            for source, of_file in itertools.groupby(run[start:end], lambda group: group.source)
        )
        for run, start, end in zip(runs, starts, ends, strict=True)
    ]
    return [tuple(part for part in parts if part)] if any(parts) else []


def _part(source: Input, groups: Sequence[Group]) -> Input:
    first, last = groups[0], groups[-1]
    bounds = None if first.low is None or last.low is None else (first.low, last.high)
    return source.part([group.number for group in groups], bounds)
