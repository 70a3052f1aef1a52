"""Credentials that expire, and are replaced before that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from compactord.clock import Clock
from compactord.errors import CompactordError

T = TypeVar("T")
_log = structlog.get_logger()
# As Java, which asks at each call for one that lives no longer (rest/auth/DLFAuthProvider.java).
_LEFT_MS = 3_600_000
# Between two attempts while the old one still holds, and for one that was old when it came.
_AGAIN_MS, _AT_LEAST_MS = 60_000, 1_000


@dataclass(frozen=True, slots=True)
class Lent(Generic[T]):
    """`expires_ms` is since the epoch; None: never."""

    value: T
    expires_ms: int | None


class Renewing(Generic[T]):
    """Any number of threads may ask; `load` fetches one, for all of them."""

    def __init__(self, load: Callable[[], Lent[T]], clock: Clock) -> None:
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()
        self._lent: Lent[T] | None = None
        self._renew_ms = 0

    def value(self) -> T:
        """One with an hour of its life left, or half of what it had. Raises as `load`.

        While another cannot be had, the old one until it expires.
        """
        with self._lock:
            now_ms = self._clock.now_ms()
            lent = self._lent
            if lent is None or (lent.expires_ms is not None and now_ms >= self._renew_ms):
                lent = self._renewed(lent, now_ms)
            return lent.value

    def is_renewed(self) -> bool:
        """Whether another one is there in place of the one that was just refused."""
        with self._lock:
            before, now_ms = self._lent, self._clock.now_ms()
            try:
                return self._renewed(None, now_ms).value != (before and before.value)
            except CompactordError:
                return False

    def _renewed(self, old: Lent[T] | None, now_ms: int) -> Lent[T]:
        try:
            lent = self._lent = self._load()
        except CompactordError as error:
            if old is None or old.expires_ms is None or now_ms >= old.expires_ms:
                raise
            _log.warning("credential_not_renewed", error=str(error))
            self._renew_ms = now_ms + _AGAIN_MS
            return old
        if lent.expires_ms is not None:
            left_ms = min(_LEFT_MS, (lent.expires_ms - now_ms) // 2)
            self._renew_ms = max(lent.expires_ms - left_ms, now_ms + _AT_LEAST_MS)
        return lent
