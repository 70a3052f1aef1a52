"""Starts the engine, watches it, and restarts it when it dies.

One thread starts and watches the engine, another receives outcomes. Both post calls of a
`Listener` to the loop's queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog

from compactord.engine.base import Engine
from compactord.errors import CompactordError, EngineUnavailable
from compactord.model import FailureKind, Subcompaction, SubcompactionFailure, SubcompactionOutcome

_log = structlog.get_logger()
_WATCH_S = 2.0
_BACKOFF_MIN_S, _BACKOFF_MAX_S = 1.0, 60.0


class Listener(Protocol):
    """Receives changes of the engine's state and the outcomes of subcompactions."""

    def engine_up(self, slots: int) -> None:
        """The engine runs; called again when the number of slots changes."""
        ...

    def engine_down(self, why: str) -> None:
        """The engine has died: submitted subcompactions will have no outcome."""
        ...

    def engine_failed(self, why: str) -> None:
        """The engine could not be started; the host tries again."""
        ...

    def subcompaction_ended(self, outcome: SubcompactionOutcome) -> None: ...


class EngineHost:
    """`start` once, `close` once. `submit` only while the engine is up."""

    def __init__(
        self,
        start_engine: Callable[[], Engine],
        listener: Listener,
        *,
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._start_engine = start_engine
        self._listener = listener
        self._post = post
        self._engine: Engine | None = None
        # One permit for each subcompaction whose outcome has not been received.
        self._awaited = threading.Semaphore(0)
        self._closing = threading.Event()
        self._wake = threading.Event()
        # A failure that the host noticed, even if the engine reports none.
        self._trouble: str | None = None
        self._keeper = threading.Thread(target=self._keep, name="engine", daemon=True)

    @property
    def is_up(self) -> bool:
        return self._engine is not None

    def start(self) -> None:
        self._keeper.start()

    def submit(self, subcompaction: Subcompaction) -> None:
        """Submit a subcompaction. If the engine has died, `engine_down` follows a moment later."""
        engine = self._engine
        if engine is None:
            return
        try:
            engine.submit(subcompaction)
        except EngineUnavailable as error:
            self._fail(str(error))
        else:
            self._awaited.release()

    def cancel(self) -> None:
        """Stop all subcompactions; their outcomes are LOST. Waits at most some seconds."""
        engine = self._engine
        if engine is not None:
            engine.cancel()

    def cancel_one(self, compaction: int, index: int) -> None:
        """Stop one subcompaction; its outcome comes once its worker has ended."""
        engine = self._engine
        if engine is not None:
            engine.cancel_one(compaction, index)

    def restart(self, why: str) -> None:
        """End the engine and all its workers, and restart it; `engine_down` follows."""
        if self._engine is not None:
            self._fail(why)

    def close(self, seconds_max: float) -> bool:
        """End the engine and the threads; returns whether they ended in time."""
        self._closing.set()
        self._wake.set()
        if self._keeper.is_alive():
            self._keeper.join(seconds_max)
        return not self._keeper.is_alive()

    def _fail(self, why: str) -> None:
        self._trouble = why
        self._wake.set()

    def _keep(self) -> None:
        pause_s = _BACKOFF_MIN_S
        while not self._closing.is_set():
            try:
                with self._start_engine() as engine:
                    pause_s = _BACKOFF_MIN_S
                    self._supervise(engine)
                continue
            except CompactordError as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 - the border of the thread
                _log.error("engine_defect", exc_info=True)
                why = f"{type(error).__name__}: {error}"
            # The engine could not be started, or died of an unexpected error.
            listener = self._listener
            tell = listener.engine_failed if self._engine is None else listener.engine_down
            self._engine = None
            self._post(partial(tell, why))
            self._closing.wait(pause_s)
            pause_s = min(_BACKOFF_MAX_S, 2 * pause_s)

    def _supervise(self, engine: Engine) -> None:
        """Serve until the engine dies or the host is closed."""
        self._awaited = threading.Semaphore(0)
        self._wake.clear()
        self._trouble = None
        if self._closing.is_set():
            return
        self._engine = engine
        is_over = threading.Event()
        pump = threading.Thread(
            target=self._pump, args=(engine, self._awaited, is_over), name="outcomes", daemon=True
        )
        pump.start()
        slots, why = engine.capacity, None
        self._post(partial(self._listener.engine_up, slots))
        try:
            while why is None and not self._closing.is_set():
                self._wake.wait(_WATCH_S)
                self._wake.clear()
                why = engine.why_failed() or self._trouble
                if why is None and engine.capacity != slots:
                    slots = engine.capacity
                    self._post(partial(self._listener.engine_up, slots))
        finally:
            is_over.set()
            self._awaited.release()
        self._engine = None
        if why is not None:
            self._post(partial(self._listener.engine_down, why))
        else:
            engine.cancel()
        pump.join()

    def _pump(self, engine: Engine, awaited: threading.Semaphore, is_over: threading.Event) -> None:
        while True:
            awaited.acquire()
            while not is_over.is_set():
                try:
                    outcome = engine.next_outcome(0.5)
                except Exception as error:  # noqa: BLE001 - the border of the thread
                    _log.error("engine_defect", exc_info=True)
                    self._fail(f"its outcomes cannot be received: {type(error).__name__}: {error}")
                    return
                if outcome is None:
                    continue
                is_lost = (
                    isinstance(outcome, SubcompactionFailure) and outcome.kind is FailureKind.LOST
                )
                if is_lost and engine.why_failed() is not None:
                    # The engine died, no subcompaction failed: `engine_down` reports all as lost.
                    self._wake.set()
                else:
                    self._post(partial(self._listener.subcompaction_ended, outcome))
                break
            if is_over.is_set():
                return
