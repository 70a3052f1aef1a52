"""Run as a program: works on copies of a table in child processes that kill themselves.

    python -m tests.faults.victim WORK TEMPLATE FOLDER FIRST STEP WAY...

For n = FIRST, FIRST + STEP, … a copy of TEMPLATE is made below FOLDER, and compacted or maintained
by a fork of this process, which sends itself SIGKILL; until a child comes to its end. WAY: before
its n-th storage call, after the n-th that changes something, or around the n-th system call that
changes the file system. The copies are left to the caller.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactord import ids
from compactord.paimon.schema import TableRef
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests import builders
from tests.faults import upkeep
from tests.storages import Call, HookedStorage

_CHANGING = ("link", "unlink", "fsync", "makedirs")


def main(
    work: str, template: Path, folder: Path, *, first: int, step: int, ways: list[str]
) -> None:
    run = {"compact": _compact, "maintain": upkeep.maintain}[work]
    # Everything is imported and warm before the first fork.
    run(LocalStorage(), _copy(template, folder / "warm"))
    shutil.rmtree(folder / "warm")
    for name in ways:
        arm = {"before": _before, "after": _after, "system": _around_system_calls}[name]
        for number in itertools.count(first, step):
            table = _copy(template, folder / f"{name}-{number}")
            child = os.fork()
            if child == 0:
                _die(table, run, lambda arm=arm, number=number: arm(number))
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                assert status == 0, f"the child of {name}-{number} failed"
                break


def _copy(template: Path, target: Path) -> TableRef:
    shutil.copytree(template, target)
    return TableRef(database="db", name="t", location=str(target))


def _compact(storage: Storage, table: TableRef) -> None:
    assert builders.compact(storage, table, owner=ids.this_process()).snapshots


def _die(
    table: TableRef, run: Callable[[Storage, TableRef], None], arm: Callable[[], Storage]
) -> None:
    status = 1
    try:
        run(arm(), table)
        status = 0
    finally:
        # Without the clean-up of the interpreter, whose threads are the parent's.
        os._exit(status)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(number: int) -> Storage:
    def hook(call: Call) -> None:
        if call.number == number:
            _kill()

    return HookedStorage(LocalStorage(), before=hook)


def _after(number: int) -> Storage:
    changed = itertools.count(1)

    def hook(call: Call) -> None:
        if call.is_mutation and next(changed) == number:
            _kill()

    return HookedStorage(LocalStorage(), after=hook)


def _around_system_calls(number: int) -> Storage:
    """Kills right before and, counted on, right after calls that change the file system."""
    steps = itertools.count(1)

    def step() -> None:
        if next(steps) == number:
            _kill()

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def watching(*args: Any, **kwargs: Any) -> Any:
            step()
            result = call(*args, **kwargs)
            step()
            return result

        return watching

    for name in _CHANGING:
        setattr(os, name, watched(getattr(os, name)))
    return LocalStorage()


if __name__ == "__main__":
    main(
        sys.argv[1],
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        first=int(sys.argv[4]),
        step=int(sys.argv[5]),
        ways=sys.argv[6:],
    )
