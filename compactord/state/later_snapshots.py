"""The snapshot that the hint names, and the snapshots after a known one, read one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from compactord.errors import ObjectNotFound
from compactord.paimon import paths
from compactord.paimon.snapshot import (
    Snapshot,
    hinted_snapshot_id,
    latest_snapshot_id,
    read_snapshot,
)
from compactord.storage.base import Storage
from compactord.storage.calls import ahead

T = TypeVar("T")

# From this many new snapshots on, a full read is no slower than applying each delta.
MAX_FOLLOWED = 200
# After so many the hint tells how many more there are.
_ASKED_AFTER = 10


def newest_by_hint(storage: Storage, root: str) -> Snapshot | None:
    """The snapshot that the hint names, if it is there and no later one is; else None.

    Raises what reading raises.
    """
    hinted = hinted_snapshot_id(storage, root)
    if hinted is None:
        return None
    following = paths.snapshot_path(root, hinted + 1)
    with ahead(storage, partial(snapshot_if_there, storage, root, hinted)) as found:
        # One that has a later one may be damaged.
        return found() if storage.status(following) is None else None


def snapshot_if_there(storage: Storage, root: str, snapshot_id: int) -> Snapshot | None:
    try:
        return read_snapshot(storage, root, snapshot_id)
    except ObjectNotFound:
        return None


def read_newest(newest: Callable[[], Snapshot | None], read: Callable[[Snapshot | None], T]) -> T:
    """What `read` makes of the newest snapshot. One may expire meanwhile; then there is another."""
    for is_last in (False, False, True):
        try:
            return read(newest())
        except ObjectNotFound:
            if is_last:
                raise
    raise AssertionError("the last attempt returns or raises")


def later_snapshots(
    storage: Storage,
    root: str,
    known: Snapshot,
    following: Callable[[], Snapshot | None],
    hint: Callable[[], int | None],
) -> Iterator[Snapshot | None]:
    """The snapshots after `known`, in order; then None if there are too many, or one is missing.

    `following` reads the first of them, `hint` what the hint names.
    """
    newest_id = known.id
    while True:
        found = following()
        if found is None:
            if (hint() or 0) <= newest_id:
                return
            # Published just now, or missing, or the hint is wrong.
            found = snapshot_if_there(storage, root, newest_id + 1)
        if found is not None and found.id == known.id + _ASKED_AFTER:
            latest = latest_snapshot_id(storage, root) or 0
            found = found if latest - known.id <= MAX_FOLLOWED else None
        if found is None or found.id - known.id > MAX_FOLLOWED:
            yield None
            return
        yield found
        newest_id = found.id
        following = partial(snapshot_if_there, storage, root, newest_id + 1)
