"""`compactord` as a process of its own, with all that it starts, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compactord.ids import owner_of
from tests.spark.remote import descendants, is_alive

# Starting Java takes five seconds on an idle machine; on a crowded one all takes far longer.
SECONDS_MAX = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def found(self) -> dict[str, Any]:
        """What `--json` printed: the last line on stdout."""
        answer: dict[str, Any] = json.loads(self.out.splitlines()[-1])
        return answer


class Command:
    """A running `compactord`."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path) -> None:
        self.process = process
        self.scratch = scratch
        self._family: set[int] = set()

    @property
    def pid(self) -> int:
        return self.process.pid

    def family(self) -> set[int]:
        """The processes below this one that were seen so far; all of them must end with it."""
        self._family |= descendants(self.process.pid)
        return self._family

    def outcome(self, timeout_s: float = SECONDS_MAX) -> Outcome:
        out, err = self.process.communicate(timeout=timeout_s)
        return Outcome(code=self.process.returncode, out=out, err=err)

    def writes_into(self, location: str) -> list[Path]:
        """Its data files in a table; they are named after their process."""
        return [
            path
            for path in Path(location).glob("**/bucket-*/data-*")
            if (owner := owner_of(path.name)) is not None and owner.pid == self.process.pid
        ]

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something that has to happen while the command runs."""
        deadline = time.monotonic() + SECONDS_MAX
        while not condition():
            if self.process.poll() is not None:
                outcome = self.outcome()
                raise AssertionError(f"ended with {outcome.code} before {what}: {outcome.err}")
            assert time.monotonic() < deadline, f"not within {SECONDS_MAX:.0f} s: {what}"
            self.family()
            # All of /proc is read each time, and what is waited for needs the processor, too.
            time.sleep(0.02)

    def wait_for_merge(self, location: str) -> None:
        """Until workers are in the middle of writing."""
        self.wait_until(lambda: self.writes_into(location), "a merge writes")
        self.family()

    def assert_nothing_remains(self) -> None:
        """No process that it started, and none of their temporary files."""
        self.assert_no_process_remains()
        left = [path.name for path in self.scratch.iterdir()]
        assert left == [], left

    def assert_no_process_remains(self) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while alive := [pid for pid in self._family if is_alive(pid)]:
            assert time.monotonic() < deadline, f"still running: {_named(alive)}"
            time.sleep(0.05)

    def kill_family(self) -> None:
        for pid in (self.process.pid, *self.family()):
            if is_alive(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ValueError):
            self.process.communicate(timeout=SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class Commands:
    """Starts commands. Each has a folder of its own for temporary files below `scratch`."""

    scratch: Path
    started: list[Command]

    def start(
        self,
        *arguments: str,
        program: str = "compactord",
        before: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **popen: Any,
    ) -> Command:
        """`before` is a program, with its arguments, that starts the command."""
        folder = self.scratch / str(len(self.started))
        folder.mkdir()
        process = subprocess.Popen(
            [*before, str(Path(sys.executable).with_name(program)), *arguments],
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TMPDIR": str(folder), **(environment or {})},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen},
        )
        self.started.append(Command(process, folder))
        return self.started[-1]

    def run(self, *arguments: str, before: Sequence[str] = (), **popen: Any) -> Outcome:
        return self.start(*arguments, before=before, **popen).outcome()


def read_terminal(terminal: int) -> str:
    """All that is written to a pseudo-terminal until nobody has it open any more; closes it."""
    pieces = []
    while select.select([terminal], [], [], SECONDS_MAX)[0]:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux says so when the last writer is gone
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(terminal)
    return b"".join(pieces).decode()


def _named(pids: Sequence[int]) -> list[str]:
    return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200] for pid in pids]
