"""Writes output files of each kind: rows, copied pages, statistics.

Files have kinds, each with its own series of files. A failure removes the files of all kinds.

The manifest's record of a file agrees with io/KeyValueDataFileWriter.java and
io/RowDataFileWriter.java: keys of the first and last row, statistics, sequence numbers, retracts.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from compactord.clock import Clock
from compactord.errors import StorageError, SubcompactionError
from compactord.formats.base import Copier, CopyingOutput, FileWriter, InputProfile, OutputFile
from compactord.formats.layout import Layout, cell
from compactord.kernels.columns import RowSizes
from compactord.kernels.keys import Key, end_keys
from compactord.model import ConcatSpec, InputFile, Output, Subcompaction, WriteSpec
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
from compactord.rewrite.pipeline import Decoding, Encoding
from compactord.rewrite.reader import Input, ReadCounts
from compactord.rewrite.stretches import CopyLimits, StoredGroup
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
    """A completed file of `size_bytes` bytes; `bounds` are for its columns, in their order."""

    name: str
    size_bytes: int
    companions: tuple[str, ...]
    rows: int
    facts: FileFacts
    bounds: Sequence[ColumnBounds]
    now_ms: int


# Makes the manifest's record of a file.
Describe: TypeAlias = Callable[[WrittenFile], DataFile]


class MergedFile:
    """Describes files of primary-key tables. `source` is recorded for readers as the origin of
    rows.
    """

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
        extra_files=file.companions,
        creation_time_ms=file.now_ms + write.creation_zone_offset_ms,
        delete_row_count=file.facts.retracts,
        value_stats_columns=stats_columns,
        **more,
    )


class Outputs:
    """All files of a subcompaction. As a context manager it removes all of them on an exception.

    `finished` has the order in which files were completed; within a kind, the order of rows.
    `created` gets the path of a file before its creation, and paths of companions after it.
    """

    def __init__(
        self, *, storage: Storage, unique_name: str, clock: Clock, created: list[str] | None = None
    ) -> None:
        self.storage = storage
        self.clock = clock
        self._unique_name = unique_name
        self._series: list[OutputSeries] = []
        self.created = [] if created is None else created
        self._numbers = itertools.count()
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
        name = f"{spec.file_prefix}{self._unique_name}-{next(self._numbers)}{spec.file_suffix}"
        path = f"{spec.folder}/{name}"
        # Before the creation: an interrupt may come as soon as the file is there.
        self.created.append(path)
        try:
            output = create(self.storage, path)
        except Exception:
            # A file that we could not create may have another owner.
            self.created.remove(path)
            raise
        return output, name

    def _discard(self, error: BaseException) -> None:
        """Remove every file. Raises the storage's own form of `error` if there is one."""
        try:
            with contextlib.ExitStack() as aborting:
                for series in self._series:
                    aborting.callback(series.abort, error)
        finally:
            for path in self.created:
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

        Raises `StorageError`, also if it does not exist afterwards under its name.
        """
        output, self._open = self._open, None
        if output is None:
            return
        bounds, companions = output.close(), tuple(output.companions)
        self._outputs.created += (f"{self.spec.folder}/{each}" for each in companions)
        name, size_bytes = self._stored(output)
        if name != self._name:
            # Readers search the name in the bucket's folder: the rows would be lost.
            raise StorageError(output.path, f"the file has the name {name}, not {self._name}")
        written = WrittenFile(
            name=name,
            size_bytes=size_bytes,
            companions=companions,
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
            # The commit compares the file's size with the written bytes (`commit`).
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
    """Writes the outputs of one kind.

    Rows are collected in row groups; a full one is encoded in a second thread while the next one is
    filled, so two row groups are in memory. File sizes are controlled by measurement: after each
    row group the bytes written so far give the number of rows still missing. These are divided
    evenly between the remaining row groups, so that there is no small last group and a file ends
    within about a percent of its target. Copied row groups are not cut: a file also ends where its
    size is nearest to the target.
    """

    def __init__(
        self,
        outputs: OutputSeries,
        *,
        size: GroupSize,
        writer: FileWriter | Copier,
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
        # The last key written, and whether its row group was copied.
        self._before: tuple[Key, bool] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows; they follow the rows of earlier calls."""
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

    def copy(self, stored: StoredGroup) -> None:
        """Append a row group as it is stored; the writer is a `Copier`."""
        self._flush()
        self._encoding.wait()
        self._roll_when_full()
        if self._output is not None and 2 * self._missing_bytes() < stored.group.size_bytes:
            self._close_output()
        if self._output is None:
            self._output = self._outputs.open(self._writer.open)
        self._encoding.submit(self._copy_job(self._output, self._outputs.facts, stored))

    def finish(self) -> None:
        """Write the remaining rows and close the last file."""
        self._flush()
        self._close_output()

    def _flush(self) -> None:
        while self._pending_rows:
            self._encoding.wait()
            self._roll_when_full()
            self._group_rows = self._next_group_rows()
            self._write_group()

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
            self._check_order(rows, is_copied=False)

        return encode

    def _copy_job(
        self, output: OutputFile, facts: FileFacts, stored: StoredGroup
    ) -> Callable[[], None]:
        def copy() -> None:
            decoded = cast(CopyingOutput, output).copy([stored.content])
            stored.check(decoded)
            facts.add_group(decoded)
            self._check_order(decoded, is_copied=True)

        return copy

    def _check_order(self, rows: pa.Table, *, is_copied: bool) -> None:
        """Raise `SubcompactionError` unless keys ascend where a copied row group begins or ends.

        A merge checks the order of the rows that it reads.
        """
        names = [field.name for field in self._layout.key_fields]
        if not names:
            return
        first, last = end_keys(rows, names)
        if self._before is not None:
            before, was_copied = self._before
            if (is_copied or was_copied) and first <= before:
                raise SubcompactionError(
                    f"rows are not sorted by key: after {before} came a row group from {first}"
                )
        self._before = (last, is_copied)

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


# Inputs of two row groups (one is being fetched), and their decoded and encoded columns.
_MEMORY_SHARE = 8
_MAX_GROUP_ROWS = 1 << 20
# Bytes per column of a file on average. Pages of smaller files would stay small if copied.
_MIN_COLUMN_BYTES = 16 << 10
# An output ends where an input ends: large inputs would make its size miss the target.
_TARGET_SHARE = 4
_MIN_PLAIN_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The most rows and stored bytes of the inputs of one row group."""

    rows: int
    size_bytes: int


def group_limits(memory_bytes: int, row_bytes: float) -> GroupLimits:
    """The limits that the memory allows; `row_bytes`: bytes of a decoded row."""
    share = memory_bytes // _MEMORY_SHARE
    return GroupLimits(
        rows=max(1, min(_MAX_GROUP_ROWS, int(share / max(1.0, row_bytes)))), size_bytes=share
    )


def _limits(subcompaction: Subcompaction, facts: InputProfile) -> GroupLimits:
    limits = group_limits(subcompaction.memory_bytes, facts.row_bytes)
    # Stored bytes are at most the bytes before compression, to which the option's limit applies.
    most = subcompaction.write.encoding.group_bytes
    return replace(limits, size_bytes=min(limits.size_bytes, most))


def is_worthwhile(subcompaction: Subcompaction, source: ConcatSpec, facts: InputProfile) -> bool:
    """Whether to copy: the files fit into the memory, and much of their bytes can be copied."""
    files, limits = source.files, _limits(subcompaction, facts)
    largest = max(file.size_bytes for file in files)
    return (
        subcompaction.write.keeps_encoding
        and facts.plain_share >= _MIN_PLAIN_SHARE
        and min(file.row_count for file in files) > 0
        and max(file.row_count for file in files) <= limits.rows
        and largest <= limits.size_bytes
        and largest * _TARGET_SHARE <= subcompaction.write.target_file_size
        and sum(f.size_bytes for f in files) >= len(files) * facts.columns * _MIN_COLUMN_BYTES
    )


def copy_limits(subcompaction: Subcompaction, facts: InputProfile) -> CopyLimits:
    """The row groups of a merge that fit into the memory and into the output's size."""
    limits, write = _limits(subcompaction, facts), subcompaction.write
    return CopyLimits(
        file_format=write.file_format,
        rows=limits.rows,
        size_bytes=min(limits.size_bytes, write.target_file_size // _TARGET_SHARE),
    )


def packed(
    files: Sequence[InputFile], target: int, limits: GroupLimits
) -> list[list[list[InputFile]]]:
    """The row groups of each output, and the inputs of each row group, in order.

    An output ends after the input at which its size is nearest to `target` bytes.
    """
    outputs: list[list[list[InputFile]]] = []
    written = group_bytes = group_rows = 0
    for file in files:
        if not outputs or 2 * (target - written) < file.size_bytes:
            outputs.append([])
            written = 0
        groups = outputs[-1]
        if (
            not groups
            or group_bytes + file.size_bytes > limits.size_bytes
            or group_rows + file.row_count > limits.rows
        ):
            groups.append([])
            group_bytes = group_rows = 0
        groups[-1].append(file)
        written += file.size_bytes
        group_bytes += file.size_bytes
        group_rows += file.row_count
    return outputs


def copy_files(
    subcompaction: Subcompaction,
    inputs: Sequence[Input],
    facts: InputProfile,
    copier: Copier,
    *,
    counts: ReadCounts,
    outputs: OutputSeries,
    decoding: Decoding,
    encoding: Encoding,
) -> None:
    """Concatenate the inputs of a subcompaction that `is_worthwhile`.

    Without copying, the compaction of an append table would spend most of its time on decoding and
    encoding the same values. The format decides which columns are copied and which are decoded
    (`formats.base.Copier`). The inputs of the current and of the next row group are in memory as a
    whole, so only small files are copied. The order of rows is the same as with encoding.

    Raises `FormatError` for inputs that are damaged or do not match their manifests, and
    `StorageError`.
    """
    planned = packed(
        subcompaction.source.files,
        subcompaction.write.target_file_size,
        _limits(subcompaction, facts),
    )

    def fetched() -> Generator[list[Any], None, None]:
        in_order = iter(inputs)
        for group in itertools.chain.from_iterable(planned):
            files = copier.fetch([each.stored for each in itertools.islice(in_order, len(group))])
            for file in group:
                counts.add(file)
            yield files

    with contextlib.closing(decoding.ahead(fetched())) as fetching:
        for groups in planned:
            output = outputs.open(copier.open)
            for _ in groups:
                # Release it before the next group is fetched: two are in memory, not three.
                encoding.wait()
                encoding.submit(partial(output.copy, next(fetching)))
            encoding.wait()
            outputs.close()
