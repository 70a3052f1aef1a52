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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opendal import AsyncOperator
    from opendal.types import Entry

# A thread of the library's wakes the event loop that waits for a page, and is still in Python for a
# moment then. If the interpreter ends meanwhile, the thread cannot go on and the process aborts. So
# the end waits for such threads: on a machine that does other things as well they may need long.
_EXIT_WAIT_S = 5.0


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
