"""Archives of loaded classes (Java's class-data sharing): with one the embedded JVM starts faster.

The first start writes a list of the classes that it loaded. When it has ended, a process of its
own, at the lowest priority, makes the archive from the list: some seconds of one core, once for
each Java and Spark. Archives are in the user's cache folder and named after what they were made
from, so that another Java, another Spark or other options get another one. All of this is optional:
without a folder, or when a step fails, Spark starts as it does without an archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from compactord.engine.jvm import JvmCommand

# Older ones lack what is needed here, or would need other options.
_LEAST_JAVA = 17
# Of 40 to 70 MB each.
_ARCHIVES_MAX = 3
_MAKING_SECONDS_MAX = 600.0
# Complains of an archive that does not fit would be taken for Spark's last words.
_QUIET = "-Xlog:disable"


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder for archives, which may not exist yet; None when the user has no place for it."""
    given = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given, "compactord", "jvm")
    home = environment.get("HOME", "")
    return Path(home, ".cache", "compactord", "jvm") if os.path.isabs(home) else None


class ClassArchive:
    """The archive for one command of a JVM of version `java_version`."""

    def __init__(
        self, folder: Path | None, command: JvmCommand, *, java_version: int, list_in: Path
    ) -> None:
        """`list_in` is a folder for the list of classes, for as long as the JVM runs."""
        self._command = command
        self._list = list_in / "classes.txt"
        self._file: Path | None = None
        if folder is not None and java_version >= _LEAST_JAVA and _is_ours(folder):
            with contextlib.suppress(OSError):
                self._file = folder / f"{_digest(command)}.jsa"

    @property
    def is_there(self) -> bool:
        return self._file is not None and self._file.exists()

    def options(self) -> tuple[str, ...]:
        """For the start of the JVM: use the archive, or list the classes for it."""
        if self._file is None:
            return ()
        if self.is_there:
            return (f"-XX:SharedArchiveFile={self._file}", "-Xshare:auto", _QUIET)
        return (f"-XX:DumpLoadedClassList={self._list}", _QUIET)

    def forget(self) -> None:
        """Remove the archive: a JVM did not start with it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()

    def make(self) -> None:
        """Begin to make the archive from the list of a JVM that has ended; does not wait for it."""
        if self._file is None or self.is_there or not self._list.exists():
            return
        with contextlib.suppress(OSError):
            making = self._begun(self._file)
            if making is not None:
                self._start(self._file, making)

    def _begun(self, file: Path) -> Path | None:
        """The folder in which it is made; None when another process makes it."""
        making = file.with_suffix(".making")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if time.time() - making.stat().st_mtime > _MAKING_SECONDS_MAX:
                shutil.rmtree(making)
        try:
            making.mkdir(mode=0o700)
        except FileExistsError:
            return None
        archives = sorted(file.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime)
        for old in archives[: max(0, len(archives) + 1 - _ARCHIVES_MAX)]:
            old.unlink()
        return making

    def _start(self, file: Path, making: Path) -> None:
        classes, made = making / "classes.txt", making / "archive"
        classes.write_bytes(self._list.read_bytes())
        dump = [
            str(self._command.java),
            *self._command.launch_options,
            "-Xshare:dump",
            f"-XX:SharedClassListFile={classes}",
            f"-XX:SharedArchiveFile={made}",
        ]
        steps = (
            f"nice -n 19 {shlex.join(dump)} && chmod 600 {shlex.quote(str(made))}"
            f" && mv -f {shlex.quote(str(made))} {shlex.quote(str(file))}"
            f"; rm -rf {shlex.quote(str(making))}"
        )
        # In a session of its own: it gets no signal that is meant for us, and outlives us.
        subprocess.run(
            ["/bin/sh", "-c", f"({steps}) &"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            check=False,
        )


def _is_ours(folder: Path) -> bool:
    """Whether nobody else can write there: a JVM trusts its archive. A folder to be made is."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    is_private = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_private


def _digest(command: JvmCommand) -> str:
    """Digest of everything the archive depends on. Raises `OSError` if a file of it is gone."""
    java = command.java.resolve()
    digest = hashlib.sha256()
    for path in (java, *command.jars):
        found = path.stat()
        digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode(errors="replace"))
    # Collectors lay out their heaps differently; folders of one start make no difference.
    flags = [option for option in command.options if option.startswith("-X")]
    digest.update(repr(flags).encode())
    return digest.hexdigest()[:24]
