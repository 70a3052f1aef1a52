"""Opening input files, and what holds of them whatever their format.

Files of up to `SMALL_FILE` bytes are fetched whole, so that a subcompaction with many small runs
does not hold many files open.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from compactord.errors import FormatError, ObjectNotFound, TransientStorageError
from compactord.model import InputFile
from compactord.storage.base import Storage

SMALL_FILE = 1 << 20
_ENOENT = 2


@contextlib.contextmanager
def opened(storage: Storage, file: InputFile) -> Iterator[pa.NativeFile]:
    """The file's bytes. Raises `FormatError` when they are not as many as the manifest says."""
    with storage.open_input(file.path) as stream:
        check_size(file, stream.size())
        if file.size_bytes > SMALL_FILE:
            yield stream
            return
        content = stream.read_buffer()
    yield pa.BufferReader(content)


@contextlib.contextmanager
def reading(path: str, format_name: str) -> Iterator[None]:
    """Name the file in what Arrow and decoding raise.

    An error of the operating system has a number; without one it is Arrow's way to say that the
    bytes are not what the format says.
    """
    try:
        yield
    except OSError as error:
        if error.errno == _ENOENT:
            raise ObjectNotFound(path, "read failed (no such file)") from error
        if error.errno is not None:
            raise TransientStorageError(path, f"read failed ({error.strerror})") from error
        raise FormatError(path, f"not a readable {format_name} file ({error})") from error
    except pa.ArrowMemoryError:
        raise
    except pa.ArrowException as error:
        raise FormatError(path, f"not a readable {format_name} file ({error})") from error


def check_size(file: InputFile, size_bytes: int) -> None:
    if size_bytes != file.size_bytes:
        raise FormatError(
            file.path, f"the manifest says {file.size_bytes} bytes, the store {size_bytes}"
        )


def check_rows(file: InputFile, rows: int) -> None:
    """Raise `FormatError` unless as many rows were read as the manifest says."""
    if rows != file.row_count:
        raise FormatError(file.path, f"{rows} rows were read instead of {file.row_count}")
