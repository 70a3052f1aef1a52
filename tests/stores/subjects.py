"""The stores that have to keep the contract: those of servers, a disk, memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from compactord.storage.base import Storage, StorageSpec
from compactord.storage.local import LocalStorage
from tests.fsspec_files import fsspec_at
from tests.storages import MemoryStorage
from tests.store_servers import SERVERS, StoreServer

PARAMETERS = [
    pytest.param(name, marks=pytest.mark.hdfs if name == "hdfs" else ())
    for name in ("local", "memory", "fsspec", *SERVERS)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A store and a folder in it that is the test's own.

    `spec` opens it in another process; None where processes cannot share it.
    """

    name: str
    storage: Storage
    folder: str
    spec: StorageSpec | None


def subject(name: str, started: Callable[[str], StoreServer], own: str, scratch: Path) -> Subject:
    """`own` is a name that no other test has, `scratch` an empty folder of this machine."""
    if name == "local":
        local = LocalStorage()
        return Subject(name=name, storage=local, folder=f"{scratch}/{own}", spec=local)
    if name == "memory":
        return Subject(name=name, storage=MemoryStorage(), folder=f"/{own}", spec=None)
    if name == "fsspec":
        fsspec, folder = fsspec_at(f"exclusive://{scratch}/{own}", {})
        return Subject(name=name, storage=fsspec.open(), folder=folder, spec=fsspec)
    spec = started(name).spec
    return Subject(name=name, storage=spec.open(), folder=f"{spec.root}/{own}", spec=spec)
