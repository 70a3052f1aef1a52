"""A file format that the product does not have: Arrow's own files (Feather version 2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.base import FileFormat, InputProfile, NumberedBatches, OpenFile, reading
from compactord.formats.layout import Layout, RowRange
from compactord.formats.row_bounds import RowBounds
from compactord.model import InputFile
from compactord.paimon.data_file import ColumnBounds
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.options.values import memory_size, positive
from compactord.paimon.types import DataType, MultisetType
from compactord.storage.base import Storage
from compactord.storage.ranges import opened

_CODECS = {"none": None, "lz4": "lz4", "zstd": "zstd"}


@dataclass(frozen=True, slots=True)
class ArrowEncoding:
    """`note` is a text that all files have in their footers."""

    compression: str
    group_bytes: int
    note: str | None = None

    @property
    def compressions(self) -> Sequence[str]:
        return (self.compression,)


class ArrowFile(OpenFile):
    @contextlib.contextmanager
    def opened(self) -> Iterator[pa.RecordBatchFileReader]:
        with reading(self.file.path, "Arrow"), opened(self.storage, self.file) as stream:
            yield pa.ipc.open_file(stream)

    def open_bytes(self, layout: Layout) -> int:
        return self.file.size_bytes

    def batches(
        self, layout: Layout, batch_rows: int, row_range: RowRange | None
    ) -> NumberedBatches:
        with self.opened() as stored:
            row = 0
            for number in range(stored.num_record_batches):
                rows = stored.get_batch(number).select(layout.row_names).cast(layout.row_schema)
                for start in range(0, rows.num_rows, batch_rows):
                    yield row + start, rows.slice(start, batch_rows)
                row += rows.num_rows


def _profile(files: Sequence[ArrowFile], layout: Layout) -> InputProfile:
    widest = 0.0
    for file in files:
        with file.opened() as stored:
            first = stored.get_batch(0).select(layout.row_names)
            widest = max(widest, first.nbytes / first.num_rows)
    return InputProfile(row_bytes=widest, columns=len(layout.row_fields))


class ArrowOutput:
    companions: tuple[str, ...] = ()

    def __init__(
        self, storage: Storage, path: str, layout: Layout, encoding: ArrowEncoding
    ) -> None:
        self.path = path
        self.rows = 0
        self._size = 0
        self._columns = layout.file_columns
        self._schema = layout.with_dictionaries(()).file_schema
        if encoding.note is not None:
            self._schema = self._schema.with_metadata({"note": encoding.note})
        self._bounds = RowBounds(layout.file_columns)
        self._context = storage.open_output(path)
        self._sink = self._context.__enter__()
        self._writer = pa.ipc.new_file(
            self._sink,
            self._schema,
            options=pa.ipc.IpcWriteOptions(compression=_CODECS[encoding.compression]),
        )

    @property
    def bytes_written(self) -> int:
        return self._size or self._sink.tell()

    def write(self, rows: pa.Table) -> None:
        columns = [rows.column(source) for _, source in self._columns]
        table = pa.Table.from_arrays(columns, self._schema.names).cast(self._schema)
        self._writer.write_table(table)
        self._bounds.add(rows)
        self.rows += rows.num_rows

    def close(self) -> list[ColumnBounds]:
        self._writer.close()
        self._size = self._sink.tell()
        self._context.__exit__(None, None, None)
        return self._bounds.result()

    def abort(self, error: BaseException) -> None:
        self._context.__exit__(type(error), error, error.__traceback__)


class ArrowWriter:
    def __init__(
        self, layout: Layout, encoding: ArrowEncoding, dictionary_columns: Sequence[str]
    ) -> None:
        self._layout = layout
        self._encoding = encoding

    def open(self, storage: Storage, path: str) -> ArrowOutput:
        return ArrowOutput(storage, path, self._layout, self._encoding)


def _encoding(texts: OptionTexts, compression: str) -> ArrowEncoding:
    return ArrowEncoding(
        compression=compression,
        group_bytes=texts.read("arrow.batch-size", 1 << 20, positive(memory_size)),
        note=texts.maybe("arrow.note", str),
    )


def _holds(type_: DataType) -> bool:
    return not isinstance(type_, MultisetType)


ARROW = FileFormat(
    name="arrow",
    open=ArrowFile,
    profile=_profile,
    writer=ArrowWriter,
    encoding=_encoding,
    codecs=tuple(_CODECS),
    options={"arrow.batch-size": positive(memory_size), "arrow.note": str},
    refused=(("arrow.bloom", "new files would have no bloom filters"),),
    holds=_holds,
)


def as_arrow(file: InputFile) -> InputFile:
    """The same rows as a Parquet file has, in a file of Arrow's beside it."""
    path = Path(file.path).with_suffix(".arrow")
    table = pq.read_table(file.path, partitioning=None)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000)
    return InputFile(
        path=str(path),
        file_format="arrow",
        size_bytes=path.stat().st_size,
        row_count=file.row_count,
        min_sequence_number=file.min_sequence_number,
        max_sequence_number=file.max_sequence_number,
    )


def arrow_rows(path: Path) -> pa.Table:
    with pa.ipc.open_file(path) as stored:
        return stored.read_all()
