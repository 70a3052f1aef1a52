"""Verifies that index files exist with their sizes, wherever they may be."""

from __future__ import annotations

import contextlib
from collections import Counter

from compactord.errors import CompactordError, FormatError, UnsupportedTable
from compactord.maintenance.finding import Finding, FindingKind, read_finding
from compactord.maintenance.verify_rules import FileRules
from compactord.paimon import paths
from compactord.paimon.manifest.index_manifest import IndexEntry
from compactord.storage.base import Storage

_ADVICE = (
    "Restore it from a backup, or roll the table back to a snapshot that does not need it: "
    "readers or writers of its bucket fail without it."
)


class IndexCheck:
    """`paths` are those of index files of the right size, by name; `types` counts them by type.

    `rules`: a text if buckets' folders are not known.
    """

    def __init__(self, storage: Storage, location: str, rules: FileRules | str) -> None:
        self.paths: dict[str, str] = {}
        self.types: Counter[str] = Counter()
        self._storage = storage
        self._location = location
        self._rules = rules

    def check(self, entry: IndexEntry) -> Finding | None:
        """What is wrong with a file that was not checked before.

        Raises `UnsupportedTable` if it is not known where the file must be.
        """
        places = self._places_of(entry)
        kind, message, found = FindingKind.INDEX_FILE_MISSING, "does not exist", places[0]
        for path in places:
            try:
                status = self._storage.status(path)
            except CompactordError as error:
                return read_finding(path, error)
            if status is not None and status.size_bytes == entry.file_size:
                self.types[entry.index_type] += entry.file_name not in self.paths
                self.paths[entry.file_name] = path
                return None
            if status is not None:
                kind, found = FindingKind.INDEX_FILE_SIZE, path
                message = f"has {status.size_bytes} bytes, but {entry.file_size} are recorded"
        if isinstance(self._rules, str) and kind is FindingKind.INDEX_FILE_MISSING:
            reason = f"{found} does not exist and may be elsewhere ({self._rules})"
            raise UnsupportedTable(self._location, [reason])
        return Finding(kind=kind, path=found, message=message, advice=_ADVICE)

    def _places_of(self, entry: IndexEntry) -> list[str]:
        """Where the file may be, the likeliest place first.

        The option may have been set, or removed, since (`FileStorePathFactory.indexFileFactory`).
        Raises `UnsupportedTable` if it is in another store.
        """
        places = [entry.path(self._location)]
        if entry.external_path is None and not entry.is_global and not isinstance(self._rules, str):
            with contextlib.suppress(FormatError):
                folder = self._rules.bucket_folder(entry.bucket)
                places.append(paths.join(folder, entry.file_name))
                if self._rules.indexes_in_buckets:
                    places.reverse()
        return places
