"""Reads footers and pages of a table's data files, and compares them with the manifest."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from compactord.errors import CompactordError, FormatError, UnreadableColumn
from compactord.formats.base import FileFormat, OpenFile
from compactord.formats.finding import KeyOrder
from compactord.formats.layout import Layout
from compactord.model import InputFile
from compactord.paimon import paths
from compactord.paimon.binary_row import comparable_key, decode_row
from compactord.paimon.data_file import DataFile, FileSource
from compactord.paimon.schema import TableSchema, read_schema
from compactord.paimon.support import refused_inside
from compactord.paimon.types import (
    SEQUENCE_NUMBER,
    VALUE_KIND,
    AtomicType,
    DataField,
    TypeRoot,
    file_fields,
    key_field,
)
from compactord.rewrite.budget import MAX_BATCH_ROWS
from compactord.rewrite.outputs import FileFacts
from compactord.rewrite.reader import HELD_BYTES
from compactord.storage.base import Storage
from compactord.storage.ranges import Fetcher, with_part
from compactord.table.opening import OpenTable
from compactord.verify.rules import PagesRead, PlacedFile

# Bound of the decoded rows of one file.
_BATCH_BYTES = 16 << 20
# Bound of all files that are read at once; a larger file is read by itself.
_MEMORY_BYTES = 512 << 20
# Columns whose values are compared with the bounds in the manifest: fast to compare, never cut.
_COMPARED = {TypeRoot.TINYINT, TypeRoot.SMALLINT, TypeRoot.INT, TypeRoot.BIGINT, TypeRoot.DATE}


class FileReader:
    """Reads data files for `verify`; several threads may use it."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table
        self._storage = table.storage
        self._memory = _Memory(_MEMORY_BYTES)

    def read_footer(self, path: str, file: DataFile) -> bool:
        """As `ReadFooter`."""
        found = self._table.readable.get(_format_name(file))
        if found is None:
            return False
        with self._opened(found, path, file, self._storage) as opened:
            opened.file.check_rows(sum(group.rows for group in opened.row_groups(None)))
        return True

    def read_pages(self, file: PlacedFile, share: float, random: Random) -> PagesRead | str:
        """As `ReadPages`."""
        name = _format_name(file.file)
        file_format = self._table.readable.get(name)
        if file_format is None:
            return f"there is no reader for format {name}"
        try:
            schema = self._schema(file.root, file.file.schema_id)
        except CompactordError as error:
            return f"schema {file.file.schema_id} cannot be read ({error})"
        storage, part = self._storage, paths.merged_changelog(file.path)
        if part is not None:
            storage = with_part(storage, *part)
        with self._opened(file_format, file.path, file.file, storage) as opened:
            layout, left_out = _layout(schema, file.file, opened.column_names())
            if not layout.row_fields:
                return "none of their columns can be read"
            try:
                opened.check(layout)
            except UnreadableColumn as error:
                return f"their columns differ from their schema ({error.message})"
            rows = [group.rows for group in opened.row_groups(None)]
            opened.file.check_rows(sum(rows))
            groups = sorted(random.sample(range(len(rows)), math.ceil(share * len(rows))))
            facts = file_format.profile([opened], layout)
            layout = layout.with_dictionaries(facts.dictionaries)
            check = _RowCheck(schema, file, layout)
            try:
                self._read_groups(opened, facts.row_bytes, layout, groups, check)
            except FormatError as error:
                if isinstance(error.__cause__, pa.ArrowNotImplementedError):
                    return f"they are encoded in a way that is not supported ({error.__cause__})"
                raise
        check.finish(sum(rows[group] for group in groups))
        part_read = check.rows / file.file.row_count if file.file.row_count else 1.0
        return PagesRead(len(groups), part_read, left_out)

    def _read_groups(
        self,
        opened: OpenFile,
        row_bytes: float,
        layout: Layout,
        groups: Sequence[int],
        check: _RowCheck,
    ) -> None:
        batch_rows = max(1, min(MAX_BATCH_ROWS, int(_BATCH_BYTES / max(1.0, row_bytes))))
        held_bytes = min(HELD_BYTES, opened.file.size_bytes)
        needed = opened.open_bytes(layout) + int(batch_rows * row_bytes) + held_bytes
        found = opened.group_batches(layout, batch_rows, groups, held_bytes)
        with self._memory.taken(needed), contextlib.closing(found) as batches:
            for row, batch in batches:
                check.add(row, batch)

    def _schema(self, root: str, schema_id: int) -> TableSchema:
        if root == self._table.ref.root:
            return self._table.history.schema(schema_id)
        return read_schema(self._storage, root, schema_id)

    @contextlib.contextmanager
    def _opened(
        self, file_format: FileFormat, path: str, file: DataFile, storage: Storage
    ) -> Iterator[OpenFile]:
        follows_snapshots = (
            self._table.options.snapshot_ordering and file.file_source != FileSource.COMPACT
        )
        described = InputFile(
            path=path,
            file_format=file_format.name,
            size_bytes=file.file_size,
            row_count=file.row_count,
            min_sequence_number=file.min_sequence_number,
            max_sequence_number=file.max_sequence_number,
            # The file has other numbers than its manifest.
            sequence_number=file.min_sequence_number if follows_snapshots else None,
        )
        with contextlib.closing(Fetcher(storage)) as fetcher:
            yield file_format.open(storage, fetcher, described)


def _format_name(file: DataFile) -> str:
    try:
        return paths.merged_format(paths.format_of(file.file_name))
    except FormatError:
        return "unknown"


def _layout(
    schema: TableSchema, file: DataFile, names: Sequence[str] | None
) -> tuple[Layout, tuple[str, ...]]:
    """The columns to read of a file, and the names of its unreadable columns.

    Readers return null for a column that a file lacks, but not for one of the key or the system.
    With `names` None the file must have all columns, without copies of keys.
    """
    columns: Sequence[DataField] = [f for f in schema.fields if not any(refused_inside(f.type))]
    if file.write_columns is not None:
        columns = [field for field in columns if field.name in file.write_columns]
    keys: Sequence[DataField] = schema.key_fields if schema.primary_keys else ()
    if keys:
        copies = [key_field(field) for field in keys]
        has_copies = names is not None and any(field.name in names for field in copies)
        columns = file_fields(columns, [field.name for field in keys], thin=not has_copies)
        keys = copies if has_copies else keys
    if names is None:
        left_out = [field.name for field in schema.fields if any(refused_inside(field.type))]
        return Layout(row_fields=tuple(columns), key_fields=tuple(keys)), tuple(left_out)
    needed = {field.name for field in keys}
    needed |= {SEQUENCE_NUMBER.name, VALUE_KIND.name} if keys else set()
    present = tuple(field for field in columns if field.name in needed or field.name in names)
    known = {field.name for field in columns}
    left_out = [name for name in names if name not in known]
    return Layout(row_fields=present, key_fields=tuple(keys)), tuple(left_out)


class _RowCheck:
    """Compares the rows of one file with its manifest: keys, statistics, deletes.

    Batches are passed in the file's order and need not be complete.
    """

    def __init__(self, schema: TableSchema, placed: PlacedFile, layout: Layout) -> None:
        path, file = placed.path, placed.file
        self.rows = 0
        self._file = file
        self._path = path
        self._facts = FileFacts(layout)
        names = [field.name for field in layout.key_fields]
        self._order = KeyOrder(names, path) if placed.is_sorted and names else None
        types = [field.type for field in layout.key_fields]
        self._key_of = partial(comparable_key, types=types, source=path)
        present = set(layout.row_names)
        self._stats = [each for each in _stats_of(schema, file, path) if each.name in present]
        self._nulls = [0] * len(self._stats)

    def add(self, row: int, batch: pa.RecordBatch) -> None:
        """Compares the next rows, starting at `row`. Raises `FormatError`."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        self._facts.add_group(pa.Table.from_batches([batch]))
        if self._order is not None:
            self._order.check(row, batch)
            self._check_ends(row, row + batch.num_rows)
        for place, each in enumerate(self._stats):
            column = batch.column(each.name)
            self._nulls[place] += column.null_count
            each.check(column, self._path)

    def finish(self, rows: int) -> None:
        """Compares the number of rows read with `rows`, and all of them with the manifest."""
        if self.rows != rows:
            raise FormatError(self._path, f"{self.rows} rows were read instead of {rows}")
        file = self._file
        if rows != file.row_count:
            return
        for each, nulls in zip(self._stats, self._nulls, strict=True):
            if each.nulls is not None and nulls != each.nulls:
                raise FormatError(
                    self._path,
                    f"column {each.name} has {nulls} nulls, the manifest has {each.nulls}",
                )
        deletes = file.delete_row_count
        if self._order is not None and deletes is not None and deletes != self._facts.retracts:
            raise FormatError(
                self._path, f"{self._facts.retracts} rows delete, the manifest has {deletes}"
            )

    def _check_ends(self, row: int, end: int) -> None:
        """Compare the first and the last key so far with the range in the manifest."""
        file, facts = self._file, self._facts
        low, high = file.key_range(self._key_of)
        first, last = self._key_of(facts.min_key), self._key_of(facts.max_key)
        is_wrong = first < low or last > high
        is_wrong |= self.rows == end and first != low
        is_wrong |= end == file.row_count and last != high
        if is_wrong:
            raise FormatError(
                self._path,
                f"rows {row} to {end - 1} have keys outside the range in the manifest",
            )


@dataclass(frozen=True, slots=True)
class _ColumnStats:
    """Statistics of a column in the manifest; each is None if unknown."""

    name: str
    is_compared: bool
    low: int | None
    high: int | None
    nulls: int | None

    def check(self, column: pa.Array, path: str) -> None:
        """Raise `FormatError` for a value outside the bounds."""
        if not self.is_compared or self.low is None or self.high is None:
            return
        if pa.types.is_date32(column.type):
            column = column.cast(pa.int32())
        found = pc.min_max(column)
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is not None and (low < self.low or high > self.high):
            raise FormatError(
                path,
                f"column {self.name} has values from {low} to {high}, the manifest has"
                f" {self.low} to {self.high}",
            )


def _stats_of(schema: TableSchema, file: DataFile, path: str) -> Iterator[_ColumnStats]:
    """The statistics of a file, if it has any."""
    stats = file.value_stats
    names = file.value_stats_columns or file.write_columns or [f.name for f in schema.fields]
    by_name = {field.name: field for field in schema.fields}
    if len(stats.null_counts) != len(names) or not by_name.keys() >= set(names):
        return
    types = [by_name[name].type for name in names]
    try:
        low = decode_row(stats.min_values, types, source=path)
        high = decode_row(stats.max_values, types, source=path)
    except FormatError:
        return  # They prove nothing about the file's pages.
    for place, name in enumerate(names):
        type_ = types[place]
        is_compared = isinstance(type_, AtomicType) and type_.root in _COMPARED
        yield _ColumnStats(name, is_compared, low[place], high[place], stats.null_counts[place])


class _Memory:
    """Limits the memory of files read at once; a file above the limit is read by itself."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._taken_bytes = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def taken(self, size_bytes: int) -> Iterator[None]:
        """Waits until `size_bytes` are free, or no other file is being read."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._taken_bytes or self._taken_bytes + size_bytes <= self._size_bytes
            )
            self._taken_bytes += size_bytes
        try:
            yield
        finally:
            with self._changed:
                self._taken_bytes -= size_bytes
                self._changed.notify_all()
