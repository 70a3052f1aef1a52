"""Manifests that claim more than files of their size can hold, and files that are added twice."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest

from compactord.errors import FormatError
from compactord.paimon import paths
from compactord.paimon.avro.container import ContainerWriter, encode_record, encoded_long
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import ColumnStats, ManifestEntry
from compactord.paimon.manifest.entries import entry_record
from compactord.paimon.manifest.entry_columns import MIN_CURSORS
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    describe_entries,
    read_entries,
    roll_entries,
)
from compactord.paimon.manifest.schemas import MANIFEST
from compactord.state.loading import load_live_files
from tests.storages import MemoryStorage
from tests.unit.paimon.table_builder import data_file, deleted, entry

ROOT = "/w/db.db/t"
CODECS = ("zstd", "deflate", "snappy", "bzip2", "xz")
A, B = entry(data_file("a")), entry(data_file("b"))


class _Manifests:
    """A store with manifests, and their rows of a list."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.rows: list[ManifestFile] = []

    def add(self, data: bytes, row: ManifestFile) -> None:
        self.storage.write_new(paths.manifest_path(ROOT, row.file_name), data)
        self.rows.append(replace(row, file_size=len(data)))

    def add_equal(self, each: ManifestEntry, *, count: int, blocks: int, codec: str) -> int:
        """The same entry many times; the size of the file."""
        record = encode_record(MANIFEST, entry_record(each))
        writer, starts = ContainerWriter(MANIFEST, codec_of(codec)), []
        for _ in range(blocks):
            starts.append(writer.flushed_bytes)
            writer.append(record * (count // blocks))
        data = writer.finish()
        for start in reversed(starts):
            # Each block says that it has one record.
            data = data[:start] + encoded_long(count // blocks) + data[start + 1 :]
        row = describe_entries(f"m-{len(self.rows)}", 0, [each], [])
        self.add(data, replace(row, num_added_files=count))
        return len(data)

    def load(self, min_cursors: int = MIN_CURSORS) -> int:
        found = load_live_files(self.storage, ROOT, self.rows, min_cursors=min_cursors)
        return found.file_count


_TOO_MUCH = "holds more than|a block of|added twice"


@pytest.mark.parametrize(
    ("codec", "count", "blocks", "why"),
    [
        *(pytest.param(codec, 150_000, 1, _TOO_MUCH, id=f"one block, {codec}") for codec in CODECS),
        pytest.param("zstd", 600_000, 1, "holds more than", id="one large block"),
        pytest.param("zstd", 150_000, 30, _TOO_MUCH, id="long blocks"),
        pytest.param("snappy", 60_000, 100, "a is added twice", id="blocks as ours"),
    ],
)
def test_a_small_manifest_of_very_many_equal_entries_is_refused_at_once(
    codec: str, count: int, blocks: int, why: str
) -> None:
    manifests = _Manifests()
    manifests.add_equal(A, count=count, blocks=blocks, codec=codec)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=why) as refused:
            manifests.load()
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert refused.value.path == paths.manifest_path(ROOT, "m-0")


def test_many_small_manifests_may_not_hold_more_than_one_of_their_size() -> None:
    each = replace(A, file=replace(A.file, embedded_file_index=bytes(3 << 20)))
    manifests = _Manifests()
    for number in range(10):
        file = replace(each.file, file_name=f"data-{number}")
        manifests.add_equal(replace(each, file=file), count=1, blocks=1, codec="zstd")
    rows, manifests.rows = manifests.rows, manifests.rows[:1]
    assert manifests.load() == 1
    manifests.rows = rows
    with pytest.raises(FormatError, match="holds more than"):
        manifests.load()


@pytest.mark.parametrize("codec", CODECS)
def test_statistics_of_a_thousand_columns_without_values_are_no_such_claim(codec: str) -> None:
    nulls = b"\xff" * 128 + bytes(8_000)
    stats = ColumnStats(min_values=nulls, max_values=nulls, null_counts=(1_000,) * 1_000)
    entries = [
        entry(data_file(f"data-5f6a0d3c-0000-4000-8000-{n}", value_stats=stats)) for n in range(500)
    ]
    manifests = _Manifests()
    names = (f"m-{number}" for number in range(9))
    for data, row in roll_entries(
        entries, names=names, target_size=8 << 20, codec=codec_of(codec), partition_types=[]
    ):
        manifests.add(data, row)
    assert manifests.load() == len(entries)


def _objects(manifests: _Manifests) -> int:
    return len(read_entries(manifests.storage, ROOT, manifests.rows[0]))


READERS: dict[str, Callable[[_Manifests], int]] = {
    "vectors": lambda manifests: manifests.load(-1),
    "fastavro": lambda manifests: manifests.load(),
    "entries": _objects,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize(
    ("entries", "is_legal"),
    [
        ([A, B], True),
        ([A, deleted(A), B], True),
        ([deleted(A), A], True),
        ([A, deleted(A), A], True),
        ([deleted(A), deleted(A)], True),
        ([A, entry(data_file("a", level=1))], True),
        ([A, entry(data_file("a"), bucket=1)], True),
        ([A, A], False),
        ([A, B, A], False),
        ([A, A, deleted(A)], False),
        ([A, deleted(A), A, A], False),
    ],
    ids=lambda value: (
        "".join(f"{'-+'[one.kind == 0]}{one.file.file_name}" for one in value)
        if isinstance(value, list)
        else None
    ),
)
def test_a_file_that_one_manifest_adds_twice_is_refused_as_java_refuses_it(
    entries: list[ManifestEntry], is_legal: bool, read: Callable[[_Manifests], int]
) -> None:
    manifests = _Manifests()
    ((data, row),) = roll_entries(
        entries,
        names=iter(["m-0"]),
        target_size=1 << 20,
        codec=codec_of("zstd"),
        partition_types=[],
    )
    manifests.add(data, row)
    if is_legal:
        assert read(manifests) <= len(entries)
        return
    with pytest.raises(FormatError, match="a is added twice") as refused:
        read(manifests)
    assert refused.value.path == paths.manifest_path(ROOT, "m-0")
