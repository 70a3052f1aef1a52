"""A store together with others, in which some of a table's files lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from compactord.storage.base import Capabilities, ObjectStatus, Storage


def with_others(storage: Storage, others: Mapping[str, Storage]) -> Storage:
    """The store, in which what is at or below one of these paths is that of another store.

    For whoever lists, reads ranges and deletes; all else concerns the first store alone.
    """
    return cast(Storage, _WithOthers(storage, others)) if others else storage


class _WithOthers:
    def __init__(self, inner: Storage, others: Mapping[str, Storage]) -> None:
        self._inner = inner
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def capabilities(self) -> Capabilities:
        found = [storage.capabilities for storage in (self._inner, *self._others.values())]
        return replace(found[0], behind_network=any(each.behind_network for each in found))

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        return self._at(folder).list(folder)

    def list_some(self, folder: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectStatus]:
        return self._at(folder).list_some(folder, is_wanted)

    def real_folder(self, path: str) -> str:
        return self._at(path).real_folder(path)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self._at(path).read_range(path, start, size)

    def delete(self, path: str) -> None:
        self._at(path).delete(path)

    def remove_empty_folder(self, path: str) -> bool:
        return self._at(path).remove_empty_folder(path)

    def _at(self, path: str) -> Storage:
        for root, storage in self._others.items():
            if f"{path}/".startswith(f"{root}/"):
                return storage
        return self._inner
