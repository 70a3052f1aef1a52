"""Option texts of a table, under the texts of one run, with their origin.

An invalid value raises an error if the run sets it: its command line or configuration is wrong. If
the table sets it, it is recorded, and the table is refused with that reason.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from compactord.errors import UsageError
from compactord.paimon.options import values as option_values
from compactord.paimon.options.catalogue import canonical_key, find, reader_of

_T = TypeVar("_T")


class OptionTexts:
    """`merged` is all texts. `unreadable` has, by key, the expected form of a table's invalid
    value.
    """

    def __init__(self, table: Mapping[str, str], run: Mapping[str, str]) -> None:
        self._run = {canonical_key(key): value for key, value in run.items()}
        self.merged = {**table, **self._run}
        self.unreadable: dict[str, str] = {}

    def text(self, key: str) -> tuple[str, str] | None:
        """The key in the options, present or former, and its text. None if it is not set."""
        option = find(key)
        former = option.former if option is not None else ()
        for candidate in (key, *former):
            if candidate in self.merged:
                return candidate, self.merged[candidate]
        return None

    def read(self, key: str, default: _T, parse: Callable[[str], _T] | None = None) -> _T:
        """The value, parsed by `parse`, or by the type of the default if it is an enumeration, or
        by the option's type. Raises `UsageError` for an invalid value of the run.
        """
        if parse is None and isinstance(default, enum.Enum):
            parse = option_values.enumeration(type(default))
        found = self.maybe(key, parse)
        return default if found is None else found

    def maybe(self, key: str, parse: Callable[[str], _T] | None = None) -> _T | None:
        """As `read`, or None if the option is not set."""
        found = self.text(key)
        return None if found is None else self._parsed(*found, parse or _reader(key))

    def strictly(self, key: str, default: _T, parse: Callable[[str], _T] | None = None) -> _T:
        """As `read`, but raises `ValueError` with the option's name for a table's value as well."""
        text = self.merged.get(key)
        if text is None:
            return default
        try:
            return (parse or _reader(key))(text)
        except ValueError as error:
            raise ValueError(f"option {key}={text!r}: expected {error}") from None

    def level_map(self, key: str, parse: Callable[[str], _T]) -> dict[int, _T]:
        """A map by level, from one text or from one key per level."""
        values: dict[int, _T] = {}
        for name, level_text, text in self._by_level(key):
            level = self._parsed(name, level_text, option_values.integer)
            value = self._parsed(name, text, parse)
            if level is not None and value is not None:
                values[level] = value
        return values

    def by_column(self, key: str, parse: Callable[[str], _T]) -> dict[str, _T]:
        """The values of the keys `key#<path of a column>`, by path."""
        prefix = f"{key}#"
        found = {
            name.removeprefix(prefix): self._parsed(name, text, parse)
            for name, text in self.merged.items()
            if name.startswith(prefix)
        }
        return {path: value for path, value in found.items() if value is not None}

    def _by_level(self, key: str) -> Iterator[tuple[str, str, str]]:
        """Each key with its level and value."""
        found = self.text(key)
        if found is not None:
            pairs = self._parsed(*found, option_values.mapping) or {}
            yield from ((found[0], level, text) for level, text in pairs.items())
            return
        prefix = key + "."
        for name, text in self.merged.items():
            if name.startswith(prefix):
                yield name, name.removeprefix(prefix), text

    def _parsed(self, key: str, text: str, parse: Callable[[str], _T]) -> _T | None:
        """None if the table's text cannot be parsed."""
        try:
            return parse(text)
        except ValueError as error:
            if key in self._run:
                raise UsageError(f"option {key}={text!r} of this run: expected {error}") from error
            self.unreadable.setdefault(key, f"option {key}={text!r}: expected {error}")
            return None


def _reader(key: str) -> Callable[[str], Any]:
    option = find(key)
    assert option is not None, f"{key} is in the catalogue"
    return reader_of(option)
