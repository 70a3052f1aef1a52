"""What tests of the page hold in hand while a server shows it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from tests.views import FixedClock, FixedStatus

HOST = "127.0.0.1"


@dataclass(kw_only=True)
class Served:
    """A status under a port. `asked` are the paths of all requests; clear `is_up` to fail them."""

    status: FixedStatus
    clock: FixedClock
    asked: list[str]
    is_up: threading.Event
    port: int = 0

    def url(self, path: str = "/") -> str:
        return f"http://{HOST}:{self.port}{path}"
