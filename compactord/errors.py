"""Everything compactord raises on purpose.

    CompactordError
    ├── UsageError                an argument, key or option that cannot be used (exit code 2)
    │   ├── CatalogOptionInvalid    an option of a catalog, by its key
    │   ├── NotAWarehouse           a folder within a warehouse
    │   └── UnknownScheme           a location in a store that is not supported
    ├── TableNotFound             no such warehouse, database or table (exit code 2)
    ├── UnsupportedTable          an unsupported feature, named; the table is unchanged
    ├── ErrorAtPath               `path` names the object
    │   ├── StorageError          a call to a store failed
    │   │   ├── ObjectNotFound
    │   │   │   └── DataFileMissing   a live data file: its bucket cannot be read or compacted
    │   │   ├── AccessDenied      permissions or a read-only store (exit code 77)
    │   │   │   └── ReadOnlyFileSystem  for every user
    │   │   ├── StoreMissing      no such bucket or container (exit code 2)
    │   │   ├── UnsafeStore       it replaces existing objects (exit code 2)
    │   │   ├── CatalogUnavailable  a catalog's database, server or lock; no commit was published
    │   │   │   └── CatalogDown       … temporarily: worth another try
    │   │   ├── StoreFull         no space or quota left
    │   │   └── TransientStorageError worth another try
    │   │       └── StoreSilent   it has not answered lately; requests resume later
    │   └── FormatError           bytes that violate the format
    │       ├── DataFileDamaged   a data file's bytes have changed since it was written
    │       └── FileNotSupported  … or that compactord cannot read
    │           └── UnreadableColumn  a column cannot be read as the table's
    ├── TableHeld                 live files are missing or damaged: no file is deleted
    ├── EngineUnavailable         the place where merges run cannot be reached (exit code 69)
    ├── CommitError
    │   ├── CommitGaveUp          retries or time used up; the table is unchanged
    │   └── CommitUnknown         unknown whether the snapshot was created; no file is deleted
    └── SubcompactionError        a merge failed permanently; its files are removed

Retry is decided by type and never by message text. Programmer errors are assertions and are not
caught. A message names the table or object, the expected and the found value, and the next step.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, Self


class CompactordError(Exception):
    """Root of the tree; a command prints its text without a stack trace."""


class UsageError(CompactordError):
    """A command line, configuration or option value that cannot be used."""


class CatalogOptionInvalid(UsageError):
    """`key` is an option that cannot be used; `expected` describes a valid value."""

    def __init__(self, key: str, expected: str) -> None:
        self.key = key
        self.expected = expected
        super().__init__(f"catalog option {key}: expected {expected}")

    def __reduce__(self) -> tuple[type[CatalogOptionInvalid], tuple[str, str]]:
        return CatalogOptionInvalid, (self.key, self.expected)


class UnknownScheme(UsageError):
    """No store has the location's scheme."""


class NotAWarehouse(UsageError):
    """A folder within a warehouse was given as one; `warehouse` is the one to use."""

    def __init__(self, folder: str, what: str, warehouse: str) -> None:
        self.folder, self.what, self.warehouse = folder, what, warehouse
        super().__init__(f"{folder} is the folder of {what}; its warehouse is {warehouse}")

    def __reduce__(self) -> tuple[type[NotAWarehouse], tuple[str, str, str]]:
        return NotAWarehouse, (self.folder, self.what, self.warehouse)


class TableNotFound(CompactordError):
    """The warehouse, the database or the table does not exist."""


class UnsupportedTable(CompactordError):
    """The table uses unsupported features, which `reasons` names."""

    def __init__(self, table: str, reasons: Sequence[str]) -> None:
        self.table = table
        self.reasons = tuple(reasons)
        super().__init__(f"table {table} is refused: " + "; ".join(self.reasons))

    def __reduce__(self) -> tuple[type[UnsupportedTable], tuple[str, tuple[str, ...]]]:
        return UnsupportedTable, (self.table, self.reasons)


class ErrorAtPath(CompactordError):
    """An error with the object at `path`."""

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
    """A data file of the newest snapshot, or its deletion vector's file, does not exist."""


class AccessDenied(StorageError):
    """The store forbids it: permissions, or a read-only file system."""


class ReadOnlyFileSystem(AccessDenied):
    """The file system is mounted read-only: no permission would help."""


class StoreMissing(StorageError):
    """There is no such bucket or container."""


class UnsafeStore(StorageError):
    """The store lacks the guarantee that commits need; `path` is where it was tested."""


class CatalogUnavailable(StorageError):
    """A catalog's database or server failed, or its lock is held; `path` is its address."""


class CatalogDown(CatalogUnavailable):
    """A catalog's database or server did not answer, or is not ready, like one that restarts."""


class StoreFull(StorageError):
    """No space or quota is left."""


class TransientStorageError(StorageError):
    """A failure that may be temporary: time-outs, interrupted calls, I/O errors."""


class StoreSilent(TransientStorageError):
    """The store has not answered lately; this call sent no request."""


class FormatError(ErrorAtPath):
    """Bytes that violate the format; `path` is the file that holds them."""


class DataFileDamaged(FormatError):
    """A data file, or its deletion vector's file, is not as it was written, for any schema.

    Its size is not the manifest's, a checksum is wrong, or its footer or a page header cannot be
    decoded.
    """


class FileNotSupported(FormatError):
    """A file that may be valid but cannot be read by compactord."""


class UnreadableColumn(FileNotSupported):
    """A column of a data file cannot be read as the table's: another type, name or nullability.

    `others` are the same errors of other inputs, if their footers show them.
    """

    def __init__(self, path: str, message: str, others: tuple[UnreadableColumn, ...] = ()) -> None:
        super().__init__(path, message)
        self.others = others

    def __reduce__(self) -> tuple[type[UnreadableColumn], tuple[Any, ...]]:
        return UnreadableColumn, (self.path, self.message, self.others)


class TableHeld(CompactordError):
    """Live files of the table are missing or damaged; commands delete none of its files."""


class EngineUnavailable(CompactordError):
    """The engine that runs subcompactions could not be reached, or is gone for good."""


class CommitError(CompactordError):
    """Publishing a snapshot did not succeed."""


class CommitGaveUp(CommitError):
    """In every attempt another commit came first, or time ran out; the table is unchanged."""


class CommitUnknown(CommitError):
    """The store did not confirm whether our snapshot was published; its files must be kept."""


class SubcompactionError(CompactordError):
    """A merge failed permanently; none of its files were published."""


class ErrorKind(enum.StrEnum):
    """The class of an error by its name, as it crosses processes and as JSON has it.

    The members are the kinds that decide something. Any other name is a value as well, so reports
    keep the names of foreign errors, for example of Spark's.
    """

    NONE = ""
    ACCESS_DENIED = "AccessDenied"
    CANCELLED = "Cancelled"
    COMMIT_GAVE_UP = "CommitGaveUp"
    DATA_FILE_DAMAGED = "DataFileDamaged"
    DATA_FILE_MISSING = "DataFileMissing"
    FORMAT_ERROR = "FormatError"
    OBJECT_NOT_FOUND = "ObjectNotFound"
    READ_ONLY_FILE_SYSTEM = "ReadOnlyFileSystem"
    STORE_FULL = "StoreFull"
    TABLE_NOT_FOUND = "TableNotFound"
    TIME_LIMIT_PASSED = "TimeLimitPassed"
    UNREADABLE_COLUMN = "UnreadableColumn"

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """The kind of an error."""
        return cls(type(error).__name__)

    def __reduce_ex__(self, protocol: Any) -> tuple[type[Self], tuple[str]]:
        # Python 3.11 pickles members by name, which other values lack.
        return type(self), (self.value,)

    @classmethod
    def _missing_(cls, value: object) -> Self:
        kind = str.__new__(cls, value)
        kind._name_ = kind._value_ = str(value)
        return kind
