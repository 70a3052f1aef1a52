"""Writes rows to Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from compactord.formats.layout import Layout
from compactord.formats.parquet.assembly import AssembledOutput, EncodedChunk
from compactord.formats.parquet.bounds import FileBounds
from compactord.formats.parquet.encoder import Encoder
from compactord.formats.parquet.options import ParquetEncoding
from compactord.paimon.stats import ColumnBounds
from compactord.storage.base import Storage


class ParquetWriter:
    """Encodes each row group in memory and places its chunks in the file (`assembly`)."""

    def __init__(
        self, layout: Layout, encoding: ParquetEncoding, dictionary_columns: Sequence[str]
    ) -> None:
        self._encoder = Encoder(layout, encoding, dictionary_columns=dictionary_columns)

    def open(self, storage: Storage, path: str) -> ParquetOutput:
        return ParquetOutput(storage, path, self._encoder)


class ParquetOutput(AssembledOutput):
    """An `OutputFile`: each write makes one row group; the bounds come from its footer."""

    def __init__(self, storage: Storage, path: str, encoder: Encoder) -> None:
        columns = encoder.layout.file_columns
        self.names = [field.name for field, _ in columns]
        self.encoder = encoder
        self._bounds = FileBounds(columns)
        super().__init__(storage, path, encoder.template)

    def write(self, rows: pa.Table) -> None:
        self.place(self.encoder.chunks(rows), rows.num_rows, rows)

    def place(
        self, chunks: Mapping[str, Sequence[EncodedChunk]], rows: int, decoded: pa.Table
    ) -> None:
        """Write one row group with the chunks of all file columns.

        `decoded` has the row columns that `FileBounds` needs.
        """
        in_order = [chunk for name in self.names for chunk in chunks[name]]
        self.write_group(in_order, rows)
        self._bounds.add_group(decoded)

    def close(self) -> list[ColumnBounds]:
        return self._bounds.result(self.finish())
