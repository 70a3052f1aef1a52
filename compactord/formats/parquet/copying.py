"""Makes row groups of whole files by copying their pages without decoding.

The pages of a column are copied if the result equals that of encoding: the column is not nested, it
has the output's type and codec, its pages have checksums, which are verified, and it has no
dictionary (a chunk has only one, so columns with dictionaries are encoded again). Statistics come
from the inputs' footers; floats are decoded to compute theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.layout import Layout
from compactord.formats.parquet.chunks import FlatColumn, StoredFile, copied_chunk
from compactord.formats.parquet.encoder import Encoder
from compactord.formats.parquet.leaves import leaf_count
from compactord.formats.parquet.output import ParquetOutput, ParquetWriter
from compactord.formats.parquet.reader import ParquetInput
from compactord.formats.parquet.whole_file import WholeFile
from compactord.paimon.types import AtomicType
from compactord.storage.base import Storage


class ParquetCopier(ParquetWriter):
    """Copies pages of files of one layout."""

    def fetch(self, files: Sequence[ParquetInput]) -> list[WholeFile]:
        for file in files:
            file.expect_whole()
        return [file.whole(self._encoder.layout) for file in files]

    def open(self, storage: Storage, path: str) -> CopyingParquetOutput:
        return CopyingParquetOutput(storage, path, self._encoder)


class CopyingParquetOutput(ParquetOutput):
    """An output to which whole files can be copied, too."""

    def __init__(self, storage: Storage, path: str, encoder: Encoder) -> None:
        super().__init__(storage, path, encoder)
        self._columns = _flat_columns(encoder.layout, encoder.schema)

    def copy(self, files: Sequence[WholeFile]) -> None:
        stored = [StoredFile(file) for file in files]
        copied = {
            name: [chunk]
            for name, column in self._columns.items()
            if (chunk := copied_chunk(stored, column, self.encoder.encoding))
        }
        fresh = [name for name in self.names if name not in copied]
        seen = [name for name in copied if self._columns[name].is_float]
        decoded = self._decoded(files, [*fresh, *seen])
        encoded = self.encoder.chunks(decoded.select(fresh))
        self.place({**copied, **encoded}, sum(file.input.row_count for file in files), decoded)

    def _decoded(self, files: Sequence[WholeFile], names: Sequence[str]) -> pa.Table:
        schema = pa.schema([self.encoder.layout.row_schema.field(name) for name in names])
        batches = [batch for file in files for batch in file.batches(schema)] if names else []
        return pa.Table.from_batches(batches, schema).unify_dictionaries()


def _flat_columns(layout: Layout, schema: pq.ParquetSchema) -> dict[str, FlatColumn]:
    """The columns that are not nested, as our files declare them."""
    found, leaf = {}, 0
    for field, _ in layout.file_columns:
        if isinstance(field.type, AtomicType):
            found[field.name] = FlatColumn(field.name, field.type, schema.column(leaf))
        leaf += leaf_count(field)
    return found
