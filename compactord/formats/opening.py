"""Opens input files and makes the checks that do not depend on the format.

Files of up to `SMALL_FILE` bytes are read as a whole, so that a subcompaction with many small runs
does not keep many files open.
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
    """The open file. Raises `FormatError` when its size is not that in the manifest."""
    with storage.open_input(file.path, file.size_bytes) as stream:
        check_size(file, stream.size())
        if file.size_bytes > SMALL_FILE:
            yield stream
            return
        content = stream.read_buffer()
    yield pa.BufferReader(content)


@contextlib.contextmanager
def reading(path: str, format_name: str) -> Iterator[None]:
    """Convert errors of Arrow and of decoding to ours, which name the file.

    An `OSError` with an errno comes from the operating system: `StorageError`. Without one Arrow
    reports that the bytes do not follow the format: `FormatError`.
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
    """Raise `FormatError` unless `size_bytes`, the size in the store, is that in the manifest."""
    if size_bytes != file.size_bytes:
        raise FormatError(
            file.path, f"the manifest says {file.size_bytes} bytes, the store {size_bytes}"
        )


def check_rows(file: InputFile, rows: int) -> None:
    """Raise `FormatError` unless `rows`, the number that was read, is that in the manifest."""
    if rows != file.row_count:
        raise FormatError(file.path, f"{rows} rows were read instead of {file.row_count}")
