"""The metadata files of one commit: written and remembered, so they can be deleted again."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from compactord.errors import StorageError, TransientStorageError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.types import Codec
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.manifest.foreign import TypesDiffer
from compactord.paimon.manifest.index_manifest import VectorsFile, with_vectors_files
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    encode_manifest_list,
    roll_entries,
)
from compactord.paimon.types import DataType
from compactord.storage.base import Storage
from compactord.storage.calls import AT_ONCE


class MetadataFiles:
    """Writes manifests, their lists and index files of a commit, named `unique_name` and a number.

    Every file is created exclusively and durable once `wait` has returned. The files are
    independent until a snapshot names them all, so files of an object store are written
    concurrently. Commits that share a `unique_name` also share `numbers`; by default the numbers
    start at 0. Writing raises `UnsupportedTable` for entries that cannot be written together.
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
        self._index_manifest_names = self._names("index-manifest")
        self._index_names = self._names("index")
        # Paths.
        self._written: list[str] = []
        self._pool: ThreadPoolExecutor | None = None
        self._under_way: deque[tuple[str, Future[None]]] = deque()

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
                self._write(paths.manifest_path(self._location, manifest.file_name), data)
                manifests.append(manifest)
        return tuple(manifests)

    def write_list(self, manifests: Iterable[ManifestFile]) -> tuple[str, int]:
        """Write a list. Returns its file name and its size in bytes."""
        with self._refusing():
            data = encode_manifest_list(manifests, self._codec)
        name = next(self._list_names)
        self._write(paths.manifest_path(self._location, name), data)
        return name, len(data)

    def write_index_file(self, data: bytes) -> str:
        """Write an index file. Returns its name."""
        name = next(self._index_names)
        self._write(paths.index_path(self._location, name), data)
        return name

    def write_index_manifest(
        self, before: str | None, *, without: Collection[str], added: Sequence[VectorsFile]
    ) -> str:
        """Write the index manifest that follows `before`. Raises as `with_vectors_files`."""
        data = with_vectors_files(
            self._storage,
            self._location,
            before,
            without=without,
            added=added,
            codec=self._codec,
        )
        name = next(self._index_manifest_names)
        self._write(paths.manifest_path(self._location, name), data)
        return name

    def wait(self) -> None:
        """Wait for all files. Raises the error of the first failed write."""
        failure: StorageError | None = None
        while self._under_way:
            try:
                self._wait_for_one()
            except StorageError as error:
                failure = failure or error
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        if failure is not None:
            raise failure

    def delete_written(
        self, *, only: Collection[str] | None = None, keep: Collection[str] = ()
    ) -> None:
        """Delete the written files: all of them, or `only` these names; never names in `keep`.

        Only for files that were certainly not published. A later orphan sweep finds files that
        cannot be deleted now. If some files are kept, raises as `wait`, before any deletion.
        """
        # Some of these files are kept, so write errors must be raised.
        is_all = only is None and not keep
        with contextlib.suppress(StorageError) if is_all else contextlib.nullcontext():
            self.wait()
        for path in tuple(self._written):
            name = path.rpartition("/")[2]
            if name in keep or (only is not None and name not in only):
                continue
            with contextlib.suppress(StorageError):
                self._storage.delete(path)
            self._written.remove(path)

    def keep_written(self) -> None:
        """Keep the written files: a snapshot that existed briefly may name them."""
        self._written.clear()

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except TypesDiffer as error:
            raise UnsupportedTable(self._location, [str(error)]) from error

    def _write(self, path: str, data: bytes) -> None:
        if not self._storage.capabilities.behind_network:
            self._note(path, partial(self._storage.write_new, path, data))
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(AT_ONCE, "metadata")
        self._under_way.append((path, self._pool.submit(self._storage.write_new, path, data)))
        if len(self._under_way) > AT_ONCE:
            # This many wait in memory.
            self._wait_for_one()

    def _wait_for_one(self) -> None:
        path, writing = self._under_way.popleft()
        self._note(path, writing.result)

    def _note(self, path: str, written: Callable[[], None]) -> None:
        """Record a file that exists, or may exist, after the call."""
        try:
            written()
        except TransientStorageError:
            # It may exist nevertheless. After other errors it may belong to another process.
            self._written.append(path)
            raise
        self._written.append(path)

    def _names(self, kind: str) -> Iterator[str]:
        return (f"{kind}-{self._unique_name}-{number}" for number in self._numbers)
