"""Damage to the entries of one bucket of a real table; its rows stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from compactord.paimon import paths
from compactord.paimon.data_file import DataFile, ManifestEntry
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from tests.unit.paimon.table_builder import History, deleted

Spoil = Callable[[ManifestEntry], ManifestEntry]
JUNK = b"\0\0\0\1junk"
TOP = 5


def of_file(**fields: object) -> Spoil:
    def spoil(entry: ManifestEntry) -> ManifestEntry:
        changed: DataFile = replace(entry.file, **fields)  # type: ignore[arg-type]
        return replace(entry, file=changed)

    return spoil


# Each with what is said of it, besides the name of a file.
DAMAGE: dict[str, tuple[Spoil, str]] = {
    "overlap": (of_file(level=TOP), "key range overlaps"),
    "key": (of_file(level=TOP, max_key=JUNK), "the keys of the file cannot be read"),
    "key on level 0": (of_file(min_key=JUNK), "the keys of the file cannot be read"),
    "level": (of_file(level=-1), "on level -1"),
}


def spoil(
    storage: Storage,
    table: TableRef,
    bucket: int,
    how: Spoil,
    *,
    count: int = 2,
    adds: bool = False,
) -> tuple[DataFile, ...]:
    """Another writer replaces the oldest files of the bucket by such copies of them.

    Or `adds` the copies.
    """
    state = load_state(storage, table)
    assert state.snapshot is not None
    (found,) = [each for each in state.files.bucket_ids() if each.bucket == bucket]
    before = state.files.entries(found)[:count]
    folder = paths.bucket_folder(table.location, "", bucket)
    after = []
    for entry in before:
        # A file that is deleted and added under one name by one snapshot would be gone.
        copied = replace(
            entry.file, file_name=f"data-spoilt-{state.snapshot.id}-{len(after)}.parquet"
        )
        data = storage.read(paths.join(folder, entry.file.file_name))
        storage.write_new(paths.join(folder, copied.file_name), data)
        after.append(how(replace(entry, file=copied)))
    # The builder was made for its own store, which has the same methods.
    history = History(storage, table, snapshot=state.snapshot, written=1000 * state.snapshot.id)  # type: ignore[arg-type]
    history.commit([*map(deleted, () if adds else before), *after], CommitKind.OVERWRITE)
    return tuple(entry.file for entry in after)
