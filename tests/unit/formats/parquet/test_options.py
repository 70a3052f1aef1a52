"""How the options of a table become the encoding of its Parquet files."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from compactord.errors import UsageError
from compactord.formats.parquet.format import PARQUET
from compactord.formats.parquet.options import ParquetEncoding
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
