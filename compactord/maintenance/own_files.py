"""The deletion gate: maintenance deletes only the table's own files, even if metadata names others.

A table's own files are below its location, or below an external folder in its options
(`data-file.external-paths`, `global-index.external-path`). Links to folders are followed: the real
folder of a file counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from compactord.errors import AccessDenied, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.options.catalogue import canonical_key
from compactord.storage.base import Storage
from compactord.table.opening import OpenTable

_EXTERNAL = ("data-file.external-paths", "global-index.external-path")
# Folders of a table in which no data, index or statistics file is.
_OF_METADATA = frozenset(
    {"branch", "changelog", "consumer", "manifest", "schema", "snapshot", "tag"}
)


class OwnFiles:
    """Checks and deletes files that belong to one table; for one round.

    `roots` are the table's external folders.
    """

    def __init__(self, storage: Storage, location: str, roots: Iterable[str] = ()) -> None:
        self._storage = storage
        self._location = location
        self._roots = tuple(dict.fromkeys((location, *roots)))
        # By folder: its first component below the location, empty for the location itself and for
        # external folders; and the reason why its files are not the table's own, or None.
        self._places: dict[str, tuple[str, str | None]] = {}

    def require(self, path: str) -> None:
        """Raises `UnsupportedTable` unless the file is the table's own, and what the store does."""
        self._place(path)

    def require_data(self, path: str) -> None:
        """As `require`; also refuses a data, index or statistics file in a folder of metadata."""
        if self._place(path) in _OF_METADATA:
            raise self._refusal(
                path, "is among the table's metadata, but is referenced as another file"
            )

    def delete(self, path: str) -> None:
        """Delete the table's own file. Raises what `require` and the store raise."""
        self.require(path)
        self._storage.delete(path)

    def _place(self, path: str) -> str:
        folder = path.rpartition("/")[0]
        if folder not in self._places:
            self._places[folder] = self._found(folder)
        place, why_not = self._places[folder]
        if why_not is not None:
            raise self._refusal(path, why_not)
        return place

    def _found(self, folder: str) -> tuple[str, str | None]:
        real = self._storage.real_folder(folder)
        for root in self._roots:
            below = _below(folder, root)
            real_below = _below(real, self._storage.real_folder(root))
            if below is None or real_below is None:
                continue
            if root == self._location:
                return real_below.split("/")[0], None
            other = self._table_at(folder)
            return "", other and f"is in the folder of another table, {other}"
        if any(_below(folder, root) is not None for root in self._roots):
            return "", f"is behind a link, at {real}, outside of the table"
        options = " or ".join(_EXTERNAL)
        return "", (
            f"is outside of the table at {self._location}: if the file is the table's, name its "
            f"folder in the table's option {options}"
        )

    def _table_at(self, folder: str) -> str | None:
        """The table's folder at or above this folder, or None."""
        top = paths.store_root(folder)
        while folder != top:
            # A folder that must not be listed shows no sign of a table.
            with contextlib.suppress(AccessDenied):
                if self._has(paths.schema_folder(folder), paths.SCHEMA_PREFIX):
                    return folder
                if self._has(paths.snapshot_folder(folder), paths.SNAPSHOT_PREFIX):
                    return folder
            folder = folder.rpartition("/")[0]
        return None

    def _has(self, folder: str, prefix: str) -> bool:
        return any(
            paths.id_of(each.name, prefix) is not None for each in self._storage.list(folder)
        )

    def _refusal(self, path: str, why: str) -> UnsupportedTable:
        return UnsupportedTable(self._location, [f"file {path} {why}; no file is deleted"])


def own_files(table: OpenTable) -> OwnFiles:
    """The files of a table, by its options."""
    location = table.ref.location
    return OwnFiles(
        table.storage, location, _external_roots(location, table.schema.options.items())
    )


def _external_roots(location: str, options: Iterable[tuple[str, str]]) -> Iterator[str]:
    for key, text in options:
        if canonical_key(key) in _EXTERNAL:
            for place in filter(None, map(str.strip, text.split(","))):
                path = paths.external_path(location, place.rstrip("/"))
                if path is not None:
                    yield path


def _below(folder: str, root: str) -> str | None:
    """The path of `folder` relative to `root`, or None if it is not at or below it."""
    if any(name in (".", "..") for name in folder.split("/")) or not f"{folder}/".startswith(
        f"{root}/"
    ):
        return None
    return folder[len(root) + 1 :]
