"""Files that say that something was made, and when. As partition/file/SuccessFile.java."""

from __future__ import annotations

import json
from dataclasses import dataclass

from compactord.errors import ObjectNotFound
from compactord.paimon.schema import parse_json
from compactord.storage.base import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessTimes:
    """When it was made first, and last, in ms since the epoch."""

    created_ms: int
    changed_ms: int

    def to_json(self) -> bytes:
        """The file's content."""
        times = {"creationTime": self.created_ms, "modificationTime": self.changed_ms}
        return json.dumps(times).encode()


def read_success(storage: Storage, path: str) -> SuccessTimes | None:
    """What the file says; None if there is none, or if it was cut short as it was written."""
    try:
        found = parse_json(storage.read(path))
    except (ObjectNotFound, ValueError):
        found = None
    times = found if isinstance(found, dict) else {}
    created_ms, changed_ms = times.get("creationTime"), times.get("modificationTime")
    if type(created_ms) is not int or type(changed_ms) is not int:
        return None
    return SuccessTimes(created_ms=created_ms, changed_ms=changed_ms)
