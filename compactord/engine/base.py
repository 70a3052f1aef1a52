"""The engine seam: where subcompactions run.

An engine sends parts to workers and returns their outcomes in the order in which they finish. It
decides nothing: retries and the order of work belong to the caller.
"""

from __future__ import annotations

from typing import Protocol

from compactord.model import FailureKind, Subcompaction, TaskFailure, TaskOutcome


class Engine(Protocol):
    """Runs parts. One thread takes the outcomes; all other methods may be called from any thread.

    Every submitted part has exactly one outcome, unless `close` comes first. The outcome of a part
    whose worker died, or that was cancelled, is a `TaskFailure` of kind LOST.
    """

    @property
    def capacity(self) -> int:
        """Parts that can run at once, at least 1; may change while a cluster grows or shrinks."""
        ...

    @property
    def start_seconds(self) -> float:
        """Wall time that it took to start the engine."""
        ...

    def submit(self, part: Subcompaction) -> None:
        """Hand in a part; returns at once. More than `capacity` of them wait their turn.

        Raises `EngineUnavailable` when the engine is gone for good.
        """
        ...

    def next_outcome(self, timeout_s: float | None) -> TaskOutcome | None:
        """The outcome of the part that finished first, waiting at most `timeout_s` seconds.

        A `timeout_s` of None waits without a bound. The answer is None when time is up, or at once
        when every submitted part has had its outcome.
        """
        ...

    def why_gone(self) -> str | None:
        """Why no part can run any more, None while they can."""
        ...

    def cancel(self) -> None:
        """Stop all submitted parts; their workers remove what they wrote.

        Parts that finished before still give their result, all others are LOST.
        """
        ...

    def close(self) -> None:
        """Stop all parts, processes included, and delete temporary files; may be called twice."""
        ...

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...


def cancelled(part: Subcompaction) -> TaskFailure:
    """The outcome of a part that `Engine.cancel` stopped."""
    return TaskFailure(
        compaction=part.compaction,
        part=part.part,
        kind=FailureKind.LOST,
        error="Cancelled",
        message="the part was cancelled",
        traceback="",
    )
