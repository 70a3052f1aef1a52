"""The registry of file formats, and the choice of format for new files."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from compactord.errors import SubcompactionError
from compactord.formats.avro.format import AVRO
from compactord.formats.base import FileFormat
from compactord.formats.orc.format import ORC
from compactord.formats.parquet.format import PARQUET
from compactord.model import Encoding
from compactord.paimon import paths
from compactord.paimon.options.catalogue import FormatOptions, format_of, without_column
from compactord.paimon.options.table_options import TableOptions
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.schema import TableSchema
from compactord.paimon.types import type_text

Formats: TypeAlias = Mapping[str, FileFormat]

FORMATS: Formats = {each.name: each for each in (PARQUET, ORC, AVRO)}


def options_of(formats: Formats) -> FormatOptions:
    """The options of formats that a run may set, with their parsers."""
    return {name: each.options for name, each in formats.items()}


def format_named(name: str, formats: Formats) -> FileFormat:
    """The format `name`. Raises `SubcompactionError` when it is not supported."""
    if name not in formats:
        raise SubcompactionError(f"files of format {name} are not supported")
    return formats[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFiles:
    """Format, name suffix and encoding of new files."""

    file_format: str
    file_suffix: str
    encoding: Encoding


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormats:
    """Formats of a table's new files. Levels without options of their own use `usual`.

    `changelogs` are for changelog files, by level in `levels`, with the default at None.

    `refusals` are reasons to refuse the table, `warnings` options that new files do not follow. A
    level whose format is not registered has no files here.
    """

    usual: NewFiles | None
    levels: Mapping[int, NewFiles]
    changelogs: Mapping[int | None, NewFiles]
    refusals: tuple[str, ...] = field(compare=False)
    warnings: tuple[str, ...] = field(compare=False)

    def at(self, level: int) -> NewFiles:
        """New files of a level, of a table that is not refused."""
        found = self.levels.get(level, self.usual)
        assert found is not None, "tables with unknown formats are refused"
        return found

    def changelog_at(self, level: int) -> NewFiles:
        return self.changelogs.get(level) or self.changelogs[None]


def table_formats(
    schema: TableSchema, options: TableOptions, overrides: Mapping[str, str], formats: Formats
) -> TableFormats:
    """The formats of a table's new files; `overrides` are the options of the run in `options`.

    Raises `UsageError` for an invalid option of the run.
    """
    texts, files = OptionTexts(schema.options, overrides), options.files
    reasons: list[str] = []
    used: dict[str, FileFormat] = {}

    def new_files(option: str, name: str, compression: str) -> NewFiles | None:
        if name not in formats:
            reasons.append(f"option {option}{name}: only {', '.join(formats)} files are written")
            return None
        used[name] = formats[name]
        encoding = formats[name].encoding(texts, compression)
        reasons.extend(
            f"{name} files of compression {codec} cannot be written"
            for codec in encoding.compressions
            if codec not in formats[name].codecs
        )
        return NewFiles(file_format=name, file_suffix=file_suffix(options, name), encoding=encoding)

    def at_level(level: int | None, *, changelog: bool = False) -> NewFiles | None:
        """New files of a level without options of its own if `level` is None."""
        name, compression = files.format, files.compression
        option = "file.format="
        if level is not None:
            compression = files.compression_per_level.get(level, compression)
            if level in files.format_per_level:
                name, option = files.format_per_level[level], f"file.format.per.level={level}:"
        if changelog:
            compression = files.changelog_compression or compression
            if files.changelog_format is not None:
                name, option = files.changelog_format, "changelog-file.format="
        return new_files(option, name, compression)

    usual = at_level(None)
    named = sorted(files.format_per_level.keys() | files.compression_per_level.keys())
    levels = {level: found for level in named if (found := at_level(level)) is not None}
    changelogs = {
        level: found
        for level in (None, *named)
        if options.compaction.tells and (found := at_level(level, changelog=True)) is not None
    }
    reasons += [why for key, why in texts.unreadable.items() if key not in options.unreadable]
    for each in used.values():
        reasons += _refusals(each, schema, texts.merged)
    for key in sorted(texts.merged):
        if "encrypt" in key.lower() and format_of(key) not in formats:
            reasons.append(f"option {key}: encrypted files are neither read nor written")
    return TableFormats(
        usual=usual,
        changelogs=changelogs,
        # Files of tables without keys have no levels.
        levels=levels if schema.primary_keys else {},
        refusals=tuple(dict.fromkeys(reasons)),
        warnings=tuple(_warnings(used.values(), texts.merged)),
    )


def _refusals(
    file_format: FileFormat, schema: TableSchema, texts: Mapping[str, str]
) -> Iterator[str]:
    yield from unheld_columns(file_format, schema)
    for key, text in sorted(texts.items()):
        for prefix, why in file_format.refused:
            if key.lower().startswith(prefix) and text.strip().lower() != "false":
                yield f"option {key}={text}: {why}"


def unheld_columns(file_format: FileFormat, schema: TableSchema) -> Iterator[str]:
    """Reasons to refuse a table whose columns the format does not hold."""
    for column in schema.fields:
        if not file_format.holds(column.type):
            why = f"which is not supported in {file_format.name} files"
            yield f"column {column.name} has type {type_text(column.type)}, {why}"


def _warnings(used: Collection[FileFormat], texts: Mapping[str, str]) -> Iterator[str]:
    for each in used:
        for key, text in sorted(texts.items()):
            if format_of(key) == each.name and without_column(key) not in each.options:
                yield f"option {key}={text}: not applied to new files"


def file_suffix(options: TableOptions, file_format: str) -> str:
    """The suffix of names of new data files of a format, with the table-wide codec if required."""
    # The name shows this option even when the format's own or a level's overrides it.
    named = options.raw.get("file.compression", "zstd")
    is_named = options.files.suffix_includes_compression
    return paths.file_suffix(file_format, named if is_named else None)
