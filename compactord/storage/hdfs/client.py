"""Calls of the library for HDFS: this process's clients, and their errors as ours."""

from __future__ import annotations

import contextlib
import enum
import os
import re
from collections.abc import Iterator
from typing import Any

from hdfs_native import Client, WriteOptions

from compactord.errors import (
    AccessDenied,
    CompactordError,
    ObjectNotFound,
    StorageError,
    StoreFull,
    TransientStorageError,
)
from compactord.storage.hdfs.service import NameService
from compactord.storage.hdfs.settings import ATTEMPTS, REPLICATION
from compactord.text import redact_text

# A name node's exception is known by its class alone, within the text.
_REMOTE = re.compile(r'RPCError\("[\w.$]*?(\w+)", "(.*)"\)', re.DOTALL)
_NOT_EMPTY = "PathIsNotEmptyDirectoryException"
_DENIED = {"AccessControlException", "AuthorizationException", "InvalidToken", "SaslException"}
_FULL = {"DSQuotaExceededException", "NSQuotaExceededException", "QuotaExceededException"}
_REFUSED = {"InvalidPathException", "ParentNotDirectoryException", "PathComponentTooLongException"}
# What the library says where it cannot prove who it is.
_UNKNOWN_USER = ("GSSAPIError", "SASLError", "NoSASLMechanism", "libgssapi")
_TICKET = "; get a ticket into the cache that KRB5CCNAME names (kinit), wherever this runs"
_LOOKUP = "failed to lookup address"
_SERVICE = (
    "; check the name; of a name service Hadoop's files have to say where it is (hadoop-conf-dir, "
    "HADOOP_CONF_DIR)"
)
_LONGEST_TEXT = 200
# The library's threads do not exist in a forked child, which gets clients of its own.
_clients: dict[tuple[int, NameService], Client] = {}


class Removal(enum.Enum):
    """What came of a removal that the name node answered."""

    DONE = "done"
    NOTHING_THERE = "nothing there"
    NOT_EMPTY = "not empty"


def client_of(spec: NameService) -> Client:
    """This process's client of a name service; it connects when it is first asked."""
    key = os.getpid(), spec
    if key not in _clients:
        with named_errors(spec.root, "open"):
            # Not the files that this process's environment names: they have been read.
            client = Client(spec.address, {ATTEMPTS: "1", **dict(spec.settings)}, os.devnull)
        _clients.setdefault(key, client)
    return _clients[key]


def create(client: Client, name: str, spec: NameService) -> Any:
    """A new file, with its folders. It is whole only once it was closed.

    Not the library's own stream: that one closes the file, and so completes it, when it is
    collected.
    """
    replication = dict(spec.settings).get(REPLICATION)
    options = WriteOptions(replication=None if replication is None else int(replication))
    return client.inner.create(name, options)


def rename(client: Client, source: str, target: str, *, replaces: bool = False) -> bool:
    """Whether it was done; False: the target exists."""
    try:
        client.rename(source, target, overwrite=replaces)
    except FileExistsError:
        return False
    return True


def remove(client: Client, name: str) -> Removal:
    """Remove a file, or a folder unless something is in it."""
    try:
        return Removal.DONE if client.delete(name) else Removal.NOTHING_THERE
    except RuntimeError as error:
        if _NOT_EMPTY not in str(error):
            raise
        return Removal.NOT_EMPTY


@contextlib.contextmanager
def named_errors(path: str, action: str) -> Iterator[None]:
    """Raise the library's errors as ours; it has no kinds of its own, and may panic."""
    try:
        yield
    except CompactordError:
        raise
    except FileNotFoundError:
        raise ObjectNotFound(path, f"{action} failed (no such file)") from None
    except FileExistsError:
        raise StorageError(path, f"{action} failed (it exists)") from None
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise _error(path, action, error) from None


def _error(path: str, action: str, error: BaseException) -> StorageError:
    text = str(error)
    remote = _REMOTE.search(text)
    kind, said = (remote[1], remote[2]) if remote else (type(error).__name__, text)
    # What follows are the places in Java's code.
    said = redact_text(said.split("\n", 1)[0].split("\\n", 1)[0])[:_LONGEST_TEXT]
    message = f"{action} failed ({kind}{': ' if said else ''}{said})"
    if kind in _DENIED:
        return AccessDenied(path, message)
    if any(name in text for name in _UNKNOWN_USER):
        return AccessDenied(path, message + _TICKET)
    if kind in _FULL:
        return StoreFull(path, message)
    if kind in _REFUSED or isinstance(error, NotImplementedError | ValueError):
        return StorageError(path, message)
    return TransientStorageError(path, message + (_SERVICE if _LOOKUP in text else ""))
