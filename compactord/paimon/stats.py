"""Column statistics of files: which columns have them, and how bounds are shortened.

A wrong bound makes readers skip files that they must read; a missing one only costs time. Sources:
statistics/{StatsCollectorFactories,TruncateSimpleColStatsCollector}.java,
stats/SimpleStatsConverter.java.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from compactord.paimon.binary_row import Value, encode_row
from compactord.paimon.data_file import ColumnStats
from compactord.paimon.options.file_options import STATS_MODE, FileOptions
from compactord.paimon.schema import TableSchema
from compactord.paimon.types import DataField, DataType, is_system_column


class StatsMode(enum.Enum):
    NONE = "none"
    COUNTS = "counts"
    TRUNCATE = "truncate"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnStatsMode:
    """`length` only with TRUNCATE: code points of strings, bytes of binaries."""

    mode: StatsMode
    length: int | None = None


# System columns, and keys in thin mode, whatever the table says.
_KEY_MODE = ColumnStatsMode(mode=StatsMode.TRUNCATE, length=128)
_NO_STATS = ColumnStatsMode(mode=StatsMode.NONE)
_LAST_CODE_POINT = 0x10FFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnBounds:
    """What is known of one column of a file, before its mode is applied.

    `minimum` and `maximum` are whole values, both or neither; `null_count` None: nothing is known
    (nested types). The maximum of floats is NaN if there is any NaN, and zeros are
    ordered: −0.0 below 0.0.
    """

    name: str
    type: DataType
    minimum: Value = None
    maximum: Value = None
    null_count: int | None = None


def parse_stats_mode(text: str) -> ColumnStatsMode:
    """`none`, `counts`, `full` or `truncate(n)`, in any case; ValueError for anything else."""
    found = STATS_MODE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a statistics mode")
    if found["length"] is not None:
        return ColumnStatsMode(mode=StatsMode.TRUNCATE, length=int(found["length"]))
    return ColumnStatsMode(mode=StatsMode(text.lower()))


def stats_modes(
    fields: Sequence[DataField], schema: TableSchema, files: FileOptions, level: int
) -> tuple[tuple[str, ColumnStatsMode], ...]:
    """The mode of every column of a file, in file order, system columns included.

    `fields` are the columns of the file (`arrow.file_fields` for a primary-key table). `level` is
    that of a primary-key table's file: append tables have one mode for all files.
    """
    per_level = files.stats_mode_per_level if schema.primary_keys else {}
    file_mode = parse_stats_mode(per_level.get(level, files.stats_mode))
    thin_keys = {field.name for field in schema.key_fields} if files.thin_mode else set()
    counted = 0
    modes = []
    for field in fields:
        own = files.stats_mode_per_field.get(field.name)
        if own is None and (is_system_column(field.name) or field.name in thin_keys):
            modes.append((field.name, _KEY_MODE))
            continue
        if own is not None:
            mode = parse_stats_mode(own)
        elif 0 <= files.stats_keep_first <= counted:
            mode = _NO_STATS
        else:
            mode = file_mode
        counted += 1
        modes.append((field.name, mode))
    return tuple(modes)


def build_stats(
    columns: Sequence[ColumnBounds], modes: Mapping[str, ColumnStatsMode], *, dense: bool
) -> tuple[ColumnStats, tuple[str, ...] | None]:
    """Statistics over `columns` and the names that they cover, None when these are all columns.

    Dense statistics omit columns of which nothing is known. Key statistics are never dense.
    """
    bounds = [_applied(column, modes[column.name]) for column in columns]
    kept = [column for column in bounds if not dense or column.null_count is not None]
    types = [column.type for column in kept]
    stats = ColumnStats(
        min_values=encode_row([column.minimum for column in kept], types),
        max_values=encode_row([column.maximum for column in kept], types),
        null_counts=tuple(column.null_count for column in kept),
    )
    return stats, None if len(kept) == len(bounds) else tuple(column.name for column in kept)


def _applied(column: ColumnBounds, mode: ColumnStatsMode) -> ColumnBounds:
    minimum, maximum, null_count = column.minimum, column.maximum, column.null_count
    if mode.mode is StatsMode.NONE:
        minimum, maximum, null_count = None, None, None
    elif mode.mode is StatsMode.COUNTS:
        minimum, maximum = None, None
    elif mode.mode is StatsMode.TRUNCATE:
        minimum, maximum = _truncated(minimum, maximum, mode.length or 0)
    return replace(column, minimum=minimum, maximum=maximum, null_count=null_count)


def _truncated(minimum: Value, maximum: Value, length: int) -> tuple[Value, Value]:
    if isinstance(maximum, str):
        above: Value = truncate_text_up(maximum, length)
    elif isinstance(maximum, bytes):
        above = truncate_bytes_up(maximum, length)
    else:
        return minimum, maximum
    return (None, None) if above is None else (minimum[:length], above)


def truncate_text_up(text: str, length: int) -> str | None:
    """A text of at most `length` code points that is not below `text`; None if there is none."""
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        successor = ord(text[end - 1]) + 1
        if 0xD800 <= successor <= 0xDFFF:
            successor = 0xE000  # skips surrogates, for which Java writes '?': too low a bound
        if successor <= _LAST_CODE_POINT:
            return text[: end - 1] + chr(successor)
    return None


def truncate_bytes_up(data: bytes, length: int) -> bytes | None:
    """At most `length` bytes that are not below `data`; None if there are none."""
    if len(data) <= length:
        return data
    kept = data[:length].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
