"""Everything compactord raises on purpose.

    CompactordError
    ├── UsageError                an argument, key or option that cannot be used (exit code 2)
    │   ├── CatalogOptionInvalid    an option of a catalog, by its key
    │   └── UnknownScheme           a location in a store that is not supported
    ├── TableNotFound             no such warehouse, database or table (exit code 2)
    ├── UnsupportedTable          a feature we refuse, named; nothing was read or written
    ├── ErrorAtPath               `path` names the object
    │   ├── StorageError          a call to a store failed
    │   │   ├── ObjectNotFound
    │   │   │   └── DataFileMissing   a live data file: its bucket cannot be read or compacted
    │   │   ├── AccessDenied      permissions or a read-only store (exit code 77)
    │   │   │   └── ReadOnlyFileSystem  whoever asks
    │   │   ├── StoreMissing      no such bucket or container (exit code 2)
    │   │   ├── UnsafeStore       it replaces what it was told to create (exit code 2)
    │   │   ├── CatalogUnavailable  a catalog's database, server or lock; nothing was published
    │   │   │   └── CatalogDown       … which may be back soon: worth another try
    │   │   ├── StoreFull         no space or quota left
    │   │   └── TransientStorageError worth another try
    │   │       └── StoreSilent   it has not answered lately, and is asked again later
    │   └── FormatError           bytes that are not what the format says
    │       ├── DataFileDamaged   a data file's bytes have changed since it was written
    │       └── FileNotSupported  … or no more than is understood here
    │           └── UnreadableColumn  a column cannot be read as the table's
    ├── TableHeld                 live files are missing or damaged: nothing is deleted
    ├── EngineUnavailable         the place where merges run cannot be reached (exit code 69)
    ├── CommitError
    │   ├── CommitGaveUp          retries or time used up; the table is unchanged
    │   └── CommitUnknown         unknown whether the snapshot was created; nothing is deleted
    └── SubcompactionError        a merge failed for good; its files are removed

Retry is decided by type and never by message text. Programmer errors are assertions and are not
caught. A message says which table or object, what was expected, what was found, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class CompactordError(Exception):
    """Root of the tree; a command prints its text without a stack trace."""


class UsageError(CompactordError):
    """A command line, configuration or option value that cannot be used."""


class CatalogOptionInvalid(UsageError):
    """`key` is an option that cannot be used; `expected` says what can, without its value."""

    def __init__(self, key: str, expected: str) -> None:
        self.key = key
        self.expected = expected
        super().__init__(f"catalog option {key}: expected {expected}")

    def __reduce__(self) -> tuple[type[CatalogOptionInvalid], tuple[str, str]]:
        return CatalogOptionInvalid, (self.key, self.expected)


class UnknownScheme(UsageError):
    """No store has the location's scheme."""


class TableNotFound(CompactordError):
    """The warehouse, the database or the table does not exist."""


class UnsupportedTable(CompactordError):
    """The table uses features that are not supported yet; `reasons` names each of them."""

    def __init__(self, table: str, reasons: Sequence[str]) -> None:
        self.table = table
        self.reasons = tuple(reasons)
        super().__init__(f"table {table} is refused: " + "; ".join(self.reasons))

    def __reduce__(self) -> tuple[type[UnsupportedTable], tuple[str, tuple[str, ...]]]:
        return UnsupportedTable, (self.table, self.reasons)


class ErrorAtPath(CompactordError):
    """What went wrong with the object at `path`."""

    def __init__(self, path: str, message: str) -> None:
        self.path = path
        self.message = message
        super().__init__(f"{message}: {path}")

    def __reduce__(self) -> tuple[type[ErrorAtPath], tuple[Any, ...]]:
        return type(self), (self.path, self.message)


class StorageError(ErrorAtPath):
    """A store failed; `path` is the requested object."""


class ObjectNotFound(StorageError):
    """The object does not exist."""


class DataFileMissing(ObjectNotFound):
    """A data file that the newest snapshot needs, or the file of its vector, does not exist."""


class AccessDenied(StorageError):
    """The store forbids it: permissions, or a read-only file system."""


class ReadOnlyFileSystem(AccessDenied):
    """The file system is mounted read-only: no permission would help."""


class StoreMissing(StorageError):
    """There is no such bucket or container."""


class UnsafeStore(StorageError):
    """The store does not keep the promise on which commits rest; `path` is where it was tried."""


class CatalogUnavailable(StorageError):
    """A catalog's database or server failed, or its lock is held; `path` is its address."""


class CatalogDown(CatalogUnavailable):
    """A catalog's database or server gave no answer, or none for now, as one that restarts."""


class StoreFull(StorageError):
    """No space or quota is left."""


class TransientStorageError(StorageError):
    """A failure that may be temporary: time-outs, interrupted calls, I/O errors."""


class StoreSilent(TransientStorageError):
    """The store has not answered lately; this call did not ask it."""


class FormatError(ErrorAtPath):
    """Bytes that are not what the format says; `path` is the file that holds them."""


class DataFileDamaged(FormatError):
    """A data file, or the file of its vector, is not as it was written, whatever its schema.

    Its size is not the manifest's, a checksum does not hold, or its footer cannot be decoded.
    """


class FileNotSupported(FormatError):
    """A file that may be right and that others may read, which cannot be read here."""


class UnreadableColumn(FileNotSupported):
    """A column of a data file cannot be read as the table's: another type, name or nullability.

    `others` are the same of other inputs, as far as footers show it.
    """

    def __init__(self, path: str, message: str, others: tuple[UnreadableColumn, ...] = ()) -> None:
        super().__init__(path, message)
        self.others = others

    def __reduce__(self) -> tuple[type[UnreadableColumn], tuple[Any, ...]]:
        return UnreadableColumn, (self.path, self.message, self.others)


class TableHeld(CompactordError):
    """Live files of the table are missing or damaged; no command deletes anything of it."""


class EngineUnavailable(CompactordError):
    """The engine that runs subcompactions could not be reached, or is gone for good."""


class CommitError(CompactordError):
    """Publishing a snapshot did not succeed."""


class CommitGaveUp(CommitError):
    """In every attempt another commit came first, or time ran out; the table is unchanged."""


class CommitUnknown(CommitError):
    """The store did not confirm whether our snapshot was published; its files must be kept."""


class SubcompactionError(CompactordError):
    """A merge failed for good; nothing of it was published."""
