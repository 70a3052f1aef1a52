"""Pages of listings, without stopping the other threads of the process.

The library's plain operator holds Python's lock while it waits for a page; its asynchronous one
does not. So each listing has an event loop of its own, which runs while a page is waited for.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading
import time
from collections.abc import AsyncIterable
from datetime import datetime
from typing import TYPE_CHECKING

from compactord.storage.base import NO_TIME_MS, ObjectStatus

if TYPE_CHECKING:
    from opendal import AsyncOperator
    from opendal.types import Entry, Metadata

# A thread of the library's wakes the event loop that waits for a page, and is still in Python for a
# moment then. If the interpreter ends meanwhile, the thread cannot go on and the process aborts. So
# the end waits for such threads: on a machine that does other things as well they may need long.
_EXIT_WAIT_S = 5.0
_FOLDER_MARK = "hdi_isfolder"


def _await_foreign_threads() -> None:
    """Wait until no thread is in Python that Python has not started."""
    ends_s = time.monotonic() + _EXIT_WAIT_S
    while time.monotonic() < ends_s:
        own = {thread.ident for thread in threading.enumerate()}
        if own.issuperset(sys._current_frames()):
            return
        time.sleep(0.001)


atexit.register(_await_foreign_threads)


class Listing:
    """The entries below a prefix, in portions of a page; to be closed. One thread at a time."""

    def __init__(self, store: AsyncOperator, prefix: str, page_entries: int) -> None:
        self._store = store
        self._prefix = prefix
        self._page_entries = page_entries
        self._entries: AsyncIterable[Entry] | None = None
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Listing:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.close()

    def page(self) -> list[Entry]:
        """What comes next, empty at the end. Raises the library's errors; then it is over."""
        return self._loop.run_until_complete(self._portion())

    async def _portion(self) -> list[Entry]:
        entries = self._entries
        if entries is None:
            entries = await self._store.list(self._prefix, limit=self._page_entries)
            self._entries = entries
        found: list[Entry] = []
        async for entry in entries:
            found.append(entry)
            if len(found) == self._page_entries:
                break
        return found


def listed(entry: Entry, prefix: str) -> ObjectStatus | None:
    """An entry of a listing; None for the object that marks the folder itself."""
    name = entry.path.removeprefix("" if prefix == "/" else prefix).removesuffix("/")
    if name in ("", "/"):
        return None
    if entry.metadata.is_dir:
        return ObjectStatus(name=name, is_folder=True, size_bytes=0, changed_ms=0)
    return status_of(name, entry.metadata)


def status_of(name: str, found: Metadata) -> ObjectStatus:
    """Of an object, by what the library tells of it."""
    changed: datetime | None = found.last_modified
    marks = found.user_metadata or {}
    return ObjectStatus(
        name=name,
        is_folder=marks.get(_FOLDER_MARK) == "true",
        size_bytes=found.content_length,
        changed_ms=NO_TIME_MS if changed is None else int(changed.timestamp() * 1000),
    )
