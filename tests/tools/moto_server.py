"""moto's S3 with atomic creations, as in S3: `moto_server.py PORT`.

moto looks for a name and stores the object in two steps: two concurrent creations of one object may
both succeed. Here creations wait for each other. A program of its own: tests start it as a process.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import run_simple

_CONDITION = "HTTP_IF_NONE_MATCH"


def main(port: int) -> None:
    """Serves on this machine's loopback until it is killed."""
    answer = DomainDispatcherApplication(create_backend_app)
    creation = threading.Lock()

    def one_creation_at_a_time(
        environ: dict[str, Any], start: Callable[..., Any]
    ) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" or _CONDITION not in environ:
            return answer(environ, start)
        with creation:
            return answer(environ, start)

    run_simple(
        "127.0.0.1",
        port,
        one_creation_at_a_time,
        threaded=True,
        request_handler=MotoRequestHandler,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]))
