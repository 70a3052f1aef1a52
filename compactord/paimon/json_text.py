"""JSON out of a table's files, which anybody may have written."""

from __future__ import annotations

import json
from typing import Any

from compactord.errors import FormatError

# Columns of rows within rows take three levels each. What walks over a value may call itself for
# each level, several functions deep, and Python allows 1,000 calls.
_LEVELS_MAX = 100


def parse_json(data: bytes | str) -> Any:
    """Raises `ValueError` for what is no JSON, and for lists and objects nested 100 deep."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [found]
    for _ in range(_LEVELS_MAX):
        if not level:
            return found
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    raise ValueError("nested too deeply")


def parse_object(data: bytes | str, path: str, what: str) -> dict[str, Any]:
    """The members of an object. Raises `FormatError` where `path` has none; it should be `what`."""
    try:
        found = parse_json(data)
    except ValueError as error:
        raise FormatError(path, f"{what} that is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise FormatError(path, f"{what} that is not a JSON object")
    return found
