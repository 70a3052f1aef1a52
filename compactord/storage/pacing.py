"""Limits how many deletions a second go to stores."""

from __future__ import annotations

import threading
from typing import Any, cast

from compactord.clock import Clock
from compactord.storage.base import Storage, UnfinishedUpload


class DeletePace:
    """The pace of all stores that are `paced` by it, together; any thread may delete.

    `per_second` None: not limited. It may be set at any time.
    """

    def __init__(self, clock: Clock, per_second: int | None = None) -> None:
        self.per_second = per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._next_s = 0.0

    def paced(self, storage: Storage) -> Storage:
        """The same store, whose deletions wait for their turn."""
        return cast(Storage, _PacedStorage(storage, self))

    def wait(self) -> None:
        """Return once the next deletion may be made."""
        per_second = self.per_second
        if per_second is None:
            return
        with self._lock:
            now_s = self._clock.monotonic_s()
            at_s = max(self._next_s, now_s)
            self._next_s = at_s + 1 / per_second
        if at_s > now_s:
            self._clock.sleep(at_s - now_s)


class _PacedStorage:
    def __init__(self, inner: Storage, pace: DeletePace) -> None:
        self._inner = inner
        self._pace = pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def delete(self, path: str) -> None:
        self._pace.wait()
        self._inner.delete(path)

    def remove_empty_folder(self, path: str) -> bool:
        self._pace.wait()
        return self._inner.remove_empty_folder(path)

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        self._pace.wait()
        self._inner.abort_upload(upload)
