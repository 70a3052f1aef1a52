"""The file formats that there are, by the name at the end of a file's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from compactord.errors import TaskError
from compactord.formats.base import FileFormat
from compactord.formats.parquet.output import ParquetWriter
from compactord.formats.parquet.reader import ParquetReader

Formats: TypeAlias = Mapping[str, FileFormat]

FORMATS: Formats = {
    "parquet": FileFormat(ParquetReader, ParquetWriter),
}


def format_named(name: str, formats: Formats) -> FileFormat:
    """The format of that name. Raises `TaskError` when there is none."""
    if name not in formats:
        raise TaskError(f"files of format {name} are not supported")
    return formats[name]
