"""The engine seam: where subcompactions run.

An engine sends subcompactions to workers and returns their outcomes in the order in which they
finish. It decides nothing: retries and the order of work belong to the caller.
"""

from __future__ import annotations

from typing import Protocol

from compactord.model import FailureKind, Subcompaction, SubcompactionFailure, SubcompactionOutcome


class Engine(Protocol):
    """Runs subcompactions. One thread takes the outcomes; any thread may call all other methods.

    Every submitted subcompaction has exactly one outcome, unless `close` comes first. The outcome
    of one whose worker died, or that was cancelled, is a `SubcompactionFailure` of kind LOST.
    """

    @property
    def capacity(self) -> int:
        """Subcompactions that can run at once, at least 1; changes as a cluster grows, shrinks."""
        ...

    def submit(self, subcompaction: Subcompaction) -> None:
        """Hand in a subcompaction; returns at once. More than `capacity` of them wait their turn.

        Raises `EngineUnavailable` when the engine is gone for good.
        """
        ...

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        """The outcome of the subcompaction that finished first; waits at most `timeout_s` seconds.

        A `timeout_s` of None waits without a bound. The answer is None when time is up, or at once
        when every submitted subcompaction has had its outcome.
        """
        ...

    def why_gone(self) -> str | None:
        """Why no subcompaction can run any more, None while they can."""
        ...

    def cancel(self) -> None:
        """Stop all submitted subcompactions; their workers remove what they wrote.

        Subcompactions that finished before still give their result, all others are LOST.
        """
        ...

    def cancel_one(self, compaction: int, index: int) -> None:
        """Stop one subcompaction, if it has no outcome yet; does not wait for it.

        What it wrote is removed by its worker if that can still do so. Its outcome, LOST if it did
        not finish before, comes once the engine is rid of the worker.
        """
        ...

    def close(self) -> None:
        """Stop all subcompactions and processes, delete temporary files; may be called twice."""
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


def cancelled(subcompaction: Subcompaction) -> SubcompactionFailure:
    """The outcome of a subcompaction that `cancel` or `cancel_one` stopped."""
    return SubcompactionFailure(
        compaction=subcompaction.compaction,
        index=subcompaction.index,
        kind=FailureKind.LOST,
        error="Cancelled",
        message="the subcompaction was cancelled",
    )
