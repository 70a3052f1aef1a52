"""A subcompaction's output files: named, described when they are complete, removed if it fails.

Files have kinds, each with its own series of files. A failure removes the files of all kinds.

The manifest's record of a file agrees with io/KeyValueDataFileWriter.java and
io/RowDataFileWriter.java: keys of the first and last row, statistics, sequence numbers, retracts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from compactord.clock import Clock
from compactord.errors import StorageError
from compactord.formats.base import OutputFile
from compactord.formats.layout import Layout, cell
from compactord.model import ConcatSpec, Output, WriteSpec
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import (
    EMPTY_ROW,
    EMPTY_STATS,
    ColumnBounds,
    DataFile,
    FileSource,
    build_stats,
)
from compactord.paimon.types import SEQUENCE_NUMBER, VALUE_KIND
from compactord.storage.base import Storage

Opened = TypeVar("Opened", bound=OutputFile)


class FileFacts:
    """Collects a file's first and last key and its retracts from its row groups."""

    def __init__(self, layout: Layout) -> None:
        self._keys = layout.key_fields
        self._types = [field.type for field in self._keys]
        self.min_key = EMPTY_ROW
        self.max_key = EMPTY_ROW
        self.retracts = 0

    def add_group(self, rows: pa.Table) -> None:
        """Include the next row group, in the layout's row columns."""
        if not self._keys:
            return
        if self.min_key == EMPTY_ROW:
            self.min_key = self._key(rows, 0)
        self.max_key = self._key(rows, rows.num_rows - 1)
        for kinds in rows.column(VALUE_KIND.name).chunks:
            self.retracts += int(np.count_nonzero(kinds.to_numpy() & 1))

    def _key(self, rows: pa.Table, index: int) -> bytes:
        values = [cell(rows.column(field.name), index, field.type) for field in self._keys]
        return encode_row(values, self._types)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A completed file of `size_bytes` bytes; `bounds` are those of its columns, in their order."""

    name: str
    size_bytes: int
    rows: int
    facts: FileFacts
    bounds: Sequence[ColumnBounds]
    now_ms: int


# Makes the manifest's record of a file.
Describe: TypeAlias = Callable[[WrittenFile], DataFile]


class MergedFile:
    """Describes files of primary-key tables. `source` is who adds their rows, for readers."""

    def __init__(self, write: WriteSpec, layout: Layout, source: FileSource) -> None:
        self._write = write
        self._layout = layout
        self._file_source = source
        self._modes = dict(write.stats_modes)

    def __call__(self, file: WrittenFile) -> DataFile:
        by_name = {column.name: column for column in file.bounds}
        sequence = by_name[SEQUENCE_NUMBER.name]
        # `_KEY_` columns come first; thin files have no such columns.
        copies = len(self._layout.file_columns) - len(self._layout.row_fields)
        key_names = [field.name for field, _ in self._layout.file_columns[:copies]]
        key_names = key_names or [field.name for field in self._layout.key_fields]
        key_stats, _ = build_stats([by_name[key] for key in key_names], self._modes, dense=False)
        return _data_file(
            file,
            self._write,
            [by_name[field.name] for field in self._layout.value_fields],
            key_stats=key_stats,
            min_sequence_number=sequence.minimum,
            max_sequence_number=sequence.maximum,
            level=self._write.level,
            file_source=self._file_source,
        )


class AppendedFile:
    """Describes files of append tables, in the order in which they are written.

    Sequence numbers count the rows. Java restarts the count for every output of a rewrite
    (append/AppendCompactTask.java); with `continues_across_outputs` the ranges are disjoint.
    """

    def __init__(self, write: WriteSpec, source: ConcatSpec) -> None:
        self._write = write
        self._source = source
        self._next_sequence = source.first_sequence_number

    def __call__(self, file: WrittenFile) -> DataFile:
        first = self._next_sequence
        if self._source.continues_across_outputs:
            self._next_sequence += file.rows
        return _data_file(
            file,
            self._write,
            file.bounds,
            key_stats=EMPTY_STATS,
            min_sequence_number=first,
            max_sequence_number=first + file.rows - 1,
            level=0,
            file_source=FileSource.COMPACT,
        )


def _data_file(
    file: WrittenFile, write: WriteSpec, values: Sequence[ColumnBounds], **more: Any
) -> DataFile:
    """With statistics of the columns `values`."""
    modes = dict(write.stats_modes)
    value_stats, stats_columns = build_stats(values, modes, dense=write.stats_dense)
    return DataFile(
        file_name=file.name,
        file_size=file.size_bytes,
        row_count=file.rows,
        min_key=file.facts.min_key,
        max_key=file.facts.max_key,
        value_stats=value_stats,
        schema_id=write.schema_id,
        creation_time_ms=file.now_ms + write.creation_zone_offset_ms,
        delete_row_count=file.facts.retracts,
        value_stats_columns=stats_columns,
        **more,
    )


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
