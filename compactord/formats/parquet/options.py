"""The options of Parquet files, and their encoding.

Values are parsed as in format/parquet/ParquetFileFormat.java and parquet-mr. Options that only tune
the size of pages are ignored: files are valid without them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compactord.errors import SubcompactionError
from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts

# Arrow's names by Paimon's. `lz4` means Hadoop's framing. Readers support it, but Arrow writes
# LZ4_RAW instead.
CODECS = {
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "none": "none",
}
_BLOCK_SIZE = "parquet.block.size"
_PAGE_SIZE = "parquet.page.size"
_DICTIONARY = "parquet.enable.dictionary"
_COMPRESSION = "parquet.compression"
_ZSTD_LEVEL = "parquet.compression.codec.zstd.level"
_BLOOM_FILTER = "parquet.bloom.filter.enabled"
_DISTINCT_VALUES = "parquet.bloom.filter.expected.ndv"
_FALSE_POSITIVES = "parquet.bloom.filter.fpp"
_BLOOM_FILTER_BYTES = "parquet.bloom.filter.max.bytes"
# The level of Java's writer, for which Paimon has no option: parquet-mr 1.16 looks for
# `zlib.compress.level` (CodecFactory), Paimon passes on "parquet.*" only. Arrow's default is 9.
_GZIP_LEVEL = 6
# Smaller row groups cost more for their metadata than for their rows.
_LEAST_GROUP_BYTES = 1 << 20
_ENCRYPTED = "encrypted files are neither read nor written"
_MIB = 1 << 20

# Options of one column, `<key>#<path>`, each with its parser.
_OF_COLUMNS: Mapping[str, Callable[[str], Any]] = {
    _COMPRESSION: option_values.codec,
    _DICTIONARY: option_values.boolean,
    _BLOOM_FILTER: option_values.boolean,
    _DISTINCT_VALUES: option_values.positive(option_values.long),
    _FALSE_POSITIVES: option_values.share,
}
# Options that new files follow, each with the parser of a run's value.
HONOURED: Mapping[str, Callable[[str], object]] = {
    _BLOCK_SIZE: option_values.positive(option_values.long),
    _PAGE_SIZE: option_values.positive(option_values.integer),
    _DICTIONARY: option_values.boolean,
    _COMPRESSION: option_values.codec,
    _ZSTD_LEVEL: option_values.integer_within(*option_values.ZSTD_LEVELS),
    _BLOOM_FILTER: option_values.boolean,
    _BLOOM_FILTER_BYTES: option_values.positive(option_values.integer),
    **{f"{key}#": parse for key, parse in _OF_COLUMNS.items()},
}
# Beginnings of refused options, each with the reason.
REFUSED = (
    ("parquet.crypto.", _ENCRYPTED),
    ("parquet.encryption.", _ENCRYPTED),
)


# Refused as well where Arrow cannot write bloom filters.
REFUSED_BLOOM_FILTERS = tuple(
    (key, "only pyarrow 26 and later writes bloom filters")
    for key in (_BLOOM_FILTER, _DISTINCT_VALUES)
)
# The share that Java's writer assumes.
_USUAL_FALSE_POSITIVES = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """The options of one column; None where the file's values apply.

    `distinct_values` is the expected number in a row group, `false_positives` the share of other
    values that the bloom filter may let pass.
    """

    compression: str | None = None
    compression_level: int | None = None
    dictionary: bool | None = None
    bloom_filter: bool | None = None
    distinct_values: int | None = None
    false_positives: float = _USUAL_FALSE_POSITIVES


_UNSET = ColumnOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetEncoding:
    """The encoding of Parquet files. `compression_level` is None for codecs without levels.

    `group_bytes` is the limit of a row group, `page_bytes` the size of a page. `dictionary`:
    whether columns may have one. `bloom_filters`: whether columns have one, of at most
    `bloom_filter_bytes`. `column_options` holds the options of single columns by dotted path.
    """

    compression: str
    compression_level: int | None
    group_bytes: int
    page_bytes: int
    dictionary: bool
    bloom_filters: bool = False
    bloom_filter_bytes: int = _MIB
    column_options: Mapping[str, ColumnOptions] = field(default_factory=dict)

    @property
    def compressions(self) -> Sequence[str]:
        """The codecs in use, by Paimon's names."""
        of_columns = (each.compression for each in self.column_options.values())
        return [self.compression, *(codec for codec in of_columns if codec is not None)]

    def of_column(self, path: str) -> ColumnOptions:
        """The options in effect for a column."""
        own = self.column_options.get(path, _UNSET)
        if own.compression is None:
            own = replace(
                own, compression=self.compression, compression_level=self.compression_level
            )
        if own.dictionary is None:
            own = replace(own, dictionary=self.dictionary)
        if own.bloom_filter is None:
            # As in Java, an expected number switches the filter on.
            has_filter = self.bloom_filters or own.distinct_values is not None
            own = replace(own, bloom_filter=has_filter)
        return own

    def distinct_values(self, column: ColumnOptions, rows: int) -> int:
        """The number of values for which a row group's bloom filter is made, at least one."""
        # A split block has eight bits for each value (BlockSplitBloomFilter.optimalNumOfBits).
        bits = -8 / math.log(1 - column.false_positives ** (1 / 8))
        most = int(8 * self.bloom_filter_bytes / bits)
        return max(1, min(rows, column.distinct_values or rows, most))


def codec_of(compression: str) -> str:
    """Arrow's name of a codec of Paimon. Raises `SubcompactionError` for one that cannot be
    written.
    """
    if compression not in CODECS:
        raise SubcompactionError(
            f"Parquet files cannot be written with compression {compression!r}"
        )
    return CODECS[compression]


def encoding_of(texts: OptionTexts, compression: str) -> ParquetEncoding:
    """The encoding. `compression` applies unless Parquet's own option overrides it.

    Raises `UsageError` for an invalid option of the run.
    """
    # Java passes `parquet.compression` to the writers of all levels.
    codec = texts.read(_COMPRESSION, compression, option_values.codec)
    zstd_level = texts.read("file.compression.zstd-level", 1, option_values.zstd_level)
    zstd_level = texts.read(_ZSTD_LEVEL, zstd_level, option_values.zstd_level)
    positive = option_values.positive
    group_bytes = texts.read(_BLOCK_SIZE, 128 * _MIB, positive(option_values.long))
    group_bytes = texts.read("file.block-size", group_bytes, positive(option_values.memory_size))
    levels = {"zstd": zstd_level, "gzip": _GZIP_LEVEL}
    return ParquetEncoding(
        compression=codec,
        compression_level=levels.get(codec),
        group_bytes=max(_LEAST_GROUP_BYTES, group_bytes),
        page_bytes=texts.read(_PAGE_SIZE, _MIB, positive(option_values.integer)),
        dictionary=texts.read(_DICTIONARY, True, option_values.boolean),
        bloom_filters=texts.read(_BLOOM_FILTER, False, option_values.boolean),
        bloom_filter_bytes=texts.read(
            _BLOOM_FILTER_BYTES, _MIB, option_values.positive(option_values.integer)
        ),
        column_options=_columns_of(texts, levels),
    )


def _columns_of(texts: OptionTexts, levels: Mapping[str, int]) -> Mapping[str, ColumnOptions]:
    """The options of single columns by path; `levels` has the level of each codec."""
    found = {key: texts.by_column(key, parse) for key, parse in _OF_COLUMNS.items()}
    return {
        path: ColumnOptions(
            compression=(codec := found[_COMPRESSION].get(path)),
            compression_level=None if codec is None else levels.get(codec),
            dictionary=found[_DICTIONARY].get(path),
            bloom_filter=found[_BLOOM_FILTER].get(path),
            distinct_values=found[_DISTINCT_VALUES].get(path),
            false_positives=found[_FALSE_POSITIVES].get(path, _USUAL_FALSE_POSITIVES),
        )
        for path in sorted(frozenset().union(*found.values()))
    }
