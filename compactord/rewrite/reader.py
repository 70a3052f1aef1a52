"""Reads input files as rows of the table's schema: evolution, deletion vectors, record expiry.

Records expire before they are merged, so an expired newest record of a key uncovers an older one
whose time has not passed, as in Java. Readers show expired records until they are compacted.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import posixpath
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from compactord.errors import CompactordError, FormatError, UnreadableColumn
from compactord.formats.base import InputProfile, NumberedBatches, RowGroup
from compactord.formats.finding import Finder
from compactord.formats.layout import Layout, RowRange, one_row
from compactord.formats.registry import FORMATS, Formats, format_named
from compactord.kernels.columns import Bools, Int64s
from compactord.kernels.keys import Found, end_keys
from compactord.model import ConcatSpec, InputFile, Marks, MergeSpec
from compactord.paimon.binary_row import Value
from compactord.paimon.deletion_vectors import (
    DeletedRows,
    deleted_rows_in,
    read_deleted_rows,
    read_stored,
)
from compactord.paimon.options.table_options import RecordExpire
from compactord.paimon.types import SEQUENCE_NUMBER, DataField
from compactord.rewrite.casting.moments import moments_of
from compactord.rewrite.casting.rules import cast
from compactord.rewrite.casting.values import CastError, nulls_of, numbers_of
from compactord.rewrite.evolution import Evolution, evolution
from compactord.storage.base import Storage
from compactord.storage.ranges import SMALL_FILE, Fetcher

# BIGINT counts milliseconds from here on, else seconds.
_FIRST_MILLIS = 1_000_000_000_000


def seconds_of(times: pa.Array) -> Int64s:
    """Seconds since the epoch of a time column, milliseconds cut off; undefined where null."""
    if not pa.types.is_integer(times.type):
        millis = moments_of(times).millis
        result: Int64s = (millis - np.fmod(millis, 1000)) // 1000
        return result
    numbers = numbers_of(times).astype(np.int64)
    if pa.types.is_int32(times.type):
        return numbers
    return np.where(numbers >= _FIRST_MILLIS, numbers // 1000, numbers)


def oldest_second(
    value: Value, stored: DataField, column: DataField, zone: datetime.tzinfo
) -> int | None:
    """The second of a file's smallest time, which has the type of the file's schema.

    `zone` as for the casts of rows. None if it is unknown or cannot be cast.
    """
    if value is None:
        return None
    [array] = one_row([value], [stored]).columns
    try:
        array = cast(array, stored.type, column.type, zone)
    except CastError:
        return None
    if array.null_count:
        return None
    return int(seconds_of(array)[0])


@dataclass(frozen=True, slots=True)
class Expiry:
    """Records before `limit_s` (seconds since the epoch) in `column` have expired."""

    column: str
    limit_s: int

    def alive(
        self, batches: Generator[pa.RecordBatch, None, None]
    ) -> Generator[pa.RecordBatch, None, None]:
        """The records that have not expired; records without a time never do."""
        for batch in batches:
            kept = self.is_alive(batch)
            if kept.all():
                yield batch
            elif kept.any():
                yield batch.filter(pa.array(kept))

    def is_alive(self, batch: pa.RecordBatch) -> Bools:
        """One bool per record."""
        times = batch.column(self.column)
        alive: Bools = nulls_of(times) | (seconds_of(times) >= self.limit_s)
        return alive


def expiry(expire: RecordExpire | None, now_ms: int) -> Expiry | None:
    """The expiry at a moment, or None if records never expire."""
    if expire is None:
        return None
    return Expiry(expire.field, now_ms // 1000 - expire.seconds)


T = TypeVar("T")

# Number of inputs that are sampled before the merge.
SAMPLE_FILES = 16
# Fetched bytes of a file that may be in memory without a budget.
HELD_BYTES = 16 << 20


@dataclass(slots=True)
class ReadCounts:
    """Counts of read data; the bytes of a part of a file are proportional to its rows."""

    rows: int = 0
    size_bytes: int = 0

    def add(self, file: InputFile) -> None:
        self.rows += file.row_count
        self.size_bytes += file.size_bytes


class InputReader:
    """Opens and reads the inputs of one subcompaction.

    Without `row_range`, whole files are read. `older` are the older schemas that files may have.
    Without `expiry`, no record expires. `zone` applies to casts of local times. `counts` increases
    as batches are read, including rows that are deleted or have expired; `found` as rows are looked
    up.
    """

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        row_range: RowRange | None = None,
        *,
        formats: Formats = FORMATS,
        older: Sequence[tuple[DataField, ...]] = (),
        expiry: Expiry | None = None,
        zone: datetime.tzinfo = datetime.timezone.utc,
    ) -> None:
        self.storage = storage
        self.row_range = row_range
        self.formats = formats
        self.expiry = expiry
        self.counts = ReadCounts()
        self.found = ReadCounts()
        # by path
        self._marked: dict[str, DeletedRows] = {}
        self.fetcher = Fetcher(storage)
        self._older, self._zone = older, zone
        self.use(layout)

    def use(self, layout: Layout) -> None:
        """Read rows in this layout from now on."""
        self.layout = layout
        # The evolution of files of each older schema, or None if they are read unchanged.
        self.evolutions = [evolution(each, self._zone, layout) for each in self._older]

    def opened(self, source: MergeSpec | ConcatSpec) -> Sections:
        """The files of a merge, or the files of a concatenation as one run."""
        sections = source.sections if isinstance(source, MergeSpec) else ((source.files,),)
        return tuple(
            tuple(tuple(Input(self, file) for file in run) for run in section)
            for section in sections
        )

    def profile(self, inputs: Sequence[Input]) -> InputProfile:
        """Sampled facts about the files; of several formats, combined so that they hold for all."""
        alike: dict[tuple[str, int | None], list[Input]] = {}
        for each in sample(inputs):
            alike.setdefault((each.file.file_format, each.file.older_schema), []).append(each)
        found = [self._profile(sampled) for sampled in alike.values()]
        paths = dict.fromkeys(path for each in found for path in each.dictionary_paths)
        return InputProfile(
            row_bytes=max(each.row_bytes for each in found),
            columns=max(each.columns for each in found),
            dictionaries=frozenset.intersection(*(each.dictionaries for each in found)),
            dictionary_paths=tuple(paths),
            plain_share=min(each.plain_share for each in found),
        )

    def _profile(self, inputs: Sequence[Input]) -> InputProfile:
        layout, evolution = inputs[0].layout, inputs[0].evolution
        file_format = format_named(inputs[0].file.file_format, self.formats)
        found = file_format.profile([each.stored for each in inputs], layout)
        return found if evolution is None else evolution.profile(found)

    def marked(self, file: InputFile) -> DeletedRows:
        """The rows to delete in the file; callers add to them."""
        return self._marked.setdefault(file.path, DeletedRows.none_of(file.row_count))

    def marks(self) -> tuple[Marks, ...]:
        """The rows of each file that were `marked`."""
        return tuple(
            Marks(posixpath.basename(path), rows.bitmap())
            for path, rows in self._marked.items()
            if rows.bits.any()
        )

    def close(self) -> None:
        """End all reading; no file is read afterwards."""
        self.fetcher.close()


class Input:
    """An opened file of a subcompaction. `stored` is the file as its format reads it.

    Raises `SubcompactionError` for an unsupported format.
    """

    def __init__(self, reader: InputReader, file: InputFile) -> None:
        opened = format_named(file.file_format, reader.formats).open
        self.file = file
        self.stored = opened(reader.storage, reader.fetcher, file)
        self._reader = reader
        self._vector: Future[bytes] | None = None
        # The row groups to read, None for the whole file.
        self._groups: Sequence[int] | None = None
        self._rows: tuple[int, int] | None = None
        self._bounds: tuple[Any, Any] | None = None

    def part(
        self,
        groups: Sequence[int],
        bounds: tuple[Any, Any] | None,
        rows: tuple[int, int] | None = None,
    ) -> Input:
        """Some `row_groups` of the file, side by side, as an input by itself.

        `rows`: of these only the rows with these numbers in the file, if they have `row_pages`.
        Reading raises as `check_keys` for keys outside `bounds`, if they are given.
        """
        found = copy.copy(self)
        found._groups = groups if rows or len(groups) < len(self.row_groups()) else None
        found._rows, found._bounds = rows, bounds
        return found

    def check_keys(self, rows: pa.RecordBatch | pa.Table, bounds: tuple[Any, Any]) -> None:
        """Raise `FormatError` unless the first key columns of the first and last row are in bounds.

        Bounds are from the footer or the page index, which have no checksum.
        """
        first, last = end_keys(rows, [self.first_key.name])
        if not bounds[:1] <= first <= last <= bounds[1:]:
            raise FormatError(self.file.path, "keys are not within their statistics")

    @property
    def is_unchanged(self) -> bool:
        """Whether its rows are as stored. A key range and expiry may still exclude some."""
        file = self.file
        return self.evolution is None and file.vector is None and file.sequence_number is None

    @property
    def evolution(self) -> Evolution | None:
        """The evolution of the file's rows to the layout, or None if they are read unchanged."""
        number = self.file.older_schema
        return None if number is None else self._reader.evolutions[number]

    @property
    def layout(self) -> Layout:
        """The layout in which the file itself is read."""
        return self._reader.layout if self.evolution is None else self.evolution.layout

    @property
    def first_key(self) -> DataField:
        """The first key column in the reader's layout."""
        return self._reader.layout.key_fields[0]

    def expect(self) -> None:
        """Begin to fetch the file's end and its vector."""
        self.stored.expect()
        self._expect_vector()

    def _expect_vector(self) -> None:
        """Begin to fetch the file's vector unless it is large."""
        ref, fetcher = self.file.vector, self._reader.fetcher
        if ref is None or self._vector is not None or ref.length > SMALL_FILE:
            return
        if fetcher.is_needed:
            self._vector = fetcher.submit(read_stored, self._reader.storage, ref)

    def deleted_rows(self) -> DeletedRows | None:
        """The deleted rows of the file, or None without any.

        They are read in each call, so that at most the vectors of open files are in memory. Raises
        as `read_deleted_rows`.
        """
        ref, rows = self.file.vector, self.file.row_count
        if ref is None:
            return None
        fetched, self._vector = self._vector, None
        if fetched is None:
            return read_deleted_rows(self._reader.storage, ref, rows)
        return deleted_rows_in(fetched.result(), ref, rows)

    def drop_vector(self) -> None:
        self._vector = None

    def check(self) -> None:
        """Raise the errors of `batches` that the file's metadata shows."""
        self.stored.check(self.layout)

    def row_groups(self, column: DataField | None = None) -> Sequence[RowGroup]:
        """The parts that can be read separately, with the bounds of a key column."""
        if self.evolution is not None and column is not None:
            column = self.evolution.stored(column)
        return self.stored.row_groups(column)

    def group_bytes(self) -> Sequence[int]:
        """The stored bytes of each of the `row_groups`."""
        return self.stored.group_bytes(self.layout)

    def row_pages(self, group: int, column: DataField) -> Sequence[RowGroup]:
        """Parts of a row group that can be read separately; the file `is_unchanged`."""
        return self.stored.row_pages(self.layout, group, column)

    def count(self, first: int, end: int) -> None:
        """Count rows, by their numbers in the file, as read."""
        counts = self._reader.counts
        counts.rows += end - first
        # Rounded so that the parts of a file add up to its size.
        counts.size_bytes += self._bytes_below(end) - self._bytes_below(first)

    def start(self, held_bytes: int) -> None:
        """Begin to fetch the file, which `batches` reads next."""
        if self._groups is None:
            self.stored.start(self.layout, self.row_range, held_bytes)

    def batches(
        self, batch_rows: int, held_bytes: int = HELD_BYTES
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows that are not deleted and have not expired, in the file's order.

        They are in the reader's layout. `held_bytes`: how many fetched bytes of a file in an object
        store may be in memory at once.

        Raises `FormatError` if the file is not the one that `file` describes: its size or number of
        rows differs, or a column is missing or has another type than declared. Raises as
        `deleted_rows`.
        """
        self.start(held_bytes)
        expiry, row_range, groups = self._reader.expiry, self.row_range, self._groups
        if groups is None:
            stored = self.stored.batches(self.layout, batch_rows, row_range)
        else:
            stored = self.stored.group_batches(
                self.layout, batch_rows, groups, held_bytes, rows=self._rows
            )
        is_whole = groups is None and row_range is None
        with contextlib.closing(stored) as batches:
            rows = self._kept(self._all(batches) if is_whole else self._within(batches, row_range))
            for batch in rows if expiry is None else expiry.alive(rows):
                if self._bounds is not None and batch.num_rows:
                    self.check_keys(batch, self._bounds)
                yield _stamped(batch, self.file.sequence_number)

    def finder(
        self,
        batch_rows: int,
        held_bytes: int = HELD_BYTES,
        *,
        expires: bool = True,
        marks: bool = False,
        finds_values: bool = True,
    ) -> InputFinder:
        """A finder of the file's rows by their keys. With `expires`, expired records are not found.

        With `marks`, all rows with these keys are marked. Without `finds_values`, only keys are
        read, and found keys come without their rows.
        """
        self._expect_vector()
        reader = self._reader
        layout = self.layout if finds_values else self.layout.of_keys
        return InputFinder(
            source=self,
            stored=self.stored.finder(layout, batch_rows, held_bytes),
            counts=reader.found,
            expiry=reader.expiry if expires and finds_values else None,
            marked=reader.marked(self.file) if marks else None,
            finds_values=finds_values,
        )

    def converted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the file in the reader's layout."""
        evolution = self.evolution
        return rows if evolution is None else evolution.converted(rows, self.file.path)

    @property
    def row_range(self) -> RowRange | None:
        """The keys to read, in the names of the file; None for all."""
        bounds = self._reader.row_range
        return bounds if self.evolution is None else self.evolution.row_range(bounds)

    def _kept(self, batches: NumberedBatches) -> Generator[pa.RecordBatch, None, None]:
        """The rows that are not deleted, converted. Deleted rows are dropped first: they may not be
        castable.
        """
        deleted = self.deleted_rows()
        for row, rows in batches:
            if deleted is not None and not (kept := deleted.keeps(row, rows.num_rows)).all():
                rows = rows.filter(pa.array(kept))
            if rows.num_rows:
                yield self.converted(rows)

    def _all(self, batches: NumberedBatches) -> NumberedBatches:
        seen, counts = 0, self._reader.counts
        for row, rows in batches:
            if rows.num_rows:
                seen += rows.num_rows
                counts.rows += rows.num_rows
                yield row, rows
        self.file.check_rows(seen)
        counts.size_bytes += self.file.size_bytes

    def _within(self, batches: NumberedBatches, row_range: RowRange | None) -> NumberedBatches:
        first = end = 0
        for row, rows in batches:
            above = rows if row_range is None else row_range.from_lower(rows)
            inside = above if row_range is None else row_range.below_upper(above)
            if inside.num_rows:
                start = row + rows.num_rows - above.num_rows
                first = first if end else start
                end = start + inside.num_rows
                yield start, inside
            if inside.num_rows < above.num_rows:
                break
        self.count(first, end)

    def _bytes_below(self, row: int) -> int:
        return self.file.size_bytes * row // self.file.row_count


@dataclass(eq=False, kw_only=True)
class InputFinder:
    """A `Finder` of an input with the rows of `Input.batches`.

    Adds all matching rows to `marked`, including expired ones. Without `finds_values` there are no
    rows, only the indexes of keys. The reader's `found` increases by the rows, and by the bytes
    read.
    """

    source: Input
    stored: Finder
    counts: ReadCounts
    expiry: Expiry | None
    marked: DeletedRows | None
    finds_values: bool
    counted_bytes: int = 0

    def find(self, keys: pa.RecordBatch) -> Found:
        """The rows with these keys; `keys` has the key columns in their order.

        Keys are distinct and ascending, above the keys of earlier calls. Raises as `Input.batches`,
        and `FormatError` if rows are not sorted.
        """
        names = [field.name for field in self.source.layout.key_fields]
        found, positions = self.stored.find(pa.RecordBatch.from_arrays(keys.columns, names=names))
        self._count_bytes()
        deleted = self._deleted if len(positions) else None
        if deleted is not None and (gone := deleted.deletes(positions)).any():
            found, positions = found.filtered(~gone), positions[~gone]
        if self.marked is not None and len(positions):
            self.marked.add(positions)
        found = self._converted(found) if self.finds_values else Found(found.places, [])
        self.counts.rows += len(found.places)
        return found

    def close(self) -> None:
        """End reading. Raises `FormatError` if the data already read turns out to be damaged."""
        self.stored.close()
        self.source.drop_vector()
        self._count_bytes()

    @cached_property
    def _deleted(self) -> DeletedRows | None:
        return self.source.deleted_rows()

    def _converted(self, found: Found) -> Found:
        """The found rows in the reader's layout, without expired ones."""
        number = self.source.file.sequence_number
        rows = [_stamped(self.source.converted(batch), number) for batch in found.rows]
        found = Found(found.places, rows)
        if self.expiry is None or not rows:
            return found
        return found.filtered(np.concatenate([self.expiry.is_alive(batch) for batch in rows]))

    def _count_bytes(self) -> None:
        read = self.stored.read_bytes
        self.counts.size_bytes += read - self.counted_bytes
        self.counted_bytes = read


# Its runs; as `MergeSpec.sections`.
Section: TypeAlias = tuple[tuple[Input, ...], ...]
Sections: TypeAlias = tuple[Section, ...]


def sample(inputs: Sequence[T]) -> Sequence[T]:
    """At most `SAMPLE_FILES` of the inputs, at even distances."""
    return inputs[:: max(1, -(-len(inputs) // SAMPLE_FILES))]


def _stamped(rows: pa.RecordBatch, number: int | None) -> pa.RecordBatch:
    """The rows with a sequence number other than the file's (io/KeyValueFileReaderFactory.java).

    Without `number`, and for rows that were read without theirs, returns the rows unchanged.
    """
    place = rows.schema.get_field_index(SEQUENCE_NUMBER.name)
    if number is None or place < 0:
        return rows
    numbers = pa.array(np.full(rows.num_rows, number, np.int64))
    return rows.set_column(place, rows.schema.field(place), numbers)


def with_others(error: UnreadableColumn, inputs: Sequence[Input]) -> UnreadableColumn:
    """The same error, with the errors that other inputs' footers show."""
    found = []
    for each in inputs:
        if each.file.path == error.path:
            continue
        try:
            each.check()
        except UnreadableColumn as other:
            found.append(other)
        except CompactordError:
            # The next attempt fails with this error.
            break
    return UnreadableColumn(error.path, error.message, tuple(found))


def named(error: Exception) -> tuple[tuple[str, str], ...]:
    """Path and message of each file; empty for another error."""
    if not isinstance(error, UnreadableColumn):
        return ()
    return tuple((each.path, str(each)) for each in (error, *error.others))
