"""`verify --pages`: what only pages show is found, and `whole` claims no more than was read."""

from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import TransientStorageError
from compactord.paimon.binary_row import encode_row
from compactord.paimon.paths import bucket_folder
from compactord.paimon.schema import TableRef
from compactord.paimon.types import parse_type
from compactord.plan.table import Strategy
from compactord.storage.base import Storage
from compactord.table.file_reading import FileReader
from compactord.table.opening import open_table
from compactord.verify.rules import FileRules, FindingKind, PageRules
from compactord.verify.verify import Verified, Wanted, verify_table
from tests import builders
from tests.storages import Call, HookedStorage, MemoryStorage, RecordingStorage
from tests.unit.cli.test_verify import Home
from tests.unit.cli.warehouses import LOCAL, answered, append, keyed, said

ROWS = 400


@dataclass(frozen=True)
class Kept(Home):
    """A table with one file: keys 0 to 399, values from 0 to 2,793, and 8 nulls."""

    @property
    def file(self) -> Path:
        (file,) = self.data_files(1)
        return file

    def encode(
        self,
        change: Callable[[pa.Table], pa.Table] = lambda rows: rows,
        *,
        checksums: bool = True,
        groups: int = 1,
    ) -> bytes:
        """Write the file anew with other rows, as its manifest then says the size of."""
        rows = change(pq.ParquetFile(self.file).read())
        pq.write_table(
            rows,
            self.file,
            compression="NONE",
            use_dictionary=False,
            write_page_checksum=checksums,
            store_schema=False,
            row_group_size=ROWS // groups,
        )
        self.rewrite_delta(1, file_size=self.file.stat().st_size)
        return self.file.read_bytes()

    def verify(
        self, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
    ) -> dict[str, Any]:
        warehouse = str(self.folder.parent.parent)
        return answered(
            capsys, "verify", "--warehouse", warehouse, "--table", "d.t", *arguments, code=code
        )


def _kept(warehouse: Path, made: Callable[..., TableRef] = keyed) -> Kept:
    ref = made(warehouse, "d.t")
    pairs = [(k, None if k % 50 == 3 else 7 * k) for k in range(ROWS)]
    builders.writer(LOCAL, ref).write(builders.rows_of(pairs))
    return Kept(ref)


def _long(number: int) -> bytes:
    return struct.pack("<q", number)


def _flip(home: Kept, data: bytes, at: int, bit: int = 0) -> None:
    """Another value of one bit of the file."""
    flipped = bytearray(data)
    flipped[at] ^= 1 << bit
    home.file.write_bytes(flipped)


def _bit_with_checksum(home: Kept) -> None:
    data = home.encode()
    _flip(home, data, data.index(_long(7 * 200)))


def _bit_of_a_key(home: Kept) -> None:
    data = home.encode(checksums=False)
    _flip(home, data, data.index(_long(200) + _long(201)), bit=1)


def _bit_of_a_value(home: Kept) -> None:
    data = home.encode(checksums=False)
    _flip(home, data, data.index(_long(7 * 200)) + 5)


def _last_key(home: Kept) -> None:
    data = home.encode(checksums=False)
    _flip(home, data, data.index(_long(ROWS - 2) + _long(ROWS - 1)) + 12)


def _length_of_a_page(home: Kept) -> None:
    """A page that cannot be decoded: the length of its levels is not one."""
    data = home.encode(checksums=False)
    nulls_at = data.index(_long(0) + _long(7))
    _flip(home, data, nulls_at - 50, bit=6)


def _swapped(home: Kept) -> None:
    order = [*range(100), 101, 100, *range(102, ROWS)]
    home.encode(lambda rows: rows.take(order))


def _twice(home: Kept) -> None:
    home.encode(lambda rows: rows.take([*range(ROWS - 1), ROWS - 2]))


def _column(home: Kept, name: str, value: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> None:
    def change(rows: pa.Table) -> pa.Table:
        place = rows.schema.get_field_index(name)
        values = value(rows.column(name))
        return rows.set_column(place, rows.schema.field(place).with_type(values.type), values)

    home.encode(change)


def _nulls(home: Kept) -> None:
    _column(home, "v", lambda values: pc.if_else(pc.equal(values, 700), None, values))


def _deletes(home: Kept) -> None:
    _column(home, "_VALUE_KIND", lambda kinds: pa.chunked_array([pa.array([3] * ROWS, pa.int8())]))


def _least_key(home: Kept) -> None:
    home.rewrite_delta(1, min_key=encode_row([1], [parse_type("BIGINT NOT NULL")]))


# With text of the message; the last two can be found in the files of tables without a key, too.
DAMAGE: dict[str, tuple[Callable[[Kept], None], str]] = {
    "a bit that a checksum covers": (_bit_with_checksum, "CRC"),
    "a bit of a key": (_bit_of_a_key, "its keys do not ascend"),
    "the last key": (_last_key, "keys outside the range"),
    "swapped keys": (_swapped, "its keys do not ascend"),
    "a key that is there twice": (_twice, "its keys do not ascend"),
    "another least key": (_least_key, "keys outside the range"),
    "deletes": (_deletes, "400 rows delete, the manifest has 0"),
    "a page that cannot be decoded": (_length_of_a_page, ""),
    "a bit of a value": (_bit_of_a_value, "column v has values from 0 to"),
    "nulls": (_nulls, "column v has 9 nulls, the manifest has 8"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_what_only_pages_show_is_found(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = DAMAGE[case]
    home = _kept(tmp_path)
    damage(home)
    assert home.verify(capsys)["whole"] is None
    found = home.verify(capsys, "--pages", "all", code=3)
    (finding,) = found["findings"]
    assert (finding["kind"], finding["path"]) == ("data_file_damaged", str(home.file))
    assert message in finding["message"]
    assert (found["whole"], found["pages_read"]) == (False, 0)


@pytest.mark.parametrize("case", list(DAMAGE)[-2:])
def test_statistics_are_compared_without_a_key_too(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = DAMAGE[case]
    home = _kept(tmp_path, append)
    damage(home)
    (finding,) = home.verify(capsys, "--pages", "all", code=3)["findings"]
    assert message in finding["message"]


@pytest.mark.parametrize("made", [keyed, append])
def test_whole_is_true_only_after_all_pages(
    made: Callable[..., TableRef], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = _kept(tmp_path, made)
    home.encode(groups=4)
    unread = home.verify(capsys)
    assert (unread["whole"], unread["pages_read"], unread["row_groups"]) == (None, 0, 0)
    share = home.verify(capsys, "--pages", "1%")
    assert (share["whole"], share["row_groups"]) == (None, 1)
    assert share["pages_read"] == pytest.approx(0.25, abs=0.01)
    half = home.verify(capsys, "--pages", "50%")
    assert (half["whole"], half["row_groups"]) == (None, 2)
    assert half["pages_read"] == pytest.approx(0.5, abs=0.01)
    for pages in ("all", "100%"):
        found = home.verify(capsys, "--pages", pages)
        assert (found["whole"], found["pages_read"], found["row_groups"]) == (True, 1, 4)
    where = ("verify", "--warehouse", str(tmp_path), "--table", "d.t")
    for arguments, text in (
        ((), "metadata, sizes and footers are right; pages were not read"),
        (("--footers", "0"), "metadata, sizes are right; footers and pages were not read"),
        (("--pages", "50%"), "; verified 1 snapshots and tags, 1 manifest, 1 data file of"),
        (("--pages", "50%"), "% of the pages (2 row groups of 1 file)"),
        (("--pages", "all"), "d.t: nothing is wrong; "),
    ):
        assert text in said(capsys, *where, *arguments)
    for wrong in ("some", "1", "0%", "101%", "nan%", "%"):
        assert "expected a share" in said(capsys, *where, "--pages", wrong, code=2)


def test_what_is_not_verified_is_named_and_is_not_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = _kept(tmp_path)
    other = home.file.with_suffix(".csv")
    home.file.rename(other)
    home.rewrite_delta(1, file_name=other.name)
    found = home.verify(capsys, "--pages", "all")
    assert (found["whole"], found["findings"], found["pages_read"]) == (None, [], 0)
    assert found["not_verified"] == [
        "footers of 1 data files: there is no reader for format csv",
        "pages of 1 data files: there is no reader for format csv",
    ]
    home = _kept(tmp_path / "more")
    home.encode(lambda rows: rows.append_column("more", pa.array(range(ROWS))))
    found = home.verify(capsys, "--pages", "all")
    assert (found["whole"], found["findings"]) == (None, [])
    assert found["not_verified"] == [
        "pages of 1 data files: columns more: of another schema or type"
    ]
    home = _kept(tmp_path / "type")
    _column(home, "v", lambda values: pc.cast(values, pa.string()))
    found = home.verify(capsys, "--pages", "all")
    assert (found["whole"], found["findings"]) == (None, [])
    (named,) = found["not_verified"]
    assert "column v: the file has BYTE_ARRAY (STRING), the table BIGINT" in named


def test_rows_of_megabytes_are_read_in_little_memory(tmp_path: Path) -> None:
    """Decoded they take 800 MiB."""
    home = _kept(tmp_path, append)
    schema = home.folder / "schema" / "schema-0"
    found = json.loads(schema.read_text())
    found["fields"].append({"id": 2, "name": "s", "type": "STRING"})
    schema.write_text(json.dumps(found))
    texts = pa.array([f"{number}" * (1 << 19) for number in range(ROWS)])
    rows = pq.ParquetFile(home.file).read().append_column("s", texts)
    # A page for each row; otherwise Arrow puts all of them into one.
    pq.write_table(rows, home.file, use_dictionary=False, write_batch_size=1)
    home.rewrite_delta(1, file_size=home.file.stat().st_size)
    # Arrow's peak is that of a process.
    where = ["verify", "--warehouse", str(tmp_path), "--table", "d.t", "--pages", "all"]
    program = (
        "import pyarrow; from compactord.cli.command import main;"
        f"print(main({where})); print(pyarrow.default_memory_pool().max_memory())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=180
    )
    text, code, peak = run.stdout.splitlines()
    assert "nothing is wrong" in text
    assert (int(code), int(peak) < 192 << 20) == (0, True), peak


def test_a_table_without_files_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keyed(tmp_path, "d.t")
    where = ("verify", "--warehouse", str(tmp_path), "--table", "d.t")
    assert answered(capsys, *where)["whole"] is None
    found = answered(capsys, *where, "--pages", "all")
    assert (found["whole"], found["pages_read"]) == (True, 1)


def _rules(storage: Storage, table: TableRef, share: float = 1.0) -> FileRules:
    opened = open_table(table_in_folder(storage, table), {})
    reader = FileReader(opened)
    return FileRules(
        bucket_folder=opened.bucket_folder,
        check_levels=None,
        read_footer=reader.read_footer,
        sample=None,
        random=random.Random(1),
        pages=PageRules(share=share, read=reader.read_pages),
        is_sorted=True,
    )


def _verified(
    storage: Storage,
    table: TableRef,
    share: float = 1.0,
    pause: Callable[[], None] = lambda: None,
    **wanted: Any,
) -> Verified:
    rules = _rules(storage, table, share)
    return verify_table(
        storage, table, Wanted(**wanted), rules, progress=lambda text: None, pause=pause
    )


def _in_memory(files: int) -> tuple[MemoryStorage, TableRef]:
    storage = MemoryStorage()
    table = builders.keyed_table(storage, "wh/db.db/t", buckets=1)
    writer = builders.writer(storage, table)
    for number in range(files):
        writer.write(builders.rows_of([(k, number) for k in range(100)]))
    return storage, table


@pytest.mark.parametrize(("share", "files"), [(0.01, 1), (0.2, 4), (0.5, 10), (1.0, 20)])
def test_a_share_is_one_of_bytes_over_all_files(share: float, files: int) -> None:
    storage, table = _in_memory(20)
    found = _verified(storage, table, share)
    assert found.counts.pages.files == pytest.approx(files, abs=1)
    assert found.pages_read == pytest.approx(max(share, 1 / 20), abs=0.06)
    assert found.whole is (True if share == 1 else None)


def test_each_file_of_several_versions_is_read_once() -> None:
    storage, table = _in_memory(5)
    builders.compact(storage, table)
    recording = RecordingStorage(storage)
    found = _verified(recording, table, is_all=True)
    assert (found.whole, found.counts.pages.files, found.counts.files) == (True, 6, 6)


def test_what_could_not_be_read_is_read_again_and_nothing_else_is() -> None:
    """The store fails once in the middle of the pages of a file."""
    storage, table = _in_memory(4)
    failed: list[str] = []
    reads: list[str] = []

    def fail_once(call: Call) -> None:
        if "/bucket-0/" in call.path and call.method in ("read", "read_range", "open_input"):
            reads.append(call.path)
            if reads.count(call.path) == 2 and not failed:
                failed.append(call.path)
                raise TransientStorageError(call.path, "read failed (no answer)")

    found = _verified(HookedStorage(storage, before=fail_once), table)
    assert failed
    assert (found.findings, found.whole, found.pages_read) == ((), True, 1)
    others = set(reads) - set(failed)
    assert {reads.count(path) for path in others} == {2}, "a footer and the pages"

    def fail(call: Call) -> None:
        if call.path == failed[0] and call.method in ("read", "read_range", "open_input"):
            raise TransientStorageError(call.path, "read failed (no answer)")

    found = _verified(HookedStorage(storage, before=fail), table)
    assert [each.kind for each in found.findings] == [FindingKind.CANNOT_BE_READ]
    assert found.whole is False
    assert found.pages_read == pytest.approx(0.75, abs=0.02)


def test_files_of_a_newer_snapshot_are_read_too_when_something_is_looked_for_again() -> None:
    storage, table = _in_memory(3)
    lost = next(path for path in storage.objects if "/bucket-0/" in path)
    data = storage.objects.pop(lost)

    def pause() -> None:
        storage.objects[lost] = data
        builders.compact(storage, table, strategy=Strategy.FULL)

    found = _verified(storage, table, pause=pause, is_all=True)
    assert (found.findings, found.whole, found.pages_read) == ((), True, 1)
    assert found.counts.pages.files == 4


def test_bytes_of_vectors_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An index file of the right size whose vector does not have its checksum."""
    home = _kept(tmp_path)
    index = home.index(vector_of=home.file.name, snapshot_id=1)
    assert home.verify(capsys)["findings"] == []
    (finding,) = home.verify(capsys, "--pages", "all", code=3)["findings"]
    assert (finding["kind"], finding["path"]) == ("index_file_damaged", str(index))
    folder = Path(bucket_folder(home.ref.location, "", 0))
    moved = folder / index.name
    index.rename(moved)
    (finding,) = home.verify(capsys, "--pages", "all", code=3)["findings"]
    assert (finding["kind"], finding["path"]) == ("index_file_damaged", str(moved))
