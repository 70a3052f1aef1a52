"""Objects as streams: what Arrow writes, and what is read piece by piece, in time."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opendal.file import File

# What is handed to the library at once; it cuts its own parts out of it.
_WRITE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16
# What comes more slowly for longer than an answer may take does not come.
_SLOWEST_BYTES_PER_S = 1 << 16
_LONGEST_FACTOR = 10


def pieces_in_time(read: Callable[[int], bytes], seconds: float, bytes_max: int) -> Iterator[bytes]:
    """What `read` returns, which waits for one piece at most, until it is empty.

    Raises `TimeoutError` where it takes longer than `seconds` and as many bytes need, ten times
    that at most, and `OSError` beyond `bytes_max`. By the machine's own clock, as the libraries.
    """
    began_s, count = time.monotonic(), 0
    while piece := read(min(_PIECE_BYTES, bytes_max + 1 - count)):
        count += len(piece)
        if count > bytes_max:
            raise OSError(f"an answer of more than {bytes_max} bytes")
        yield piece
        spent_s = time.monotonic() - began_s
        if spent_s > min(seconds + count / _SLOWEST_BYTES_PER_S, seconds * _LONGEST_FACTOR):
            raise TimeoutError(f"no whole answer within {spent_s:.0f} s")


class Upload(io.RawIOBase):
    """A stream into an upload that shows nothing until `publish`.

    Closing the library's file publishes what was written so far, so that this stream never does:
    `drop` lets the upload go unfinished.
    """

    def __init__(self, file: File, attempted: Callable[[Callable[[], object]], None]) -> None:
        super().__init__()
        self._file: File | None = file
        self._attempted = attempted
        self._pending = bytearray()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.size_bytes

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        self._pending += view
        self.size_bytes += len(view)
        if len(self._pending) >= _WRITE_BYTES:
            self._hand_over()
        return len(view)

    def publish(self) -> None:
        """Raises what `attempted` makes of the library's error; the upload may be whole then."""
        self._hand_over()
        assert self._file is not None, "an upload is published once"
        self._attempted(self._file.close)
        self._file = None

    def drop(self) -> None:
        self._file = None
        self._pending.clear()

    def _hand_over(self) -> None:
        file, data = self._file, bytes(self._pending)
        assert file is not None, "the upload has not ended"
        self._pending.clear()
        if data:
            self._attempted(lambda: file.write(data))
