"""File systems for fsspec: `exclusive://`, which creates a name once, and `racy://`, which looks.

Importing this module registers them. Both keep files of this machine.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from compactord.storage.fsspec import FSSPEC, FsspecSpec


def fsspec_at(location: str, options: Mapping[str, str]) -> tuple[FsspecSpec, str]:
    """The store of a location that fsspec opens, and the path in it."""
    found = FSSPEC.locate(location, options)
    assert isinstance(found.spec, FsspecSpec)
    return found.spec, found.path


class _OwnScheme(LocalFileSystem):  # type: ignore[misc]
    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + str(path).partition(":")[2].strip("/") if "://" in str(path) else str(path)


class Exclusive(_OwnScheme):
    protocol = "exclusive"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if mode != "create":
            Path(path).write_bytes(value)
            return
        temporary = f"{path}.{uuid.uuid4().hex}"
        Path(temporary).write_bytes(value)
        try:
            os.link(temporary, path)
        finally:
            os.unlink(temporary)


class Racy(_OwnScheme):
    """Looks, waits for a moment, and writes."""

    protocol = "racy"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if mode == "create" and os.path.exists(path):
            raise FileExistsError(path)
        time.sleep(0.002)
        Path(path).write_bytes(value)


class Looking(_OwnScheme):
    """Has fsspec's own way, which looks and writes."""

    protocol = "looking"


class Silent(Exclusive):
    """Creates a name once, but nobody hears what became of a snapshot."""

    protocol = "silent"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        if path.endswith("/snapshot-1"):
            raise RuntimeError("no answer")
        super().pipe_file(path, value, mode)


class Keyed(Exclusive):
    """Takes one key alone: that in the file `accepted`. While that is empty it is not opened."""

    protocol = "keyed"

    def __init__(self, key: str, accepted: str, **options: Any) -> None:
        super().__init__(**options)
        self._key, self._accepted = key, Path(accepted)
        if not self._accepted.read_text():
            raise FileNotFoundError("no certificate")

    def _check(self) -> None:
        if self._key != self._accepted.read_text():
            raise PermissionError("denied")

    def cat_file(self, path: str, **options: Any) -> Any:
        self._check()
        return super().cat_file(path, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self._check()
        super().pipe_file(path, value, mode)


class Unreachable(_OwnScheme):
    """Connects when it is opened, in vain."""

    protocol = "unreachable"

    def __init__(self, **_: Any) -> None:
        raise ConnectionRefusedError("refused")


for kind in (Exclusive, Racy, Looking, Silent, Keyed, Unreachable):
    with contextlib.suppress(ValueError):
        fsspec.register_implementation(kind.protocol, kind)
