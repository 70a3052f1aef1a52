"""The vector decoder must agree with fastavro on every entry, however blocks are cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import FormatError
from compactord.paimon.avro.columns import NULL, UnusualEncoding, decode_blocks
from compactord.paimon.avro.container import Block, encode_record
from compactord.paimon.data_file import ColumnStats, DataFile, EntryKind, ManifestEntry
from compactord.paimon.manifest.entries import entry_record, identity_hashes
from compactord.paimon.manifest.schemas import MANIFEST, plain_of
from tests.sampling import examples
from tests.unit.paimon.table_builder import data_file, entry

PLAIN = plain_of(MANIFEST)
LONGS = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.integers(-70, 70),
    st.builds(
        lambda bits, sign: sign * ((1 << bits) - 1), st.integers(0, 63), st.sampled_from([1, -1])
    ),
)
INTS = st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-3, 70))
TEXTS = st.one_of(st.text(max_size=5), st.text(min_size=60, max_size=70))
BYTES = st.one_of(st.binary(max_size=4), st.binary(min_size=60, max_size=70))
STATS = st.builds(
    ColumnStats,
    min_values=BYTES,
    max_values=BYTES,
    null_counts=st.lists(st.none() | LONGS, max_size=3).map(tuple),
)
TEXT_LISTS = st.lists(TEXTS, max_size=3).map(tuple)
FILES = st.builds(
    DataFile,
    file_name=TEXTS,
    file_size=LONGS,
    row_count=LONGS,
    min_key=BYTES,
    max_key=BYTES,
    key_stats=STATS,
    value_stats=STATS,
    min_sequence_number=LONGS,
    max_sequence_number=LONGS,
    schema_id=LONGS,
    level=INTS,
    extra_files=TEXT_LISTS,
    creation_time_ms=st.none() | LONGS,
    delete_row_count=st.none() | LONGS,
    embedded_file_index=st.none() | BYTES,
    file_source=st.none() | INTS,
    value_stats_columns=st.none() | TEXT_LISTS,
    external_path=st.none() | TEXTS,
    first_row_id=st.none() | LONGS,
    write_columns=st.none() | TEXT_LISTS,
)
ENTRIES = st.builds(
    ManifestEntry,
    kind=st.sampled_from(EntryKind),
    partition=BYTES,
    bucket=INTS,
    total_buckets=INTS,
    file=FILES,
)


def _or_null(value: int | None) -> int:
    return NULL if value is None else value


INTEGERS = {
    "_KIND": lambda e: int(e.kind),
    "_BUCKET": lambda e: e.bucket,
    "_TOTAL_BUCKETS": lambda e: e.total_buckets,
    "_FILE._FILE_SIZE": lambda e: e.file.file_size,
    "_FILE._ROW_COUNT": lambda e: e.file.row_count,
    "_FILE._MIN_SEQUENCE_NUMBER": lambda e: e.file.min_sequence_number,
    "_FILE._MAX_SEQUENCE_NUMBER": lambda e: e.file.max_sequence_number,
    "_FILE._SCHEMA_ID": lambda e: e.file.schema_id,
    "_FILE._LEVEL": lambda e: e.file.level,
    "_FILE._CREATION_TIME": lambda e: _or_null(e.file.creation_time_ms),
    "_FILE._FILE_SOURCE": lambda e: _or_null(e.file.file_source),
}
BINARIES = {
    "_PARTITION": lambda e: e.partition,
    "_FILE._FILE_NAME": lambda e: e.file.file_name.encode(),
    "_FILE._MIN_KEY": lambda e: e.file.min_key,
    "_FILE._KEY_STATS._MAX_VALUES": lambda e: e.file.key_stats.max_values,
    "_FILE._VALUE_STATS._MIN_VALUES": lambda e: e.file.value_stats.min_values,
}
RAW = ("_FILE._EXTRA_FILES", "_FILE._EMBEDDED_FILE_INDEX", "_FILE._EXTERNAL_PATH")


def _blocks(entries: list[ManifestEntry], cuts: list[int]) -> list[Block]:
    encoded = [encode_record(MANIFEST, entry_record(one)) for one in entries]
    bounds = sorted({0, len(encoded), *(cut % (len(encoded) + 1) for cut in cuts)})
    return [Block(end - start, b"".join(encoded[start:end])) for start, end in pairwise(bounds)]


def _decode(blocks: list[Block]) -> Any:
    return decode_blocks(PLAIN, blocks, values=(*INTEGERS, *BINARIES), raw=RAW, path="f")


@settings(deadline=None, max_examples=examples(150))
@given(
    st.lists(ENTRIES, min_size=1, max_size=12),
    st.lists(st.integers(0, 1 << 20), max_size=6),
)
def test_columns_equal_what_was_encoded(entries: list[ManifestEntry], cuts: list[int]) -> None:
    decoded = _decode(_blocks(entries, cuts))
    data = decoded.data.tobytes()

    def bytes_of(span: Any) -> list[bytes]:
        bounds = zip(span.start.tolist(), span.length.tolist(), strict=True)
        return [data[start : start + length] for start, length in bounds]

    for name, value_of in INTEGERS.items():
        assert decoded.integers[name].tolist() == [value_of(one) for one in entries]
    for name, value_of in BINARIES.items():
        assert bytes_of(decoded.spans[name]) == [value_of(one) for one in entries]
    records = [encode_record(MANIFEST, entry_record(one)) for one in entries]
    assert bytes_of(decoded.records) == records
    for row, one in enumerate(entries):
        for name, value in zip(
            RAW,
            (one.file.extra_files, one.file.embedded_file_index, one.file.external_path),
            strict=True,
        ):
            raw = bytes_of(decoded.spans[name])[row]
            assert (raw == b"\x00") == (not value and value != b"" and value != "")
            assert raw in records[row]


@settings(deadline=None, max_examples=examples(200))
@given(
    st.lists(ENTRIES, min_size=1, max_size=3),
    st.integers(0, 1 << 30),
    st.integers(0, 7),
    st.booleans(),
)
def test_damage_is_a_format_error_or_other_values_and_nothing_else(
    entries: list[ManifestEntry], position: int, bit: int, cut: bool
) -> None:
    (block,) = _blocks(entries, [])
    data = bytearray(block.data)
    position %= len(data)
    if cut:
        del data[position:]
    else:
        data[position] ^= 1 << bit
    try:
        decoded = _decode([Block(block.count, bytes(data))])
    except (FormatError, UnusualEncoding):
        return
    assert not cut, "a cut is always found"
    assert int(decoded.records.length.sum()) == len(data)


@given(st.lists(ENTRIES, min_size=1, max_size=8))
def test_a_hash_does_not_depend_on_its_neighbours(entries: list[ManifestEntry]) -> None:
    identities = [one.identity for one in entries]
    together = identity_hashes(identities).tolist()
    assert together == [identity_hashes([one])[0] for one in identities]


def test_names_that_differ_in_any_byte_bucket_or_level_hash_apart() -> None:
    name = "data-8a1f3c5e-0000-4000-8000-00000000000a-0.parquet"
    names = [name[:i] + "~" + name[i + 1 :] for i in range(len(name))]
    names += [name[:length] for length in range(len(name) + 1)]
    entries = [entry(data_file(one)) for one in names]
    entries += [entry(data_file(name, level=level)) for level in range(1, 6)]
    entries += [entry(data_file(name), bucket=bucket) for bucket in range(1, 20)]
    hashes = identity_hashes([one.identity for one in entries])
    assert len(set(hashes.tolist())) == len(entries)


@pytest.mark.parametrize(
    "extra_files",
    [
        b"\x01\x08\x04ab\x00",  # a sized block: minus one item, four bytes
        b"\x02\x04ab\x02\x04cd\x00",  # two blocks
    ],
    ids=["sized block", "two blocks"],
)
def test_arrays_in_several_or_sized_blocks_are_left_to_fastavro(extra_files: bytes) -> None:
    schema = {"record": {"names": {"array": "string"}}}
    with pytest.raises(UnusualEncoding):
        decode_blocks(schema, [Block(1, extra_files)], values=(), raw=(), path="f")


ODD_TYPES = [{"fixed": 4}, "enum", {"record": {"a": {"array": "enum"}}}]


@pytest.mark.parametrize("type_", ODD_TYPES, ids=str)
@pytest.mark.parametrize("others", [[], ["string"]], ids=["one", "several"])
def test_values_of_types_that_none_of_ours_has_are_left_to_fastavro_and_nulls_are_not(
    type_: Any, others: list[str]
) -> None:
    schema = {"record": {"new": ["null", type_, *others], "n": "long"}}
    nulls = decode_blocks(schema, [Block(2, b"\x00\x04\x00\x06")], values=["n"], raw=(), path="f")
    assert nulls.integers["n"].tolist() == [2, 3]
    with pytest.raises(UnusualEncoding):
        decode_blocks(schema, [Block(2, b"\x00\x04\x02\x02\x06")], values=["n"], raw=(), path="f")


@pytest.mark.parametrize("is_nullable", [False, True])
def test_columns_of_every_type_keep_their_values_and_nulls(is_nullable: bool) -> None:
    types = {"b": "boolean", "f": "float", "d": "double", "s": "string", "n": "int"}
    encodings = {"b": b"\x01", "f": b"\x00\x00\xc0\x3f", "d": bytes(7) + b"\x40"}
    encodings |= {"s": b"\x04ab", "n": b"\x05", "m": b"\x02\x02k\x06\x00"}
    branch = b"\x02" if is_nullable else b""
    record: dict[str, Any] = {
        name: ["null", type_] if is_nullable else type_ for name, type_ in types.items()
    }
    schema = {"record": {**record, "m": {"map": "long"}}}
    row = b"".join(branch + encodings[name] for name in types) + encodings["m"]
    null = bytes(len(types)) + b"\x00" if is_nullable else row
    found = decode_blocks(
        schema, [Block(2, row + null), Block(1, row)], values=types, raw=["m"], path="f"
    )
    data, first = found.data.tobytes(), [0, 2]
    assert found.integers["n"][first].tolist() == [-3, -3]
    assert [data[at] for at in found.places["b"][first]] == [1, 1]
    assert [data[at : at + 4] for at in found.places["f"][first]] == [encodings["f"]] * 2
    assert [data[at : at + 8] for at in found.places["d"][first]] == [encodings["d"]] * 2
    spans = found.spans["s"]
    assert [data[at : at + 2] for at in spans.start[first]] == [b"ab", b"ab"]
    of_maps = found.spans["m"]
    assert data[of_maps.start[0] : of_maps.start[0] + of_maps.length[0]] == encodings["m"]
    expected = {name: [True, False, True] for name in types} if is_nullable else {}
    assert {name: valid.tolist() for name, valid in found.valid.items()} == expected


@pytest.mark.parametrize(("type_", "size"), [("boolean", 1), ("float", 4), ("double", 8)])
def test_a_value_of_a_fixed_width_at_the_end_of_its_block_is_damage(type_: str, size: int) -> None:
    schema = {"record": {"v": type_}}
    with pytest.raises(FormatError, match="runs over the end"):
        decode_blocks(schema, [Block(1, bytes(size - 1))], values=["v"], raw=(), path="f")


def test_a_column_that_is_always_null_takes_nothing() -> None:
    schema = {"record": {"new": "null", "n": "long", "only": ["null"]}}
    found = decode_blocks(schema, [Block(1, b"\x04\x00")], values=["n"], raw=(), path="f")
    assert found.integers["n"].tolist() == [2]


def test_a_number_of_more_than_ten_bytes_is_a_format_error() -> None:
    with pytest.raises(FormatError, match="ten bytes"):
        decode_blocks(
            {"record": {"n": "long"}},
            [Block(1, b"\xff" * 11 + b"\x01")],
            values=("n",),
            raw=(),
            path="f",
        )


LARGEST = b"\xfe" + b"\xff" * 8 + b"\x01"  # 2^63 - 1


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"record": {"n": "long"}}, b"\x02\x02"),
        ({"record": {"n": "long"}}, b""),
        ({"record": {"b": "bytes"}}, b"\x04a"),
        ({"record": {"b": "bytes"}}, b"\x01a"),
        ({"record": {"b": "bytes", "n": "long"}}, LARGEST + b"\x00" * 20),
        ({"record": {"a": {"array": "long"}}}, LARGEST + b"\x00" * 20),
        ({"record": {"n": ["null", "long"]}}, b"\x04\x02"),
        ({"record": {"n": ["null", "long"]}}, b"\x01\x02"),
    ],
    ids=[
        "bytes behind the record",
        "no bytes",
        "short value",
        "negative length",
        "length that overflows",
        "count that overflows",
        "third union branch",
        "negative union branch",
    ],
)
def test_what_does_not_fit_its_block_is_a_format_error(schema: Any, data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_blocks(schema, [Block(1, data)], values=(), raw=(), path="f")
