"""A scene in memory."""

from __future__ import annotations

from compactord import ids
from compactord.storage.base import Storage
from compactord_demo.jobs import Scene
from tests.builders import VirtualClock


def scene_in(storage: Storage) -> Scene:
    return Scene(
        storage=storage, warehouse="/warehouse", owner=ids.this_process(), clock=VirtualClock()
    )
