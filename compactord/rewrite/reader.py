"""Reads input files of any format as batches of rows in the types of the layout."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from compactord.formats.base import FileReader, InputProfile, NumberedBatches, RowGroup
from compactord.formats.keyrange import RowRange
from compactord.formats.layout import Layout
from compactord.formats.opening import check_rows
from compactord.formats.registry import FORMATS, Formats, format_named
from compactord.model import InputFile
from compactord.paimon.types import SEQUENCE_NUMBER, DataField
from compactord.rewrite.evolution import Build, Evolution
from compactord.rewrite.expiry import Expiry
from compactord.storage.base import Storage

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


@dataclass(frozen=True, slots=True)
class InputReader:
    """Reads the inputs of one subcompaction.

    `row_range` None: whole files are read. `older` are the older schemas that files may have.
    `expiry` None: no record expires.
    `counts` increases as batches are returned. `readers` has a reader for each format used so far.
    """

    storage: Storage
    layout: Layout
    row_range: RowRange | None = None
    formats: Formats = field(default_factory=lambda: FORMATS)
    older: tuple[Build, ...] = ()
    expiry: Expiry | None = None
    readers: dict[str, FileReader] = field(default_factory=dict)
    counts: ReadCounts = field(default_factory=ReadCounts)
    evolved: dict[int, Evolution | None] = field(default_factory=dict)

    def with_layout(self, layout: Layout) -> InputReader:
        """A reader of rows in another layout, which shares all but what depends on it."""
        return replace(self, layout=layout, evolved={})

    def evolution(self, file: InputFile) -> Evolution | None:
        """How the file's rows become rows of the layout; None if they are read as such."""
        number = file.older_schema
        if number is None:
            return None
        if number not in self.evolved:
            self.evolved[number] = self.older[number](self.layout)
        return self.evolved[number]

    def of(self, file_format: str) -> FileReader:
        """The reader of a format. Raises `TaskError` for an unsupported one."""
        if file_format not in self.readers:
            found = format_named(file_format, self.formats)
            self.readers[file_format] = found.reader(self.storage)
        return self.readers[file_format]

    def profile(self, files: Sequence[InputFile]) -> InputProfile:
        """Sampled facts about the files; of several formats, combined so that they hold for all."""
        alike: dict[tuple[str, int | None], list[InputFile]] = {}
        for file in sample(files):
            alike.setdefault((file.file_format, file.older_schema), []).append(file)
        found = [self._profile(name, sampled) for (name, _), sampled in alike.items()]
        paths = dict.fromkeys(path for each in found for path in each.dictionary_paths)
        return InputProfile(
            row_bytes=max(each.row_bytes for each in found),
            columns=max(each.columns for each in found),
            dictionaries=frozenset.intersection(*(each.dictionaries for each in found)),
            dictionary_paths=tuple(paths),
            plain_share=min(each.plain_share for each in found),
        )

    def _profile(self, file_format: str, files: Sequence[InputFile]) -> InputProfile:
        """Of files of one format and schema."""
        evolution = self.evolution(files[0])
        if evolution is None:
            return self.of(file_format).profile(files, self.layout)
        return evolution.profile(self.of(file_format).profile(files, evolution.layout))

    def open_bytes(self, file: InputFile) -> int:
        """Bytes of memory that the file takes while it is read, besides its decoded rows."""
        layout, _ = self._read_as(file)
        return self.of(file.file_format).open_bytes(file, layout)

    def row_groups(self, file: InputFile, column: DataField | None = None) -> Sequence[RowGroup]:
        """The parts of a file that can be read separately, with the bounds of a key column."""
        evolution = self.evolution(file)
        if evolution is not None and column is not None:
            column = evolution.stored(column)
        return self.of(file.file_format).row_groups(file, column)

    def held_bytes(self, file: InputFile) -> tuple[int, int]:
        """Fetched bytes of the open file that are in memory at least, and at most if it may."""
        layout, _ = self._read_as(file)
        return self.of(file.file_format).held_bytes(file, layout)

    def expect(self, files: Iterable[InputFile]) -> None:
        """Begin to fetch what is read first of files that will be read soon."""
        for file in files:
            self.of(file.file_format).expect([file])

    def start(self, file: InputFile, held_bytes: int) -> None:
        """Begin to fetch the file, which `batches` reads next."""
        layout, bounds = self._read_as(file)
        self.of(file.file_format).start(file, layout, bounds, held_bytes)

    @property
    def kept_bytes(self) -> int:
        """Bytes of files that are not open and are in memory nevertheless."""
        return sum(reader.kept_bytes() for reader in self.readers.values())

    def close(self) -> None:
        """End what the readers of all formats have begun."""
        for reader in self.readers.values():
            reader.close()

    def batches(
        self, file: InputFile, batch_rows: int, held_bytes: int = HELD_BYTES
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yield the file's rows that have not expired in their order, in the layout's row schema.

        `held_bytes`: of a file in an object store, how many fetched bytes may be in memory at once.

        Raises `FormatError` when the file is not the one that `file` describes: its size or number
        of rows differs, or a column is missing or has another type than declared.
        """
        with contextlib.closing(self._batches(file, batch_rows, held_bytes)) as batches:
            if self.row_range is None:
                rows = self._all(file, batches)
            else:
                rows = self._within(file, batches, self.row_range)
            alive = rows if self.expiry is None else self.expiry.alive(rows)
            for batch in alive:
                yield _stamped(batch, file.sequence_number)

    def _read_as(self, file: InputFile) -> tuple[Layout, RowRange | None]:
        """The layout in which the file itself is read, and the range in its names."""
        evolution = self.evolution(file)
        if evolution is None:
            return self.layout, self.row_range
        return evolution.layout, evolution.row_range(self.row_range)

    def _batches(self, file: InputFile, batch_rows: int, held_bytes: int) -> NumberedBatches:
        reader, evolution = self.of(file.file_format), self.evolution(file)
        layout, bounds = self._read_as(file)
        reader.start(file, layout, bounds, held_bytes)
        with contextlib.closing(reader.batches(file, layout, batch_rows, bounds)) as batches:
            for row, rows in batches:
                yield row, rows if evolution is None else evolution.converted(rows, file.path)

    def _all(
        self, file: InputFile, batches: NumberedBatches
    ) -> Generator[pa.RecordBatch, None, None]:
        seen = 0
        for _, rows in batches:
            if rows.num_rows:
                seen += rows.num_rows
                self.counts.rows += rows.num_rows
                yield rows
        check_rows(file, seen)
        self.counts.size_bytes += file.size_bytes

    def _within(
        self, file: InputFile, batches: NumberedBatches, row_range: RowRange
    ) -> Generator[pa.RecordBatch, None, None]:
        first = end = None
        for row, rows in batches:
            above = row_range.from_lower(rows)
            inside = row_range.below_upper(above)
            if inside.num_rows:
                start = row + rows.num_rows - above.num_rows
                first = start if first is None else first
                end = start + inside.num_rows
                self.counts.rows += inside.num_rows
                yield inside
            if inside.num_rows < above.num_rows:
                break
        if first is not None and end is not None:
            # Rounded so that the parts of a file add up to its size.
            self.counts.size_bytes += _bytes_below(end, file) - _bytes_below(first, file)


def sample(files: Sequence[InputFile]) -> list[InputFile]:
    """At most `SAMPLE_FILES` of the inputs, at even distances."""
    step = max(1, -(-len(files) // SAMPLE_FILES))
    return list(files[::step])


def _stamped(rows: pa.RecordBatch, number: int | None) -> pa.RecordBatch:
    """The rows with a sequence number that is not the file's (io/KeyValueFileReaderFactory.java).

    Rows that were read without theirs, and None, change nothing.
    """
    place = rows.schema.get_field_index(SEQUENCE_NUMBER.name)
    if number is None or place < 0:
        return rows
    numbers = pa.array(np.full(rows.num_rows, number, np.int64))
    return rows.set_column(place, rows.schema.field(place), numbers)


def _bytes_below(row: int, file: InputFile) -> int:
    return file.size_bytes * row // file.row_count
