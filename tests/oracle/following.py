"""A streaming reader of Java's follows a table while compactord runs, is killed and started again.

`python -m tests.oracle.following --commits 1000` does it with daemons. Each change must come
exactly once, in order, for each key.
"""

from __future__ import annotations

import argparse
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from compactord import ids
from compactord.clock import SystemClock
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, read_snapshot, snapshot_ids
from compactord.storage.local import LocalStorage
from tests import builders
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge
from tests.service.daemon_process import SECONDS_MAX, Services, configuration

LOCAL = LocalStorage()
KEYS = 400
PRODUCERS: Mapping[str, Mapping[str, str]] = {
    "full-compaction": {"changelog-producer": "full-compaction"},
    "lookup": {"changelog-producer": "lookup"},
    "lookup with vectors": {"changelog-producer": "lookup", "deletion-vectors.enabled": "true"},
}
OPTIONS = {
    "bucket": "2",
    # A reader that starts late reads from the first snapshot on.
    "snapshot.num-retained.min": "100000",
    "snapshot.num-retained.max": "100000",
}


class Followed:
    """A table that Java writes to, and all values that its keys have had."""

    def __init__(self, judge: Judge, path: Path, seed: int, producer: str) -> None:
        self.table = LiveTable(
            judge=judge,
            path=path,
            columns=(("k", "INT NOT NULL"), ("v", "BIGINT")),
            primary_key=("k",),
            options={**OPTIONS, **PRODUCERS[producer]},
        ).create()
        self.chance = random.Random(seed)
        self.history: dict[int, list[int | None]] = {key: [None] for key in range(KEYS)}

    def write(self, commit: int) -> None:
        """One commit: some keys get a value that no key has had, some are deleted."""
        # Most commits are so small that what they change is on a level above.
        most = KEYS // self.chance.choice([2, 40, 40, 40])
        keys = self.chance.sample(range(KEYS), self.chance.randint(1, most))
        kinds = self.chance.choices(["+I", "-D"], [4, 1], k=len(keys))
        rows = [[key, commit * KEYS + key] for key in keys]
        self.table.judge.write(self.table.path, rows, kinds)
        for (key, value), kind in zip(rows, kinds, strict=True):
            self.history[key].append(None if kind == "-D" else value)

    def wait_compacted(self) -> None:
        """Until what was written last is compacted: whoever does it is at work now."""
        root, deadline = str(self.table.path), time.monotonic() + SECONDS_MAX
        while True:
            latest = read_snapshot(LOCAL, root, max(snapshot_ids(LOCAL, root)))
            if latest.commit_kind is CommitKind.COMPACT:
                return
            assert time.monotonic() < deadline, "nobody compacts"
            time.sleep(0.05)

    def check(self) -> int:
        """Fails unless the changes are those of the writes; how many were told."""
        at = dict.fromkeys(range(KEYS), 0)
        held: dict[int, int | None] = dict.fromkeys(range(KEYS))
        told = 0
        for kind, (key, value) in self.table.judge.changes(self.table.path):
            assert isinstance(key, int)
            assert isinstance(value, int)
            told += 1
            if kind in ("-U", "-D"):
                assert held[key] == value, f"key {key}: {kind} {value}, but it has {held[key]}"
            else:
                assert held[key] is None, f"key {key}: {kind} {value} beside {held[key]}"
            held[key] = None if kind in ("-U", "-D") else value
            if kind != "-U":
                later = self.history[key][at[key] + 1 :]
                assert held[key] in later, f"key {key}: {kind} {value} is told again, or too late"
                at[key] += 1 + later.index(held[key])
        last = {key: values[-1] for key, values in self.history.items()}
        assert held == last, "the last change of each key has been told"
        rows = {row[0]: row[1] for row in self.table.judge.read(self.table.path)}
        assert rows == {key: value for key, value in last.items() if value is not None}
        return told


class Runner:
    """A process that compacts the table in a loop, and is nothing but that."""

    def __init__(self, table: Path) -> None:
        command = [sys.executable, "-m", "tests.oracle.following", "--compact", str(table)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def settle(self) -> None:
        """Let it end once nothing is left to do."""
        self.process.communicate(timeout=300)
        assert self.process.returncode == 0


class Daemon(Runner):
    """`compactord serve` for the table's warehouse."""

    def __init__(self, services: Services, table: Path) -> None:
        self.service = services.start(configuration(table.parent.parent))
        self.service.wait_started()

    def kill(self) -> None:
        self.service.kill_family()

    def settle(self) -> None:
        self.service.wait_settled("t")
        assert self.service.stop() == 0


def follow(followed: Followed, commits: int, start: Callable[[], Runner], lives: int) -> None:
    """Write while runners live one after the other; all but the last are killed at any moment."""
    share = -(-commits // lives)
    for life in range(lives):
        runner = start()
        for number in range(life * share, min(commits, (life + 1) * share)):
            followed.write(number + 1)
            if number == life * share:
                followed.wait_compacted()
        if life < lives - 1:
            time.sleep(followed.chance.random())
            runner.kill()
    runner.settle()


def _compact(path: str) -> None:
    """Until the end of the input, and once more."""
    table = TableRef(database="db", name="t", location=path)
    is_last = False
    while not is_last:
        is_last = not _is_open(sys.stdin.fileno())
        # Its pauses are real: without them one process can lose every attempt to a fast writer.
        totals = builders.compact(LOCAL, table, owner=ids.this_process(), clock=SystemClock())
        assert not totals.failures, totals.failures


def _is_open(number: int) -> bool:
    ready, _, _ = select.select([number], [], [], 0)
    return not ready


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compact", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.compact:
        _compact(asked.compact)
        return 0
    lives = max(2, asked.commits // 100)
    for producer in PRODUCERS:
        with tempfile.TemporaryDirectory(prefix="compactord-") as folder, Judge() as judge:
            path, services = Path(folder) / "warehouse" / "db.db" / "t", Path(folder) / "s"
            followed = Followed(judge, path, asked.seed, producer)
            daemons = Services(services, [])
            follow(followed, asked.commits, partial(Daemon, daemons, path), lives)
            told = followed.check()
        what = f"{producer}: {asked.commits} commits, {lives} daemons"
        print(f"{what}, {told:,} changes told once, in order", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
