"""Names of many files in little memory, and which of them metadata names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt


class FileNames:
    """Names by their hashes: a million take 9 MB. With the hash of another it is named."""

    def __init__(self, names: Iterable[str]) -> None:
        self._hashes = np.unique(hashes_of(names))
        self._is_named = np.zeros(len(self._hashes), dtype=np.bool_)

    @property
    def count(self) -> int:
        return len(self._hashes)

    @property
    def are_all_named(self) -> bool:
        return bool(self._is_named.all())

    def note(self, names: Iterable[str]) -> None:
        """These are named by metadata; many at once."""
        places, is_one = self._places(hashes_of(names))
        self._is_named[places[is_one]] = True

    def unnamed(self, names: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Whether each is one of them, and no metadata names it; many at once."""
        places, is_one = self._places(hashes_of(names))
        is_one[is_one] = ~self._is_named[places[is_one]]
        return is_one

    def is_unnamed(self) -> Callable[[str], bool]:
        """Whether one of them is not named as of now, for many that are asked for one by one."""
        unnamed = frozenset(self._hashes[~self._is_named].tolist())
        return lambda name: hash(name) in unnamed

    def _places(
        self, hashes: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Where each hash is, and whether it is there at all."""
        if not self.count:
            return hashes, np.zeros(len(hashes), np.bool_)
        places = np.searchsorted(self._hashes, hashes)
        places[places == len(self._hashes)] = 0
        return places, self._hashes[places] == hashes


def hashes_of(names: Iterable[str]) -> npt.NDArray[np.int64]:
    """A number for each name, in order; others in another process."""
    return np.fromiter(map(hash, names), dtype=np.int64)
