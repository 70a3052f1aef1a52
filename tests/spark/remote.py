"""An engine in a process of its own, so that it can be killed, or have a Spark of its own.

Run as a program it is that process: pickled calls in, pickled answers out.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from compactord.engine.pool import PooledEngine
from compactord.engine.spark import start_spark
from compactord.model import Subcompaction, TaskOutcome


class RemoteEngine:
    """Calls are the engine's; what it raises, starting included, is raised here."""

    def __init__(self, master: str | None, conf: Mapping[str, str], **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            self._call((master, conf, options))
        except BaseException:
            self.end()
            raise

    def submit(self, part: Subcompaction) -> None:
        self._call(("submit", part))

    def next_outcome(self, timeout_s: float | None) -> TaskOutcome | None:
        outcome: TaskOutcome | None = self._call(("next_outcome", timeout_s))
        return outcome

    def cancel(self) -> None:
        self._call(("cancel",))

    def close(self) -> None:
        """Close the engine; the process lives on until `end`."""
        self._call(("close",))

    def children(self) -> set[int]:
        """All processes below the engine's."""
        return descendants(self.process.pid)

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def _call(self, message: tuple[Any, ...]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        pickle.dump(message, self.process.stdin)
        self.process.stdin.flush()
        answer = pickle.load(self.process.stdout)
        if isinstance(answer, Exception):
            raise answer
        return answer


def descendants(pid: int) -> set[int]:
    parents = {int(path.name): _state(int(path.name)) for path in Path("/proc").glob("[0-9]*")}
    family = {pid}
    while grown := {p for p, state in parents.items() if state and state[1] in family} - family:
        family |= grown
    return family - {pid}


def find_process(argument: str, among: set[int]) -> int:
    """The one process of these that was started with this argument."""
    (found,) = [pid for pid in among if argument in _arguments(pid)]
    return found


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and awaits its parent does not."""
    state = _state(pid)
    return state is not None and state[0] != "Z"


def _state(pid: int) -> tuple[str, int] | None:
    """Its state's letter and its parent; None when there is no such process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return words[0], int(words[1])


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _serve() -> None:
    # Nobody but this function may write to the pipe of answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def answer(function: Callable[..., object], *arguments: Any) -> bool:
        value: object
        try:
            value = function(*arguments)
        except Exception as error:  # noqa: BLE001 - the parent raises it
            value = type(error)(str(error))
        pickle.dump(value, answers)
        answers.flush()
        return not isinstance(value, Exception)

    engines: list[PooledEngine] = []
    master, conf, options = pickle.load(sys.stdin.buffer)
    if not answer(lambda: engines.append(start_spark(master, conf, **options))):
        return
    with engines[0] as engine:
        while True:
            try:
                name, *arguments = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            answer(getattr(engine, name), *arguments)


if __name__ == "__main__":
    _serve()
