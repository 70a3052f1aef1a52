"""Runs subcompactions in this process, one after the other, when their outcomes are requested."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from compactord.engine.base import cancelled
from compactord.engine.worker import run_subcompaction
from compactord.model import Subcompaction, SubcompactionOutcome


class InlineEngine:
    """No threads and no processes: work happens inside `next_outcome`, in order of submission."""

    capacity = 1

    def __init__(
        self, run: Callable[[Subcompaction], SubcompactionOutcome] = run_subcompaction
    ) -> None:
        self._run = run
        self._waiting: deque[Subcompaction] = deque()
        self._finished: deque[SubcompactionOutcome] = deque()

    def submit(self, subcompaction: Subcompaction) -> None:
        self._waiting.append(subcompaction)

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        """As the protocol, except that a subcompaction that has started is always finished."""
        if self._finished:
            return self._finished.popleft()
        if self._waiting:
            return self._run(self._waiting.popleft())
        return None

    def why_failed(self) -> str | None:
        return None

    def cancel(self) -> None:
        self._finished.extend(cancelled(subcompaction) for subcompaction in self._waiting)
        self._waiting.clear()

    def cancel_one(self, compaction: int, index: int) -> None:
        for subcompaction in self._waiting:
            if (subcompaction.compaction_id, subcompaction.index) == (compaction, index):
                self._waiting.remove(subcompaction)
                self._finished.append(cancelled(subcompaction))
                return

    def close(self) -> None:
        self._waiting.clear()
        self._finished.clear()

    def __enter__(self) -> InlineEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
