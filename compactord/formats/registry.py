"""The formats of data files that can be read and written, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from compactord.errors import SubcompactionError
from compactord.formats.base import FileFormat
from compactord.formats.parquet.format import PARQUET
from compactord.paimon.options.catalogue import FormatOptions

Formats: TypeAlias = Mapping[str, FileFormat]

FORMATS: Formats = {each.name: each for each in (PARQUET,)}


def options_of(formats: Formats) -> FormatOptions:
    """What a run may say of the options of formats."""
    return {name: each.options for name, each in formats.items()}


def format_named(name: str, formats: Formats) -> FileFormat:
    """The format `name`. Raises `SubcompactionError` when it is not supported."""
    if name not in formats:
        raise SubcompactionError(f"files of format {name} are not supported")
    return formats[name]
