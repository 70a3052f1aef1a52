"""The rolling writer: rows in key (or arrival) order become data files of about the target size.

Rows are gathered to row groups; a full one is encoded behind the caller while the next one fills.
Alive: one row group filling, one being encoded. Sizes are met by measuring: after each row group
the bytes written so far tell how many rows are still missing, and they are spread evenly over the
row groups to come, so that no sliver is left and a file ends within about a percent of its target.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from compactord.clock import Clock
from compactord.errors import StorageError
from compactord.kernels.columns import RowSizes
from compactord.model import WriteSpec
from compactord.paimon.data_file import DataFile
from compactord.rewrite.ahead import Encoding
from compactord.rewrite.description import Describe, FileFacts
from compactord.rewrite.layout import Layout
from compactord.rewrite.parquet import ParquetOutput
from compactord.storage.base import Storage

# A file is full when less than this share of its rows is missing.
_TOLERANCE = 0.01
# Before anything was measured the estimate may be wrong: do not bet a whole file on it.
_FIRST_GROUP_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """Limits of a row group; `bytes_per_row` is a guess of encoded bytes until one is written."""

    rows: int
    size_bytes: int
    bytes_per_row: float


class RollingWriter:
    """Writes the outputs of one task. As a context it removes all its files on any exception."""

    def __init__(
        self,
        *,
        storage: Storage,
        spec: WriteSpec,
        layout: Layout,
        name_uuid: str,
        describe: Describe,
        size: GroupSize,
        dictionary_columns: tuple[str, ...],
        encoding: Encoding,
        clock: Clock,
    ) -> None:
        self._storage = storage
        self._spec = spec
        self._layout = layout
        self._schema = layout.file_schema
        self._sizes = RowSizes(layout.row_schema)
        self._name_uuid = name_uuid
        self._describe = describe
        self._size = size
        self._bytes_per_row = max(size.bytes_per_row, 0.01)
        self._max_group_bytes = min(size.size_bytes, spec.row_group_bytes)
        self._dictionary_columns = dictionary_columns
        self._encoding = encoding
        self._clock = clock
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._output: ParquetOutput | None = None
        self._facts = FileFacts(layout)
        self._created: list[str] = []
        self._finished: list[DataFile] = []
        self.rows = 0
        self._group_rows = self._next_group_rows()

    def __enter__(self) -> RollingWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None:
            self._encoding.close()
            return
        self._discard(error)

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows that follow those taken before."""
        if batch.num_rows == 0:
            return
        self.rows += batch.num_rows
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += self._sizes.of(batch)
        while self._is_group_full():
            # What is written so far decides how large this group should be.
            self._encoding.wait()
            self._roll_when_full()
            self._group_rows = self._next_group_rows()
            if self._is_group_full():
                self._write_group()

    def finish(self) -> tuple[DataFile, ...]:
        """Write what is left and close; the finished files in the order of their rows."""
        while self._pending_rows:
            self._encoding.wait()
            self._roll_when_full()
            self._group_rows = self._next_group_rows()
            self._write_group()
        self._close_output()
        return tuple(self._finished)

    def _is_group_full(self) -> bool:
        return (
            self._pending_rows >= self._group_rows or self._pending_bytes >= self._max_group_bytes
        )

    def _next_group_rows(self) -> int:
        """Rows of the next group, so that the file comes to its target with even groups."""
        missing = self._missing_bytes() / self._bytes_per_row
        if self._output is None and not self._finished:
            missing *= _FIRST_GROUP_SHARE
        groups = max(1, math.ceil(missing / self._size.rows))
        return max(1, math.ceil(missing / groups))

    def _missing_bytes(self) -> float:
        written = 0 if self._output is None else self._output.bytes_written
        return float(max(0, self._spec.target_file_size - written))

    def _roll_when_full(self) -> None:
        output = self._output
        if output is None or not output.rows:
            return
        self._bytes_per_row = max(output.bytes_written / output.rows, 0.01)
        if self._missing_bytes() <= _TOLERANCE * self._spec.target_file_size:
            self._close_output()

    def _write_group(self) -> None:
        rows = min(self._group_rows, self._pending_rows)
        if self._pending_bytes > self._max_group_bytes:
            fitting = self._pending_rows * self._max_group_bytes // self._pending_bytes
            rows = max(1, min(rows, fitting))
        table = self._take(rows)
        if self._output is None:
            self._output = self._open_output()
        self._encoding.submit(self._encode_job(self._output, self._facts, table))

    def _encode_job(
        self, output: ParquetOutput, facts: FileFacts, rows: pa.Table
    ) -> Callable[[], None]:
        def encode() -> None:
            output.write_group(self._layout.file_table(rows, self._schema))
            facts.add_group(rows)

        return encode

    def _take(self, rows: int) -> pa.Table:
        """The first pending rows, with one dictionary per dictionary-encoded column."""
        taken: list[pa.RecordBatch] = []
        missing = rows
        while missing:
            batch = self._pending[0]
            if batch.num_rows <= missing:
                taken.append(self._pending.pop(0))
            else:
                taken.append(batch.slice(0, missing))
                self._pending[0] = batch.slice(missing)
            missing -= taken[-1].num_rows
        self._pending_rows -= rows
        self._pending_bytes = sum(self._sizes.of(batch) for batch in self._pending)
        table = pa.Table.from_batches(taken)
        return table.unify_dictionaries() if self._layout.dictionaries else table

    def _open_output(self) -> ParquetOutput:
        spec = self._spec
        name = f"{spec.file_prefix}{self._name_uuid}-{len(self._created)}{spec.file_suffix}"
        path = f"{spec.folder}/{name}"
        output = ParquetOutput(
            self._storage, path, self._schema, spec, dictionary_columns=self._dictionary_columns
        )
        # Only now: a file that could not be created is not ours to remove.
        self._created.append(path)
        self._facts = FileFacts(self._layout)
        return output

    def _close_output(self) -> None:
        self._encoding.wait()
        output = self._output
        if output is None:
            return
        self._output = None
        footer = output.close()
        status = self._storage.status(output.path)
        if status is None:
            raise StorageError(output.path, "the file vanished while it was written")
        self._finished.append(
            self._describe(
                name=status.name,
                size_bytes=status.size_bytes,
                facts=self._facts,
                footer=footer,
                now_ms=self._clock.now_ms(),
            )
        )

    def _discard(self, error: BaseException) -> None:
        """Remove every file; raises the storage's own form of `error` when it has one."""
        self._encoding.close()
        output, self._output = self._output, None
        try:
            if output is not None:
                output.abort(error)
        finally:
            for path in self._created:
                with contextlib.suppress(StorageError):
                    self._storage.delete(path)
