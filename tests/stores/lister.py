"""Run as a program: lists a bucket and ends at once. Its event loop is woken by a slow thread.

    python -m tests.stores.lister PORT

As on a crowded machine, the library's thread that brings a page goes on half a second after the
main one has it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

from tests.store_servers import s3


class SlowlyWoken(asyncio.SelectorEventLoop):
    def call_soon_threadsafe(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        handle = super().call_soon_threadsafe(*args, **kwargs)
        if threading.get_ident() != threading.main_thread().ident:
            # In steps, of which one comes to its end while the interpreter does.
            for _ in range(500):
                time.sleep(0.001)
        return handle


class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = SlowlyWoken


if __name__ == "__main__":
    asyncio.set_event_loop_policy(Policy())
    server = s3(int(sys.argv[1]))
    found = list(server.spec.open().list(f"{server.root}/lister"))
    print(len(found), flush=True)
