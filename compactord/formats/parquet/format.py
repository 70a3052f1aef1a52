"""Parquet as a format of data files."""

from compactord.formats.base import FileFormat
from compactord.formats.parquet.options import CODECS, HONOURED, REFUSED, encoding_of
from compactord.formats.parquet.output import ParquetWriter
from compactord.formats.parquet.reader import ParquetReader

PARQUET = FileFormat(
    name="parquet",
    reader=ParquetReader,
    writer=ParquetWriter,
    encoding=encoding_of,
    codecs=tuple(CODECS),
    options=HONOURED,
    refused=REFUSED,
)
