"""Local and mounted POSIX file systems."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from compactord.errors import (
    AccessDenied,
    ObjectNotFound,
    ReadOnlyFileSystem,
    StorageError,
    StoreFull,
    TransientStorageError,
    UsageError,
)
from compactord.storage.base import (
    Capabilities,
    Creation,
    ObjectStatus,
    Storage,
    Store,
    StoreLocation,
    aside,
    whole_range,
)

_URI = "file:"
_DENIED = {errno.EACCES, errno.EPERM}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TRANSIENT = {errno.EINTR, errno.EAGAIN, errno.ETIMEDOUT, errno.ESTALE, errno.EBUSY, errno.EIO}


@contextlib.contextmanager
def named_errors(path: str, action: str) -> Iterator[None]:
    """Raises errors of the operating system as `StorageError`, with path and action."""
    try:
        yield
    except ValueError as error:
        # Metadata may hold names that no file can have: with a NUL or a lone surrogate.
        raise StorageError(path, f"{action} failed ({error})") from error
    except OSError as error:
        reason = f"{action} failed ({error.strerror or error})"
        number = error.errno
        if isinstance(error, FileNotFoundError | NotADirectoryError) or number == errno.ENOENT:
            raise ObjectNotFound(path, f"{action} failed (no such file)") from error
        if number == errno.EROFS:
            raise ReadOnlyFileSystem(path, reason) from error
        if number in _DENIED:
            raise AccessDenied(path, reason) from error
        if number in _FULL:
            raise StoreFull(path, reason) from error
        if number in _TRANSIENT:
            raise TransientStorageError(path, reason) from error
        raise StorageError(path, reason) from error


def _open_at_once(path: str, flags: int) -> int:
    """An opener for `open` that does not wait for a pipe's writer, so pipes can be refused."""
    return os.open(path, flags | os.O_NONBLOCK)


def _require_regular(path: str, action: str, found: os.stat_result) -> None:
    """Raises `StorageError` for pipes, whose reads would block, and devices, which may never end.

    Folders pass: reading them raises a clearer error of the system.
    """
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise StorageError(path, f"{action} failed (not a regular file)")


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_absent(path: str) -> None:
    """Raises ESTALE for a missing path that its folder lists, unless it is a dangling link."""
    folder, name = os.path.split(path)
    try:
        is_listed = name in os.listdir(folder)
    except FileNotFoundError:
        _require_absent(folder)
        return
    if is_listed and not os.path.islink(path):
        raise OSError(errno.ESTALE, "not found, though its folder lists it")


def _looks_alike(path: str, replaced: str) -> bool:
    """Copy owner, group and mode of the replaced file to the new one. Returns whether that
    succeeded.

    Other writers, possibly other users, must be able to overwrite the file.
    """
    try:
        old, new = os.stat(replaced), os.stat(path)
    except FileNotFoundError:
        return True
    try:
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            os.chown(path, old.st_uid, old.st_gid)
        os.chmod(path, stat.S_IMODE(old.st_mode))
    except OSError:
        return False
    return True


def _folder(path: str) -> str:
    return os.path.dirname(path) or "."


@dataclass(frozen=True, slots=True)
class LocalStorage(Storage):
    """Files of this machine. Paths are absolute, without a scheme.

    `create_if_absent` is link(2): it fails when the target exists, and a reader never sees part of
    the file. Files and their folders are synced before their names are published. The store has no
    connection and no secret, so it is its own spec.
    """

    capabilities = Capabilities(
        behind_network=False, has_folders=True, creates_exclusively=True, excludes_java_writers=True
    )

    @property
    def spec(self) -> LocalStorage:
        return self

    def open(self) -> LocalStorage:
        return self

    def read(self, path: str) -> bytes:
        with named_errors(path, "read"):
            # A file object would take as long again as reading a small file.
            descriptor = _open_at_once(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.fstat(descriptor)
                _require_regular(path, "read", found)
                return b"".join(iter(lambda: os.read(descriptor, found.st_size + 1), b""))
            except MemoryError as error:
                reason = f"read failed ({found.st_size} bytes do not fit into memory)"
                raise StorageError(path, reason) from error
            finally:
                os.close(descriptor)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        with named_errors(path, "read"), open(path, "rb", opener=_open_at_once) as file:
            _require_regular(path, "read", os.fstat(file.fileno()))
            file.seek(start)
            data = file.read(size)
        return whole_range(path, start, size, data)

    def open_input(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        with named_errors(path, "open"):
            _require_regular(path, "open", os.stat(path))
            return pa.OSFile(path, "rb")

    @contextlib.contextmanager
    def open_output(self, path: str) -> Iterator[pa.NativeFile]:
        with named_errors(path, "create"):
            os.makedirs(_folder(path), exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            os.close(descriptor)
            with named_errors(path, "write"):
                with pa.OSFile(path, "wb") as stream:
                    yield stream
                _sync(path)
                _sync(_folder(path))
        except BaseException:
            with contextlib.suppress(StorageError):
                self.delete(path)
            raise

    def status(self, path: str) -> ObjectStatus | None:
        try:
            with named_errors(path, "status"):
                found = os.stat(path)
        except ObjectNotFound:
            return None
        return _status(os.path.basename(path), found)

    def real_folder(self, path: str) -> str:
        with named_errors(path, "resolve"):
            return os.path.realpath(path)

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        return self.list_some(folder, lambda name: True)

    def list_some(self, folder: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectStatus]:
        with named_errors(folder, "list"):
            try:
                entries = os.scandir(folder)
            except FileNotFoundError:
                _require_absent(folder)
                return
            with entries:
                for entry in entries:
                    if not is_wanted(entry.name):
                        continue
                    try:
                        yield _status(entry.name, entry.stat(), is_link=entry.is_symlink())
                    except FileNotFoundError:
                        if not entry.is_symlink():
                            _require_absent(entry.path)
                    except OSError as error:
                        # A link to itself counts as absent, like a dangling one.
                        if error.errno != errno.ELOOP:
                            raise

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        with named_errors(path, "publish"):
            os.makedirs(_folder(path), exist_ok=True)
            self._write_synced(temporary, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return Creation.EXISTS
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            _sync(_folder(path))
            return Creation.CREATED

    def write_new(self, path: str, data: bytes) -> None:
        with named_errors(path, "write"):
            os.makedirs(_folder(path), exist_ok=True)
            self._write_synced(path, data)
            _sync(_folder(path))

    def overwrite(self, path: str, data: bytes) -> None:
        """Rename a temporary file, or write in place if the rename would change the owner."""
        with named_errors(path, "overwrite"):
            temporary = aside(path)
            self._write_synced(temporary, data)
            try:
                if _looks_alike(temporary, path):
                    os.replace(temporary, path)
                    return
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary)
            with open(path, "r+b") as file:
                file.write(data)
                file.truncate()

    def delete(self, path: str) -> None:
        with named_errors(path, "delete"), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_empty_folder(self, path: str) -> bool:
        with named_errors(path, "remove folder"):
            try:
                os.rmdir(path)
            except FileNotFoundError:
                return True
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    return False
                raise
        return True

    def may_write(self, folder: str) -> bool | None:
        with named_errors(folder, "access"):
            effective = os.access in os.supports_effective_ids
            return os.access(folder, os.W_OK | os.X_OK, effective_ids=effective)

    def _write_synced(self, path: str, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(path)
            raise


def _status(name: str, found: os.stat_result, *, is_link: bool = False) -> ObjectStatus:
    return ObjectStatus(
        name=name,
        is_folder=stat.S_ISDIR(found.st_mode),
        size_bytes=found.st_size,
        changed_ms=found.st_ctime_ns // 1_000_000,
        is_link=is_link,
    )


def _locate(location: str, options: Mapping[str, str]) -> StoreLocation:
    """The absolute path of a plain path, or of a `file:` URI by RFC 8089.

    As in Java, `%` is not decoded. Local files have no options.
    """
    path = location
    if location[: len(_URI)].lower() == _URI:
        path = location[len(_URI) :]
        host = ""
        if path.startswith("//"):
            host, slash, path = path[2:].partition("/")
            path = slash + path
        if host.lower() not in ("", "localhost"):
            raise UsageError(
                f"{location}: {host} names another machine, whose files cannot be "
                "reached; write file:///folder for a folder of this machine"
            )
        if not path.startswith("/"):
            raise UsageError(
                f"{location}: a file: URI needs an absolute path, as in file:///data/wh"
            )
        path = "/" + path.lstrip("/")
    return StoreLocation(spec=LocalStorage(), path=os.path.abspath(path))


FILES = Store(schemes=("file",), locate=_locate, is_local=True)
