"""A file format whose files have a companion: the number of their rows, in a file beside each."""

from __future__ import annotations

import contextlib
import posixpath
from dataclasses import replace
from typing import ClassVar

from compactord.errors import StorageError
from compactord.paimon.data_file import ColumnBounds
from compactord.storage.base import Storage
from tests.unit.formats.arrow_files import ARROW, ArrowOutput, ArrowWriter


class CountedOutput(ArrowOutput):
    """Its companion is there once it is closed."""

    # Of how many outputs from now on the companion vanishes.
    lost: ClassVar[int] = 0
    # From which output on, counted down, none can be opened; 0: each can.
    last: ClassVar[int] = 0
    storage: Storage

    def close(self) -> list[ColumnBounds]:
        bounds = super().close()
        path = f"{self.path}.count"
        if CountedOutput.lost:
            CountedOutput.lost -= 1
        else:
            self.storage.write_new(path, f"{self.rows}".encode())
        self.companions = (posixpath.basename(path),)
        return bounds

    def abort(self, error: BaseException) -> None:
        super().abort(error)
        with contextlib.suppress(StorageError):
            self.storage.delete(f"{self.path}.count")


class CountedWriter(ArrowWriter):
    def open(self, storage: Storage, path: str) -> CountedOutput:
        if CountedOutput.last == 1:
            raise StorageError(path, "no room")
        CountedOutput.last = max(0, CountedOutput.last - 1)
        output = CountedOutput(storage, path, self._layout, self._encoding)
        output.storage = storage
        return output


COUNTED = replace(ARROW, writer=CountedWriter)
