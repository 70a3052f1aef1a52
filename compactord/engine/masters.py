"""Spark masters by their URLs, Spark's log messages, and its scratch folders."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from compactord import ids
from compactord.errors import EngineUnavailable
from compactord.text import HIDDEN, is_secret_key, redact_text

_NUMBER = "[1-9][0-9]{0,5}"
_LOCAL = re.compile(rf"local(?:\[(?:{_NUMBER}|\*)(?: *, *{_NUMBER})?\])?")
_LOCAL_CLUSTER = re.compile(rf"local-cluster\[ *{_NUMBER} *, *{_NUMBER} *, *{_NUMBER} *\]")
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
# Accepted by spark-submit, and Spark Connect; mesos until Spark 3.
_REST = {
    "spark": re.compile(rf"{_HOST}:[0-9]{{1,5}}(?:,{_HOST}:[0-9]{{1,5}})*"),
    "sc": re.compile(rf"{_HOST}(?::[0-9]{{1,5}})?(?:/.*)?"),
    "k8s": re.compile(r"[^/].*"),
    "mesos": re.compile(r"[^/].*"),
}
MASTERS = (
    "local, local[N] or local[*] with N at least 1, spark://HOST:PORT, sc://HOST:PORT, k8s://… "
    "or yarn"
)
_INSTEAD = {
    "spark.master": "give the master by itself, not among the settings",
    "spark.remote": "give a server of Spark Connect as the master, sc://HOST:PORT",
    "spark.pyspark.driver.python": "start compactord with that Python",
}
_EMBEDDED_INSTEAD = {
    "spark.pyspark.python": "the embedded Spark uses compactord's: start compactord with that one"
}


def is_local(master: str | None) -> bool:
    """Whether workers are processes started by this one, with its environment."""
    return master is None or _LOCAL.fullmatch(master) is not None


def is_embedded(master: str | None) -> bool:
    """Whether merges run on this machine, in this process's own Spark."""
    return master is None or master.startswith("local")


def what_instead(setting: str, master: str | None) -> str | None:
    """Advice for a setting that has no effect; None for other settings."""
    instead = _INSTEAD.get(setting)
    if instead is None and is_embedded(master):
        instead = _EMBEDDED_INSTEAD.get(setting)
    return instead


def shown_master(master: str) -> str:
    """The address without credentials, and without the parameters of Spark Connect."""
    address, semicolon, _ = master.partition(";")
    if semicolon and master.lower().startswith("sc:"):
        return f"{redact_text(address)};{HIDDEN}"
    return redact_text(master)


def is_master(text: str) -> bool:
    if text == "yarn" or _LOCAL.fullmatch(text) or _LOCAL_CLUSTER.fullmatch(text):
        return True
    scheme, _, rest = text.partition("://")
    return scheme in _REST and _REST[scheme].fullmatch(rest) is not None


MESSAGE_CHARACTERS_MAX = 800
_HEADINGS = ("Driver stacktrace:", "JVM stacktrace:", "Traceback (most recent call last):")
# Stack frames, and lines of every start.
_SKIPPED = (
    "\tat ",
    "\t...",
    "WARNING: Using incubator modules",
    "Setting default log level",
    "To adjust logging level",
)
_WARNING = re.compile(r"[-0-9]+ [:,.0-9]+ WARN ")
# Why no executor pod starts: the API server's refusal, or a warning. Spark continues until it gives
# up, and its last lines do not show the reason.
_OF_EXECUTOR_PODS = (
    re.compile(r"(Caused by: )?io\.fabric8\.kubernetes\."),
    re.compile(
        r"[-0-9]+ [:,.0-9]+ WARN org\.apache\.spark\.scheduler\.cluster\.k8s\."
        r"(?!.*client has been closed)"
    ),
)
# The API server's answer again, with all its fields.
_STATUS = re.compile(r" Received status: Status\(.*")
# Shorter values are not secret: `true` and `128` occur under such names, and in any text.
_SECRET_CHARACTERS_MIN = 6


class Messages:
    """Texts about one engine. `master` is its address without secrets."""

    def __init__(self, master: str, settings: Mapping[str, str]) -> None:
        self.master = shown_master(master)
        self._master = master
        self._secrets = sorted(set(_secrets(master, settings)), key=len, reverse=True)

    def redacted(self, text: str) -> str:
        """The text without the values of secret settings."""
        text = text.replace(self._master, self.master)
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return redact_text(text)

    def brief(self, problem: Exception | str) -> str:
        """The message of a Java error without its stack.

        Long messages keep their start and end.
        """
        lines = self.redacted(str(problem)).splitlines()
        own = [line.strip() for line in lines if line.strip() and not line.startswith((" ", "\t"))]
        text = " ".join(line for line in own if line not in _HEADINGS)
        text = text.replace(" Traceback (most recent call last):", "")
        if len(text) > MESSAGE_CHARACTERS_MAX:
            half = MESSAGE_CHARACTERS_MAX // 2
            text = f"{text[:half]} … {text[-half:]}"
        return text

    def last_words(self, log: str) -> str:
        """The end of a JVM's log as a sentence; empty if there is none.

        Without stack frames, and without warnings if there are other lines. The reason why
        Kubernetes started no executor comes first, even if it is old.
        """
        lines = [line for line in log.splitlines() if not line.startswith(_SKIPPED)]
        shown_lines = [shown for line in lines if (shown := _STATUS.sub("", line).strip())]
        tail = ([line for line in shown_lines if not _WARNING.match(line)] or shown_lines)[-3:]
        pods = _why_no_executor(shown_lines)
        # Redacted before it is cut: half a secret would not be recognised.
        text = self.redacted(" | ".join(tail))[-MESSAGE_CHARACTERS_MAX:]
        if pods and pods not in tail:
            first = self.redacted(pods)[: MESSAGE_CHARACTERS_MAX // 2]
            text = f"{first} | {text[-(MESSAGE_CHARACTERS_MAX - len(first)) :]}"
        return f" Its last output: {text}" if text else ""


def _why_no_executor(shown_lines: Sequence[str]) -> str:
    """The last line of a log with a reason, or an empty text."""
    for pattern in _OF_EXECUTOR_PODS:
        found = [line for line in shown_lines if pattern.match(line)]
        if found:
            return found[-1]
    return ""


def _secrets(master: str, settings: Mapping[str, str]) -> Iterator[str]:
    """Texts that must not be shown; each line of a value separately."""
    values = [value for name, value in settings.items() if is_secret_key(name)]
    if master.startswith("sc:"):
        for parameter in master.split(";")[1:]:
            name, _, value = parameter.partition("=")
            if is_secret_key(name):
                values += [value, unquote(value)]
    for value in values:
        for line in value.splitlines():
            if len(line.strip()) >= _SECRET_CHARACTERS_MIN:
                yield line.strip()


_PREFIX = "compactord-spark-"
# Short, because sockets are in these folders: 14 characters for host, start and process id.
_NAME = re.compile(_PREFIX + r"([A-Za-z0-9_-]{14})\.[0-9]+")
_HOST_BITS, _START_BITS, _PID_BITS, _SPARE_BITS = 24, 28, 22, 6
_MARK_BYTES = (_HOST_BITS + _START_BITS + _PID_BITS + _SPARE_BITS) // 8
_FOLDERS_MAX = 1000


def new_scratch(parent: Path | None = None) -> Path:
    """A new empty folder of this process, in `parent` or the folder for temporary files.

    A killed process leaves its folder behind. This call removes folders whose owner is proved dead:
    same user, same host and process-id namespace, no such process (`ids.py`). Raises
    `EngineUnavailable` if no folder can be created.
    """
    try:
        parent = parent or Path(tempfile.gettempdir())
        _remove_abandoned(parent)
        return _made(parent / f"{_PREFIX}{_mark(ids.this_process())}")
    except OSError as error:
        raise EngineUnavailable(f"no folder for temporary files: {error}") from error


def _made(stem: Path) -> Path:
    for number in range(_FOLDERS_MAX):
        folder = stem.with_name(f"{stem.name}.{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
    raise FileExistsError(f"{_FOLDERS_MAX} folders {stem}.* are there already")


def _remove_abandoned(parent: Path) -> None:
    """Best effort: folders that cannot be read or removed stay."""
    with contextlib.suppress(OSError):
        for folder in parent.glob(f"{_PREFIX}*"):
            owner = _owner_of(folder.name)
            if owner is None or ids.liveness(owner) is not ids.Liveness.DEAD:
                continue
            with contextlib.suppress(OSError):
                # In a world-writable folder, other users may create folders of any name.
                if folder.lstat().st_uid == os.geteuid() and not folder.is_symlink():
                    shutil.rmtree(folder, ignore_errors=True)


def _mark(owner: ids.Owner) -> str:
    number = owner.host << _START_BITS | owner.start_ticks
    number = (number << _PID_BITS | owner.pid) << _SPARE_BITS
    return base64.urlsafe_b64encode(number.to_bytes(_MARK_BYTES, "big")).decode().rstrip("=")


def _owner_of(name: str) -> ids.Owner | None:
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    number = int.from_bytes(base64.urlsafe_b64decode(found[1] + "=="), "big") >> _SPARE_BITS
    return ids.Owner(
        host=number >> _PID_BITS + _START_BITS,
        start_ticks=(number >> _PID_BITS) % (1 << _START_BITS),
        pid=number % (1 << _PID_BITS),
    )
