"""Metadata with flipped or cut bytes: a named error or well-formed values, never anything else.

Blocks carry no checksum (Java writes none), so a flip inside a value can pass as another value;
what the recorded sizes, counts, versions and kinds can show, they must show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import EMPTY_ROW, ColumnStats, ManifestEntry
from compactord.paimon.manifest.entries import entry_record
from compactord.paimon.manifest.index_manifest import IndexEntry, read_index_entries
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    describe_entries,
    encode_manifest_list,
    read_entries,
    read_manifest_list,
)
from compactord.paimon.manifest.schemas import INDEX_MANIFEST, MANIFEST
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    latest_snapshot_id,
    parse_snapshot,
    snapshot_json,
)
from compactord.state.loading import load_live_files
from tests.containers import encode_container
from tests.sampling import examples
from tests.unit.paimon.foreign_files import ENTRY, FILE, Added, with_columns
from tests.unit.paimon.table_builder import MemoryStorage, data_file, deleted, entry

ROOT = "/w/db.db/t"
STATS = ColumnStats(min_values=b"\x01" * 20, max_values=b"\x02" * 20, null_counts=(0, None, 9))
ENTRIES = [
    entry(data_file(f"data-{i}.parquet", key_stats=STATS, value_stats=STATS, level=i % 3), bucket=i)
    for i in range(40)
]
ENTRIES.append(deleted(entry(data_file("data-x.parquet", extra_files=("x.index",)))))
SNAPSHOT = Snapshot(
    uuid="5f6a0d3c-0000-4000-8000-000000000000",
    id=7,
    schema_id=2,
    base_manifest_list="base",
    delta_manifest_list="delta",
    commit_user="user",
    commit_identifier=1,
    commit_kind=CommitKind.APPEND,
    time_ms=1,
    total_record_count=10,
    delta_record_count=5,
    properties={"a": "b"},
)
INDEX = [
    {
        "_VERSION": 1,
        "_KIND": 0,
        "_PARTITION": EMPTY_ROW,
        "_BUCKET": number,
        "_INDEX_TYPE": "HASH",
        "_FILE_NAME": f"index-{number}",
        "_FILE_SIZE": 12,
        "_ROW_COUNT": 3,
    }
    for number in range(20)
]
# A position as a share of the file, a bit to flip, or a cut there.
DAMAGES = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7), st.booleans())
CODECS = ("zstd", "null", "deflate", "snappy")


def _damaged(data: bytes, damage: tuple[float, int, bool]) -> bytes:
    share, bit, cut = damage
    position = int(share * len(data))
    if cut:
        return data[:position]
    flipped = bytearray(data)
    flipped[position] ^= 1 << bit
    return bytes(flipped)


def _refused_or(read: Callable[[], Any], path: str) -> Any:
    """What was read; None when it was refused with the path."""
    try:
        return read()
    except (FormatError, UnsupportedTable) as error:
        message = str(error)
    assert path in message
    return None


# Columns that are not known, of every kind of type, with values or null.
NEWER = with_columns(
    MANIFEST.json,
    [
        Added(FILE, "_MAP", ["null", {"type": "map", "values": "bytes"}], [], 3),
        Added(FILE, "_PAIRS", {"type": "array", "items": ["int", "string"]}, []),
        Added(ENTRY, "_FIXED", ["null", {"type": "fixed", "name": "F", "size": 9}], [], 2),
        Added(ENTRY, "_LIST", ["null", {"type": "array", "items": "long"}], []),
    ],
)


def _with_values(record: dict[str, Any], number: int) -> dict[str, Any]:
    values = {"_MAP": {"k": b"v" * 9}, "_PAIRS": [1, "x"]}
    nulls = {"_MAP": None, "_PAIRS": []}
    file = {**record["_FILE"], **(values if number % 3 else nulls)}
    top = {"_FIXED": b"123456789" if number % 2 else None, "_LIST": [number] * 3}
    return {**record, "_FILE": file, **top}


@pytest.mark.parametrize("compression", [*CODECS, "newer"])
@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
def test_a_damaged_manifest(compression: str, cursors: int) -> None:
    records = [entry_record(one) for one in ENTRIES]
    if compression == "newer":
        newer = [_with_values(record, number) for number, record in enumerate(records)]
        whole = encode_container(NEWER, newer, codec_of("null"))
    else:
        whole = encode_container(MANIFEST, records, codec_of(compression, 1))

    @settings(deadline=None, max_examples=examples(150))
    @given(DAMAGES)
    def check(damage: tuple[float, int, bool]) -> None:
        data = _damaged(whole, damage)
        storage = MemoryStorage({paths.manifest_path(ROOT, "m"): data})
        # The recorded size is that of the damaged file, so that the size is not what tells.
        manifest = describe_entries("m", len(data), ENTRIES, [])
        read = _refused_or(lambda: read_entries(storage, ROOT, manifest), "manifest/m")
        if read is not None:
            assert len(read) == len(ENTRIES)
            assert all(isinstance(one, ManifestEntry) for one in read)
            assert not damage[2], "a cut is always found"
        live = _refused_or(
            lambda: load_live_files(storage, ROOT, [manifest], min_cursors=cursors), "manifest"
        )
        if live is not None and read is not None:
            # Both decoders see the same entries.
            assert live.file_count == sum(one.kind == 0 for one in read)
            assert live.size_bytes == sum(one.file.file_size for one in read if one.kind == 0)

    check()


@pytest.mark.parametrize("compression", CODECS)
def test_a_damaged_manifest_list(compression: str) -> None:
    manifest = describe_entries("m", 1000, ENTRIES, [])
    manifests = [replace(manifest, file_name=f"m-{n}") for n in range(20)]
    whole = encode_manifest_list(manifests, codec_of(compression, 1))

    @settings(deadline=None, max_examples=examples(150))
    @given(DAMAGES)
    def check(damage: tuple[float, int, bool]) -> None:
        data = _damaged(whole, damage)
        storage = MemoryStorage({"/manifest/list": data})
        with pytest.raises(FormatError):
            read_manifest_list(storage, "/manifest/list", len(data) + 1)
        read = _refused_or(lambda: read_manifest_list(storage, "/manifest/list"), "/manifest/list")
        if read is not None:
            assert all(isinstance(one, ManifestFile) for one in read)

    check()


@pytest.mark.parametrize("compression", CODECS)
def test_a_damaged_index_manifest(compression: str) -> None:
    whole = encode_container(INDEX_MANIFEST, INDEX, codec_of(compression, 1))

    @settings(deadline=None, max_examples=examples(150))
    @given(DAMAGES)
    def check(damage: tuple[float, int, bool]) -> None:
        path = paths.manifest_path(ROOT, "i")
        storage = MemoryStorage({path: _damaged(whole, damage)})
        read = _refused_or(lambda: read_index_entries(storage, ROOT, "i"), path)
        assert read is None or all(isinstance(one, IndexEntry) for one in read)

    check()


@settings(deadline=None)
@given(DAMAGES)
def test_a_damaged_snapshot(damage: tuple[float, int, bool]) -> None:
    data = _damaged(snapshot_json(SNAPSHOT), damage)
    read = _refused_or(lambda: parse_snapshot(data, "/t/snapshot/snapshot-7"), "/t/snapshot")
    assert read is None or isinstance(read, Snapshot)
    assert read is None or not damage[2], "a cut is always found"


@given(st.binary(max_size=30))
def test_any_bytes_in_a_hint_are_survived(hint: bytes) -> None:
    storage = MemoryStorage({f"{ROOT}/snapshot/LATEST": hint})
    storage.write_new(f"{ROOT}/snapshot/snapshot-7", snapshot_json(SNAPSHOT))
    assert latest_snapshot_id(storage, ROOT) == 7
