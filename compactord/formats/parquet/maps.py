"""MAP columns whose keys are declared optional, which Arrow refuses together with their whole file.

Release 0.8 declares them so (format/parquet/ParquetSchemaConverter.java of that release).
"""

from __future__ import annotations

from collections.abc import Sequence

from compactord.errors import FormatError
from compactord.formats.parquet.structs import Converted, Element, Logical, Repetition
from compactord.formats.parquet.thrift import Kind, Struct, required

# Elements lie in depth-first order: the map, its repeated group, the key.
_KEY_BEHIND_MAP = 2


def check_keys(elements: Sequence[Struct], path: str) -> None:
    """Raise `FormatError` naming the first map whose keys may be null."""
    for element, key in zip(elements, elements[_KEY_BEHIND_MAP:], strict=False):
        if _is_map(element) and _is_optional(key):
            name = required(element, Element.NAME, Kind.BINARY).decode(errors="replace")
            raise FormatError(
                path,
                f"MAP {name} has keys that are declared optional, as Paimon 0.8 declares them,"
                " and cannot be read here; Java Paimon 0.9 and later read such a file, and write"
                " readable ones when they compact it",
            )


def _is_map(element: Struct) -> bool:
    old, logical = element.get(Element.CONVERTED), element.get(Element.LOGICAL)
    if logical is not None:
        return Logical.MAP in logical.value
    return old is not None and old.value == Converted.MAP


def _is_optional(element: Struct) -> bool:
    found = element.get(Element.REPETITION)
    return found is not None and found.value == Repetition.OPTIONAL
