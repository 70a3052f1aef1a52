"""Durations and sizes of our own configuration and arguments: texts with units.

Units are those of Paimon's options, but they are required: a bare number would be milliseconds or
bytes, which nobody means. Only 0 needs none. Options of tables keep Paimon's own rules
(`paimon/options/values.py`). Every reader raises ValueError that says what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from compactord.paimon.options import values as option_values

_LEAST_ORPHAN_GRACE_MS = 3_600_000
_DURATION_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_SIZE_UNITS = (("tb", 1 << 40), ("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10))
_BARE = re.compile(r"[0-9]+")


def duration_text(amount_ms: int) -> str:
    """`90000` → `90 s`: exact, in the largest unit that leaves no rest."""
    for unit, size in _DURATION_UNITS:
        if amount_ms and amount_ms % size == 0:
            return f"{amount_ms // size} {unit}"
    return f"{amount_ms} ms"


def size_text(amount_bytes: int) -> str:
    """`536870912` → `512 mb`: exact, in the largest unit that leaves no rest."""
    for unit, size in _SIZE_UNITS:
        if amount_bytes and amount_bytes % size == 0:
            return f"{amount_bytes // size} {unit}"
    return f"{amount_bytes} b"


def duration_ms(text: str) -> int:
    """Milliseconds of `10 min`; `0` needs no unit."""
    return _with_unit(text, option_values.duration_ms, "a duration", "s", "min")


def size_bytes(text: str) -> int:
    """Bytes of `512 mb`; `0` needs no unit."""
    return _with_unit(text, option_values.memory_size, "a size", "mb", "gb")


def orphan_grace_ms(text: str) -> int:
    """A duration of at least an hour, as files of living processes wait that long."""
    grace_ms = duration_ms(text)
    if grace_ms < _LEAST_ORPHAN_GRACE_MS:
        raise ValueError("1 h or more: it must exceed the longest compaction")
    return grace_ms


def _with_unit(text: str, read: Callable[[str], int], kind: str, first: str, second: str) -> int:
    amount = text.strip()
    if _BARE.fullmatch(amount) and amount.strip("0"):
        shown = amount if len(amount) <= 20 else amount[:20] + "…"
        raise ValueError(f"{kind} with its unit, such as {shown} {first} or {shown} {second}")
    return read(amount)
