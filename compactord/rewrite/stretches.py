"""Divides a section into row groups that are copied and parts that are merged.

A row group of inserts that no other run touches is in the output as it is: a merge function
returns a key's only record unchanged. So its pages can be copied (`formats.base.Copier`). If a row
group is too large, or if another run touches it, its neighbouring pages are divided in the same
way. Row groups and pages are compared by the bounds of their first key column, which may be wider
than their keys but not narrower: strictly disjoint bounds mean disjoint keys. Bounds come from
footers and page indexes, which have no checksum, so the copied keys and kinds are decoded and
compared with them.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from compactord.errors import FormatError
from compactord.formats.base import Copier
from compactord.formats.base import RowGroup as Bounded
from compactord.formats.layout import RowRange
from compactord.model import MergeSpec
from compactord.paimon.types import FLOATS, VALUE_KIND, AtomicType
from compactord.rewrite.reader import Input, Section

# The bounds of kinds in rows of inserts.
_INSERTS = (0, 0)
# Copied row groups are not made larger: smaller ones than this many rows and bytes are merged.
_FEW_ROWS = 64 << 10
_FEW_BYTES = 8 << 20


class Group(NamedTuple):
    """A row group of an input, or some of its rows: its number, first row, rows and stored bytes.

    `low` and `high` are the bounds of its first key column, None if unknown.
    """

    source: Input
    number: int
    first_row: int
    rows: int
    size_bytes: int
    low: Any
    high: Any
    has_inserts_only: bool
    is_whole: bool = True
    is_copied: bool = False

    @property
    def end_row(self) -> int:
        """The number in the file of the row after its last."""
        return self.first_row + self.rows

    def fetched(self, copier: Copier) -> StoredGroup:
        """Raises as `Input.batches`."""
        rows = None if self.is_whole else (self.first_row, self.end_row)
        content = copier.fetch_group(self.source.stored, self.number, rows)
        self.source.count(self.first_row, self.end_row)
        return StoredGroup(self, content)


class StoredGroup(NamedTuple):
    """A row group in memory to copy; `content` is the format's."""

    group: Group
    content: Any

    def check(self, decoded: pa.Table) -> None:
        """Raise `FormatError` unless keys and kinds are as the footer or page index has them."""
        group, path = self.group, self.group.source.file.path
        if any(chunk.to_numpy().any() for chunk in decoded.column(VALUE_KIND.name).chunks):
            raise FormatError(path, f"row group {group.number}: its kinds are not its statistics'")
        if group.low is not None:
            group.source.check_keys(decoded, (group.low, group.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyLimits:
    """Limits of copied row groups: their format, and the most rows and stored bytes."""

    file_format: str
    rows: int
    size_bytes: int

    def is_enough(self, group: Group) -> bool:
        """Whether it is large enough."""
        return group.source.file.file_format == self.file_format and (
            group.rows >= _FEW_ROWS or group.size_bytes >= _FEW_BYTES
        )

    def accepts(self, group: Group) -> bool:
        """Whether it is neither too small nor too large."""
        return (
            self.is_enough(group)
            and group.rows <= self.rows
            and group.size_bytes <= self.size_bytes
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


def stretches(section: Section, limits: CopyLimits, *, may_tie: bool) -> Sequence[Stretch]:
    """Row groups to copy, within the `limits`, and sections with all other rows.

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
    divided = [
        [
            part
            for group in run
            for part in _divided(group, [*runs[:n], *runs[n + 1 :]], limits, row_range)
        ]
        for n, run in enumerate(runs)
    ]
    return _arranged(divided) or [section]


def _arranged(runs: _Runs) -> Sequence[Stretch]:
    """The copied groups and the sections between them, in key order; empty if none is copied."""
    copied = [
        (run, place)
        for run, groups in enumerate(runs)
        for place, group in enumerate(groups)
        if group.is_copied
    ]
    if not copied:
        return []
    if len(runs) > 1:
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


def _divided(
    group: Group, others: _Runs, limits: CopyLimits, row_range: RowRange | None
) -> Sequence[Group]:
    """The group, or several groups with its rows; some will be copied.

    Rows outside a key range are only known by bounds, so a group at an end of it stays whole: then
    its rows are read from its start.
    """
    if not limits.is_enough(group) or not _is_inside(group, row_range):
        return [group]
    touching = _touching(group, others)
    if not touching and group.has_inserts_only and limits.accepts(group):
        return [group._replace(is_copied=True)]
    if group.low is None or not group.source.is_unchanged:
        return [group]
    if touching and touching[0][0] <= group.low and group.high <= touching[0][1]:
        return [group]
    pages = _pages(group)
    found: list[Group] = []
    for gap, alike in itertools.groupby(pages, key=lambda page: _gap(page, touching)):
        parts = list(alike)
        found += [_joined(parts)] if gap is None else _cut(parts, limits)
    return found if any(each.is_copied for each in found) else [group]


_Interval: TypeAlias = tuple[Any, Any]


def _touching(group: Group, others: _Runs) -> list[_Interval]:
    """The bounds of other runs' groups that may have keys of this one, joined where they meet."""
    found: list[_Interval] = []
    for run in others:
        place = bisect.bisect_left(run, group.low, key=lambda each: each.high)
        while place < len(run) and run[place].low <= group.high:
            found.append((run[place].low, run[place].high))
            place += 1
    joined: list[_Interval] = []
    for low, high in sorted(found):
        if joined and low <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined


def _gap(page: Group, touching: Sequence[_Interval]) -> int | None:
    """The number of intervals below a page that can be copied; None if another run touches it or if
    not all its rows are inserts.
    """
    place = bisect.bisect_left(touching, page.low, key=lambda each: each[1])
    if not page.has_inserts_only or (place < len(touching) and touching[place][0] <= page.high):
        return None
    return place


def _pages(group: Group) -> list[Group]:
    """Its pages of the first key column, or nothing if their bounds are unknown or not in order."""
    source = group.source
    keys = source.row_pages(group.number, source.first_key)
    kinds = [Bounded(group.rows, _INSERTS)]
    if keys and not group.has_inserts_only:
        kinds = list(source.row_pages(group.number, VALUE_KIND))
    kind_rows = list(itertools.accumulate((each.rows for each in kinds), initial=0))
    if {sum(each.rows for each in keys), kind_rows[-1]} != {group.rows}:
        return []
    found: list[Group] = []
    row = 0
    for rows, bounds in keys:
        if bounds is None:
            return []
        first, last = bisect.bisect_right(kind_rows, row), bisect.bisect_left(kind_rows, row + rows)
        page = Group(
            source,
            group.number,
            group.first_row + row,
            rows,
            group.size_bytes * rows // group.rows,
            # Writers truncate the bounds of long values, so they may be wider than the group's.
            max(bounds[0], group.low),
            min(bounds[1], group.high),
            all(each.bounds == _INSERTS for each in kinds[first - 1 : last]),
            is_whole=False,
        )
        if page.low > page.high or (found and found[-1].high > page.low):
            return []
        found.append(page)
        row += rows
    return found


def _joined(pages: Sequence[Group]) -> Group:
    """Neighbouring rows of a row group together."""
    return pages[0]._replace(
        rows=sum(page.rows for page in pages),
        size_bytes=sum(page.size_bytes for page in pages),
        high=pages[-1].high,
        has_inserts_only=all(page.has_inserts_only for page in pages),
    )


def _cut(pages: Sequence[Group], limits: CopyLimits) -> list[Group]:
    """The pages as groups of similar size, which are copied if the limits accept them."""
    whole = _joined(pages)
    # A part has less than a page more than its share.
    most_rows = limits.rows - max(page.rows for page in pages)
    most_bytes = limits.size_bytes - max(page.size_bytes for page in pages)
    count = max(
        math.ceil(whole.rows / max(1, most_rows)), math.ceil(whole.size_bytes / max(1, most_bytes))
    )
    parts: list[list[Group]] = [[]]
    rows = 0
    for page in pages:
        if rows * count >= whole.rows * len(parts):
            parts.append([])
        parts[-1].append(page)
        rows += page.rows
    groups = list(map(_joined, parts))
    return [group._replace(is_copied=limits.accepts(group)) for group in groups]


def _groups(source: Input) -> Iterator[Group]:
    """The row groups that are not empty."""
    key = source.first_key
    assert isinstance(key.type, AtomicType), "keys are not nested"
    # Bounds of floats may exclude NaN.
    of_keys = source.row_groups(None if key.type.root in FLOATS else key)
    columns = (of_keys, source.row_groups(VALUE_KIND), source.group_bytes())
    first_row = 0
    for number, (keys, kinds, size) in enumerate(zip(*columns, strict=True)):
        low, high = keys.bounds or (None, None)
        inserts = kinds.bounds == _INSERTS and source.is_unchanged
        if keys.rows:
            yield Group(source, number, first_row, keys.rows, size, low, high, inserts)
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
    numbers = list(dict.fromkeys(group.number for group in groups))
    if all(group.is_whole for group in groups):
        return source.part(numbers, bounds)
    return source.part(numbers, bounds, (first.first_row, last.end_row))
