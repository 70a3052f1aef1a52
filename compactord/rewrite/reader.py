"""Reads input files of any format as batches of rows in the types of the layout."""

from __future__ import annotations

import contextlib
import datetime
import posixpath
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from compactord.formats.base import InputProfile, NumberedBatches, RowGroup
from compactord.formats.finding import Finder
from compactord.formats.layout import Layout, RowRange
from compactord.formats.registry import FORMATS, Formats, format_named
from compactord.kernels.keys import Found
from compactord.model import ConcatSpec, InputFile, Marks, MergeSpec
from compactord.paimon.deletion_vectors import (
    DeletedRows,
    deleted_rows_in,
    read_deleted_rows,
    read_stored,
)
from compactord.paimon.types import SEQUENCE_NUMBER, DataField
from compactord.rewrite.evolution import Evolution, evolution
from compactord.rewrite.expiry import Expiry
from compactord.storage.base import Storage
from compactord.storage.ranges import SMALL_FILE, Fetcher

T = TypeVar("T")

# Number of inputs that are sampled before the merge.
SAMPLE_FILES = 16
# Fetched bytes of a file that may be in memory where nothing else is.
HELD_BYTES = 16 << 20


@dataclass(slots=True)
class ReadCounts:
    """What was read so far; the bytes of a part of a file are proportional to its rows."""

    rows: int = 0
    size_bytes: int = 0

    def add(self, file: InputFile) -> None:
        """Count a whole file."""
        self.rows += file.row_count
        self.size_bytes += file.size_bytes


class InputReader:
    """Opens and reads the inputs of one subcompaction.

    `row_range` None: whole files are read. `older` are the older schemas that files may have.
    `expiry` None: no record expires. `zone` is that of local times, where their values are cast.
    `counts` increases as batches are read, with rows that are deleted or have expired; `found` as
    rows are looked up.
    """

    def __init__(
        self,
        storage: Storage,
        layout: Layout,
        row_range: RowRange | None = None,
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
        # By path.
        self._marked: dict[str, DeletedRows] = {}
        self.fetcher = Fetcher(storage)
        self._older, self._zone = older, zone
        self.use(layout)

    def use(self, layout: Layout) -> None:
        """Read rows in this layout from now on."""
        self.layout = layout
        # How files of each older schema become rows of the layout; None if they are read as such.
        self.evolutions = [evolution(each, self._zone, layout) for each in self._older]

    def opened(self, source: MergeSpec | ConcatSpec) -> Sections:
        """The files of a merge, or those of a concatenation as one run."""
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
        """Of files of one format and schema."""
        layout, evolution = inputs[0].layout, inputs[0].evolution
        file_format = format_named(inputs[0].file.file_format, self.formats)
        found = file_format.profile([each.stored for each in inputs], layout)
        return found if evolution is None else evolution.profile(found)

    def marked(self, file: InputFile) -> DeletedRows:
        """To add rows that are to be deleted in the file."""
        return self._marked.setdefault(file.path, DeletedRows.none_of(file.row_count))

    def marks(self) -> tuple[Marks, ...]:
        """The rows of each file that were `marked`."""
        return tuple(
            Marks(posixpath.basename(path), rows.bitmap())
            for path, rows in self._marked.items()
            if rows.bits.any()
        )

    def close(self) -> None:
        """End what was begun; no file is read afterwards."""
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

    @property
    def evolution(self) -> Evolution | None:
        """How the file's rows become rows of the layout; None if they are read as such."""
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
        """Which of the file's rows are deleted; None: none of them.

        They are read in each call, so that no more of them are in memory than files are open.
        Raises as `read_deleted_rows`.
        """
        ref, rows = self.file.vector, self.file.row_count
        if ref is None:
            return None
        fetched, self._vector = self._vector, None
        if fetched is None:
            return read_deleted_rows(self._reader.storage, ref, rows)
        return deleted_rows_in(fetched.result(), ref, rows)

    def drop_vector(self) -> None:
        """The fetched vector is not needed any more."""
        self._vector = None

    def check(self) -> None:
        """Raise as `batches` as far as the file's metadata shows it."""
        self.stored.check(self.layout)

    def row_groups(self, column: DataField | None = None) -> Sequence[RowGroup]:
        """The parts that can be read separately, with the bounds of a key column."""
        if self.evolution is not None and column is not None:
            column = self.evolution.stored(column)
        return self.stored.row_groups(column)

    def start(self, held_bytes: int) -> None:
        """Begin to fetch the file, which `batches` reads next."""
        self.stored.start(self.layout, self._row_range, held_bytes)

    def batches(
        self, batch_rows: int, held_bytes: int = HELD_BYTES
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the rows that are not deleted and have not expired in the file's order.

        They are in the reader's layout.

        `held_bytes`: of a file in an object store, how many fetched bytes may be in memory at once.

        Raises `FormatError` when the file is not the one that `file` describes: its size or number
        of rows differs, or a column is missing or has another type than declared. And as
        `deleted_rows`.
        """
        self.start(held_bytes)
        expiry, row_range = self._reader.expiry, self._row_range
        stored = self.stored.batches(self.layout, batch_rows, row_range)
        with contextlib.closing(stored) as batches:
            rows = self._kept(
                self._all(batches) if row_range is None else self._within(batches, row_range)
            )
            for batch in rows if expiry is None else expiry.alive(rows):
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
        """Finds the file's rows by their keys; `expires`: expired records are not found.

        `marks`: all rows with these keys are marked. `finds_values` False: no more than the keys is
        read, and what is found comes without its rows.
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
    def _row_range(self) -> RowRange | None:
        """The range in the names of the file."""
        bounds = self._reader.row_range
        return bounds if self.evolution is None else self.evolution.row_range(bounds)

    def _kept(self, batches: NumberedBatches) -> Generator[pa.RecordBatch, None, None]:
        """The rows that are not deleted, converted: what is deleted need not be convertible."""
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

    def _within(self, batches: NumberedBatches, row_range: RowRange) -> NumberedBatches:
        first, end, counts = None, None, self._reader.counts
        for row, rows in batches:
            above = row_range.from_lower(rows)
            inside = row_range.below_upper(above)
            if inside.num_rows:
                start = row + rows.num_rows - above.num_rows
                first = start if first is None else first
                end = start + inside.num_rows
                counts.rows += inside.num_rows
                yield start, inside
            if inside.num_rows < above.num_rows:
                break
        if first is not None and end is not None:
            # Rounded so that the parts of a file add up to its size.
            counts.size_bytes += self._bytes_below(end) - self._bytes_below(first)

    def _bytes_below(self, row: int) -> int:
        return self.file.size_bytes * row // self.file.row_count


@dataclass(eq=False, kw_only=True)
class InputFinder:
    """A `Finder` of an input: its rows are those of `Input.batches`.

    To `marked` are added all rows that are met, those that have expired, too.
    `finds_values` False: there are no rows, only the places of keys. What the reader has `found`
    increases by the rows, and by the bytes that were read.
    """

    source: Input
    stored: Finder
    counts: ReadCounts
    expiry: Expiry | None
    marked: DeletedRows | None
    finds_values: bool
    counted_bytes: int = 0

    def find(self, keys: pa.RecordBatch) -> Found:
        """The rows with these keys, of which `keys` has the columns in their order.

        Keys are distinct and ascending, above those of earlier calls. Raises as `Input.batches`,
        and `FormatError` where rows are not sorted.
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
        """Read nothing more. Raises `FormatError` if what was read turns out to be damaged."""
        self.stored.close()
        self.source.drop_vector()
        self._count_bytes()

    @cached_property
    def _deleted(self) -> DeletedRows | None:
        return self.source.deleted_rows()

    def _converted(self, found: Found) -> Found:
        """In the reader's layout, without rows that have expired."""
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
    """The rows with a sequence number that is not the file's (io/KeyValueFileReaderFactory.java).

    Rows that were read without theirs, and None, change nothing.
    """
    place = rows.schema.get_field_index(SEQUENCE_NUMBER.name)
    if number is None or place < 0:
        return rows
    numbers = pa.array(np.full(rows.num_rows, number, np.int64))
    return rows.set_column(place, rows.schema.field(place), numbers)
