"""File systems of fsspec: how they are opened, and their errors as ours."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
    UnsafeStore,
    UsageError,
)
from compactord.redaction import redact_text
from compactord.references import LateValues
from compactord.storage.attempts import TimedCalls
from compactord.storage.objects.bucket import INSTALL_STORES

_LONGEST_TEXT = 200
# Implementations differ in their limits, and many have none: by our clock a call may take so long.
ANSWER_SECONDS_MAX = 30.0


@dataclass(slots=True)
class Opened:
    """The file system of fsspec that serves a store, and the options that it was opened with."""

    files: Any
    late: LateValues = field(default_factory=lambda: LateValues({}))
    # Held while it is opened with other keys.
    lock: threading.Lock = field(default_factory=threading.Lock)


def connected(root: str, late: LateValues) -> Any:
    """The file system of fsspec for a URL without a path, with options as they are now.

    Raises `UsageError` when fsspec, or its package for the scheme, is not installed, and
    `StorageError` for a store that does not answer, if that is asked at once.
    """
    protocol = root.partition(":")[0]
    try:
        import fsspec

        options = {name: _value(text) for name, text in late.read().items()}
        # Instances are shared otherwise, and listings kept.
        given = {"skip_instance_cache": True, "use_listings_cache": False, **options}
        return TimedCalls(1).within(
            ANSWER_SECONDS_MAX, lambda: fsspec.filesystem(protocol, **given)
        )
    except ImportError as error:
        raise UsageError(
            f"{root}: {protocol}:// needs packages that are not installed ({error}): "
            f"{INSTALL_STORES} and fsspec's package for the scheme"
        ) from None
    except (TypeError, ValueError) as error:
        reason = redact_text(str(error))[:_LONGEST_TEXT]
        raise UsageError(f"{root}: fsspec cannot open it ({reason})") from None
    except OSError as error:
        # Some connect at once.
        with named_errors(root, "open"):
            raise error
    raise AssertionError("raised as one of ours")


def require_exclusive_creation(files: Any, root: str) -> None:
    """Raises `StorageError` for implementations that only look whether a name exists."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    kind = type(files)
    if isinstance(files, AsyncFileSystem) and files.async_impl:
        is_own = kind._pipe_file is not AsyncFileSystem._pipe_file
    else:
        is_own = kind.pipe_file is not AbstractFileSystem.pipe_file
    if not is_own:
        raise UnsafeStore(
            root,
            f"fsspec's {kind.__name__} cannot create a name only once, so two writers could "
            "replace each other's snapshots; put the warehouse into a store that can",
        )


@contextlib.contextmanager
def named_errors(path: str, action: str) -> Iterator[None]:
    """Raise whatever an implementation raises as ours; their kinds of errors share no base."""
    try:
        yield
    except CompactordError:
        raise
    except Exception as error:  # noqa: BLE001
        text = redact_text(str(error).split("\n", 1)[0])[:_LONGEST_TEXT]
        message = f"{action} failed ({type(error).__name__}{': ' if text else ''}{text})"
        match error:
            case FileNotFoundError():
                raise ObjectNotFound(path, f"{action} failed (no such object)") from None
            case FileExistsError():
                raise StorageError(path, f"{action} failed (it exists)") from None
            case PermissionError():
                raise AccessDenied(path, message) from None
            case TimeoutError() | ConnectionError():
                raise TransientStorageError(path, message) from None
        raise StorageError(path, message) from None


def _value(text: str) -> object:
    """JSON, or else the text: options may be numbers, flags and mappings."""
    try:
        return json.loads(text)
    except ValueError:
        return text
