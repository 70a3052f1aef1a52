"""Aggregates each column by a rule of its own (aggregate/AggregateMergeFunction.java)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from compactord.kernels.functions.base import Needs, OrderedRecords
from compactord.kernels.functions.folding import (
    Action,
    KeyFacts,
    Steps,
    folded,
    result_rows,
    slots_of_round,
)
from compactord.kernels.functions.inserts import merged_inserts
from compactord.kernels.keyed import KeyedRecords
from compactord.kernels.kinds import DELETE, is_retract_kind
from compactord.paimon.options.merge import MergeRules


@dataclass(frozen=True)
class Aggregation:
    """The `MergeFunction` of the merge engine `aggregation`; all columns have a rule.

    Results are not merged again: a retract that finds nothing to retract from yields a row that
    does not say so.
    """

    rules: MergeRules
    needs = Needs.INSERTS
    ignores_deletes = False
    merges_again = False

    def merge(self, records: OrderedRecords) -> Iterator[pa.RecordBatch]:
        rules = {rule.column: rule for rule in self.rules.columns}
        if records.numbers is not None:
            yield merged_inserts(records, records.numbers, rules.__getitem__, adds_null=True)
            return
        for keyed in records.keyed():
            steps, facts = self._steps(keyed)

            def column(keyed: KeyedRecords, steps: Steps, name: str) -> pa.Array:
                return folded(keyed, name, rules[name], steps, adds_null=True)

            yield result_rows(keyed, facts, partial(column, keyed, steps))

    def _steps(self, keyed: KeyedRecords) -> tuple[Steps, KeyFacts]:
        steps = Steps()
        last = np.full(keyed.slots, -1, np.int64)
        deletes = np.zeros(keyed.slots, np.bool_)
        for rows in keyed.rounds:
            slots = slots_of_round(rows)
            kinds = keyed.kinds[rows]
            retracts = is_retract_kind(kinds)
            removes = (kinds == DELETE) & self.rules.remove_on_delete
            steps.take(Action.RESET, slots, rows, removes)
            steps.take(Action.ADD, slots, rows, ~retracts)
            steps.take(Action.RETRACT, slots, rows, retracts & ~removes)
            last[slots] = rows
            deletes[slots] = removes
        return steps, KeyFacts(last, deletes)
