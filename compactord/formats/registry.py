"""The supported file formats by name, which is also the extension of file names."""

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
    """The format `name`. Raises `TaskError` when it is not supported."""
    if name not in formats:
        raise TaskError(f"files of format {name} are not supported")
    return formats[name]
