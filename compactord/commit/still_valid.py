"""Compares finished compactions with the newest state: which of them may still be published."""

from __future__ import annotations

from collections.abc import Sequence

from compactord.commit.attempt import CommitSettings
from compactord.commit.changes import BucketChange, DroppedChange
from compactord.commit.conflicts import already_live, conflict
from compactord.errors import CommitUnknown
from compactord.paimon.data_file import DataFile
from compactord.state.table_state import TableState, index_entries
from compactord.storage.base import Storage


def still_valid(
    storage: Storage,
    state: TableState,
    changes: Sequence[BucketChange],
    settings: CommitSettings,
) -> tuple[list[BucketChange], list[DroppedChange]]:
    """Changes that still fit the newest state, and the others with the reason.

    Raises `CommitUnknown` when outputs are live already: dropping the change would delete them.
    """
    valid, dropped = [], []
    indexes = index_entries(storage, state)
    for change in changes:
        live = _relevant_files(state, change, settings)
        live_output = already_live(change, live)
        if live_output is not None:
            raise CommitUnknown(
                f"table {state.table.full_name}: {live_output} is live although no snapshot of "
                "ours was confirmed; nothing was deleted, the next run plans again"
            )
        summary = state.files.summary(change.bucket)
        found = conflict(
            change,
            live=live,
            total_buckets=summary.total_buckets if summary.file_count else None,
            index_entries=indexes.get(change.bucket, ()),
            key_of=settings.key_of,
        )
        if found is None:
            valid.append(change)
        else:
            kind, why = found
            dropped.append(DroppedChange(change=change, conflict=kind, why=why))
    return valid, dropped


def _relevant_files(
    state: TableState, change: BucketChange, settings: CommitSettings
) -> Sequence[DataFile]:
    """The live files that the check needs: the whole bucket for key ranges, else only names.

    A partition without buckets is one bucket and may have very many files.
    """
    if settings.key_of is not None:
        return state.files.files_in(change.bucket)
    return state.files.still_live(change.bucket, (*change.before, *change.after))
