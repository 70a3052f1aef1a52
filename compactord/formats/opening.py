"""Errors of reading, whatever the format."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa

from compactord.errors import FormatError, ObjectNotFound, TransientStorageError

_ENOENT = 2


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
