"""What a file format is: files read into rows, rows written to files.

Whoever rewrites files knows formats by these protocols alone. What a format need not offer has a
body here; a class that inherits it reads and writes rows, which is always enough.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from compactord.formats.keyrange import RowRange
from compactord.formats.layout import Layout
from compactord.model import InputFile, WriteSpec
from compactord.paimon.stats import ColumnBounds
from compactord.paimon.types import DataField
from compactord.storage.base import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProfile:
    """Sampled facts about input files; they steer speed and memory, never the outcome.

    `row_bytes`: a decoded row in memory, `dictionaries` decoded as such. `columns`: leaf columns
    that are read. `dictionaries`: row columns that can be read dictionary-encoded.
    `dictionary_paths`: leaf columns (dotted paths of row columns) of few different values.
    `plain_share`: of the stored bytes, those that a `Copier` might copy; 0 to 1.
    """

    row_bytes: float
    columns: int
    dictionaries: frozenset[str] = frozenset()
    dictionary_paths: tuple[str, ...] = ()
    plain_share: float = 0.0


class RowGroup(NamedTuple):
    """Rows of a file that can be read without those before them.

    `bounds` are the smallest and the largest value of the column that was asked for, by
    `values.value_order`; None where the file does not tell.
    """

    rows: int
    bounds: tuple[Any, Any] | None = None


# Each batch with the number of its first row in the file.
NumberedBatches: TypeAlias = Generator[tuple[int, pa.RecordBatch], None, None]


class OutputFile(Protocol):
    """A file that is being written.

    Not for several threads at once, but one may go on where another stopped.
    """

    @property
    def path(self) -> str: ...

    @property
    def rows(self) -> int:
        """Rows written so far."""
        ...

    @property
    def bytes_written(self) -> int:
        """Bytes written so far, by which the file is found full."""
        ...

    def write(self, rows: pa.Table) -> None:
        """The next rows, in the row columns of the layout; they may become one row group."""
        ...

    def close(self) -> Sequence[ColumnBounds]:
        """Complete the file, make it durable, return the bounds of its columns in their order.

        `RowBounds` computes them from the rows. Aborts when it fails.
        """
        ...

    def abort(self, error: BaseException) -> None:
        """Remove the file; raises the storage's own form of `error` when it has one."""
        ...


class FileWriter(Protocol):
    """Makes the output files of one subcompaction."""

    def open(self, storage: Storage, path: str) -> OutputFile:
        """Create a file. Raises `StorageError` when it exists."""
        ...


class CopyingOutput(OutputFile, Protocol):
    """A file that can also take whole input files."""

    def copy(self, files: Sequence[Any]) -> None:
        """All rows of these files, as `Copier.fetch` gave them, as one row group."""
        ...


class Copier(Protocol):
    """Puts input files together with as little decoding as possible."""

    def fetch(self, file: InputFile) -> Any:
        """The whole file in memory, checked as for `FileReader.batches`."""
        ...

    def open(self, storage: Storage, path: str) -> CopyingOutput:
        """Create a file. Raises `StorageError` when it exists."""
        ...


class FileReader(Protocol):
    """Reads one subcompaction's input files; may keep what it learns of a file until it is read."""

    @abstractmethod
    def profile(self, files: Sequence[InputFile], layout: Layout) -> InputProfile:
        """Look at a few files, without decoding more than a few of their rows."""

    @abstractmethod
    def open_bytes(self, file: InputFile, layout: Layout) -> int:
        """Memory that an open file takes besides its decoded rows."""

    @abstractmethod
    def batches(
        self, file: InputFile, layout: Layout, batch_rows: int, row_range: RowRange | None
    ) -> NumberedBatches:
        """The file's rows in their order, in the layout's row schema, `batch_rows` at a time.

        Rows outside of `row_range` may be left out at both ends. Raises `FormatError` when the file
        is not the one that `file` describes: another size, columns missing or of a type that is not
        the declared one.
        """

    def row_groups(self, file: InputFile, column: DataField | None) -> Sequence[RowGroup]:
        """The parts that can be read by themselves, with the bounds of a column: where to split."""
        return [RowGroup(file.row_count)]

    def copier(
        self, layout: Layout, spec: WriteSpec, dictionary_columns: Sequence[str]
    ) -> Copier | None:
        """Copies files of this format to files of this format; None where rows must be decoded."""
        return None


@dataclass(frozen=True, slots=True)
class FileFormat:
    """`writer` is given leaf columns of the files (dotted paths) that are worth a dictionary."""

    reader: Callable[[Storage], FileReader]
    writer: Callable[[Layout, WriteSpec, Sequence[str]], FileWriter]
