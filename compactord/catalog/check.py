"""The result of one check of `compactord doctor`, and the check of locks.

A module of its own, because every catalog imports it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from compactord import ids
from compactord.commit.publish import CatalogLock
from compactord.errors import CompactordError
from compactord.paimon.schema import TableRef


class Verdict(enum.Enum):
    """FAILED: compactord cannot work. WARNING: it can, but an operator should look at it."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A finding, and `advice` for the operator, empty if no action is needed."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def failed_check(name: str, found: str, advice: str) -> Check:
    return Check(name=name, verdict=Verdict.FAILED, found=found, advice=advice)


def lock_check(lock: CatalogLock, *, refused: str, lost: str) -> Check:
    """Checks that a catalog's lock can be taken and released.

    `refused` and `lost` are the advice if it cannot be taken, or does not last.
    """
    # No table has such a name, so no writer waits.
    nothing = TableRef(database=".compactord-probe", name=ids.random_uuid(), location="")
    try:
        was_ours = lock.acquire(nothing).release()
    except CompactordError as error:
        return failed_check("lock", str(error), refused)
    if not was_ours:
        return failed_check("lock", "a lock that was taken was lost", lost)
    found = "taken and released; all writers of its tables must also have lock.enabled"
    return Check(name="lock", verdict=Verdict.OK, found=found)
