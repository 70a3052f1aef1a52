"""The merge engine `partial-update`: fills a row up with the values that are not null.

Columns in a sequence group have an order of their own: a record changes them only if its sequence,
the values of the group's sequence fields, is not below the row's current one. A record whose
sequence fields are all null does not change the group.
Source: mergetree/compact/PartialUpdateMergeFunction.java.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from compactord.errors import SubcompactionError
from compactord.kernels.codes import word_ranks
from compactord.kernels.columns import DELETE, Bools, Int64s, KeyedRecords, is_retract_kind
from compactord.kernels.functions.base import Needs, OrderedRecords
from compactord.kernels.functions.folding import (
    Action,
    KeyFacts,
    Steps,
    folded,
    merged_inserts,
    result_rows,
    slots_of_round,
)
from compactord.kernels.order import precedence_words
from compactord.paimon.options.merge import ColumnRule, MergeRules, SequenceGroup

_NO_RETRACTS = (
    "a partial update cannot take deletes (-U or -D) by default: set ignore-delete to ignore them,"
    " partial-update.remove-record-on-delete to remove the row, or sequence groups to retract"
    " their columns"
)


def _rule(column: str) -> ColumnRule:
    """The rule of a column outside of sequence groups."""
    return ColumnRule(column=column, aggregator="last_non_null_value")


@dataclass(frozen=True)
class PartialUpdate:
    """The `MergeFunction` of the merge engine `partial-update`.

    Results are not merged again: they do not record which columns a delete has filled.
    """

    rules: MergeRules
    ignores_deletes = False
    merges_again = False

    @property
    def needs(self) -> Needs:
        return Needs.ALL if self.rules.groups else Needs.INSERTS

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        if records.numbers is not None:
            yield merged_inserts(records, records.numbers, _rule, adds_null=False)
            return
        for keyed in records.keyed():
            fold = _Fold(keyed, self.rules)
            for rows in keyed.rounds:
                fold.take_round(rows)
            yield result_rows(keyed, fold.facts(), partial(fold.column))


class _Group:
    """The state of one sequence group: the sequence of each slot, and the rows of the values."""

    def __init__(self, keyed: KeyedRecords, group: SequenceGroup) -> None:
        self.rule = group
        self.steps = Steps()
        # Rows of the sequence fields and of columns without an aggregator, or -1 for null.
        self.sequence_rows = np.full(keyed.slots, -1, np.int64)
        self.value_rows = np.full(keyed.slots, -1, np.int64)
        self._held = np.zeros(keyed.slots, np.int64)
        self._has = np.zeros(keyed.slots, np.bool_)
        fields = [keyed.column(name) for name in group.sequence_fields]
        self._is_empty = np.ones(len(keyed.kinds), np.bool_)
        for field in fields:
            self._is_empty &= field.is_null().to_numpy(zero_copy_only=False)
        self._order = np.zeros(len(keyed.kinds), np.int64)
        words = list(precedence_words(fields, None, keyed.used, is_descending=False))
        if len(fields) == 1 and self._is_empty[keyed.used].any():
            # The first word marks nulls: rows without a sequence are not compared.
            words = words[1:]
        self._order[keyed.used] = words[0] if len(words) == 1 else word_ranks(words)

    def is_active(self, rows: Int64s) -> Bools:
        return ~self._is_empty[rows]

    def is_newer(self, slots: Int64s, rows: Int64s) -> Bools:
        """A mask of records that replace the group's columns; equal sequences do."""
        newer: Bools = self.is_active(rows) & (
            ~self._has[slots] | (self._order[rows] >= self._held[slots])
        )
        return newer

    def reset(self, slots: Int64s, rows: Int64s, where: Bools) -> None:
        """The rows become copies of the records."""
        self.steps.take(Action.RESET, slots, rows, where)
        slots, rows = slots[where], rows[where]
        self._hold(slots, rows)
        self.value_rows[slots] = rows

    def take(self, slots: Int64s, rows: Int64s, retracts: Bools) -> None:
        """Records act on the group's columns, one for each slot."""
        active, newer = self.is_active(rows), self.is_newer(slots, rows)
        self.steps.take(Action.ADD, slots, rows, newer & ~retracts)
        self.steps.take(Action.ADD_EARLIER, slots, rows, active & ~newer & ~retracts)
        self.steps.take(Action.RETRACT, slots, rows, active & retracts)
        slots, rows, retracts = slots[newer], rows[newer], retracts[newer]
        self._hold(slots, rows)
        self.value_rows[slots] = np.where(retracts, -1, rows)

    def _hold(self, slots: Int64s, rows: Int64s) -> None:
        self.sequence_rows[slots] = rows
        self._has[slots] = self.is_active(rows)
        self._held[slots] = self._order[rows]


class _Fold:
    """The fold of one part of a window, round by round."""

    def __init__(self, keyed: KeyedRecords, rules: MergeRules) -> None:
        self._keyed = keyed
        self._rules = rules
        self._groups = [_Group(keyed, group) for group in rules.groups]
        self._steps = Steps()
        self._sequence_rows = np.full(keyed.slots, -1, np.int64)
        self._deletes = np.zeros(keyed.slots, np.bool_)
        self._has_added = np.zeros(keyed.slots, np.bool_)
        self._is_first = True

    def facts(self) -> KeyFacts:
        return KeyFacts(self._sequence_rows, self._deletes | ~self._has_added)

    def take_round(self, rows: Int64s) -> None:
        slots = slots_of_round(rows)
        kinds = self._keyed.kinds[rows]
        retracts = is_retract_kind(kinds)
        self._deletes[slots] = False
        if retracts.any():
            self._refuse(rows[retracts])
            if self._is_first:
                # A first retract, ignored or not, leaves its values in the row.
                self._reset(slots, rows, retracts)
            if self._rules.ignore_delete:
                slots, rows, kinds = slots[~retracts], rows[~retracts], kinds[~retracts]
                retracts = np.zeros(len(rows), np.bool_)
        self._is_first = False
        self._sequence_rows[slots] = rows
        self._has_added[slots[~retracts]] = True
        removes = self._removes(slots, rows, kinds)
        if removes.any():
            self._reset(slots, rows, removes)
            self._deletes[slots[removes]] = True
            slots, rows, retracts = slots[~removes], rows[~removes], retracts[~removes]
        self._steps.take(Action.ADD, slots, rows, ~retracts)
        for group in self._groups:
            group.take(slots, rows, retracts)

    def _refuse(self, retracts: Int64s) -> None:
        rules = self._rules
        if not (rules.ignore_delete or rules.remove_on_delete or rules.groups):
            raise SubcompactionError(
                f"key {self._keyed.key_text(int(retracts[0]))}: {_NO_RETRACTS}"
            )

    def _removes(self, slots: Int64s, rows: Int64s, kinds: Int64s) -> Bools:
        deletes: Bools = kinds == DELETE
        if self._rules.remove_on_delete:
            return deletes
        removes = np.zeros(len(rows), np.bool_)
        for group in self._groups:
            if group.rule.removes_record:
                removes |= deletes & group.is_newer(slots, rows)
        return removes

    def _reset(self, slots: Int64s, rows: Int64s, where: Bools) -> None:
        self._steps.take(Action.RESET, slots, rows, where)
        for group in self._groups:
            group.reset(slots, rows, where)

    def column(self, name: str) -> pa.Array:
        rules = {rule.column: rule for rule in self._rules.columns}
        for group in self._groups:
            if name in group.rule.sequence_fields:
                return self._keyed.selected(self._keyed.column(name), group.sequence_rows)
            if name in group.rule.columns and name in rules:
                return folded(self._keyed, name, rules[name], group.steps, adds_null=True)
            if name in group.rule.columns:
                return self._keyed.selected(self._keyed.column(name), group.value_rows)
        return folded(self._keyed, name, _rule(name), self._steps, adds_null=bool(self._groups))
