"""Names of the cluster's services, as CoreDNS would answer: A records, of headless services too.

Runs by itself in a pod of kube-system, with the Python of the project's image; see `dns.yaml`.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import struct
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_API_SERVER = "https://10.96.0.1"
_SUFFIX = "svc.cluster.local"
_TYPE_A = 1
_NO_SUCH_NAME = 3
_AUTHORITATIVE_ANSWER = 0x8580
_NAME_OF_QUESTION = 0xC00C
_SECONDS_TO_LIVE = 5

Names = dict[str, list[str]]


def _items(path: str) -> list[dict[str, Any]]:
    context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    request = urllib.request.Request(_API_SERVER + path)
    request.add_header("Authorization", "Bearer " + (_ACCOUNT / "token").read_text())
    with urllib.request.urlopen(request, timeout=5, context=context) as answer:
        items: list[dict[str, Any]] = json.load(answer)["items"]
    return items


def names_now() -> Names:
    """Addresses by name; a headless service without ready endpoints has none."""
    found: Names = {}
    headless: dict[tuple[str, str], str] = {}
    for service in _items("/api/v1/services"):
        meta, address = service["metadata"], service["spec"].get("clusterIP")
        name = f"{meta['name']}.{meta['namespace']}.{_SUFFIX}"
        found[name] = [] if address == "None" else [address]
        if address == "None":
            headless[meta["namespace"], meta["name"]] = name
    for endpoints in _items("/apis/discovery.k8s.io/v1/endpointslices"):
        meta = endpoints["metadata"]
        owner = meta["namespace"], meta["labels"].get("kubernetes.io/service-name")
        if owner in headless:
            for endpoint in endpoints["endpoints"] or []:
                if endpoint["conditions"].get("ready", True):
                    found[headless[owner]] += endpoint["addresses"]
    return found


def answer(query: bytes, names: Names) -> bytes:
    """The message that answers a message with one question."""
    (ident,) = struct.unpack("!H", query[:2])
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    (kind,) = struct.unpack("!H", query[at + 1 : at + 3])
    found = names.get(".".join(labels), [])
    shown = found if kind == _TYPE_A else []
    flags = _AUTHORITATIVE_ANSWER | (0 if found else _NO_SUCH_NAME)
    head = struct.pack("!HHHHHH", ident, flags, 1, len(shown), 0, 0)
    record = struct.pack("!HHHIH", _NAME_OF_QUESTION, _TYPE_A, 1, _SECONDS_TO_LIVE, 4)
    return head + query[12 : at + 5] + b"".join(record + socket.inet_aton(a) for a in shown)


class Zone:
    names: Names = {}  # noqa: RUF012 - replaced as a whole


def main() -> None:
    class Udp(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request[1].sendto(answer(self.request[0], Zone.names), self.client_address)

    class Tcp(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            (size,) = struct.unpack("!H", self.rfile.read(2))
            told = answer(self.rfile.read(size), Zone.names)
            self.wfile.write(struct.pack("!H", len(told)) + told)

    for server in (
        socketserver.ThreadingTCPServer(("0.0.0.0", 53), Tcp),
        socketserver.ThreadingUDPServer(("0.0.0.0", 53), Udp),
    ):
        threading.Thread(target=server.serve_forever, name="names", daemon=True).start()
    while True:
        try:
            Zone.names = names_now()
        except OSError as error:
            print("the API server does not answer:", error, flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
