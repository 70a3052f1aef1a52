"""The output files of one task: named, described when they are complete, removed if it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.clock import Clock
from compactord.errors import StorageError
from compactord.model import WriteSpec
from compactord.paimon.data_file import DataFile
from compactord.rewrite.description import Describe, FileFacts
from compactord.rewrite.layout import Layout
from compactord.storage.base import Storage


class OutputStream:
    """A new object that is being written; exists for readers once `close` has returned."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.path = path
        self._context = storage.open_output(path)
        self.sink: pa.NativeFile = self._context.__enter__()

    def close(self) -> None:
        """Make the object durable; raises `StorageError`, and the object is gone then."""
        self._context.__exit__(None, None, None)

    def abort(self, error: BaseException) -> None:
        """Leave the storage's context with `error`, which removes the object.

        Raises what the storage makes of the error: one with the path, of our own kinds.
        """
        suppressed = self._context.__exit__(type(error), error, error.__traceback__)
        assert not suppressed, "a store does not swallow errors"


class OutputFile(Protocol):
    """A Parquet file that is being written. `bytes_written`: of its finished row groups."""

    rows: int

    @property
    def path(self) -> str: ...

    @property
    def bytes_written(self) -> int: ...

    def close(self) -> pq.FileMetaData:
        """Write the footer, make the file durable, return the footer. Aborts when that fails."""
        ...

    def abort(self, error: BaseException) -> None:
        """Remove the file; raises the store's form of `error`."""
        ...


F = TypeVar("F", bound=OutputFile)


class Outputs:
    """At most one file is open at a time. As a context it removes all files on any exception.

    `facts` are those of the file that was opened last; `finished` is in the order of the rows.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        spec: WriteSpec,
        layout: Layout,
        name_uuid: str,
        describe: Describe,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._spec = spec
        self._layout = layout
        self._name_uuid = name_uuid
        self._describe = describe
        self._clock = clock
        self._open: OutputFile | None = None
        self._created: list[str] = []
        self.facts = FileFacts(layout)
        self.finished: list[DataFile] = []

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._discard(error)

    def open(self, make: Callable[[str], F]) -> F:
        """The next file; `make` creates it at the path that it is given."""
        assert self._open is None, "one file at a time"
        spec = self._spec
        name = f"{spec.file_prefix}{self._name_uuid}-{len(self._created)}{spec.file_suffix}"
        path = f"{spec.folder}/{name}"
        output = make(path)
        # Only now: a file that could not be created is not ours to remove.
        self._created.append(path)
        self._open = output
        self.facts = FileFacts(self._layout)
        return output

    def close(self) -> None:
        """Complete the open file, if there is one."""
        output, self._open = self._open, None
        if output is None:
            return
        footer = output.close()
        status = self._storage.status(output.path)
        if status is None:
            raise StorageError(output.path, "the file vanished while it was written")
        self.finished.append(
            self._describe(
                name=status.name,
                size_bytes=status.size_bytes,
                facts=self.facts,
                footer=footer,
                now_ms=self._clock.now_ms(),
            )
        )

    def _discard(self, error: BaseException) -> None:
        """Remove every file; raises the storage's own form of `error` when it has one."""
        output, self._open = self._open, None
        try:
            if output is not None:
                output.abort(error)
        finally:
            for path in self._created:
                with contextlib.suppress(StorageError):
                    self._storage.delete(path)
