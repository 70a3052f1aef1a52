"""What a bucket's compactions would read, counted without making objects of small files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compactord.model import (
    AppendCompaction,
    Compaction,
    CompactReason,
    MergeCompaction,
    Rewrite,
    WorkKind,
)
from compactord.paimon.avro.columns import Ints
from compactord.plan.append import PackedCompactions


@dataclass(frozen=True, slots=True)
class PendingInputs:
    """What the first of a bucket's compactions is, and the files that all of them take.

    `output_level` is that of its new files. `is_read`: a worker has to read some of the files.
    `created_ms` are the creation times, NULL for none, of those on level 0 or, where there is none,
    of all.
    """

    kind: WorkKind
    reason: CompactReason
    output_level: int
    is_read: bool
    count: int
    size_bytes: int
    created_ms: Ints | list[int]


def inputs_of(compactions: Sequence[Compaction]) -> PendingInputs:
    """The inputs of at least one compaction."""
    if isinstance(compactions, PackedCompactions):
        columns, taken = compactions.files.columns, compactions.taken
        newcomers = taken & (columns.level == 0)
        return PendingInputs(
            kind=WorkKind.APPEND,
            reason=compactions.bins[0].reason,
            output_level=0,
            is_read=True,
            count=int(np.count_nonzero(taken)),
            size_bytes=int(columns.file_size[taken].sum()),
            created_ms=columns.creation_time_ms[newcomers if newcomers.any() else taken],
        )
    first = compactions[0]
    files = [file for each in compactions for file in each.inputs]
    newest = [file for file in files if file.level == 0] or files
    return PendingInputs(
        kind=kind_of(first),
        reason=first.reason,
        output_level=first.output_level if isinstance(first, MergeCompaction) else 0,
        is_read=any(map(_reads_files, compactions)),
        count=len(files),
        size_bytes=sum(file.file_size for file in files),
        created_ms=[file.created_ms for file in newest],
    )


def _reads_files(compaction: Compaction) -> bool:
    if isinstance(compaction, AppendCompaction):
        return True
    return any(isinstance(each, Rewrite) or each.reads_rows for each in compaction.actions)


def kind_of(compaction: Compaction) -> WorkKind:
    """The kind of work that windows and counters see in a compaction."""
    if isinstance(compaction, AppendCompaction):
        return WorkKind.APPEND
    return WorkKind.FULL if compaction.reason.is_full else WorkKind.MINOR
