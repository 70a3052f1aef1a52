"""While a store is slow to answer, the other threads of a process go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from compactord.storage.base import Storage
from tests.store_servers import StoreServer, s3
from tests.tools.store_proxy import StoreProxy

_TIMEOUT_S = 60


def _output(storage: Storage, path: str) -> None:
    with storage.open_output(path) as stream:
        stream.write(bytes(20 << 20))


@pytest.mark.parametrize(
    "call",
    [
        lambda storage, folder: storage.read(f"{folder}/a"),
        lambda storage, folder: storage.read_range(f"{folder}/a", 0, 1),
        lambda storage, folder: storage.status(f"{folder}/a"),
        lambda storage, folder: list(storage.list(folder)),
        lambda storage, folder: storage.folder_exists(folder),
        lambda storage, folder: storage.create_if_absent(f"{folder}/b", b"", temporary=""),
        lambda storage, folder: storage.overwrite(f"{folder}/c", b""),
        lambda storage, folder: storage.delete(f"{folder}/a"),
        lambda storage, folder: _output(storage, f"{folder}/d"),
    ],
    ids=["read", "range", "status", "list", "folder", "create", "overwrite", "delete", "output"],
)
def test_a_thread_that_waits_for_the_store_lets_the_others_go_on(
    moto: StoreServer, call: Callable[[Storage, str], object], request: pytest.FixtureRequest
) -> None:
    folder = f"{moto.root}/waiting/{request.node.callspec.id}"
    moto.spec.open().overwrite(f"{folder}/a", b"x")
    # The proxy is a thread of this process: if it had to wait, too, only the time-out would end it.
    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        storage = replace(s3(proxy.port).spec, timeout_s=_TIMEOUT_S).open()
        began = time.monotonic()
        call(storage, folder)
        assert time.monotonic() - began < _TIMEOUT_S
        assert proxy.log
