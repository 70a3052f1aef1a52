"""An engine in a process of its own, so that it can be killed, or have a Spark of its own.

Run as a program it is that process: pickled calls in, pickled answers out.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from compactord.engine.base import PooledEngine
from compactord.engine.spark import ClassicCarrier, start_spark
from compactord.model import Subcompaction, SubcompactionOutcome

Answer = TypeVar("Answer")


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

    def submit(self, subcompaction: Subcompaction) -> None:
        self._call(("submit", subcompaction))

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        outcome: SubcompactionOutcome | None = self._call(("next_outcome", timeout_s))
        return outcome

    def cancel(self) -> None:
        self._call(("cancel",))

    def cancel_one(self, compaction: int, index: int) -> None:
        self._call(("cancel_one", compaction, index))

    def close(self) -> None:
        """Close the engine; the process lives on until `end`."""
        self._call(("close",))

    def ask(self, question: Callable[[PooledEngine], Answer]) -> Answer:
        """What a function of a module answers there."""
        answer: Answer = self._call((question,))
        return answer

    def children(self) -> set[int]:
        """All processes below the engine's."""
        return descendants(self.process.pid)

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(180)
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
    parents = {int(name): _state(int(name)) for name in os.listdir("/proc") if name.isdecimal()}
    family = {pid}
    while grown := {p for p, state in parents.items() if state and state[1] in family} - family:
        family |= grown
    return family - {pid}


def find_process(argument: str, among: set[int]) -> int:
    """The one process of these that was started with this argument."""
    (found,) = [pid for pid in among if argument in _arguments(pid)]
    return found


def process_texts(pid: int) -> str:
    """What the system shows of a process: its command line and its environment."""
    texts = []
    for kind in ("cmdline", "environ"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            try:
                texts.append(Path(f"/proc/{pid}/{kind}").read_text(errors="replace"))
            except PermissionError:
                # Of one that has ended and awaits its parent, root alone may ask.
                if is_alive(pid):
                    raise
    return "\n".join(texts)


def context_of(engine: PooledEngine) -> Any:
    """Its SparkContext, for questions to an engine."""
    carrier = engine._carrier
    assert isinstance(carrier, ClassicCarrier)
    return carrier._driver.context


def settings_of_driver(engine: PooledEngine) -> dict[str, str]:
    return dict(context_of(engine).getConf().getAll())


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and awaits its parent does not."""
    state = _state(pid)
    return state is not None and state[0] != "Z"


def _state(pid: int) -> tuple[str, int] | None:
    """Its state's letter and its parent; None when there is no such process."""
    try:
        # Without pathlib and decoding, as those who wait ask for all processes all the time.
        with open(f"/proc/{pid}/stat", "rb") as file:
            words = file.read().rsplit(b")", 1)[1].split(maxsplit=2)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return words[0].decode(), int(words[1])


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
                called, *arguments = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            if callable(called):
                answer(called, engine)
            else:
                answer(getattr(engine, called), *arguments)


if __name__ == "__main__":
    _serve()
