"""Amounts as people read them."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(size_bytes: float) -> str:
    """`1.5 MiB`: three significant digits at most."""
    for unit in _UNITS:
        if size_bytes < 1024 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    digits = 0 if unit == "B" or size_bytes >= 100 else 1
    return f"{size_bytes:.{digits}f} {unit}"


def count_text(count: int, what: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"
