"""Kinds of faults with their scope, and the current faults of a simulated world.

The table of `docs/design.md`, "Scope of failures", has the same kinds and sizes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from compactord.commit.changes import LossOutcome
from compactord.errors import (
    AccessDenied,
    CatalogUnavailable,
    CommitGaveUp,
    CompactordError,
    FormatError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
)
from compactord.model import FailureKind, TableName

T = TypeVar("T")
# How long a call waits for somebody who does not answer.
SILENCE_MS = 30_000


class Size(enum.Enum):
    """What a fault may stop, and no more."""

    BUCKET = "bucket"
    TABLE = "table"
    CATALOG = "catalog"
    STORE = "store"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind; what it does to the scheduler is the rest, which is nothing unless told.

    `look` and `commit` are the errors of cycles, `commit` of those that publish. `dispatch` is that
    of cutting a compaction of the bucket, `merge` how its merges fail, `hangs`: not at all.
    `is_silent`: the error comes after `SILENCE_MS`. A listing that hangs tells the scheduler
    nothing.
    """

    what: str
    size: Size
    look: CompactordError | None = None
    commit: CompactordError | None = None
    dispatch: CompactordError | None = None
    merge: FailureKind | None = None
    hangs: bool = False
    is_silent: bool = False
    loses_ours: bool = False
    loses_theirs: LossOutcome | None = None


def _of_store(what: str, error: StorageError, *, is_silent: bool = False) -> Fault:
    """Whatever is asked of it fails so."""
    return Fault(
        what=what,
        size=Size.STORE,
        look=error,
        commit=error,
        dispatch=error,
        merge=FailureKind.TRANSIENT,
        is_silent=is_silent,
    )


_DATABASE = CatalogUnavailable("jdbc:postgresql://db/paimon", "it fails")
_UNREADABLE = FormatError("/t", "torn")
FAULTS = (
    Fault(
        what="a damaged key, or files of a level that overlap",
        size=Size.BUCKET,
        dispatch=FormatError("/t/bucket-0", "files of level 5 overlap"),
    ),
    Fault(what="a damaged data file", size=Size.BUCKET, merge=FailureKind.POISON),
    Fault(what="a subcompaction that fails", size=Size.BUCKET, merge=FailureKind.TRANSIENT),
    Fault(what="a subcompaction that hangs", size=Size.BUCKET, hangs=True),
    Fault(
        what="an unreadable snapshot, schema or manifest",
        size=Size.TABLE,
        look=_UNREADABLE,
        commit=_UNREADABLE,
        dispatch=_UNREADABLE,
    ),
    Fault(what="a halt", size=Size.TABLE, loses_ours=True),
    Fault(what="a lost commit", size=Size.TABLE, loses_theirs=LossOutcome.HALTED),
    Fault(what="a commit given up", size=Size.TABLE, commit=CommitGaveUp("lost too often")),
    Fault(what="a database that is silent", size=Size.CATALOG, commit=_DATABASE, is_silent=True),
    Fault(
        what="a database that refuses logins",
        size=Size.CATALOG,
        commit=AccessDenied("jdbc:postgresql://db/paimon", "password authentication failed"),
    ),
    Fault(what="a database that is down", size=Size.CATALOG, commit=_DATABASE),
    Fault(what="a listing that hangs", size=Size.CATALOG),
    _of_store(
        "an endpoint that is silent", TransientStorageError("/t", "timed out"), is_silent=True
    ),
    _of_store("an endpoint that answers 503", TransientStorageError("/t", "SlowDown")),
    _of_store("an endpoint that answers 403", AccessDenied("/t", "AccessDenied")),
    _of_store("an endpoint that answers 404 for what is there", ObjectNotFound("/t", "none")),
)


@dataclass(frozen=True)
class Ill:
    """A fault that lasts, with the tables that it may stop; of one of a bucket the bucket alone."""

    fault: Fault
    tables: Collection[TableName]
    bucket: int | None = None

    def stops(self, name: TableName, bucket: int) -> bool:
        return name in self.tables and self.bucket in (None, bucket)


class Faults:
    """What ails a world now. Errors are None where nothing does."""

    def __init__(self) -> None:
        self.now: list[Ill] = []

    def get_well(self, ill: Ill) -> None:
        """This one is over, if nobody has ended all before."""
        self.now = [each for each in self.now if each is not ill]

    def stops(self, name: TableName, bucket: int) -> bool:
        """Whether a bucket is within the size of a fault."""
        return any(ill.stops(name, bucket) for ill in self.now)

    def of_cycle(self, name: TableName, *, commits: bool) -> CompactordError | None:
        return self._first(name, lambda f: f.commit if commits else f.look)

    def of_dispatch(self, name: TableName, bucket: int) -> CompactordError | None:
        return self._first(name, lambda f: f.dispatch, bucket)

    def of_merge(self, name: TableName, bucket: int) -> FailureKind | None:
        return self._first(name, lambda f: f.merge, bucket)

    def merge_hangs(self, name: TableName, bucket: int) -> bool:
        return bool(self._first(name, lambda f: f.hangs or None, bucket))

    def loses_ours(self, name: TableName) -> bool:
        return bool(self._first(name, lambda f: f.loses_ours or None))

    def loses_theirs(self, name: TableName) -> LossOutcome | None:
        return self._first(name, lambda f: f.loses_theirs)

    def silence_ms(self, name: TableName, *, commits: bool) -> int | None:
        """How long a job of the table takes; None: as long as any."""
        hit = self._first(
            name, lambda f: (f.commit if commits else f.look) if f.is_silent else None
        )
        return None if hit is None else SILENCE_MS

    def _first(
        self, name: TableName, what: Callable[[Fault], T | None], bucket: int | None = None
    ) -> T | None:
        """What the first fault does that does anything to this bucket, without one to the table."""
        found = (
            what(ill.fault)
            for ill in self.now
            if name in ill.tables and ill.bucket in (None, bucket)
        )
        return next((each for each in found if each is not None), None)
