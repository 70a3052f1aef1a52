"""The protocol of a file format: reads files into rows and writes rows to files.

Code that rewrites files uses formats through these classes only. Optional methods have a body here;
a class that inherits them can read and write rows, which is enough.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from compactord.errors import (
    DataFileDamaged,
    FormatError,
    ObjectNotFound,
    TransientStorageError,
    UnreadableColumn,
)
from compactord.formats.finding import Finder, StreamFinder
from compactord.formats.layout import Layout, RowRange
from compactord.model import Encoding, InputFile
from compactord.paimon.data_file import ColumnBounds
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.types import DataField, DataType
from compactord.storage.base import Storage
from compactord.storage.ranges import Fetcher

_ENOENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InputProfile:
    """Sampled facts about input files. They affect speed and memory, never the result.

    `row_bytes`: mean bytes of a decoded row in memory, with `dictionaries` kept encoded. `columns`:
    number of leaf columns that are read. `dictionaries`: row columns that can be read
    dictionary-encoded. `dictionary_paths`: leaf columns (dotted paths of row columns) with few
    distinct values. `plain_share`: share of the stored bytes that a `Copier` might copy, 0 to 1.
    """

    row_bytes: float
    columns: int
    dictionaries: frozenset[str] = frozenset()
    dictionary_paths: tuple[str, ...] = ()
    plain_share: float = 0.0


class RowGroup(NamedTuple):
    """Rows of a file that can be read without those before them.

    `bounds` are the smallest and the largest value of the requested column, as `values.value_order`
    returns them; None if the file does not record them.
    """

    rows: int
    bounds: tuple[Any, Any] | None = None


# Each batch with the number of its first row in the file.
NumberedBatches: TypeAlias = Generator[tuple[int, pa.RecordBatch], None, None]


class OutputFile(Protocol):
    """A file that is being written.

    Only one thread may use it at a time, but another thread may continue.
    """

    @property
    def path(self) -> str:
        """Where the file is in the storage."""

    @property
    def rows(self) -> int:
        """Rows written so far."""

    @property
    def bytes_written(self) -> int:
        """Bytes written so far; they decide when the file is full. Its size, once it is closed."""

    @property
    def companions(self) -> Sequence[str]:
        """Names of files in the same folder that belong to it, such as an index.

        They begin with its own name, and are complete once it is closed.
        """

    def write(self, rows: pa.Table) -> None:
        """Write the next rows, in the layout's row columns; they may become one row group."""

    def close(self) -> Sequence[ColumnBounds]:
        """Complete the file, make it durable, return the bounds of its columns in their order.

        If closing fails, it aborts and raises the error.
        """

    def abort(self, error: BaseException) -> None:
        """Remove it and its companions. Raises the storage's own form of `error`, if any."""


class FileWriter(Protocol):
    """Creates the output files of one subcompaction."""

    def open(self, storage: Storage, path: str) -> OutputFile:
        """Create a file. Raises `StorageError` when it exists."""


class OpenFile(ABC):
    """An input file of one subcompaction. It may keep the file's metadata until its rows are read.

    Its creation reads nothing. `fetcher` fetches ahead from the store. Methods get the file's own
    layout: columns have the names that the file gives them.
    """

    def __init__(self, storage: Storage, fetcher: Fetcher, file: InputFile) -> None:
        self.storage = storage
        self.fetcher = fetcher
        self.file = file

    @abstractmethod
    def open_bytes(self, layout: Layout) -> int:
        """Bytes of memory that the file takes while it is read, besides its decoded rows."""

    @abstractmethod
    def batches(
        self, layout: Layout, batch_rows: int, row_range: RowRange | None
    ) -> NumberedBatches:
        """Yield the file's rows in their order, in the layout's row schema.

        A batch has at most `batch_rows` rows. Rows outside `row_range` may be omitted at both ends.
        Raises `FormatError` when the file is not the one that its record describes: its size
        differs, or a column is missing or has another type than declared.
        """

    def require_rows(self, rows: int) -> None:
        """Raises `DataFileDamaged` unless `rows` is the number in the manifest."""
        if rows != self.file.row_count:
            raise DataFileDamaged(
                self.file.path, f"{rows} rows, {self.file.row_count} in the manifest"
            )

    def unreadable(self, field: DataField | pa.Field, why: str) -> UnreadableColumn:
        """The error of a column that cannot be read as the table's."""
        return UnreadableColumn(self.file.path, f"column {field.name}: {why}")

    def check(self, layout: Layout) -> None:  # noqa: B027 - a format without a schema has none
        """Raise the errors of `batches` that the file's metadata shows, without reading rows."""

    def row_groups(self, column: DataField | None) -> Sequence[RowGroup]:
        """The parts that can be read separately, with the bounds of `column` in each part."""
        return [RowGroup(self.file.row_count)]

    def group_bytes(self, layout: Layout) -> Sequence[int]:
        """The stored bytes of each of the `row_groups`."""
        return [self.file.size_bytes]

    def row_pages(self, layout: Layout, group: int, column: DataField) -> Sequence[RowGroup]:
        """Consecutive parts of a row group, each with the bounds of `column`.

        Any rows of a row group with such parts can be read and copied by themselves. There are no
        parts if only the whole row group can be.
        """
        return ()

    def group_batches(
        self,
        layout: Layout,
        batch_rows: int,
        groups: Sequence[int],
        held_bytes: int,
        *,
        rows: tuple[int, int] | None = None,
    ) -> NumberedBatches:
        """The rows of some of the `row_groups`, by ascending index. Otherwise as `batches`.

        `held_bytes` as in `start`. `rows`: only rows with these numbers in the file (first, and the
        one after the last), which each of the groups has; the groups have `row_pages`.
        """
        self.start(layout, None, held_bytes)
        return self.batches(layout, batch_rows, None)

    def column_names(self) -> Sequence[str] | None:
        """The columns that the file itself has, or None if the format does not record them."""
        return None

    def held_bytes(self, layout: Layout) -> tuple[int, int]:
        """Least and greatest number of fetched bytes in memory while the file is read."""
        return 0, 0

    def expect(self) -> None:  # noqa: B027 - local files are not fetched
        """Begin to fetch the first bytes that reading needs: the file will be read soon."""

    def start(  # noqa: B027 - as above
        self, layout: Layout, row_range: RowRange | None, held_bytes: int
    ) -> None:
        """Begin to fetch the bytes that `batches` will read with these arguments.

        `held_bytes`: the largest number of fetched bytes in memory at once.
        """

    def finder(self, layout: Layout, batch_rows: int, held_bytes: int) -> Finder:
        """Rows of the file, which is sorted, by their keys; arguments as above."""
        self.start(layout, None, held_bytes)
        keys = [field.name for field in layout.key_fields]
        return StreamFinder(self.batches(layout, batch_rows, None), keys, self.file)


class CopyingOutput(OutputFile, Protocol):
    """A file that can also take whole input files."""

    def copy(self, files: Sequence[Any]) -> pa.Table:
        """Write all rows of these files as one row group; `Copier` fetched them.

        Returns the decoded row columns; with keys these, numbers and kinds are among them.
        """


class Copier(Protocol):
    """Concatenates input files of its format with as little decoding as possible."""

    def fetch(self, files: Sequence[Any]) -> list[Any]:
        """Read whole files, opened by the format, into memory; raises as `OpenFile.batches`."""

    def fetch_group(self, file: Any, group: int, rows: tuple[int, int] | None = None) -> Any:
        """Read one of a file's `row_groups`, as if it were a file; otherwise as `fetch`.

        `rows`: only rows with these numbers in the file, if the group has `row_pages`.
        """

    def open(self, storage: Storage, path: str) -> CopyingOutput:
        """Create a file. Raises `StorageError` when it exists."""


def _holds_all(type_: DataType) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """A format. Its options begin with its name, and names of its files end with it.

    `profile` samples files that are `open`; it decodes few of their rows or none.

    `encoding` returns the format's own encoding for a table's options and for the compression that
    applies unless the format has an option of its own. It raises `UsageError` for an invalid option
    of the run, and records invalid options of the table (`OptionTexts.unreadable`). `writer` gets
    this encoding and the leaf columns of output files (dotted paths) to encode with a dictionary.
    `copier` gets the same arguments; it is None if rows of the format must be decoded.

    `codecs` are the compressions that can be written, by Paimon's names. New files follow
    `options`, a parser by key; a parser raises ValueError with the expected form. A key that ends
    with `#` has the path of a column after it. `refused` are
    prefixes of options that a table may not have unless they are false, each with the reason.
    `holds` returns whether the format supports a column type.
    """

    name: str
    open: Callable[[Storage, Fetcher, InputFile], OpenFile]
    profile: Callable[[Sequence[Any], Layout], InputProfile]
    writer: Callable[[Layout, Any, Sequence[str]], FileWriter]
    encoding: Callable[[OptionTexts, str], Encoding]
    codecs: tuple[str, ...]
    copier: Callable[[Layout, Any, Sequence[str]], Copier] | None = None
    options: Mapping[str, Callable[[str], object]] = field(default_factory=dict)
    refused: tuple[tuple[str, str], ...] = ()
    holds: Callable[[DataType], bool] = _holds_all


@contextlib.contextmanager
def reading(path: str, format_name: str) -> Iterator[None]:
    """Convert errors of Arrow and of decoding to ours, which name the file.

    An `OSError` with an errno comes from the operating system: `StorageError`. Without one, Arrow
    reports that the bytes do not follow the format or a page its checksum: `DataFileDamaged`. Other
    errors of Arrow become `FormatError`: Arrow may only lack a feature.
    """
    try:
        yield
    except OSError as error:
        if error.errno == _ENOENT:
            raise ObjectNotFound(path, "read failed (no such file)") from error
        if error.errno is not None:
            raise TransientStorageError(path, f"read failed ({error.strerror})") from error
        raise DataFileDamaged(path, f"not a readable {format_name} file ({error})") from error
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise FormatError(path, f"not a readable {format_name} file ({error})") from error
