"""Writes Parquet files: encodes rows, and copies pages without decoding.

The pages of a column are copied if the result equals an encoding: the column is not nested, it has
the output's type and codec, its pages have checksums, which are verified, and it has no dictionary
(a chunk has only one, so columns with dictionaries are encoded again unless they are copied
chunk by chunk). Statistics come from the inputs' footers; floats are decoded to compute theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.compute as pc

from compactord.errors import FormatError
from compactord.formats.layout import Layout
from compactord.formats.parquet.conversion import leaf_count
from compactord.formats.parquet.copied_chunks import (
    FlatColumn,
    StoredFile,
    copied_chunk,
    copied_rows,
)
from compactord.formats.parquet.copying import AssembledOutput, EncodedChunk, renamed
from compactord.formats.parquet.encoder import Encoder
from compactord.formats.parquet.options import ParquetEncoding
from compactord.formats.parquet.page_runs import StoredRows, WholeFile
from compactord.formats.parquet.reader import ParquetInput
from compactord.formats.parquet.statistics import FileBounds
from compactord.formats.parquet.thrift import Meta, Statistics
from compactord.paimon.data_file import ColumnBounds
from compactord.paimon.types import SEQUENCE_NUMBER, VALUE_KIND, AtomicType
from compactord.storage.base import Storage


class ParquetWriter:
    """A `FileWriter` and a `Copier`.

    It encodes each row group in memory and places its chunks in the file (`copying`).
    """

    def __init__(
        self, layout: Layout, encoding: ParquetEncoding, dictionary_columns: Sequence[str]
    ) -> None:
        self._encoder = Encoder(layout, encoding, dictionary_columns=dictionary_columns)

    def fetch(self, files: Sequence[ParquetInput]) -> list[WholeFile]:
        for file in files:
            file.expect_whole()
        return [file.whole(self._encoder.layout) for file in files]

    def fetch_group(
        self, file: ParquetInput, group: int, rows: tuple[int, int] | None = None
    ) -> WholeFile | StoredRows:
        layout = self._encoder.layout
        return file.group(layout, group) if rows is None else file.stored_rows(layout, group, rows)

    def open(self, storage: Storage, path: str) -> ParquetOutput:
        return ParquetOutput(storage, path, self._encoder)


class ParquetOutput(AssembledOutput):
    """A `CopyingOutput`: each write makes one row group; the bounds come from its footer."""

    def __init__(self, storage: Storage, path: str, encoder: Encoder) -> None:
        columns = encoder.layout.file_columns
        self._names = [field.name for field, _ in columns]
        self._encoder = encoder
        self._bounds = FileBounds(columns)
        super().__init__(storage, path, encoder.template)

    def write(self, rows: pa.Table) -> None:
        self._place(self._encoder.chunks(rows), rows.num_rows, rows)

    def copy(self, files: Sequence[WholeFile | StoredRows]) -> pa.Table:
        layout = self._encoder.layout
        chunk_of = self._copying(files)
        copied = {
            source: [chunk]
            for source in layout.row_names
            if source in self._flat_columns and (chunk := chunk_of(self._flat_columns[source]))
        }
        for name, shared in self._encoder.shared_chunks.items():
            if name in copied:
                copied[shared] = [renamed(copied[name][0], shared)]
        fresh = {source for field, source in layout.file_columns if field.name not in copied}
        seen = {name for name in copied if self._needs_rows(name, copied[name][0])}
        decoded = self._decoded(files, [name for name in layout.row_names if name in fresh | seen])
        encoded = self._encoder.chunks(decoded.select(sorted(fresh)))
        self._place({**encoded, **copied}, sum(file.input.row_count for file in files), decoded)
        if SEQUENCE_NUMBER.name in copied:
            _check_numbers(copied[SEQUENCE_NUMBER.name][0], decoded, files[0].input.path)
        return decoded

    def _copying(
        self, files: Sequence[WholeFile | StoredRows]
    ) -> Callable[[FlatColumn], EncodedChunk | None]:
        """Copies a column of all these files."""
        (first, *others) = files
        if isinstance(first, StoredRows):
            assert not others, "parts of row groups are copied one by one"
            return partial(copied_rows, first, plain=self._encoder.plain)
        stored = [StoredFile(file) for file in files if isinstance(file, WholeFile)]
        return partial(copied_chunk, stored, encoding=self._encoder.encoding)

    def _needs_rows(self, name: str, chunk: EncodedChunk) -> bool:
        """Whether a copied column is decoded as well: for bounds, keys or the check of words."""
        keys = [field.name for field in self._encoder.layout.key_fields]
        return (
            self._flat_columns[name].is_float
            or Meta.DICTIONARY_AT in chunk.meta
            or name in (keys and [*keys, SEQUENCE_NUMBER.name, VALUE_KIND.name])
        )

    def close(self) -> list[ColumnBounds]:
        return self._bounds.result(self.finish())

    @cached_property
    def _flat_columns(self) -> dict[str, FlatColumn]:
        """The columns that are not nested, as our files declare them."""
        found, leaf = {}, 0
        for field, _ in self._encoder.layout.file_columns:
            if isinstance(field.type, AtomicType):
                declared = self._encoder.schema.column(leaf)
                found[field.name] = FlatColumn(field.name, field.type, declared)
            leaf += leaf_count(field)
        return found

    def _decoded(self, files: Sequence[WholeFile | StoredRows], names: Sequence[str]) -> pa.Table:
        schema = pa.schema([self._encoder.layout.row_schema.field(name) for name in names])
        batches = [batch for file in files for batch in file.batches(schema)] if names else []
        return pa.Table.from_batches(batches, schema).unify_dictionaries()

    def _place(
        self, chunks: Mapping[str, Sequence[EncodedChunk]], rows: int, decoded: pa.Table
    ) -> None:
        """Write one row group with the chunks of all file columns.

        `decoded` has the row columns that `FileBounds` needs.
        """
        self.write_group([chunk for name in self._names for chunk in chunks[name]], rows)
        self._bounds.add_group(decoded)


def _check_numbers(chunk: EncodedChunk, decoded: pa.Table, path: str) -> None:
    """Raise `FormatError` unless copied sequence numbers are as their statistics have them.

    An output has these in the manifest, by which runs are ordered.
    """
    bounds = chunk.meta[Meta.STATISTICS].value
    claimed = [
        int.from_bytes(bounds[field].value, "little", signed=True)
        for field in (Statistics.MIN, Statistics.MAX)
        if field in bounds
    ]
    found = pc.min_max(decoded.column(SEQUENCE_NUMBER.name)).as_py()
    if claimed != [found["min"], found["max"]]:
        raise FormatError(path, "its sequence numbers are not its statistics'")
