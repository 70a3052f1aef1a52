"""A check of `compactord doctor`: a finding in one line, with what to do about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from compactord import ids
from compactord.commit.publish import CatalogLock
from compactord.errors import CompactordError
from compactord.paimon.schema import TableRef


class Verdict(enum.Enum):
    """FAILED: compactord cannot work so. WARNING: it can, but look at it."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was found; `advice` says what to do, empty where nothing is."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""


def failed_check(name: str, found: str, advice: str) -> Check:
    """A check that failed."""
    return Check(name=name, verdict=Verdict.FAILED, found=found, advice=advice)


def lock_check(lock: CatalogLock, *, refused: str, lost: str) -> Check:
    """Whether a catalog's lock can be taken and given back.

    `refused` and `lost` say what to do where it cannot be taken, or does not stay.
    """
    # No table has such a name, so no writer waits.
    nothing = TableRef(database=".compactord-probe", name=ids.random_uuid(), location="")
    try:
        was_ours = lock.acquire(nothing).release()
    except CompactordError as error:
        return failed_check("lock", str(error), refused)
    if not was_ours:
        return failed_check("lock", "a lock that was taken did not stay", lost)
    found = "taken and given back; all writers of its tables must have lock.enabled, too"
    return Check(name="lock", verdict=Verdict.OK, found=found)
