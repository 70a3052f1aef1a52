"""What a bucket's compactions would read, counted without making objects of small files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compactord.model import AppendCompaction, Compaction, CompactReason, WorkKind
from compactord.paimon.manifest.entry_columns import Mask
from compactord.plan.unaware import PackedCompactions
from compactord.state.files_by_size import SizeColumns


@dataclass(frozen=True, slots=True)
class PendingInputs:
    """What the first of a bucket's compactions is, and which of some files all of them take.

    `is_read`: not all of these only change their level.
    """

    kind: WorkKind
    reason: CompactReason
    is_read: bool
    files: SizeColumns
    taken: Mask


def inputs_of(compactions: Sequence[Compaction]) -> PendingInputs:
    if isinstance(compactions, PackedCompactions):
        reason, files = compactions.bins[0].reason, compactions.files.columns
        return PendingInputs(WorkKind.APPEND, reason, True, files, compactions.taken)
    first = compactions[0]
    files = SizeColumns.of([file for each in compactions for file in each.inputs])
    is_read, all_files = any(map(_reads_files, compactions)), np.ones(len(files.level), np.bool_)
    return PendingInputs(kind_of(first), first.reason, is_read, files, all_files)


def _reads_files(compaction: Compaction) -> bool:
    if isinstance(compaction, AppendCompaction):
        return True
    return len(compaction.upgraded) < len(compaction.inputs)


def kind_of(compaction: Compaction) -> WorkKind:
    """The kind of work that windows and counters see in a compaction."""
    if isinstance(compaction, AppendCompaction):
        return WorkKind.APPEND
    return WorkKind.FULL if compaction.reason.is_full else WorkKind.MINOR
