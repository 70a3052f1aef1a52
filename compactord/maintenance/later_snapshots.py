"""Files that retained snapshots may need from the past; cached between rounds.

A snapshot needs new files and files of the snapshot before it, unless it is a rollback as a new
snapshot. That is an overwrite, and its files might otherwise expire with an old snapshot. So the
names that a snapshot adds to the one before it are kept: of index files and statistics, and of data
files in an overwrite. They are kept as hashes; a file that shares a hash stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from compactord.maintenance.orphan_search import hashes_of
from compactord.paimon.data_file import EntryKind
from compactord.paimon.snapshot import CommitKind, Snapshot, SnapshotIdentity
from compactord.state.metadata_reader import MetadataReader
from compactord.storage.base import NO_TIME_MS, ObjectStatus

_Hashes = npt.NDArray[np.int64]
_NO_NAMES: _Hashes = np.empty(0, np.int64)
# Hashes of 8 bytes that are kept between rounds; with more, the next round reads all again.
_HASHES_MAX = 4_000_000


class _Known(NamedTuple):
    """`names` of a snapshot that snapshot `after` lacks, or all its names if `after` is None."""

    changed_ms: int
    size_bytes: int
    identity: SnapshotIdentity
    names: _Hashes
    after: int | None


class LaterSnapshots:
    """The snapshots of one branch after the one that becomes the oldest; for one round at a time.

    A snapshot stays known until its file changes.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        # The last snapshot that was read: its id and the names of its files, except data files.
        self._last: tuple[int | None, str | None, str | None] = (None, None, None)
        self._last_names = _NO_NAMES

    def unread(self, end: Snapshot, listed: Mapping[int, ObjectStatus]) -> list[int]:
        """The ids after `end` to pass to `add`, in order; forgets snapshots that have changed.

        `listed` are the files of all snapshots.
        """
        if sum(len(each.names) for each in self._known.values()) > _HASHES_MAX:
            self._known.clear()
        later = sorted(id_ for id_ in listed if id_ > end.id)
        before = None
        for id_ in (end.id, *later):
            known, file = self._known.get(id_), listed.get(id_)
            if known is not None and not (
                file is not None
                and (known.changed_ms, known.size_bytes) == (file.changed_ms, file.size_bytes)
                and file.changed_ms != NO_TIME_MS
                and (id_ == end.id or known.after in (None, before))
            ):
                self._known.clear()
                break
            before = None if known is None else id_
        there = {end.id, *later}
        self._known = {id_: known for id_, known in self._known.items() if id_ in there}
        new = [id_ for id_ in later if id_ not in self._known]
        if new and self._known and new[0] < max(self._known):
            # Known names of later snapshots may lack files that this one brings back.
            self._known.clear()
            return later
        return new

    def add(self, reader: MetadataReader, snapshot: Snapshot, file: ObjectStatus) -> None:
        """Read the names of a snapshot; called in order of ids. Raises what reading raises."""
        after = self._last[0] if self._last[0] in self._known else None
        names = self._names_but_data(reader, snapshot)
        new = np.setdiff1d(names, self._last_names if after is not None else _NO_NAMES)
        if snapshot.commit_kind is CommitKind.OVERWRITE:
            changes = reader.delta_changes(snapshot)
            added = (each.key.file_name for each in changes if each.kind is EntryKind.ADD)
            new = np.union1d(new, hashes_of(added))
        self._last = snapshot.id, snapshot.index_manifest, snapshot.statistics
        self._last_names = names
        new = new if len(new) else _NO_NAMES
        changed_ms, size_bytes = file.changed_ms, file.size_bytes
        self._known[snapshot.id] = _Known(changed_ms, size_bytes, snapshot.identity, new, after)

    def _names_but_data(self, reader: MetadataReader, snapshot: Snapshot) -> _Hashes:
        """Distinct hashes of its names; reads an index manifest that snapshots share once."""
        if self._last == (self._last[0], snapshot.index_manifest, snapshot.statistics):
            return self._last_names

        def names() -> Iterator[str]:
            yield from (each for each in (snapshot.statistics,) if each is not None)
            if snapshot.index_manifest is not None:
                yield snapshot.index_manifest
                yield from reader.names_of_index_files(snapshot.index_manifest)

        return np.unique(hashes_of(names()))

    @property
    def identities(self) -> Mapping[int, SnapshotIdentity]:
        return {id_: known.identity for id_, known in self._known.items()}

    def needed(self, names: Collection[str]) -> set[str]:
        """The names that one of the snapshots has."""
        every = [known.names for known in self._known.values() if len(known.names)]
        if not names or not every:
            return set()
        found = np.isin(hashes_of(names), np.concatenate(every)).tolist()
        return {name for name, is_needed in zip(names, found, strict=True) if is_needed}
