"""Parquet as a format of data files. A module of its own: it joins the parts of the package, which
do not import it.
"""

from compactord.formats.base import FileFormat
from compactord.formats.parquet.encoder import WRITES_BLOOM_FILTERS
from compactord.formats.parquet.options import (
    CODECS,
    HONOURED,
    REFUSED,
    REFUSED_BLOOM_FILTERS,
    encoding_of,
)
from compactord.formats.parquet.output import ParquetWriter
from compactord.formats.parquet.reader import ParquetInput, profile

PARQUET = FileFormat(
    name="parquet",
    open=ParquetInput,
    profile=profile,
    writer=ParquetWriter,
    encoding=encoding_of,
    codecs=tuple(CODECS),
    copier=ParquetWriter,
    options=HONOURED,
    refused=REFUSED if WRITES_BLOOM_FILTERS else REFUSED + REFUSED_BLOOM_FILTERS,
)
