"""Folders for an engine's temporary files, named after the process that uses them.

A killed process leaves its folder behind. The next process that needs a folder removes those whose
owner is proved dead: same user, same host and process-id namespace, no such process (`ids.py`).
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from compactord import ids
from compactord.errors import EngineUnavailable

_PREFIX = "compactord-spark-"
# Short, because sockets are in these folders: 14 characters for host, start and process id.
_NAME = re.compile(_PREFIX + r"([A-Za-z0-9_-]{14})\.[0-9]+")
_HOST_BITS, _START_BITS, _PID_BITS, _SPARE_BITS = 24, 28, 22, 6
_MARK_BYTES = (_HOST_BITS + _START_BITS + _PID_BITS + _SPARE_BITS) // 8
_FOLDERS_MAX = 1000


def new_scratch(parent: Path | None = None) -> Path:
    """A new empty folder of this process, in that for temporary files unless `parent` is given.

    Raises `EngineUnavailable` when none can be made.
    """
    try:
        parent = parent or Path(tempfile.gettempdir())
        _remove_abandoned(parent)
        return _made(parent / f"{_PREFIX}{_mark(ids.this_process())}")
    except OSError as error:
        raise EngineUnavailable(f"no folder for temporary files: {error}") from error


def _made(stem: Path) -> Path:
    for number in range(_FOLDERS_MAX):
        folder = stem.with_name(f"{stem.name}.{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(f"{_FOLDERS_MAX} folders {stem}.* are there already")


def _remove_abandoned(parent: Path) -> None:
    """Best effort: folders that cannot be read or removed are kept."""
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{_PREFIX}*"):
            owner = _owner_of(folder.name)
            if owner is None or ids.liveness(owner) is not ids.Liveness.DEAD:
                continue
            with contextlib.suppress(OSError):
                # Anyone may give a folder any name in a place that all can write to.
                if folder.lstat().st_uid == os.geteuid() and not folder.is_symlink():
                    shutil.rmtree(folder, ignore_errors=True)


def _mark(owner: ids.Owner) -> str:
    number = owner.host << _START_BITS | owner.start_ticks
    number = (number << _PID_BITS | owner.pid) << _SPARE_BITS
    return base64.urlsafe_b64encode(number.to_bytes(_MARK_BYTES, "big")).decode().rstrip("=")


def _owner_of(name: str) -> ids.Owner | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    number = int.from_bytes(base64.urlsafe_b64decode(found[1] + "=="), "big") >> _SPARE_BITS
    return ids.Owner(
        host=number >> _PID_BITS + _START_BITS,
        start_ticks=(number >> _PID_BITS) % (1 << _START_BITS),
        pid=number % (1 << _PID_BITS),
    )
