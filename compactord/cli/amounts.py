"""Durations and sizes as arguments. Quick to import, for commands that only query a service.

Errors are `UsageError`s that name the argument and the expected value.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from compactord.config.values import (
    LEAST_TASK_MEMORY_BYTES,
    duration_ms,
    orphan_grace_ms,
    size_bytes,
)
from compactord.errors import UsageError
from compactord.text import size_text

T = TypeVar("T")
_ANY = range(sys.maxsize)
# By argument: its parser, the allowed milliseconds or bytes, and these in words.
_AMOUNTS: Mapping[str, tuple[Callable[[str], int], range, str]] = {
    "append_wait": (duration_ms, _ANY, ""),
    "quiet_for": (duration_ms, _ANY, ""),
    "memory": (
        size_bytes,
        _ANY[LEAST_TASK_MEMORY_BYTES:],
        f"{size_text(LEAST_TASK_MEMORY_BYTES)} or more for a merge",
    ),
    "interval": (duration_ms, range(200, 3_600_001), "200 ms to 1 h"),
    "orphan_grace": (orphan_grace_ms, _ANY, ""),
    "task_timeout": (duration_ms, _ANY[1000:], "1 s or more"),
    # Applies to files of unknown writers, whose clocks may differ.
    "older_than": (
        duration_ms,
        _ANY[3_600_000:],
        "1 h or more: writers publish files some time after they write them",
    ),
}


def amount_of(args: argparse.Namespace, name: str, default: T) -> int | T:
    """An argument in milliseconds or bytes; `default` if it was not given.

    Raises `UsageError` with the argument's name, as all functions here do.
    """
    text = getattr(args, name)
    if text is None:
        return default
    read, allowed, expected = _AMOUNTS[name]
    try:
        amount = read(text)
        if amount not in allowed:
            raise ValueError(expected)
    except ValueError as error:
        raise UsageError(f"--{name.replace('_', '-')} {text!r}: expected {error}") from error
    return amount


def check_amounts(args: argparse.Namespace) -> None:
    """Raises `UsageError` for a duration or size that no table can use."""
    for name in _AMOUNTS.keys() & vars(args).keys():
        amount_of(args, name, None)
