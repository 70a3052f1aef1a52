"""Inputs with columns that cannot be read as the table's, found together.

Otherwise each of them would need a try of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from compactord.errors import CompactordError, UnreadableColumn
from compactord.rewrite.reader import Input


def with_others(error: UnreadableColumn, inputs: Sequence[Input]) -> UnreadableColumn:
    """The same error, with those of other inputs as far as their footers show them."""
    found = []
    for each in inputs:
        if each.file.path == error.path:
            continue
        try:
            each.check()
        except UnreadableColumn as other:
            found.append(other)
        except CompactordError:
            # The next try fails for it.
            break
    return UnreadableColumn(error.path, error.message, tuple(found))


def named(error: Exception) -> tuple[tuple[str, str], ...]:
    """Path and message of each file; none of another error."""
    if not isinstance(error, UnreadableColumn):
        return ()
    return tuple((each.path, str(each)) for each in (error, *error.others))
