"""The rolling writer: rows in key (or arrival) order become data files of about the target size.

Rows are collected in row groups; a full one is encoded in a second thread while the next one is
filled, so two row groups are in memory. File sizes are controlled by measurement: after each row
group the bytes written so far give the number of rows still missing. These are divided evenly
between the remaining row groups, so that there is no small last group and a file ends within about
a percent of its target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from compactord.formats.base import FileWriter, OutputFile
from compactord.kernels.columns import RowSizes
from compactord.rewrite.outputs import FileFacts, OutputSeries
from compactord.rewrite.pipeline import Encoding

# A file is full when less than this share of its rows is missing.
_TOLERANCE = 0.01
# Before the first measurement the estimate may be wrong, so the first group is smaller.
_FIRST_GROUP_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSize:
    """Limits of a row group; `bytes_per_row` is a guess of encoded bytes until one is written."""

    rows: int
    size_bytes: int
    bytes_per_row: float


class RollingWriter:
    """Writes the outputs of one kind."""

    def __init__(
        self,
        outputs: OutputSeries,
        *,
        size: GroupSize,
        writer: FileWriter,
        encoding: Encoding,
    ) -> None:
        self._outputs = outputs
        self._spec = outputs.spec
        self._layout = outputs.layout
        self._sizes = RowSizes(outputs.layout.row_schema)
        self._size = size
        self._bytes_per_row = max(size.bytes_per_row, 0.01)
        self._max_group_bytes = min(size.size_bytes, outputs.spec.encoding.group_bytes)
        self._writer = writer
        self._encoding = encoding
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._output: OutputFile | None = None
        self._group_rows = self._next_group_rows()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows; they follow those of earlier calls."""
        if batch.num_rows == 0:
            return
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += self._sizes.of(batch)
        while self._is_group_full():
            # The bytes written so far decide the size of this group.
            self._encoding.wait()
            self._roll_when_full()
            self._group_rows = self._next_group_rows()
            if self._is_group_full():
                self._write_group()

    def finish(self) -> None:
        """Write the remaining rows and close the last file."""
        while self._pending_rows:
            self._encoding.wait()
            self._roll_when_full()
            self._group_rows = self._next_group_rows()
            self._write_group()
        self._close_output()

    def _is_group_full(self) -> bool:
        return (
            self._pending_rows >= self._group_rows or self._pending_bytes >= self._max_group_bytes
        )

    def _next_group_rows(self) -> int:
        """Rows of the next group, so that the file reaches its target with even groups."""
        missing = self._missing_bytes() / self._bytes_per_row
        if self._output is None and not self._outputs.has_finished:
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
            self._output = self._outputs.open(self._writer.open)
        self._encoding.submit(self._encode_job(self._output, self._outputs.facts, table))

    def _encode_job(
        self, output: OutputFile, facts: FileFacts, rows: pa.Table
    ) -> Callable[[], None]:
        def encode() -> None:
            output.write(rows)
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

    def _close_output(self) -> None:
        self._encoding.wait()
        self._output = None
        self._outputs.close()
