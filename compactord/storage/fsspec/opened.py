"""File systems of fsspec: how they are opened, whether they create names once, their errors."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from compactord import ids
from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    TransientStorageError,
    UnsafeStore,
    UsageError,
)
from compactord.storage.attempts import TimedCalls
from compactord.storage.base import Creation, aside
from compactord.storage.objects.bucket import INSTALL_STORES
from compactord.text import LateValues, redact_text

RACERS, NAMES = 8, 20
_START_SECONDS = 60
# Creates an object with this content unless there is one.
Create = Callable[[str, bytes], Creation]
_LONGEST_TEXT = 200
# What http.client, json, requests, aiohttp, botocore, google-auth and azure-core raise where no
# answer came, or none that makes sense. Implementations let it pass.
_UNANSWERED = {
    *("HTTPException", "JSONDecodeError", "RequestException", "ClientError", "HTTPClientError"),
    *("TransportError", "ServiceRequestError", "ServiceResponseError"),
}
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
    except Exception as error:
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


def replace(files: Any, name: str, data: bytes) -> None:
    """Replace a file; written aside and renamed where the implementation has renames of its own.

    Those are file systems, which truncate what they overwrite; a store of objects replaces one at
    once, and would copy it to rename it.
    """
    from fsspec.spec import AbstractFileSystem

    if type(files).mv is AbstractFileSystem.mv:
        files.pipe_file(name, data)
        return
    temporary = aside(name)
    try:
        files.pipe_file(temporary, data)
    except Exception:
        with contextlib.suppress(Exception):
            files.rm_file(temporary)
        raise
    with contextlib.suppress(Exception):
        files.mv(temporary, name)
    # Some rename onto no file that exists, and not all of them say so.
    if files.exists(temporary):
        files.pipe_file(name, data)
        files.rm_file(temporary)


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
        if _UNANSWERED.intersection(each.__name__ for each in type(error).__mro__):
            raise TransientStorageError(path, message) from None
        raise StorageError(path, message) from None


def _value(text: str) -> object:
    """JSON, or else the text: options may be numbers, flags and mappings."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def prove_create_if_absent(
    connect: Callable[[], Create], delete: Callable[[str], None], folder: str
) -> None:
    """Let eight connections create 20 names in `folder` at the same time, and remove them.

    Raises `UnsafeStore` when one of the names had not exactly one winner; what `connect` and the
    creations raise.
    """
    own = f"{folder}/.compactord-race-{ids.this_process().unique_name()}"
    start = threading.Barrier(RACERS)

    def race(number: int, create: Create) -> list[Creation]:
        outcomes = []
        try:
            for name in range(NAMES):
                start.wait(_START_SECONDS)
                # All different, as an outcome may be found out by reading back.
                outcomes.append(create(f"{own}-{name}", f"{number} of {RACERS}".encode()))
        except BaseException:
            # One that fails does not let the others wait.
            start.abort()
            raise
        return outcomes

    try:
        racers = [connect() for _ in range(RACERS)]
        with ThreadPoolExecutor(RACERS) as pool:
            runs = [pool.submit(race, *each) for each in enumerate(racers)]
        errors = [error for run in runs if (error := run.exception()) is not None]
        # Those that waited for one that failed only say that they waited.
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        outcomes = [run.result() for run in runs]
    finally:
        for name in range(NAMES):
            try:
                delete(f"{own}-{name}")
            except TransientStorageError:
                # It need not be waited for so often: a sweep takes what is left.
                break
            except CompactordError:
                continue
    for name in range(NAMES):
        winners = sum(each[name] is Creation.CREATED for each in outcomes)
        if winners != 1:
            raise UnsafeStore(
                own,
                f"of {RACERS} that created one name at the same time {winners} succeeded, so two "
                "writers could replace each other's snapshots; put the warehouse into another "
                "store",
            )
