from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from compactord.errors import FormatError
from compactord.paimon.binary_row import comparable_key, decode_row, encode_row, unscaled
from compactord.paimon.types import DataType, parse_type
from compactord_demo.binary_rows import row_hash


def types(*texts: Any) -> list[DataType]:
    return [parse_type(text) for text in texts]


MIXED = ("BIGINT", "STRING", "BOOLEAN", "DECIMAL(20, 2)", "TIMESTAMP(6)")
ROW = {
    "type": "ROW",
    "fields": [{"id": 1, "name": "a", "type": "INT"}, {"id": 2, "name": "b", "type": "STRING"}],
}

# Each: values, types, bytes, hash, bucket of 4; as Java encodes them.
VECTORS = {
    "no fields": ((), (), "000000000000000000000000", -1670924195, 3),
    "one": ((1,), ("INT",), "00000001 0000000000000000 0100000000000000", 1465514398, 2),
    "null": ((None,), ("INT",), "00000001 0001000000000000 0000000000000000", -1748325344, 0),
    "inline text": (
        (-1, "abcdefg"),
        ("INT", "STRING"),
        "00000002 0000000000000000 ffffffff00000000 6162636465666787",
        -1404529693,
        1,
    ),
    "text outside": (
        ("abcdefgh",),
        ("STRING",),
        "00000001 0000000000000000 0800000010000000 6162636465666768",
        -843760178,
        2,
    ),
    "empty text": (("",), ("STRING",), "00000001 0000000000000000 0000000000000080", 302122119, 3),
    "compact decimal": (
        (Decimal("12.34"),),
        ("DECIMAL(10, 2)",),
        "00000001 0000000000000000 d204000000000000",
        -1096042293,
        1,
    ),
    "compact timestamp": (
        (1_700_000_000_123_000_000,),
        ("TIMESTAMP(3)",),
        "00000001 0000000000000000 7b68e5cf8b010000",
        -1285420957,
        1,
    ),
    "timestamp before the epoch": (
        (-1,),
        ("TIMESTAMP(9)",),
        "00000001 0000000000000000 3f420f0010000000 ffffffffffffffff",
        61627685,
        1,
    ),
    "small numbers": (
        (-2, -3, 1.5, -2.5),
        ("TINYINT", "SMALLINT", "FLOAT", "DOUBLE"),
        "00000004 0000000000000000 fe00000000000000 fdff000000000000 0000c03f00000000"
        "00000000000004c0",
        -344587872,
        0,
    ),
    "bytes outside": (
        (bytes(range(1, 10)),),
        ("BYTES",),
        "00000001 0000000000000000 0900000010000000 0102030405060708 0900000000000000",
        -171399545,
        1,
    ),
    "mixed": (
        (258, "hello paimon", True, Decimal("-1.50"), 1_700_000_000_123_456_000),
        MIXED,
        "00000005 0000000000000000 0201000000000000 0c00000030000000 0100000000000000"
        "0200000040000000 40f5060050000000 68656c6c6f207061 696d6f6e00000000 ff6a000000000000"
        "0000000000000000 7b68e5cf8b010000",
        -1184948169,
        1,
    ),
    "mixed nulls keep room": (
        (None,) * 5,
        MIXED,
        "00000005 001f000000000000 0000000000000000 0000000000000000 0000000000000000"
        "0000000030000000 0000000040000000 0000000000000000 0000000000000000 0000000000000000",
        -148503671,
        3,
    ),
    "array": (
        ([1, None, 3],),
        ({"type": "ARRAY", "element": "INT"},),
        "00000001 0000000000000000 1800000010000000 03000000 02000000 01000000 00000000 03000000"
        "00000000",
        1830759751,
        3,
    ),
    "array of texts": (
        (["a", "abcdefghij"],),
        ({"type": "ARRAY", "element": "STRING"},),
        "00000001 0000000000000000 2800000010000000 02000000 00000000 6100000000000081"
        "0a00000018000000 6162636465666768 696a000000000000",
        542002696,
        0,
    ),
    "map": (
        ([("k", 5)],),
        ({"type": "MAP", "key": "STRING", "value": "INT"},),
        "00000001 0000000000000000 2400000010000000 10000000 01000000 00000000 6b00000000000081"
        "01000000 00000000 05000000 00000000 00000000",
        -162193992,
        0,
    ),
    "row": (
        ((7, "x"),),
        (ROW,),
        "00000001 0000000000000000 1800000010000000 0000000000000000 0700000000000000"
        "7800000000000081",
        -78344154,
        2,
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_rows_are_encoded_hashed_and_decoded_as_java_does(name: str) -> None:
    values, texts, hexed, hashed, bucket = VECTORS[name]
    row = bytes.fromhex(hexed)
    assert encode_row(values, types(*texts)).hex() == row.hex()
    assert decode_row(row, types(*texts)) == values
    assert (row_hash(row), abs(row_hash(row)) % 4) == (hashed, bucket)


def test_an_array_of_longs_is_laid_out_as_java_does() -> None:
    row = encode_row(([0, None, 3],), types({"type": "ARRAY", "element": "BIGINT"}))
    array = "03000000 02000000 0000000000000000 0000000000000000 0300000000000000"
    assert row[4 + 16 :].hex() == array.replace(" ", "")


@pytest.mark.parametrize(("fields", "null_bytes"), [(56, 8), (57, 16)])
def test_null_bits_grow_by_whole_words(fields: int, null_bytes: int) -> None:
    row = encode_row([None] * fields, types(*["INT"] * fields))
    assert len(row) == 4 + null_bytes + 8 * fields


@pytest.mark.parametrize(
    ("number", "size"),
    [(0, 1), (-1, 1), (127, 1), (128, 2), (-128, 1), (-129, 2), (10**37, 16), (1 - 10**38, 16)],
)
def test_wide_decimals_take_the_fewest_bytes_and_16_bytes_of_room(number: int, size: int) -> None:
    row = encode_row((Decimal(number),), types("DECIMAL(38, 0)"))
    assert row[12:20] == size.to_bytes(4, "little") + (16).to_bytes(4, "little")
    assert row[20:] == number.to_bytes(size, "big", signed=True).ljust(16, b"\0")
    assert decode_row(row, types("DECIMAL(38, 0)")) == (Decimal(number),)


def test_vectors_and_variants_survive() -> None:
    texts = ({"type": "VECTOR", "element": "FLOAT", "length": 3}, "VARIANT")
    values = ([1.5, -2.0, 0.25], (b"\x0c\x01", b"\x01\x00"))
    assert decode_row(encode_row(values, types(*texts)), types(*texts)) == values


def test_keys_are_ordered_as_paimon_orders_them() -> None:
    def ordered(text: str, *values: Any) -> None:
        keys = [comparable_key(encode_row((value,), types(text)), types(text)) for value in values]
        assert keys == sorted(keys)
        assert len(set(keys)) == len(keys)

    ordered("BOOLEAN", None, False, True)
    ordered("DOUBLE", None, float("-inf"), -1.5, -5e-324, -0.0, 0.0, 5e-324, 1.5, float("nan"))
    ordered("FLOAT", float("-inf"), -0.0, 0.0, float("inf"), float("nan"))
    # Bytes, not UTF-16: a supplementary character comes after U+FFFF.
    ordered("STRING", None, "", "a", "a\0", "aa", "b", "é", "\uffff", "\U0001f600")
    ordered("BYTES", b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\x00")
    ordered("DECIMAL(20, 2)", Decimal("-1.01"), Decimal("-1"), Decimal("0"), Decimal("9.99"))
    ordered("TIMESTAMP(9)", -1_000_001, -1_000_000, -1, 0, 1)


def test_keys_of_several_columns_are_ordered_column_by_column() -> None:
    key_types = types("INT NOT NULL", "STRING NOT NULL")
    rows = [(-1, "b"), (1, ""), (1, "a"), (2, "a")]
    keys = [comparable_key(encode_row(row, key_types), key_types) for row in rows]
    assert keys == sorted(keys)


@pytest.mark.parametrize("name", VECTORS)
def test_truncated_rows_name_their_source(name: str) -> None:
    values, texts, hexed, *_ = VECTORS[name]
    row = bytes.fromhex(hexed)
    fixed = 4 + 8 + 8 * len(values)
    for size in (0, 3, 7, fixed - 1):
        with pytest.raises(FormatError, match="manifest-1"):
            decode_row(row[:size], types(*texts), source="manifest-1")


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("00000002 0000000000000000 0100000000000000", "INT"),
        ("00000001 0000000000000000 08000000ffffffff", "STRING"),
        ("00000001 0000000000000000 ffffffff10000000", "STRING"),
        ("00000001 0000000000000000 00000000000000ff", "STRING"),
        ("00000001 0000000000000000 0000000018000000", "TIMESTAMP(6)"),
        ("00000001 0000000000000000 1000000010000000 ffffff7f00000000", "array"),
        ("00000001 0000000000000000 1000000010000000 ffffffff00000000", "array"),
    ],
)
def test_nonsense_is_not_a_row(row: str, text: str) -> None:
    kind = parse_type({"type": "ARRAY", "element": "INT"} if text == "array" else text)
    with pytest.raises(FormatError, match="binary row"):
        decode_row(bytes.fromhex(row), [kind])


def test_text_that_is_not_utf8_stays_bytes() -> None:
    row = bytes.fromhex("00000001 0000000000000000 ff00000000000081")
    assert decode_row(row, types("STRING")) == (b"\xff",)
    assert encode_row([b"\xff"], types("STRING")) == row


def test_nested_types_have_no_key_order() -> None:
    kinds = types({"type": "ARRAY", "element": "INT"})
    with pytest.raises(FormatError, match="no order"):
        comparable_key(encode_row(([1],), kinds), kinds)


def test_a_decimal_that_would_lose_digits_is_a_programming_error() -> None:
    assert unscaled(Decimal("1.5"), 2) == 150
    assert unscaled(Decimal("-" + "9" * 38), 0) == -(10**38) + 1
    with pytest.raises(ValueError, match="scale of 1"):
        unscaled(Decimal("1.55"), 1)
