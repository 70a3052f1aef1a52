"""Inputs whose bytes changed, and stores that fail, while pages are copied."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compactord.errors import StoreFull, TransientStorageError
from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.model import FailureKind, InputFile, Subcompaction, SubcompactionFailure
from compactord.paimon.types import DataField
from compactord.rewrite.subcompaction import run_subcompaction
from compactord.storage.local import LocalStorage
from tests.storages import Fault, FaultyStorage
from tests.unit.formats.parquet.small_files import PAD, ROWS, bits, inputs, padded, rows_of
from tests.unit.formats.parquet.stored_pages import assert_healthy, is_copied, with_footer
from tests.unit.rewrite.builders import concat_subcompaction, files_left, output_paths
from tests.unit.rewrite.test_subcompaction_failures import FailingStorage

COLUMNS = padded(n="BIGINT", s="STRING NOT NULL", d="DOUBLE")


@dataclass(frozen=True)
class Copied:
    """A subcompaction that is copied, its rows, and the input that tests break."""

    subcompaction: Subcompaction
    rows: pa.Table
    victim: Path
    content: bytes

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.subcompaction.fields]

    def pages(self, name: str) -> Iterator[tuple[int, int, int]]:
        """Where a page's header begins, where its body begins and where that ends."""
        for group in footer_of(self.content)[4].value.values:
            for chunk in group[1].value.values:
                meta = chunk[3].value
                if meta[3].value.values != [name.encode()]:
                    continue
                start, end = meta[9].value, meta[9].value + meta[7].value
                while start < end:
                    header, body = thrift.decode(self.content, start)
                    yield start, body, body + header[3].value
                    start = body + header[3].value

    def run_with(self, place: int, flip: int) -> Any:
        content = bytearray(self.content)
        content[place] ^= flip
        self.victim.write_bytes(content)
        return run_subcompaction(self.subcompaction)


def copied_subcompaction(
    folder: Path, columns: Sequence[DataField] = COLUMNS, *, codec: str = "zstd", **how: Any
) -> Copied:
    files = inputs(folder, columns, 2, compression=codec, **how)
    subcompaction = concat_subcompaction(
        folder, columns, files, keeps_encoding=True, compression=codec
    )
    result = run_subcompaction(subcompaction)
    assert not isinstance(result, SubcompactionFailure)
    assert all(is_copied(subcompaction, result, field.name) for field in columns)
    rows = bits(rows_of(subcompaction, result))
    shutil.rmtree(subcompaction.write.folder)
    victim = Path(files[1].path)
    return Copied(
        subcompaction=subcompaction, rows=rows, victim=victim, content=victim.read_bytes()
    )


def assert_refused(subcompaction: Subcompaction, outcome: Any, path: Path | str) -> None:
    assert isinstance(outcome, SubcompactionFailure)
    assert outcome.kind is FailureKind.POISON
    assert outcome.error in ("FormatError", "DataFileDamaged")
    assert str(path) in outcome.message
    assert files_left(subcompaction) == []


@pytest.mark.parametrize("name", ["n", "s", "d", PAD])
def test_a_byte_of_a_page_that_changed_is_refused(tmp_path, cut_points, name):
    whole = copied_subcompaction(tmp_path, max_rows_per_page=ROWS // 2)
    pages = list(whole.pages(name))
    assert len(pages) > 1
    for _, body, end in pages:
        places = [*range(body, end - 1, (end - body) // 15), end - 1]
        for place in cut_points.of(places, 3):
            outcome = whole.run_with(place, 1 << place % 8)
            assert_refused(whole.subcompaction, outcome, whole.victim)
            assert f"column {name}: a page's checksum is wrong" in outcome.message


@pytest.mark.parametrize("codec", ["zstd", "none"])
@pytest.mark.parametrize("name", ["n", "s"])
def test_no_bit_of_a_header_that_changed_gets_into_an_output(tmp_path, cut_points, name, codec):
    """Checksums do not cover headers: the rest is told by the footer, or it does not matter."""
    whole = copied_subcompaction(tmp_path, codec=codec)
    places = [place for start, body, _ in whole.pages(name) for place in range(start, body)]
    flips = cut_points.of([(place, bit) for place in places for bit in range(8)], 5)
    refused = 0
    for place, bit in flips:
        outcome = whole.run_with(place, 1 << bit)
        if isinstance(outcome, SubcompactionFailure):
            assert_refused(whole.subcompaction, outcome, whole.victim)
            refused += 1
            continue
        assert bits(rows_of(whole.subcompaction, outcome)).equals(whole.rows)
        (path,) = output_paths(whole.subcompaction, outcome)
        assert_healthy(path)
        path.unlink()
    assert refused > len(flips) // 2


@pytest.mark.parametrize("field", range(1, 5))
def test_a_header_without_one_of_its_fields_is_refused(tmp_path, field):
    """Of PageHeader; without the checksum (4) the page is decoded, and sound."""
    whole = copied_subcompaction(tmp_path)
    (start, body, _) = next(whole.pages("n"))
    header, _ = thrift.decode(whole.content, start)
    fewer = {number: value for number, value in header.items() if number != field}
    # An unknown field takes its place, so that all else stays where it is.
    size = body - start - len(thrift.encode({**fewer, 20: thrift.binary(b"")}))
    encoded = thrift.encode({**fewer, 20: thrift.binary(b"x" * size)})
    assert len(encoded) == body - start
    whole.victim.write_bytes(whole.content[:start] + encoded + whole.content[body:])
    outcome = run_subcompaction(whole.subcompaction)
    if field == 4:
        assert not isinstance(outcome, SubcompactionFailure)
    else:
        assert_refused(whole.subcompaction, outcome, whole.victim)


@pytest.mark.parametrize("levels", [3, 4], ids=["definition", "repetition"])
@pytest.mark.parametrize("encoding", [0, 4, 8])
def test_a_page_whose_levels_nobody_might_read_is_not_copied(tmp_path, levels, encoding):
    """Java refuses definition levels that are not run-length encoded (3), Arrow tries."""
    whole = copied_subcompaction(tmp_path)
    (start, body, _) = next(whole.pages("n"))
    header, _ = thrift.decode(whole.content, start)
    data = thrift.struct({**header[5].value, levels: thrift.i32(encoding)})
    changed = thrift.encode({**header, 5: data})
    assert len(changed) == body - start
    whole.victim.write_bytes(whole.content[:start] + changed + whole.content[body:])
    outcome = run_subcompaction(whole.subcompaction)
    if isinstance(outcome, SubcompactionFailure):
        assert_refused(whole.subcompaction, outcome, whole.victim)
    else:
        # Repetition levels of a column that is not nested take no bytes, and may be BIT_PACKED.
        assert is_copied(whole.subcompaction, outcome, "n") == (levels == encoding == 4)


# --- footers and manifests that do not say what is there ------------------------------------------


@pytest.mark.parametrize("cut", [1, 100, ROWS * 20])
def test_a_file_cut_short_is_refused(tmp_path, cut):
    whole = copied_subcompaction(tmp_path)
    whole.victim.write_bytes(whole.content[:-cut])
    assert_refused(whole.subcompaction, run_subcompaction(whole.subcompaction), whole.victim)


def test_another_file_of_that_size_is_refused(tmp_path):
    whole = copied_subcompaction(tmp_path)
    whole.victim.write_bytes(b"\x00" * len(whole.content))
    assert_refused(whole.subcompaction, run_subcompaction(whole.subcompaction), whole.victim)


@pytest.mark.parametrize("difference", [-1, 1])
@pytest.mark.parametrize("who", ["manifest", "footer", "footer and row group"])
@pytest.mark.parametrize("columns", [COLUMNS, padded(n="INT")], ids=["some decoded", "none"])
def test_a_wrong_number_of_rows_is_refused(tmp_path, difference, who, columns):
    whole = copied_subcompaction(tmp_path, columns)
    files = list(whole.subcompaction.source.files)
    rows = files[1].row_count + difference
    if who == "manifest":
        files[1] = replace(files[1], row_count=rows)
    else:
        footer = footer_of(whole.content)
        (group,) = footer[4].value.values
        if who == "footer and row group":
            group = {**group, 3: thrift.i64(rows)}
        groups = thrift.items(thrift.Kind.STRUCT, [group])
        changed = {**footer, 3: thrift.i64(rows), 4: groups}
        files[1] = with_footer(whole.victim, changed, rows)
    subcompaction = with_inputs(whole.subcompaction, files)
    assert_refused(subcompaction, run_subcompaction(subcompaction), whole.victim)


def with_inputs(subcompaction: Subcompaction, files: list[InputFile]) -> Subcompaction:
    return replace(subcompaction, source=replace(subcompaction.source, files=tuple(files)))


@pytest.mark.parametrize("index", [4, 6], ids=["offset index", "column index"])
@pytest.mark.parametrize("place", [0, 1, -1, 1 << 40, None])
def test_a_page_index_that_is_not_there_is_not_needed(tmp_path, index, place):
    """Bounds are those of the chunk then; offsets are ours in any case."""
    whole = copied_subcompaction(tmp_path, max_rows_per_page=ROWS // 2)
    assert_copied_with_index_at(whole, index, place)


def test_a_column_index_of_other_pages_is_not_used(tmp_path):
    whole = copied_subcompaction(tmp_path, max_rows_per_page=ROWS // 2)
    one_page = {
        1: thrift.items(thrift.Kind.TRUE, [thrift.Kind.FALSE]),
        2: thrift.items(thrift.Kind.BINARY, [b""]),
        3: thrift.items(thrift.Kind.BINARY, [b""]),
        4: thrift.i32(0),
    }
    footer = len(whole.content) - 8 - int.from_bytes(whole.content[-8:-4], "little")
    index = thrift.encode(one_page)
    whole.victim.write_bytes(whole.content[:footer] + index + whole.content[footer:])
    assert_copied_with_index_at(whole, 6, footer)


def assert_copied_with_index_at(whole: Copied, index: int, place: int | None) -> None:
    """The victim's indexes (the field of ColumnChunk) are said to be elsewhere, or nowhere."""
    footer = footer_of(whole.content)
    (group,) = footer[4].value.values
    chunks = []
    for chunk in group[1].value.values:
        fields = {number: value for number, value in chunk.items() if number != index}
        if place is not None and index in chunk:
            fields[index] = thrift.i64(place)
        chunks.append(dict(sorted(fields.items())))
    changed = {**group, 1: thrift.items(thrift.Kind.STRUCT, chunks)}
    footer = {**footer, 4: thrift.items(thrift.Kind.STRUCT, [changed])}
    files = list(whole.subcompaction.source.files)
    files[1] = with_footer(whole.victim, footer, files[1].row_count)
    subcompaction = with_inputs(whole.subcompaction, files)
    outcome = run_subcompaction(subcompaction)
    assert not isinstance(outcome, SubcompactionFailure)
    assert all(is_copied(subcompaction, outcome, name) for name in whole.names)
    assert bits(rows_of(subcompaction, outcome)).equals(whole.rows)
    assert_healthy(output_paths(subcompaction, outcome)[0])


# --- stores that fail -----------------------------------------------------------------------------


def several_outputs(subcompaction: Subcompaction) -> Subcompaction:
    """Each input becomes an output, so that some are complete when another fails."""
    files = list(subcompaction.source.files) * 4
    target = 4 * max(file.size_bytes for file in files)
    return replace(
        with_inputs(subcompaction, files),
        write=replace(subcompaction.write, target_file_size=target),
    )


@pytest.mark.parametrize("threaded", [False, True], ids=["alone", "threads"])
@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
def test_nothing_is_left_whichever_call_of_the_store_fails(tmp_path, threaded, after_effect):
    subcompaction = several_outputs(copied_subcompaction(tmp_path).subcompaction)
    calls = 0
    while True:
        calls += 1
        fault = Fault(
            at=calls,
            error=TransientStorageError,
            after_effect=after_effect,
            concerns=lambda call: call.method != "delete",
        )
        storage = FaultyStorage(LocalStorage(), fault)
        outcome = run_subcompaction(replace(subcompaction, storage=storage), threaded=threaded)
        if not storage.failed:
            break
        assert isinstance(outcome, SubcompactionFailure), storage.failed
        assert (outcome.kind, outcome.error) == (FailureKind.TRANSIENT, "TransientStorageError")
        assert files_left(subcompaction) == [], storage.failed
    assert not isinstance(outcome, SubcompactionFailure)
    # Each input is opened, each output opened, closed and looked at.
    assert calls > len(subcompaction.source.files) + 3 * len(outcome.after)
    assert len(outcome.after) == 2


@pytest.mark.parametrize("error", [StoreFull("x", "no space"), KeyboardInterrupt()])
@pytest.mark.parametrize("threaded", [False, True], ids=["alone", "threads"])
@pytest.mark.parametrize("good_files", [0, 1])
def test_nothing_is_left_whichever_write_fails(tmp_path, error, threaded, good_files):
    subcompaction = several_outputs(copied_subcompaction(tmp_path).subcompaction)
    for good_writes in range(200):
        storage = FailingStorage(good_files, good_writes, error)
        try:
            outcome = run_subcompaction(replace(subcompaction, storage=storage), threaded=threaded)
        except KeyboardInterrupt:
            assert isinstance(error, KeyboardInterrupt)
        else:
            if not isinstance(outcome, SubcompactionFailure):
                break
            assert (outcome.kind, outcome.error) == (FailureKind.TRANSIENT, "StoreFull")
        assert files_left(subcompaction) == []
    # The magic, header and body of each of four columns' pages, indexes, the footer.
    assert good_writes > 1 + 4 * 4 * 2
