"""What the verification of data files is given, and what it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from compactord.maintenance.expire_reader import FileKey
from compactord.paimon.data_file import BucketId, DataFile


class ReadFooter(Protocol):
    """Reads a data file's footer. Raises `FormatError` unless size and rows are the manifest's.

    Returns whether there is a reader for files of its format.
    """

    def __call__(self, path: str, file: DataFile) -> bool: ...


class PlacedFile(NamedTuple):
    """A file and its path. `root` is where the schemas are with which its branch is read.

    `is_sorted`: its keys ascend.
    """

    path: str
    file: DataFile
    root: str
    is_sorted: bool


class PagesRead(NamedTuple):
    """What was read of a file: a number of row groups, and the part of its rows, from 0 to 1.

    `left_out` are columns that its schema does not have, and those of types that are not supported.
    """

    groups: int
    part: float
    left_out: tuple[str, ...] = ()


class ReadPages(Protocol):
    """Reads a share of a file's row groups, picked by `random`: at least one, of 1.0 all.

    Returns as text why the file cannot be read here. Raises `FormatError` unless it is as the
    manifest says.
    """

    def __call__(self, file: PlacedFile, share: float, random: Random) -> PagesRead | str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRules:
    """`share`: of the bytes of all files, above 0 and up to 1, pages are read."""

    share: float
    read: ReadPages


@dataclass(slots=True, kw_only=True)
class PageCounts:
    """Bytes of data files, those of which pages were read, row groups and files; vectors.

    `unread`: why files were not read, or not all of them, with the number of files.
    """

    size_bytes: int = 0
    read_bytes: int = 0
    groups: int = 0
    files: int = 0
    vectors: int = 0
    unread: Counter[str] = field(default_factory=Counter)

    @property
    def share(self) -> float:
        """The read part of the bytes, from 0 to 1."""
        return self.read_bytes / max(1, self.size_bytes)

    def add(self, other: PageCounts) -> None:
        """Include what was read later."""
        self.size_bytes += other.size_bytes
        self.read_bytes += other.read_bytes
        self.groups += other.groups
        self.files += other.files
        self.vectors += other.vectors
        self.unread += other.unread


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """What the schema says of a table's files.

    `check_levels` raises `FormatError` when files of a bucket above level 0 overlap; None: the
    table has no primary key. `sample`: of so many files footers are read; None: of all. `pages`
    None: pages are not read. `indexes_in_buckets`: index files are expected beside data files.
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
    """What was verified: files, footers, pages. `external`: files in other stores, which were not.

    `unread`: why footers were not read, with the number of files. `index_types`: how many index
    files of each type there are.
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
        """Include what was read inside of files by an earlier check."""
        self.footers += other.footers
        self.unread += other.unread
        self.pages.add(other.pages)
