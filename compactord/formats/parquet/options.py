"""The options of Parquet files, and their encoding.

Values are parsed as in format/parquet/ParquetFileFormat.java and parquet-mr. Options that only tune
the size of pages are ignored: files are valid without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
# The level of Java's writer, for which Paimon has no option: parquet-mr 1.16 looks for
# `zlib.compress.level` (CodecFactory), Paimon passes on "parquet.*" only. Arrow's default is 9.
_GZIP_LEVEL = 6
# Smaller row groups cost more for their metadata than for their rows.
_LEAST_GROUP_BYTES = 1 << 20
_ENCRYPTED = "encrypted files are neither read nor written"
_MIB = 1 << 20

# Options that new files follow, each with the parser of a run's value.
HONOURED: Mapping[str, Callable[[str], object]] = {
    _BLOCK_SIZE: option_values.positive(option_values.long),
    _PAGE_SIZE: option_values.positive(option_values.integer),
    _DICTIONARY: option_values.boolean,
    _COMPRESSION: option_values.codec,
    _ZSTD_LEVEL: option_values.integer_within(*option_values.ZSTD_LEVELS),
}
# Beginnings of refused options, each with the reason.
REFUSED = (
    ("parquet.bloom.filter.enabled", "new files would have no bloom filters"),
    ("parquet.compression#", "codecs per column are not written"),
    ("parquet.crypto.", _ENCRYPTED),
    ("parquet.encryption.", _ENCRYPTED),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetEncoding:
    """The encoding of Parquet files. `compression_level` is None for codecs without levels.

    `group_bytes` is the limit of a row group, `page_bytes` the size of a page. `dictionary`:
    whether columns may have one.
    """

    compression: str
    compression_level: int | None
    group_bytes: int
    page_bytes: int
    dictionary: bool


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
    return ParquetEncoding(
        compression=codec,
        compression_level={"zstd": zstd_level, "gzip": _GZIP_LEVEL}.get(codec),
        group_bytes=max(_LEAST_GROUP_BYTES, group_bytes),
        page_bytes=texts.read(_PAGE_SIZE, _MIB, positive(option_values.integer)),
        dictionary=texts.read(_DICTIONARY, True, option_values.boolean),
    )
