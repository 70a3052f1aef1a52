"""One listing of a folder in little memory: names as hashes, with sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from compactord.paimon.avro.columns import Ints
from compactord.storage.base import ObjectStatus


class FolderListing:
    """The files of a folder by hashes of their names, with sizes: 16 bytes each."""

    def __init__(self, folder: str, statuses: Iterable[ObjectStatus]) -> None:
        self.folder = folder
        pairs = ((hash(each.name), each.size_bytes) for each in statuses if not each.is_folder)
        found = np.fromiter(pairs, np.dtype([("name", np.int64), ("size", np.int64)]))
        found.sort(order="name")
        self._names: Ints = found["name"].copy()
        self._sizes: Ints = found["size"].copy()

    def sizes_of(self, names: Sequence[str]) -> Ints:
        """Bytes of each file, -1 where it is not listed."""
        wanted = np.fromiter(map(hash, names), np.int64, len(names))
        if not len(self._names):
            return np.full(len(names), -1)
        places = np.searchsorted(self._names, wanted)
        places[places == len(self._names)] = 0
        return np.where(self._names[places] == wanted, self._sizes[places], -1)
