"""The metadata files of one commit: written and remembered, so that they can be deleted again."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence

from compactord.errors import StorageError, TransientStorageError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro import Codec
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.foreign import TypesDiffer
from compactord.paimon.manifest import (
    ManifestFile,
    encode_manifest_list,
    roll_entries,
)
from compactord.paimon.types import DataType
from compactord.storage.base import Storage


class MetadataFiles:
    """Writes manifests and manifest lists of one commit, named `unique_name` and a number.

    Every file is created exclusively and durable when the call returns. Commits that share a
    `unique_name` share `numbers`, too; without them the numbers start at 0. Writing raises
    `UnsupportedTable` for entries that cannot be written together.
    """

    def __init__(
        self,
        storage: Storage,
        location: str,
        *,
        unique_name: str,
        codec: Codec,
        manifest_target_size: int,
        partition_types: Sequence[DataType],
        numbers: Iterator[int] | None = None,
    ) -> None:
        self._storage = storage
        self._location = location
        self._unique_name = unique_name
        self._codec = codec
        self._manifest_target_size = manifest_target_size
        self._partition_types = partition_types
        self._numbers = numbers if numbers is not None else itertools.count()
        self._manifest_names = self._names("manifest")
        self._list_names = self._names("manifest-list")
        self._written: list[str] = []

    def write_manifests(self, entries: Iterable[ManifestEntry]) -> tuple[ManifestFile, ...]:
        """Write entries in order into as many manifests as needed; none without entries."""
        manifests = []
        with self._refusing():
            for data, manifest in roll_entries(
                entries,
                names=self._manifest_names,
                target_size=self._manifest_target_size,
                codec=self._codec,
                partition_types=self._partition_types,
            ):
                self._write(manifest.file_name, data)
                manifests.append(manifest)
        return tuple(manifests)

    def write_list(self, manifests: Iterable[ManifestFile]) -> tuple[str, int]:
        """The list's file name and its size in bytes."""
        with self._refusing():
            data = encode_manifest_list(manifests, self._codec)
        name = next(self._list_names)
        self._write(name, data)
        return name, len(data)

    def take_back(self, *, only: Collection[str] | None = None, keep: Collection[str] = ()) -> None:
        """Delete the written files: all of them, or `only` these names; never those in `keep`.

        Only for files that were certainly not published. A later orphan sweep finds those that
        cannot be deleted now.
        """
        for name in tuple(self._written):
            if name in keep or (only is not None and name not in only):
                continue
            with contextlib.suppress(StorageError):
                self._storage.delete(paths.manifest_path(self._location, name))
            self._written.remove(name)

    def let_go(self) -> None:
        """Keep the written files: a snapshot that existed briefly may name them."""
        self._written.clear()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except TypesDiffer as error:
            raise UnsupportedTable(self._location, [str(error)]) from error

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._storage.write_new(paths.manifest_path(self._location, name), data)
        except TransientStorageError:
            # It may exist nevertheless. After other errors it may belong to another process.
            self._written.append(name)
            raise
        self._written.append(name)

    def _names(self, kind: str) -> Iterator[str]:
        return (f"{kind}-{self._unique_name}-{number}" for number in self._numbers)
