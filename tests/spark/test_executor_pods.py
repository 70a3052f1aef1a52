"""Executors as pods: what an API server answers is said where Spark does not start."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from compactord.errors import EngineUnavailable
from tests.spark.remote import RemoteEngine

_REFUSAL = "failed quota: all: must specify limits.cpu for: executor"


class _ApiServer(BaseHTTPRequestHandler):
    """Knows no pod, and refuses to make any."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if asked["kind"] != "Pod":
            self._answer(201, asked)
            return
        name = asked["metadata"]["name"]
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": f'pods "{name}" is forbidden: {_REFUSAL}',
            "reason": "Forbidden",
            "details": {"name": name, "kind": "pods"},
            "code": 403,
        }
        self._answer(403, status)

    def do_DELETE(self) -> None:
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _answer(self, code: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def master() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _ApiServer) as server:
        threading.Thread(target=server.serve_forever, name="api-server", daemon=True).start()
        yield f"k8s://http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_refused_executor_is_said_in_the_words_of_the_api_server(master: str) -> None:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.instances": "1",
        "spark.kubernetes.container.image": "registry.example.com/compactord",
        "spark.kubernetes.namespace": "compactord",
    }
    with pytest.raises(EngineUnavailable, match=_REFUSAL) as raised:
        RemoteEngine(master, conf)
    # Once, and not with all fields of the answer.
    assert str(raised.value).count(_REFUSAL) == 1
