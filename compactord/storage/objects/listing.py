"""Pages of listings, without stopping the other threads of the process.

The library's plain operator holds Python's lock while it waits for a page; its asynchronous one
does not. So each listing has an event loop of its own, which runs while a page is waited for.
"""

from __future__ import annotations

import asyncio
import atexit
import time
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opendal import AsyncOperator
    from opendal.types import Entry

# The library's threads give back what they held of Python a moment after a page is there. One that
# does so while the interpreter ends makes the process abort, so a process that ends just after a
# page waits for them.
_EXIT_PAUSE_S = 0.1


class _LastPage:
    """When this process last had a page, in monotonic seconds."""

    def __init__(self) -> None:
        self.at_s = float("-inf")

    def wait(self) -> None:
        left_s = self.at_s + _EXIT_PAUSE_S - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)


_last_page = _LastPage()
atexit.register(_last_page.wait)


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
        try:
            return self._loop.run_until_complete(self._portion())
        finally:
            _last_page.at_s = time.monotonic()

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
