"""An engine in a process of its own, so that it can be killed, or have a Spark of its own.

Run as a program it is that process: pickled calls in, pickled answers out.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Any

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
        answer = subprocess.run(
            ["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
        )
        parents = [tuple(map(int, line.split())) for line in answer.stdout.splitlines()]
        family = {self.process.pid}
        while grown := {pid for pid, parent in parents if parent in family} - family:
            family |= grown
        return family - {self.process.pid}

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


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and awaits its parent does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _serve() -> None:
    # Nobody but this function may write to the pipe of answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def answer(value: object) -> None:
        pickle.dump(value, answers)
        answers.flush()

    master, conf, options = pickle.load(sys.stdin.buffer)
    try:
        engine = start_spark(master, conf, **options)
    except Exception as error:  # noqa: BLE001 - the parent raises it
        answer(type(error)(str(error)))
        return
    with engine:
        answer(None)
        while True:
            try:
                name, *arguments = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            answer(getattr(engine, name)(*arguments))


if __name__ == "__main__":
    _serve()
