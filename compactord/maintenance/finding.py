"""What `verify` finds wrong with a table."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from compactord.errors import CompactordError, ErrorAtPath, FormatError, ObjectNotFound

T = TypeVar("T")
R = TypeVar("R")


class FindingKind(enum.Enum):
    """What is wrong. CANNOT_BE_READ: the store did not answer, so it is not known."""

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
    """`message` says what is wrong at `path`, `advice` what to do.

    `needed_by` are the versions of the table that need it: `snapshot 7`, `tag x`.
    """

    kind: FindingKind
    path: str
    message: str
    advice: str
    needed_by: tuple[str, ...] = ()


CANNOT_BE_READ_ADVICE = "Mend the store or the permission, then verify again."
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
    """The finding that reading a file at `path` failed with; the kinds are those of metadata."""
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
    """`call`, returning what it would raise: one failure must not end the other requests."""

    def tried(item: T) -> R | CompactordError:
        try:
            return call(item)
        except CompactordError as error:
            return error

    return tried
