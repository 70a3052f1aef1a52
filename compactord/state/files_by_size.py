"""The files of one bucket as columns, by size: 100,000 of them are packed in milliseconds.

A file becomes an object on access, which takes as long as a hundred files do here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compactord.paimon import paths
from compactord.paimon.avro.columns import Ints
from compactord.paimon.data_file import BucketFiles, BucketId, DataFile
from compactord.paimon.manifest.entry_columns import (
    Columns,
    Mask,
    SmallInts,
    source_code,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeColumns(Columns):
    """One array per fact, in any order. `file_source` and `creation_time_ms` are -1 if unknown."""

    file_size: Ints
    min_sequence_number: Ints
    level: SmallInts
    creation_time_ms: Ints
    file_source: SmallInts

    @staticmethod
    def of(files: Sequence[DataFile]) -> SizeColumns:
        def integers(values: Iterable[int]) -> Ints:
            return np.fromiter(values, np.int64, len(files))

        def small(values: Iterable[int]) -> SmallInts:
            return np.fromiter(values, np.int32, len(files))

        return SizeColumns(
            file_size=integers(map(attrgetter("file_size"), files)),
            min_sequence_number=integers(map(attrgetter("min_sequence_number"), files)),
            level=small(map(attrgetter("level"), files)),
            creation_time_ms=integers(map(attrgetter("created_ms"), files)),
            file_source=small(map(source_code, files)),
        )


def names_of(files: Iterable[DataFile]) -> pa.LargeStringArray:
    return pa.array([file.file_name for file in files], pa.large_string())


def named(ours: pa.LargeStringArray, names: Set[str]) -> Mask:
    """A mask of `ours` that are in `names`."""
    if len(names) < len(ours):
        value_set = pa.array(list(names), pa.large_string())
        found: Mask = pc.is_in(ours, value_set=value_set).to_numpy(zero_copy_only=False)
        return found
    return np.fromiter((name in names for name in ours.to_pylist()), np.bool_, len(ours))


def formats_of(names: pa.LargeStringArray) -> set[str]:
    """The formats of files by their names. Raises `FormatError` for a name without a format."""
    if not len(names):
        return set()
    first = names[0].as_py()
    usual = paths.format_of(first)
    # Mostly all have one format; what follows it in a name is its compression.
    ending = first[first.rindex(f".{usual}") :]
    others = names.filter(pc.invert(pc.ends_with(names, ending)))
    return {usual, *map(paths.format_of, others.to_pylist())}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesBySize:
    """Files of one bucket in the order of size, smallest sequence number and name.

    `read` makes objects of the files at some places. `take` and `followed_by` make other orders.
    """

    bucket: BucketId
    total_buckets: int
    columns: SizeColumns
    # The position of each file in `_names` and `_source`. Sorting names would take the longest.
    _rows: Ints
    _names: pa.LargeStringArray
    _source: Callable[[Ints], Sequence[DataFile]]

    @staticmethod
    def ordered(
        bucket: BucketId,
        total_buckets: int,
        columns: SizeColumns,
        names: pa.LargeStringArray,
        source: Callable[[Ints], Sequence[DataFile]],
    ) -> FilesBySize:
        """Orders files by size. `source` returns the files at some rows of both columns."""
        keys = {
            "size": columns.file_size,
            "sequence": columns.min_sequence_number,
            "name": names,
        }
        order = pc.sort_indices(pa.table(keys), sort_keys=[(key, "ascending") for key in keys])
        rows = order.to_numpy().astype(np.int64)
        return FilesBySize(
            bucket=bucket,
            total_buckets=total_buckets,
            columns=columns.take(rows),
            _rows=rows,
            _names=names,
            _source=source,
        )

    @staticmethod
    def of(bucket: BucketFiles) -> FilesBySize:
        """Builds from file objects."""
        files = bucket.files
        return FilesBySize.ordered(
            bucket.bucket,
            bucket.total_buckets,
            SizeColumns.of(files),
            names_of(files),
            lambda rows: [files[row] for row in rows.tolist()],
        )

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, places: Ints | Mask | slice) -> FilesBySize:
        """Some of the files, in the order of `places`."""
        return replace(self, columns=self.columns.take(places), _rows=self._rows[places])

    def followed_by(self, other: FilesBySize) -> FilesBySize:
        """The files of both, which were taken from the same source."""
        columns = SizeColumns.concatenated([self.columns, other.columns])
        return replace(self, columns=columns, _rows=np.concatenate([self._rows, other._rows]))

    def smaller_than(self, size_bytes: int) -> FilesBySize:
        return self.take(slice(int(np.searchsorted(self.columns.file_size, size_bytes))))

    def without(self, names: Set[str]) -> FilesBySize:
        """All files except the named ones."""
        if not names:
            return self
        found = named(self._names, names)
        return self.take(~found[self._rows]) if found.any() else self

    def only(self, names: Set[str]) -> FilesBySize:
        """Only the named files."""
        return self.take(named(self._names, names)[self._rows])

    def read(self, start: int, stop: int) -> tuple[DataFile, ...]:
        """The files from one place to before another as objects, in order."""
        rows = self._rows[start:stop]
        # Encoded neighbours are unpacked together.
        order = np.argsort(rows)
        found = self._source(rows[order])
        files: list[DataFile | None] = [None] * len(rows)
        for place, file in zip(order.tolist(), found, strict=True):
            files[place] = file
        return tuple(file for file in files if file is not None)

    def formats(self) -> set[str]:
        """The formats of all files by their names, even of files that were not taken.

        Raises `FormatError` for a name without a format.
        """
        return formats_of(self._names)
