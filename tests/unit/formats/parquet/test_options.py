"""How the options of a table become the encoding of its Parquet files."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compactord.errors import UsageError
from compactord.formats.parquet.format import PARQUET
from compactord.formats.parquet.options import ColumnOptions, ParquetEncoding
from compactord.paimon.options.texts import OptionTexts

MIB = 1 << 20


def encoding(
    table: Mapping[str, str], run: Mapping[str, str] | None = None, *, compression: str = "zstd"
) -> ParquetEncoding:
    found = PARQUET.encoding(OptionTexts(table, run or {}), compression)
    assert isinstance(found, ParquetEncoding)
    return found


def test_a_table_without_options_is_encoded_as_java_encodes_it() -> None:
    assert encoding({}) == ParquetEncoding(
        compression="zstd",
        compression_level=1,
        group_bytes=128 * MIB,
        page_bytes=MIB,
        dictionary=True,
    )


def test_its_own_options_win_over_those_of_files() -> None:
    options = {
        "file.compression.zstd-level": "3",
        "parquet.compression.codec.zstd.level": "5",
        "parquet.page.size": "4096",
        "parquet.enable.dictionary": "false",
        "parquet.block.size": "2000000",
    }
    found = encoding(options)
    assert (found.compression_level, found.page_bytes, found.dictionary) == (5, 4096, False)
    assert found.group_bytes == 2_000_000
    assert encoding({"parquet.compression": "SNAPPY"}, compression="lz4") == ParquetEncoding(
        compression="snappy",
        compression_level=None,
        group_bytes=128 * MIB,
        page_bytes=MIB,
        dictionary=True,
    )


@pytest.mark.parametrize(
    ("options", "path", "used"),
    [
        ({}, "v", ColumnOptions(compression="lz4", dictionary=True, bloom_filter=False)),
        (
            {"parquet.compression#v": "GZIP", "parquet.enable.dictionary#v": "false"},
            "v",
            ColumnOptions(
                compression="gzip", compression_level=6, dictionary=False, bloom_filter=False
            ),
        ),
        (
            {"parquet.compression#m.key_value.value": "zstd", "file.compression.zstd-level": "4"},
            "m.key_value.value",
            ColumnOptions(
                compression="zstd", compression_level=4, dictionary=True, bloom_filter=False
            ),
        ),
        (
            {"parquet.bloom.filter.enabled": "true", "parquet.bloom.filter.fpp#v": "0.1"},
            "v",
            ColumnOptions(
                compression="lz4", dictionary=True, bloom_filter=True, false_positives=0.1
            ),
        ),
        (
            {"parquet.bloom.filter.enabled": "true", "parquet.bloom.filter.enabled#v": "false"},
            "v",
            ColumnOptions(compression="lz4", dictionary=True, bloom_filter=False),
        ),
        # A number of values asks for a filter.
        (
            {"parquet.bloom.filter.expected.ndv#v": "500"},
            "v",
            ColumnOptions(
                compression="lz4", dictionary=True, bloom_filter=True, distinct_values=500
            ),
        ),
    ],
)
def test_columns_have_options_of_their_own(
    options: Mapping[str, str], path: str, used: ColumnOptions
) -> None:
    found = encoding(options, compression="lz4")
    assert found.of_column(path) == used
    plain = encoding({}, compression="lz4").of_column("another")
    if "parquet.bloom.filter.enabled" not in options:
        assert found.of_column("another") == plain


@pytest.mark.parametrize(
    ("options", "rows", "used"),
    [
        ({}, 1000, 1000),
        ({}, 0, 1),
        ({"parquet.bloom.filter.expected.ndv#v": "500"}, 1000, 500),
        ({"parquet.bloom.filter.expected.ndv#v": "500"}, 100, 100),
        # A MiB has 9.68 bits for each of these.
        ({}, 10_000_000, 866_455),
        ({"parquet.bloom.filter.max.bytes": "1024"}, 10_000_000, 846),
    ],
)
def test_bloom_filters_have_room_for_the_rows_within_their_limit(
    options: Mapping[str, str], rows: int, used: int
) -> None:
    found = encoding(options)
    assert found.distinct_values(found.of_column("v"), rows) == used


def test_the_block_size_of_files_wins_over_its_own() -> None:
    options = {"parquet.block.size": "1000000", "file.block-size": "2 mb"}
    assert encoding(options).group_bytes == 2 * MIB


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({"parquet.block.size": "1"}, MIB),
        ({"parquet.block.size": "1048577"}, MIB + 1),
        ({"file.block-size": "200 kb"}, MIB),
        ({"parquet.block.size": "2000000", "file.block-size": "1 kb"}, MIB),
    ],
)
def test_row_groups_are_not_made_tiny(options: Mapping[str, str], used: int) -> None:
    assert encoding(options).group_bytes == used


@pytest.mark.parametrize(
    ("level", "used"),
    [("-2147483648", -131072), ("-131073", -131072), ("22", 22), ("23", 22), ("2147483647", 22)],
)
def test_levels_that_zstd_lacks_are_moved_to_the_nearest_one(level: str, used: int) -> None:
    for key in ("file.compression.zstd-level", "parquet.compression.codec.zstd.level"):
        assert encoding({key: level}).compression_level == used


@pytest.mark.parametrize(
    ("codec", "level"), [("gzip", 6), ("snappy", None), ("none", None), ("zstd", 9)]
)
def test_gzip_has_the_level_of_javas_writer_whatever_zstds_is(
    codec: str, level: int | None
) -> None:
    options = {"file.compression.zstd-level": "9"}
    assert encoding(options, compression=codec).compression_level == level


def test_a_bad_value_is_an_error_of_the_run_and_noted_of_the_table() -> None:
    texts = OptionTexts({"parquet.block.size": "0"}, {})
    assert PARQUET.encoding(texts, "zstd") == encoding({})
    assert list(texts.unreadable) == ["parquet.block.size"]
    with pytest.raises(UsageError, match=r"option parquet\.page\.size='many' of this run"):
        encoding({}, {"parquet.page.size": "many"})
