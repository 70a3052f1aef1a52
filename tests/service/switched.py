"""A store that can be told to fail, or to hang, while processes use it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from compactord.errors import AccessDenied, StorageError, StoreFull, TransientStorageError
from compactord.storage.base import Storage, StorageSpec
from tests.storages import Call, WatchedStorage

T = TypeVar("T")
KINDS = (TransientStorageError, StoreFull, StorageError, AccessDenied)


@dataclass(frozen=True)
class SwitchedSpec:
    """Opens the store in a worker, which counts its own calls."""

    inner: StorageSpec
    control: Path

    def open(self) -> SwitchedStorage:
        return SwitchedStorage(self.inner.open(), self.control)


class SwitchedStorage(WatchedStorage):
    """Does what a file says, which is looked at before each call:

    {"every": 7}    each 7th call of a process fails, by turns without and after its effect
    {"hang": "x"}   calls whose path matches x wait until the file says something else; the file
                    `hung` beside it lists them
    """

    def __init__(self, inner: Storage, control: Path) -> None:
        super().__init__(inner)
        self._control = control

    @property
    def spec(self) -> SwitchedSpec:
        return SwitchedSpec(self.inner.spec, self._control)

    def _watch(self, method: str, path: str, effect: Callable[[], T]) -> T:
        # Not one after the other: a call that hangs holds up no other.
        self.calls += 1
        return self.around(Call(self.calls, method, path), effect)

    def around(self, call: Call, effect: Callable[[], T]) -> T:
        if self._hangs(call):
            with self._control.with_name("hung").open("a") as hung:
                hung.write(f"{call.path}\n")
        while self._hangs(call):
            time.sleep(0.1)
        every = self._told().get("every", 0)
        if not every or call.number % every:
            return effect()
        failures = call.number // every
        if failures % 2:
            effect()
        raise KINDS[failures % len(KINDS)](call.path, f"{call.method} failed (as the test asked)")

    def _hangs(self, call: Call) -> bool:
        hang = self._told().get("hang")
        return hang is not None and re.search(hang, call.path) is not None

    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._control.read_text())
        return told
