from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from compactord.errors import FormatError, UnsupportedTable, UsageError
from compactord.paimon.avro.container import (
    AvroSchema,
    ContainerWriter,
    compile_schema,
    decode_record,
    encode_record,
    open_container,
)
from compactord.paimon.avro.types import codec_of
from tests.containers import encode_container, records_of

SCHEMA = compile_schema(
    {
        "type": "record",
        "name": "record",
        "namespace": "org.apache.paimon.avro.generated",
        "fields": [
            {"name": "id", "type": "long"},
            {
                "name": "at",
                "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}],
                "default": None,
            },
            {"name": "text", "type": "string"},
        ],
    }
)

RECORDS = [
    {"id": i, "at": None if i % 3 else i * 1000, "text": "x" * (i % 50)} for i in range(5000)
]
CODECS = ("zstd", "null", "deflate", "snappy", "bzip2", "xz")


@pytest.mark.parametrize("compression", CODECS)
def test_a_file_of_several_blocks_is_read_as_written(compression: str) -> None:
    data = encode_container(SCHEMA, RECORDS, codec_of(compression, 1))
    container = open_container(data, "f")
    assert records_of(container) == RECORDS
    assert sum(1 for _ in container.blocks()) > 1


@pytest.mark.parametrize("compression", [c for c in CODECS if c != "snappy"])
def test_fastavro_reads_what_we_write_and_the_other_way_round(compression: str) -> None:
    codec = codec_of(compression, 1)
    theirs = fastavro.reader(io.BytesIO(encode_container(SCHEMA, RECORDS, codec)))
    assert [one["text"] for one in theirs] == [one["text"] for one in RECORDS]
    stream = io.BytesIO()
    fastavro.writer(stream, SCHEMA.parsed, RECORDS, codec=codec.name)
    assert records_of(open_container(stream.getvalue(), "f")) == RECORDS


def test_a_file_without_records_is_a_header() -> None:
    container = open_container(encode_container(SCHEMA, [], codec_of("zstd")), "f")
    assert records_of(container) == []


def test_timestamps_stay_the_stored_integer() -> None:
    data = encode_container(SCHEMA, [RECORDS[3]], codec_of("null"))
    (record,) = records_of(open_container(data, "f"))
    assert record["at"] == 3000


def test_blocks_end_once_they_hold_64000_bytes() -> None:
    blocks = list(open_container(encode_container(SCHEMA, RECORDS, codec_of("null")), "f").blocks())
    assert all(64_000 <= len(block.data) < 64_100 for block in blocks[:-1])


def test_flushed_bytes_leave_the_block_in_hand_out() -> None:
    writer = ContainerWriter(SCHEMA, codec_of("null"))
    header = writer.flushed_bytes
    writer.append(encode_record(SCHEMA, RECORDS[0]))
    assert writer.flushed_bytes == header
    for record in RECORDS:
        writer.append(encode_record(SCHEMA, record))
    assert writer.flushed_bytes > header + 64_000


@pytest.mark.parametrize("compression", CODECS)
def test_a_cut_file_is_refused_wherever_it_is_cut(compression: str) -> None:
    data = encode_container(SCHEMA, RECORDS[:20], codec_of(compression, 1))
    header = len(encode_container(SCHEMA, [], codec_of(compression, 1)))
    for size in range(len(data)):
        if size == header:
            continue  # a complete file without records: only its recorded size tells
        with pytest.raises(FormatError, match=r"f$"):
            records_of(open_container(data[:size], "f"))


def test_a_file_with_bytes_behind_its_end_is_refused() -> None:
    data = encode_container(SCHEMA, RECORDS[:20], codec_of("zstd"))
    with pytest.raises(FormatError):
        open_container(data + b"\x00", "f")


def test_a_wrong_sync_mark_is_refused() -> None:
    data = bytearray(encode_container(SCHEMA, RECORDS[:20], codec_of("zstd")))
    data[-1] ^= 1
    with pytest.raises(FormatError, match="sync"):
        open_container(bytes(data), "f")


@pytest.mark.parametrize("compression", ["snappy", "xz"])
def test_a_codec_with_a_checksum_finds_a_flipped_bit(compression: str) -> None:
    data = bytearray(encode_container(SCHEMA, RECORDS[:200], codec_of(compression)))
    data[-40] ^= 4
    with pytest.raises(FormatError, match=compression):
        records_of(open_container(bytes(data), "f"))


def test_a_record_must_fill_its_bytes() -> None:
    data = encode_record(SCHEMA, RECORDS[3])
    assert decode_record(SCHEMA, data, "f") == RECORDS[3]
    for damaged in (data[:-1], data + b"\x00", b""):
        with pytest.raises(FormatError):
            decode_record(SCHEMA, damaged, "f")


@pytest.mark.parametrize(
    "type_",
    [
        "int",
        {"type": "int"},
        ["null", "int"],
        {"type": "array", "items": ["null", "int"]},
        {"type": "record", "name": "inner", "fields": [{"name": "n", "type": "int"}]},
    ],
    ids=["plain", "decorated", "nullable", "items", "nested"],
)
def test_an_int_of_more_than_32_bits_is_damage(type_: Any) -> None:
    def schema(integer: str) -> AvroSchema:
        text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": type_}]})
        return compile_schema(json.loads(text.replace('"int"', f'"{integer}"')))

    def value(integer: int) -> Any:
        kind = type_.get("type") if isinstance(type_, dict) else None
        return {"array": [None, integer], "record": {"n": integer}}.get(kind, integer)

    for fits in (-(1 << 31), (1 << 31) - 1):
        data = encode_record(schema("int"), {"a": value(fits)})
        assert decode_record(schema("int"), data, "f") == {"a": value(fits)}
    for wide in (-(1 << 31) - 1, 1 << 31, 1 << 62):
        data = encode_record(schema("long"), {"a": value(wide)})
        with pytest.raises(FormatError, match="more than 32 bits: f"):
            decode_record(schema("int"), data, "f")


def test_what_another_program_may_read_is_named_and_is_no_damage() -> None:
    """A codec that we do not know, and the other values of `manifest.format`."""
    data = encode_container(SCHEMA, RECORDS[:2], codec_of("null"))
    for found, name in (
        (data.replace(b"\x08null", b"\x08nulk"), "'nulk'"),
        (b"ORC" + data, "format ORC"),
        (b"PAR1" + data, "format Parquet"),
    ):
        with pytest.raises(UnsupportedTable, match=rf"^table t is refused: t/manifest/m .*{name}"):
            open_container(found, "t/manifest/m")


def test_an_unknown_compression_option_is_refused() -> None:
    assert codec_of("ZSTD", 3).level == 3
    with pytest.raises(UsageError, match=r"manifest\.compression is 'brotli'"):
        codec_of("brotli")
