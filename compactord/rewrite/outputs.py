"""A subcompaction's output files: named, described when they are complete, removed if it fails.

Files have kinds, each with its own series of files. A failure removes the files of all kinds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from compactord.clock import Clock
from compactord.errors import StorageError
from compactord.formats.base import OutputFile
from compactord.formats.layout import Layout
from compactord.model import Output, WriteSpec
from compactord.rewrite.file_meta import Describe, FileFacts, WrittenFile
from compactord.storage.base import Storage

Opened = TypeVar("Opened", bound=OutputFile)


class Outputs:
    """All files of a subcompaction. As a context manager it removes all of them on an exception.

    `finished` has the order in which files were completed; within a kind, that of the rows.
    """

    def __init__(self, *, storage: Storage, unique_name: str, clock: Clock) -> None:
        self.storage = storage
        self.clock = clock
        self._unique_name = unique_name
        self._series: list[OutputSeries] = []
        self._created: list[str] = []
        self.finished: list[Output] = []

    def __enter__(self) -> Outputs:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is not None:
            self._discard(error)

    def series(
        self, kind: str, *, spec: WriteSpec, layout: Layout, describe: Describe
    ) -> OutputSeries:
        """A new series of files of one kind, still empty."""
        series = OutputSeries(self, kind, spec=spec, layout=layout, describe=describe)
        self._series.append(series)
        return series

    def create(
        self, spec: WriteSpec, create: Callable[[Storage, str], Opened]
    ) -> tuple[Opened, str]:
        """Create a file; returns it and its name, unique among all kinds of the subcompaction."""
        name = f"{spec.file_prefix}{self._unique_name}-{len(self._created)}{spec.file_suffix}"
        path = f"{spec.folder}/{name}"
        # Before the creation: an interrupt may come as soon as the file is there.
        self._created.append(path)
        try:
            output = create(self.storage, path)
        except Exception:
            # A file that we could not create may belong to somebody else.
            self._created.remove(path)
            raise
        return output, name

    def _discard(self, error: BaseException) -> None:
        """Remove every file. Raises the storage's own form of `error` if there is one."""
        try:
            with contextlib.ExitStack() as aborting:
                for series in self._series:
                    aborting.callback(series.abort, error)
        finally:
            for path in self._created:
                with contextlib.suppress(StorageError):
                    self.storage.delete(path)


class OutputSeries:
    """The files of one kind, at most one of them open at a time; `spec` is how they are made.

    `facts` belong to the file that was opened last.
    """

    def __init__(
        self, outputs: Outputs, kind: str, *, spec: WriteSpec, layout: Layout, describe: Describe
    ) -> None:
        self._outputs = outputs
        self._kind = kind
        self.spec = spec
        self.layout = layout
        self._describe = describe
        self._open: OutputFile | None = None
        self._name = ""
        self.facts = FileFacts(layout)
        self.has_finished = False

    def open(self, create: Callable[[Storage, str], Opened]) -> Opened:
        """Open the next file with `create`, the format's function."""
        assert self._open is None, "one file at a time"
        output, self._name = self._outputs.create(self.spec, create)
        self._open = output
        self.facts = FileFacts(self.layout)
        return output

    def close(self) -> None:
        """Complete the open file, if there is one.

        Raises `StorageError`, also if it is not there afterwards under its name.
        """
        output, self._open = self._open, None
        if output is None:
            return
        bounds = output.close()
        name, size_bytes = self._stored(output)
        if name != self._name:
            # Readers search the name in the bucket's folder: the rows would be lost.
            raise StorageError(output.path, f"the file is called {name}, not {self._name}")
        written = WrittenFile(
            name=name,
            size_bytes=size_bytes,
            rows=output.rows,
            facts=self.facts,
            bounds=bounds,
            now_ms=self._outputs.clock.now_ms(),
        )
        self._outputs.finished.append(Output(self._kind, self._describe(written)))
        self.has_finished = True

    def _stored(self, output: OutputFile) -> tuple[str, int]:
        """Name and size of a complete file."""
        if self._outputs.storage.capabilities.behind_network:
            # The commit asks whether as much as was written is there (`commit/added_files`).
            return output.path.rpartition("/")[2], output.bytes_written
        status = self._outputs.storage.status(output.path)
        if status is None:
            raise StorageError(output.path, "the file disappeared while it was written")
        return status.name, status.size_bytes

    def abort(self, error: BaseException) -> None:
        """Abort the open file, if there is one, as `OutputFile.abort` does."""
        output, self._open = self._open, None
        if output is not None:
            output.abort(error)
