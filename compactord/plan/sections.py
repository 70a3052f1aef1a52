"""Turns picked files into actions: merges, and changes of level.

Files are first grouped into sections whose key ranges do not touch (IntervalPartition.java). Then
neighbouring sections and small single files are rewritten together; large single files only change
their level (MergeTreeCompactTask.java).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from compactord.model import Rewrite, Section, SortedRun, Upgrade
from compactord.paimon.data_file import DataFile
from compactord.paimon.options.table_options import LookupOptions
from compactord.plan.picks import KeyOf, Pick, never_expired


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRules:
    """Rules that decide between rewriting and upgrading.

    `max_level` is the highest level in effect, `small_file_size` in bytes. With `force_rewrite`
    only files named in `final` are upgraded. No file with expired records is upgraded:
    a service meets its own files again long after it made them. `drop_deletes` and `changelog`
    apply to the actions. `lookup` is for the runs `above`, or None without lookup. Files with
    `unmarked_schemas` on a level above 0 count as not looked up, so none of level 0 becomes one.
    """

    max_level: int
    small_file_size: int
    force_rewrite: bool
    final: Set[str] = frozenset()
    is_expired: Callable[[DataFile], bool] = never_expired
    drop_deletes: bool = False
    changelog: bool = False
    lookup: LookupOptions | None = None
    above: Sequence[SortedRun] = ()
    unmarked_schemas: Set[int] = frozenset()

    def rewrite(self, key_of: KeyOf, *sections: Section, drops: bool = True) -> Rewrite:
        """The action that merges these sections; without `drops` it keeps retracts."""
        found = Rewrite(
            sections=sections,
            drop_deletes=self.drop_deletes and drops,
            changelog=self.changelog,
            looks_up=self.lookup is not None,
        )
        files = [file for section in sections for run in section.runs for file in run.files]
        if self.lookup is None or all(file.level for file in files):
            return found
        return replace(
            found,
            changelog=self.lookup.changelog,
            above=self._overlapping(files, key_of),
            marks=self.lookup.marks,
            finds_values=self.lookup.finds_values,
        )

    def upgrade(self, file: DataFile, key_of: KeyOf) -> Upgrade:
        """The action that changes the file's level, with its changelog if required."""
        lookup = self.lookup
        if lookup is None or file.level or not (lookup.changelog or lookup.marks):
            return Upgrade(file=file, changelog=self.changelog)
        return Upgrade(
            file=file,
            changelog=lookup.changelog,
            looks_up=True,
            above=self._overlapping([file], key_of),
            marks=lookup.marks,
            finds_values=lookup.finds_values,
        )

    def _overlapping(self, files: Sequence[DataFile], key_of: KeyOf) -> tuple[SortedRun, ...]:
        """The runs above the files that may have one of their keys."""
        ranges = [file.key_range(key_of) for file in files]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        found = []
        for run in self.above:
            near = [(each.key_range(key_of), each) for each in run.files]
            inside = tuple(each for (first, last), each in near if first <= high and low <= last)
            if inside:
                found.append(replace(run, files=inside))
        return tuple(found)


def interval_partition(files: Iterable[DataFile], key_of: KeyOf) -> tuple[Section, ...]:
    """Sections in key order, with the fewest runs in each.

    Key bounds are inclusive: files that share a bound share a section. The order of runs inside a
    section is the order that Java's queue leaves, because it decides between records of equal
    sequence. O(n log n).
    """
    keyed = [(*file.key_range(key_of), file) for file in files]
    keyed.sort(key=lambda item: item[:2])
    sections: list[Section] = []
    members: list[tuple[Any, Any, DataFile]] = []
    bound: Any = None
    for item in keyed:
        minimum, maximum, _ = item
        if members and minimum > bound:
            sections.append(_section(members))
            members = []
        bound = max(bound, maximum) if members else maximum
        members.append(item)
    if members:
        sections.append(_section(members))
    return tuple(sections)


def cut_actions(pick: Pick, key_of: KeyOf, rules: ActionRules) -> tuple[Rewrite | Upgrade, ...]:
    """The actions for a picked unit, in key order; unchanged files appear in none."""
    actions: list[Rewrite | Upgrade] = []
    pending: list[Section] = []
    for section in interval_partition(pick.files, key_of):
        if len(section.runs) > 1:
            pending.append(section)
            continue
        for file in section.runs[0].files:
            if file.file_size < rules.small_file_size:
                pending.append(_section_of(file))
            else:
                actions += _flush(pending, pick.output_level, key_of, rules)
                pending = []
                actions += _lift(file, pick.output_level, key_of, rules)
    actions += _flush(pending, pick.output_level, key_of, rules)
    return tuple(actions)


def rewrite_each(
    files: Sequence[DataFile], key_of: KeyOf, rules: ActionRules
) -> tuple[Rewrite, ...]:
    """One rewrite per file, in key order (FileRewriteCompactTask.java)."""
    ordered = sorted(files, key=lambda file: file.key_range(key_of)[0])
    return tuple(rules.rewrite(key_of, _section_of(file)) for file in ordered)


def _flush(
    pending: Sequence[Section], output_level: int, key_of: KeyOf, rules: ActionRules
) -> list[Rewrite | Upgrade]:
    if not pending:
        return []
    if len(pending) == 1 and len(pending[0].runs) == 1:
        (file,) = pending[0].runs[0].files
        return _lift(file, output_level, key_of, rules)
    return [rules.rewrite(key_of, *pending)]


def _lift(
    file: DataFile, output_level: int, key_of: KeyOf, rules: ActionRules
) -> list[Rewrite | Upgrade]:
    """Upgrades, unless the file must be rewritten or is on its level already."""
    if (
        # On the highest level readers need no deletions.
        (output_level == rules.max_level and _may_hold_deletes(file))
        or (rules.force_rewrite and file.file_name not in rules.final)
        or rules.is_expired(file)
    ):
        return [rules.rewrite(key_of, _section_of(file))]
    if file.level == output_level:
        return []
    if file.level == 0 and output_level < rules.max_level and _lacks_above(rules, file):
        # It must merge the records above of its keys (LookupMergeTreeCompactRewriter.java);
        # once they are marked there, no deletes remain.
        marks = rules.lookup is not None and rules.lookup.marks
        return [rules.rewrite(key_of, _section_of(file), drops=marks)]
    return [rules.upgrade(file, key_of)]


def _may_hold_deletes(file: DataFile) -> bool:
    """Old files may not record how many they have."""
    return file.delete_row_count is None or file.delete_row_count > 0


def _lacks_above(rules: ActionRules, file: DataFile) -> bool:
    """Whether the level-0 file cannot move to a middle level unchanged."""
    lookup = rules.lookup
    if lookup is None:
        return False
    if not lookup.upgrades or file.schema_id in rules.unmarked_schemas:
        return True
    return (lookup.ignores_deletes or lookup.marks) and _may_hold_deletes(file)


def _section_of(file: DataFile) -> Section:
    return Section(runs=(SortedRun(level=file.level, files=(file,)),))


def _section(members: Sequence[tuple[Any, Any, DataFile]]) -> Section:
    _, maximum, file = members[0]
    if len(members) == 1:
        return _section_of(file)
    queue = _RunQueue()
    queue.offer(_OpenRun(maximum, [file]))
    for minimum, maximum, file in members[1:]:
        # If the run that ends first cannot take the file, no run can.
        first = queue.poll()
        if minimum > first.last_key:
            first.last_key = maximum
            first.files.append(file)
        else:
            queue.offer(_OpenRun(maximum, [file]))
        queue.offer(first)
    runs = tuple(SortedRun(level=run.files[0].level, files=tuple(run.files)) for run in queue.items)
    return Section(runs=runs)


@dataclass(slots=True)
class _OpenRun:
    last_key: Any
    files: list[DataFile]


@dataclass(slots=True)
class _RunQueue:
    """A binary heap by last key that moves items exactly as java.util.PriorityQueue does.

    heapq would order the array differently, and callers depend on that order.
    """

    items: list[_OpenRun] = field(default_factory=list)

    def offer(self, run: _OpenRun) -> None:
        items = self.items
        items.append(run)
        at = len(items) - 1
        while at > 0:
            parent = (at - 1) // 2
            if not run.last_key < items[parent].last_key:
                break
            items[at] = items[parent]
            at = parent
        items[at] = run

    def poll(self) -> _OpenRun:
        items = self.items
        first, last = items[0], items.pop()
        if items:
            self._sift_down(last)
        return first

    def _sift_down(self, run: _OpenRun) -> None:
        items, at = self.items, 0
        while at < len(items) // 2:
            child = 2 * at + 1
            right = child + 1
            if right < len(items) and items[right].last_key < items[child].last_key:
                child = right
            if not items[child].last_key < run.last_key:
                break
            items[at] = items[child]
            at = child
        items[at] = run
