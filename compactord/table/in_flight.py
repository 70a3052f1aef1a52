"""One compaction at the workers: subcompactions go out, outcomes come back and are combined."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
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
    SubcompactionResult,
    TableName,
    TaskFailure,
    TaskOutcome,
)
from compactord.paimon.data_file import DataFile

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A compaction whose subcompactions have all succeeded. `number` is that of its dispatch."""

    number: int
    compaction: Compaction
    change: BucketChange
    stats: tuple[RewriteStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A compaction that failed for good; the `outputs` of those that succeeded must go."""

    number: int
    compaction: Compaction
    failure: TaskFailure
    outputs: tuple[Output, ...]


class InFlight:
    """The subcompactions of one compaction: which wait, and what became of the others.

    The caller takes from `waiting` what it submits, and hands in each outcome. `neighbours` are the
    files of a merge's bucket at planning time.
    """

    def __init__(
        self,
        number: int,
        compaction: Compaction,
        subcompactions: Sequence[Subcompaction],
        *,
        neighbours: Iterable[DataFile],
        index_entries: tuple[bytes, ...],
    ) -> None:
        level = compaction.output_level if isinstance(compaction, MergeCompaction) else 0
        self.waiting = deque(subcompactions)
        self._number = number
        self._compaction = compaction
        self._subcompactions = tuple(subcompactions)
        self._files_above = frozenset(f.file_name for f in neighbours if f.level >= level)
        self._index_entries = index_entries
        self._results: dict[int, SubcompactionResult] = {}
        self._attempts: Counter[int] = Counter()
        self._failure: TaskFailure | None = None
        self._outstanding = len(subcompactions)

    @property
    def done(self) -> int:
        """How many subcompactions have succeeded."""
        return len(self._results)

    def ended(self) -> Finished | Failed | None:
        """What the compaction came to; None while outcomes are outstanding.

        One without subcompactions, which only moves files to another level, has finished at once.
        """
        if self._outstanding:
            return None
        failure = self._failure or self._miscounted()
        return self._finished() if failure is None else self.give_up(failure)

    def arrived(
        self, outcome: TaskOutcome, table: TableName, *, attempts_max: int
    ) -> Finished | Failed | None:
        """Take in an outcome of the `table`; the answer is as that of `ended`.

        A subcompaction that fails in a way that may pass waits again, up to `attempts_max` attempts
        in all. Once one has failed for good, those that wait would run for nothing.
        """
        match outcome:
            case SubcompactionResult(index=index):
                self._results[index] = outcome
                self._outstanding -= 1
            case TaskFailure(index=index, kind=kind):
                self._attempts[index] += 1
                may_pass = kind is not FailureKind.POISON and self._attempts[index] < attempts_max
                if may_pass and self._failure is None:
                    again = self._subcompactions[index]
                    _log.warning(
                        "compaction_retry",
                        **table.log_fields,
                        compaction_id=self._number,
                        error=outcome.message,
                    )
                    self.waiting.append(again)
                    return None
                self._failure = self._failure or outcome
                self._outstanding -= 1 + len(self.waiting)
                self.waiting.clear()
        return self.ended()

    def give_up(self, failure: TaskFailure) -> Failed:
        """End the compaction; later outcomes must not be passed to `arrived`."""
        self.waiting.clear()
        outputs = tuple(output for each in self._results.values() for output in each.outputs)
        return Failed(
            number=self._number, compaction=self._compaction, failure=failure, outputs=outputs
        )

    def _miscounted(self) -> TaskFailure | None:
        """Each row of the inputs must have been read by exactly one of several subcompactions.

        One that reads a range of keys passes over row groups by their bounds, which no checksum
        covers. Where a single one reads whole files, it counts their rows itself.
        """
        if len(self._subcompactions) < 2:
            return None
        inputs = {
            file.path: file.row_count for each in self._subcompactions for file in each.source.files
        }
        rows = sum(inputs.values())
        read = sum(each.stats.rows_in for each in self._results.values())
        if read == rows:
            return None
        return TaskFailure(
            compaction=self._number,
            index=0,
            kind=FailureKind.POISON,
            error=FormatError.__name__,
            message=f"its subcompactions read {read:,} rows, its files have {rows:,}: bounds of"
            " keys in the footer of one of them do not hold",
            traceback="",
        )

    def _finished(self) -> Finished:
        compaction = self._compaction
        results = [self._results[index] for index in range(len(self._subcompactions))]
        match compaction:
            case MergeCompaction(output_level=level):
                upgraded = [replace(file, level=level) for file in compaction.upgraded]
            case AppendCompaction():
                level, upgraded = 0, []
        return Finished(
            number=self._number,
            compaction=compaction,
            change=BucketChange(
                bucket=compaction.bucket,
                total_buckets=compaction.total_buckets,
                output_level=level,
                before=compaction.inputs,
                upgraded=tuple(upgraded),
                outputs=tuple(output for result in results for output in result.outputs),
                files_above=self._files_above,
                index_entries=self._index_entries,
            ),
            stats=tuple(result.stats for result in results),
        )
