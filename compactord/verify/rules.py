"""Settings, counters and findings of `verify`."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol, TypeVar

from compactord.errors import CompactordError, ErrorAtPath, FormatError, ObjectNotFound
from compactord.paimon.data_file import BucketId, DataFile, FileKey


class ReadFooter(Protocol):
    """Reads a data file's footer. Raises `FormatError` unless size and rows are the manifest's.

    Returns whether there is a reader for files of its format.
    """

    def __call__(self, path: str, file: DataFile) -> bool: ...


class PlacedFile(NamedTuple):
    """A file; `root` is its branch's folder with the schemas; `is_sorted`: its keys ascend."""

    path: str
    file: DataFile
    root: str
    is_sorted: bool


class PagesRead(NamedTuple):
    """The part of a file that was read: row groups, and the share of its rows, from 0 to 1.

    `left_out` are columns that its schema lacks or whose type is not supported.
    """

    groups: int
    part: float
    left_out: tuple[str, ...] = ()


class ReadPages(Protocol):
    """Reads a share of a file's row groups, picked by `random`: at least one, all for 1.0.

    Returns a text if the file cannot be read here. Raises `FormatError` if it differs from its
    manifest entry.
    """

    def __call__(self, file: PlacedFile, share: float, random: Random) -> PagesRead | str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRules:
    """Pages are read of `share` of all files' bytes, above 0 and up to 1."""

    share: float
    read: ReadPages


@dataclass(slots=True, kw_only=True)
class PageCounts:
    """Amounts of data files, of pages that were read, and of deletion vectors.

    `unread`: reasons why files were not read completely, with the number of files.
    """

    size_bytes: int = 0
    read_bytes: int = 0
    groups: int = 0
    files: int = 0
    vectors: int = 0
    unread: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """The share of the bytes that was read, from 0 to 1."""
        return self.read_bytes / max(1, self.size_bytes)

    def add(self, other: PageCounts) -> None:
        """Include the counts of a later check."""
        self.size_bytes += other.size_bytes
        self.read_bytes += other.read_bytes
        self.groups += other.groups
        self.files += other.files
        self.vectors += other.vectors
        self.unread += other.unread


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """The layout of a table's files by its schema, and the extent of the check.

    `check_levels` raises `FormatError` when files of a bucket above level 0 overlap; it is None if
    the table has no primary key. Footers are read of `sample` files, or of all if None. Without
    `pages` no pages are read. `indexes_in_buckets`: index files are expected in buckets' folders.
    `is_sorted`: files of a bucket have their keys in ascending order.
    """

    bucket_folder: Callable[[BucketId], str]
    check_levels: Callable[[Sequence[DataFile]], object] | None
    read_footer: ReadFooter
    sample: int | None
    random: Random
    pages: PageRules | None = None
    indexes_in_buckets: bool = False
    is_sorted: bool = False


@dataclass(slots=True, kw_only=True)
class FileCounts:
    """Verified files, footers and pages. `external` counts files in other stores, not verified.

    `unread`: reasons why footers were not read, with the number of files. `index_types`: the number
    of index files of each type.
    """

    files: int = 0
    external: int = 0
    footers: int = 0
    extra_files: int = 0
    unread: Counter[str] = field(default_factory=Counter)
    index_types: Counter[str] = field(default_factory=Counter)
    missing: list[FileKey] = field(default_factory=list)
    pages: PageCounts = field(default_factory=PageCounts)

    def add_contents(self, other: FileCounts) -> None:
        """Include the footers and pages that an earlier check read."""
        self.footers += other.footers
        self.unread += other.unread
        self.pages.add(other.pages)


T = TypeVar("T")
R = TypeVar("R")


class FindingKind(enum.Enum):
    """Kinds of findings. CANNOT_BE_READ: the store failed, so the file's condition is unknown."""

    SNAPSHOT_MISSING = "snapshot_missing"
    HINT_WRONG = "hint_wrong"
    METADATA_MISSING = "metadata_missing"
    METADATA_DAMAGED = "metadata_damaged"
    DATA_FILE_MISSING = "data_file_missing"
    DATA_FILE_SIZE = "data_file_size"
    DATA_FILE_DAMAGED = "data_file_damaged"
    CHANGELOG_FILE_MISSING = "changelog_file_missing"
    LEVELS_OVERLAP = "levels_overlap"
    INDEX_FILE_MISSING = "index_file_missing"
    INDEX_FILE_SIZE = "index_file_size"
    INDEX_FILE_DAMAGED = "index_file_damaged"
    VECTOR_WITHOUT_FILE = "vector_without_file"
    CANNOT_BE_READ = "cannot_be_read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem of the file at `path`, with advice for operators.

    `needed_by` are the versions of the table that need it: `snapshot 7`, `tag x`.
    """

    kind: FindingKind
    path: str
    message: str
    advice: str
    needed_by: tuple[str, ...] = ()


CANNOT_BE_READ_ADVICE = "Fix the store or the permission, then verify again."
DAMAGED_ADVICE = (
    "Restore it from a backup or from an older version of the object; or roll the table back to a "
    "snapshot that does not need it."
)


def read_finding(
    path: str,
    error: CompactordError,
    *,
    missing: FindingKind = FindingKind.METADATA_MISSING,
    damaged: FindingKind = FindingKind.METADATA_DAMAGED,
) -> Finding:
    """The finding for an error of reading `path`; kinds default to metadata's."""
    message = error.message if isinstance(error, ErrorAtPath) else str(error)
    match error:
        case ObjectNotFound():
            kind, message, advice = missing, "does not exist", DAMAGED_ADVICE
        case FormatError():
            kind, advice = damaged, DAMAGED_ADVICE
        case _:
            kind, advice = FindingKind.CANNOT_BE_READ, CANNOT_BE_READ_ADVICE
    return Finding(kind=kind, path=path, message=message, advice=advice)


def attempted(call: Callable[[T], R]) -> Callable[[T], R | CompactordError]:
    """`call`, returning its error instead of raising it: the remaining requests must run."""

    def tried(item: T) -> R | CompactordError:
        try:
            return call(item)
        except CompactordError as error:
            return error

    return tried
