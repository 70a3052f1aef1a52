"""The output files of one task: named, described when they are complete, removed if it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from compactord.clock import Clock
from compactord.errors import StorageError
from compactord.formats.base import OutputFile
from compactord.formats.layout import Layout
from compactord.model import WriteSpec
from compactord.paimon.data_file import DataFile
from compactord.rewrite.description import Describe, FileFacts
from compactord.storage.base import Storage

Output = TypeVar("Output", bound=OutputFile)


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
        unique_name: str,
        describe: Describe,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._spec = spec
        self._layout = layout
        self._unique_name = unique_name
        self._describe = describe
        self._clock = clock
        self._open: OutputFile | None = None
        self._created: list[str] = []
        self._name = ""
        self.facts = FileFacts(layout)
        self.finished: list[DataFile] = []

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._discard(error)

    def open(self, create: Callable[[Storage, str], Output]) -> Output:
        """The next file; `create` is the format's way to open it."""
        assert self._open is None, "one file at a time"
        spec = self._spec
        name = f"{spec.file_prefix}{self._unique_name}-{len(self._created)}{spec.file_suffix}"
        path = f"{spec.folder}/{name}"
        output = create(self._storage, path)
        # Only now: a file that could not be created is not ours to remove.
        self._created.append(path)
        self._open, self._name = output, name
        self.facts = FileFacts(self._layout)
        return output

    def close(self) -> None:
        """Complete the open file, if there is one."""
        output, self._open = self._open, None
        if output is None:
            return
        bounds = output.close()
        status = self._storage.status(output.path)
        if status is None:
            raise StorageError(output.path, "the file vanished while it was written")
        if status.name != self._name:
            # Readers look for the name in the bucket's folder: the rows would be lost.
            raise StorageError(output.path, f"the file is called {status.name}, not {self._name}")
        self.finished.append(
            self._describe(
                name=status.name,
                size_bytes=status.size_bytes,
                rows=output.rows,
                facts=self.facts,
                bounds=bounds,
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
