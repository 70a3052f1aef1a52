"""Signs that a table is being restored or copied: its metadata does not name all live files yet."""

from __future__ import annotations

from collections.abc import Collection

from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, has_latest_hint, hinted_snapshot_id, snapshot_files
from compactord.storage.base import ObjectStatus, Storage

# Writers create a snapshot's file within this time of the moment that stands in it.
WRITE_DELAY_MAX_MS = 600_000
# Files that have not changed for so long are part of no restore that goes on.
_UNCHANGED_MS = 86_400_000
MAY_BE_RESTORED = "a restore or copy may be under way"


def hint_trouble(storage: Storage, root: str, hint: int | None, ids: Collection[int]) -> str | None:
    """Why snapshots `ids` cannot be all: the hint LATEST, read before them, names none of them.

    Writers set the hint after they create a snapshot, and before they roll it back. One without a
    number lags: it is being written, or its writer was killed or had no space left.
    """
    if hint is None and has_latest_hint(storage, root):
        return None
    if hint is None:
        return f"it has snapshots but no hint LATEST: {MAY_BE_RESTORED}"
    if hint not in ids:
        return f"LATEST names snapshot {hint}, which is missing: {MAY_BE_RESTORED}"
    return None


def why_incomplete(storage: Storage, location: str, branch: str, before_ms: int) -> str | None:
    """Why the snapshots of main or of a branch may not be all; None if nothing speaks for it.

    A branch is made without a hint, and without snapshots unless it is made from a tag. So one
    whose files are all from before `before_ms` is complete without them.
    """
    root = paths.branch_root(location, branch)
    # In this order: a commit in between adds a snapshot, and then its hint.
    hint = hinted_snapshot_id(storage, root)
    files = snapshot_files(storage, root)
    if hint is None and branch != paths.MAIN_BRANCH:
        made = [*files.values(), *storage.list(paths.schema_folder(root))]
        if made and all(status.changed_ms < before_ms for status in made):
            return None
    return _trouble_at(storage, root, hint, files)


def main_trouble(storage: Storage, table: TableRef, now_ms: int) -> str | None:
    """Why main's snapshots, which need files of its branches too, may not be all; None for main.

    A restore that goes by names brings branches first and main's snapshots last. Main without any
    is complete once its schemas are a day old: all may have been written to branches.
    """
    root = table.location
    if table.branch == paths.MAIN_BRANCH:
        return None
    hint = hinted_snapshot_id(storage, root)
    ids = snapshot_files(storage, root).keys()
    if hint is None and not ids:
        schemas = list(storage.list(paths.schema_folder(root)))
        if schemas and all(each.changed_ms < now_ms - _UNCHANGED_MS for each in schemas):
            return None
    return _trouble_at(storage, root, hint, ids)


def _trouble_at(storage: Storage, root: str, hint: int | None, ids: Collection[int]) -> str | None:
    if hint is None and not ids:
        return f"{root} has no snapshots: {MAY_BE_RESTORED}"
    trouble = hint_trouble(storage, root, hint, ids)
    return trouble if trouble is None else f"{root}: {trouble}"


def is_restored(snapshot: Snapshot, file: ObjectStatus, since_ms: int) -> bool:
    """Whether the snapshot's file is a copy, made after `since_ms`: others may follow."""
    is_late = file.changed_ms > snapshot.time_ms + WRITE_DELAY_MAX_MS
    return is_late and file.changed_ms > since_ms
