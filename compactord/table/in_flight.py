"""Compactions under way: parts go out, outcomes come back, finished buckets are ready to commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from compactord.errors import FormatError
from compactord.model import (
    AppendCompaction,
    BucketChange,
    Compaction,
    FailureKind,
    MergeCompaction,
    Output,
    RewriteStats,
    Subcompaction,
    SubcompactionResult,
    TaskFailure,
    TaskOutcome,
)
from compactord.paimon.data_file import DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A compaction whose parts have all succeeded. `number` is that of its dispatch."""

    number: int
    compaction: Compaction
    change: BucketChange
    stats: tuple[RewriteStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A compaction that failed for good; the files that some parts had `outputs` must go."""

    number: int
    compaction: Compaction
    failure: TaskFailure
    outputs: tuple[Output, ...]


@dataclass(slots=True)
class _InFlight:
    number: int
    compaction: Compaction
    files_above: frozenset[str]
    index_entries: tuple[bytes, ...]
    parts: tuple[Subcompaction, ...]
    results: dict[int, SubcompactionResult] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    failure: TaskFailure | None = None
    outstanding: int = 0


class InFlight:
    """Bookkeeping only: the caller submits parts and hands in outcomes.

    A part that fails in a way that may pass is handed back up to `part_attempts` times in all.
    """

    def __init__(self, *, part_attempts: int) -> None:
        self._part_attempts = part_attempts
        self._in_flight: dict[int, _InFlight] = {}

    def __len__(self) -> int:
        return len(self._in_flight)

    def stop_retrying(self) -> None:
        """From now on the first failure of a part is its last."""
        self._part_attempts = 1

    def give_up(self, number: int, failure: TaskFailure) -> Failed:
        """End a compaction; outcomes of its parts that come later are not to be handed in."""
        record = self._in_flight.pop(number)
        return _failed(record, record.failure or failure)

    def __contains__(self, number: int) -> bool:
        return number in self._in_flight

    def dispatch(
        self,
        number: int,
        compaction: Compaction,
        parts: Sequence[Subcompaction],
        *,
        neighbours: Iterable[DataFile],
        index_entries: tuple[bytes, ...],
    ) -> Finished | None:
        """Register a compaction; one without parts (only upgrades) finishes at once.

        `neighbours` are the files of a merge's bucket at planning time.
        """
        level = compaction.output_level if isinstance(compaction, MergeCompaction) else 0
        record = _InFlight(
            number=number,
            compaction=compaction,
            files_above=frozenset(file.file_name for file in neighbours if file.level >= level),
            index_entries=index_entries,
            parts=tuple(parts),
            outstanding=len(parts),
        )
        if not parts:
            return _finished(record)
        self._in_flight[number] = record
        return None

    def arrived(self, outcome: TaskOutcome) -> Finished | Failed | Subcompaction | None:
        """What an outcome leads to: a finished compaction, a part to submit again, or nothing."""
        record = self._in_flight[outcome.compaction]
        match outcome:
            case SubcompactionResult(part=part):
                record.results[part] = outcome
                record.outstanding -= 1
            case TaskFailure(part=part, kind=kind):
                attempts = record.attempts[part] = record.attempts.get(part, 0) + 1
                if (
                    kind is not FailureKind.POISON
                    and attempts < self._part_attempts
                    and record.failure is None
                ):
                    return record.parts[part]
                record.failure = record.failure or outcome
                record.outstanding -= 1
        if record.outstanding:
            return None
        del self._in_flight[outcome.compaction]
        failure = record.failure or _miscounted(record, outcome.compaction)
        return _finished(record) if failure is None else _failed(record, failure)


def _miscounted(record: _InFlight, number: int) -> TaskFailure | None:
    """Each row of the inputs must have been read by exactly one of several parts.

    A part that reads a range of keys passes over row groups by their bounds, which no checksum
    covers. Where one part reads whole files, it counts their rows itself.
    """
    if len(record.parts) < 2:
        return None
    inputs = {file.path: file.row_count for part in record.parts for file in part.source.files}
    rows, read = sum(inputs.values()), sum(each.stats.rows_in for each in record.results.values())
    if read == rows:
        return None
    return TaskFailure(
        compaction=number,
        part=0,
        kind=FailureKind.POISON,
        error=FormatError.__name__,
        message=f"its parts read {read:,} rows, its files have {rows:,}: bounds of keys in the"
        " footer of one of them do not hold",
        traceback="",
    )


def _failed(record: _InFlight, failure: TaskFailure) -> Failed:
    outputs = tuple(output for result in record.results.values() for output in result.outputs)
    return Failed(
        number=record.number, compaction=record.compaction, failure=failure, outputs=outputs
    )


def _finished(record: _InFlight) -> Finished:
    compaction = record.compaction
    results = [record.results[part] for part in range(len(record.parts))]
    match compaction:
        case MergeCompaction(output_level=level):
            upgraded = [replace(file, level=level) for file in compaction.upgraded]
        case AppendCompaction():
            level, upgraded = 0, []
    return Finished(
        number=record.number,
        compaction=compaction,
        change=BucketChange(
            bucket=compaction.bucket,
            total_buckets=compaction.total_buckets,
            output_level=level,
            before=compaction.inputs,
            upgraded=tuple(upgraded),
            outputs=tuple(output for result in results for output in result.outputs),
            files_above=record.files_above,
            index_entries=record.index_entries,
        ),
        stats=tuple(result.stats for result in results),
    )
