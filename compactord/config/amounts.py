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
_DURATION_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))
_SIZE_UNITS = (("tb", 1 << 40), ("gb", 1 << 30), ("mb", 1 << 20), ("kb", 1 << 10), ("b", 1))
_BARE = re.compile(r"[0-9]+")


def duration_text(amount_ms: int) -> str:
    """`90000` → `90 s`: exact, in the largest unit that leaves no rest."""
    return _text(amount_ms, _DURATION_UNITS)


def size_text(amount_bytes: int) -> str:
    """`536870912` → `512 mb`: exact, in the largest unit that leaves no rest."""
    return _text(amount_bytes, _SIZE_UNITS)


def _text(amount: int, units: tuple[tuple[str, int], ...]) -> str:
    smallest = units[-1]
    unit, size = next((one for one in units if amount and amount % one[1] == 0), smallest)
    return f"{amount // size} {unit}"


def duration_ms(text: str) -> int:
    """Milliseconds of `10 min`; `0` needs no unit."""
    return _with_unit(text, option_values.duration_ms, "a duration", "s", "min")


def size_bytes(text: str) -> int:
    """Bytes of `512 mb`; `0` needs no unit."""
    return _with_unit(text, option_values.memory_size, "a size", "mb", "gb")


def orphan_grace_ms(text: str) -> int:
    """A duration of at least an hour, which files of living processes wait; else `ValueError`."""
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
