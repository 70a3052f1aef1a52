"""Runs `compactord serve` as a user does: a separate process with a configuration file."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import compactord
from compactord.paimon.schema import TableRef

CATALOG = "demo"
# The daemon's grace period in seconds, and how long the demo waits for its end.
_GRACE_S, _PATIENCE_S = 30, 60
_ADDRESS = re.compile(r'"address": "(http://[^"\s]+)"')
TAIL_LINES = 20
_TAIL_BYTES = 64 << 10
_PR_SET_PDEATHSIG = 1
# The folder that this package was loaded from.
_HOME = str(Path(compactord.__file__).parent.parent)


class DaemonFailed(Exception):
    """The daemon ended by itself, or with an error; the message ends with its log."""


class DaemonProcess:
    """A daemon that serves these tables of a catalog. The process ends with the context.

    `catalog` is a section of a configuration; its warehouse must contain no references. Log and
    configuration are in `folder`. The process has a group of its own, so that only the demo handles
    Ctrl-C, and it gets SIGTERM if the demo is killed.
    """

    def __init__(
        self, folder: Path, catalog: Mapping[str, object], tables: Sequence[TableRef]
    ) -> None:
        self._log, self._said = folder / "daemon.log", folder / "daemon.err"
        config = folder / "compactord.yaml"
        config.write_text(_configuration(catalog, tables), "utf-8", "surrogateescape")
        ours = {k: v for k, v in os.environ.items() if not k.startswith("COMPACTORD__")}
        # `-m` searches the working folder first, where a folder of our name may be no package.
        ours["PYTHONPATH"] = os.pathsep.join(filter(None, (_HOME, ours.get("PYTHONPATH"))))
        with self._log.open("wb") as log, self._said.open("wb") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "compactord", "serve", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=said,
                env=ours,
                start_new_session=True,
                preexec_fn=_ends_with_parent(),
            )

    @property
    def url(self) -> str | None:
        """The page's URL, None until the daemon has logged it."""
        found = _ADDRESS.search(self._log.read_text(errors="replace"))
        return found.group(1).rstrip("/") if found else None

    def check(self) -> None:
        """Raises `DaemonFailed` if it has ended."""
        if self._process.poll() is not None:
            raise DaemonFailed(self._ended())

    def stop(self) -> None:
        """Send SIGTERM and wait. Raises `DaemonFailed` unless it ends with 0."""
        self.check()
        self._process.terminate()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise DaemonFailed(
                f"the daemon did not end within {_PATIENCE_S} s of SIGTERM\n{self.tail()}"
            ) from None
        if self._process.returncode != 0:
            raise DaemonFailed(self._ended())

    def tail(self) -> str:
        """The last lines of its log."""
        lines = []
        for path in (self._log, self._said):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
                lines += file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        return "\n".join(f"  | {line}" for line in lines)

    def __enter__(self) -> DaemonProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _ended(self) -> str:
        return f"the daemon ended with exit code {self._process.returncode}\n{self.tail()}"


def _configuration(catalog: Mapping[str, object], tables: Sequence[TableRef]) -> str:
    """JSON, which is YAML."""
    warehouse = str(catalog["warehouse"]).replace("${", "$${")
    including = "|".join(re.escape(table.full_name) for table in tables)
    found = {
        "service": {"instance_name": "demo", "http": {"bind": "127.0.0.1", "port": 0}},
        "spark": {"task_memory": "256 mb"},
        "catalogs": {CATALOG: {**catalog, "warehouse": warehouse}},
        # A warehouse given by the user may hold other tables.
        "discovery": {"including_tables": including},
        "startup": {"timeout": "5 min"},
        "shutdown": {"grace": f"{_GRACE_S} s", "commit_reserve": "5 s"},
        "log": {"format": "json"},
    }
    return json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _ends_with_parent() -> Callable[[], None] | None:
    """A function for the child: it gets SIGTERM when its parent dies for any reason (Linux
    only).
    """
    if sys.platform != "linux":
        return None
    # Loaded here: no library may be loaded between fork and exec.
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))

    return ask
