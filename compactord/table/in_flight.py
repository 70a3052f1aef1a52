"""One compaction at the workers: subcompactions go out, outcomes come back and are combined."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from compactord.commit.changes import BucketChange
from compactord.errors import FormatError
from compactord.model import (
    AppendCompaction,
    Compaction,
    FailureKind,
    MergeCompaction,
    Output,
    RewriteStats,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
    TableName,
)
from compactord.paimon.data_file import DataFile
from compactord.paimon.deletion_vectors import NO_VECTORS, VectorRef

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a compaction whose subcompactions have all succeeded came to."""

    change: BucketChange
    stats: tuple[RewriteStats, ...]


class InFlight:
    """A compaction from its cutting into subcompactions until a cycle has dealt with its result.

    The caller takes from `waiting` what it submits, and hands in each outcome. `neighbours` are the
    files of a merge's bucket at planning time, `vectors` the deletion vectors of the bucket,
    `snapshot_id` is that of the state that was planned.
    """

    def __init__(
        self,
        number: int,
        compaction: Compaction,
        subcompactions: Sequence[Subcompaction],
        *,
        neighbours: Iterable[DataFile],
        vectors: Mapping[str, VectorRef] = NO_VECTORS,
        snapshot_id: int = 0,
        partition: str = "",
    ) -> None:
        level, self._looks_up = 0, False
        if isinstance(compaction, MergeCompaction):
            self._looks_up = any(action.looks_up for action in compaction.actions)
            level = 1 if self._looks_up else compaction.output_level
        self.number = number
        self.compaction = compaction
        self.subcompactions = tuple(subcompactions)
        self.snapshot_id = snapshot_id
        self.partition = partition
        self.waiting = deque(subcompactions)
        # What it came to, a failure for good; None while outcomes are outstanding.
        self.result: Finished | SubcompactionFailure | None = None
        self._files_above = frozenset(f.file_name for f in neighbours if f.level >= level)
        self.vectors = vectors
        self._results: dict[int, SubcompactionResult] = {}
        self._attempts: Counter[int] = Counter()
        self._failure: SubcompactionFailure | None = None
        self._outstanding = len(subcompactions)

    @property
    def done(self) -> int:
        """How many subcompactions have succeeded."""
        return len(self._results)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The new files of what has succeeded: they must go unless they are published."""
        return tuple(output for each in self._results.values() for output in each.outputs)

    def ended(self) -> Finished | SubcompactionFailure | None:
        """`result`, found now if nothing is outstanding any more.

        One without subcompactions, which only moves files to another level, has finished at once.
        """
        if not self._outstanding and self.result is None:
            self.result = self._failure or self._miscounted() or self._finished()
        return self.result

    def arrived(
        self, outcome: SubcompactionOutcome, table: TableName, *, attempts_max: int
    ) -> Finished | SubcompactionFailure | None:
        """Take in an outcome of the `table`; the answer is as that of `ended`.

        A subcompaction that fails in a way that may pass waits again, up to `attempts_max` attempts
        in all. Once one has failed for good, those that wait would run for nothing.
        """
        match outcome:
            case SubcompactionResult(index=index):
                self._results[index] = outcome
                self._outstanding -= 1
            case SubcompactionFailure(index=index, kind=kind):
                self._attempts[index] += 1
                may_pass = kind is not FailureKind.POISON and self._attempts[index] < attempts_max
                if may_pass and self._failure is None:
                    again = self.subcompactions[index]
                    _log.warning(
                        "compaction_retry",
                        **table.log_fields,
                        compaction_id=self.number,
                        error=outcome.message,
                    )
                    self.waiting.append(again)
                    return None
                self._failure = self._failure or outcome
                self._outstanding -= 1 + len(self.waiting)
                self.waiting.clear()
        return self.ended()

    def give_up(self, failure: SubcompactionFailure) -> None:
        """End the compaction; later outcomes must not be passed to `arrived`."""
        self.waiting.clear()
        self.result = failure

    def _miscounted(self) -> SubcompactionFailure | None:
        """Each row of the inputs must have been read by exactly one of several subcompactions.

        One that reads a range of keys passes over row groups by their bounds, which no checksum
        covers. Where a single one reads whole files, it counts their rows itself.
        """
        if len(self.subcompactions) < 2:
            return None
        inputs = {
            file.path: file.row_count for each in self.subcompactions for file in each.source.files
        }
        rows = sum(inputs.values())
        read = sum(each.stats.rows_in for each in self._results.values())
        if read == rows:
            return None
        return SubcompactionFailure(
            compaction=self.number,
            index=0,
            kind=FailureKind.POISON,
            error=FormatError.__name__,
            message=f"its subcompactions read {read:,} rows, its files have {rows:,}: bounds of"
            " keys in the footer of one of them do not hold",
        )

    def _finished(self) -> Finished:
        compaction = self.compaction
        results = [self._results[index] for index in range(len(self.subcompactions))]
        match compaction:
            case MergeCompaction(output_level=level):
                upgraded = [replace(file, level=level) for file in compaction.upgraded]
                only_read = frozenset(file.file_name for file in compaction.looked_up)
            case AppendCompaction():
                level, upgraded, only_read = 0, [], frozenset()
        # What only changes its level keeps its vector, whatever that is by then.
        rewritten = {f.file_name for f in compaction.inputs} - {f.file_name for f in upgraded}
        return Finished(
            change=BucketChange(
                bucket=compaction.bucket,
                total_buckets=compaction.total_buckets,
                output_level=level,
                before=compaction.inputs,
                upgraded=tuple(upgraded),
                outputs=tuple(output for result in results for output in result.outputs),
                files_above=self._files_above,
                only_read=only_read,
                looks_up=self._looks_up,
                vectors={
                    name: ref
                    for name, ref in self.vectors.items()
                    if name in rewritten or name in only_read
                },
                marks=tuple(mark for result in results for mark in result.marks),
            ),
            stats=tuple(result.stats for result in results),
        )
