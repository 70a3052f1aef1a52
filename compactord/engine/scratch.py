"""Folders for an engine's temporary files, named after the process that uses them.

A killed process leaves its folder behind. The next process that needs a folder removes those whose
owner is proved dead: same user, same host and process-id namespace, no such process (`ids.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from compactord import ids
from compactord.errors import EngineUnavailable

_PREFIX = "compactord-spark-"
# Host, start and process id. Short, because sockets are in these folders.
_NAME = re.compile(_PREFIX + r"([0-9a-f]{6})([0-9a-f]{7})([0-9a-f]{6})\.[0-9]+")
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
    return f"{owner.host:06x}{owner.start_ticks:07x}{owner.pid:06x}"


def _owner_of(name: str) -> ids.Owner | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    host, start_ticks, pid = (int(part, 16) for part in found.groups())
    return ids.Owner(host=host, start_ticks=start_ticks, pid=pid)
