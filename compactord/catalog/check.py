"""A check of `compactord doctor`: a finding in one line, with what to do about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass


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
