"""Run as a program: how many of many short commands abort at their exit.

    python -m tests.e2e.exits --count 200

What lives when an interpreter ends may go wrong once in a hundred times, so commands are run that
have threads of all libraries behind them: pyarrow's on a disk, those of opendal on S3 (moto), and
each tenth time an embedded Spark with its JVM.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord.storage.objects.store import ObjectStorage
from tests import builders
from tests.store_servers import StoreServer, moto

_AT_ONCE = 2
_SECONDS_MAX = 300
_SPARK_EACH = 10
_SHORT = (
    ("inspect", "--table", "db.t"),
    ("plan", "--table", "db.t"),
    ("tables",),
    ("orphans", "--table", "db.t"),
    ("expire", "--table", "db.t", "--dry-run"),
)
# Of C++'s library, and of Python's, Rust's and Java's.
_TEXTS = (
    "terminate called",
    "Fatal Python error",
    "panicked at",
    "A fatal error has been detected",
)


def main() -> int:
    """Print what aborted; 1 if anything did."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.exits")
    parser.add_argument("--count", type=int, default=200, metavar="N", help="how many commands")
    count = parser.parse_args().count
    with tempfile.TemporaryDirectory() as folder, moto() as server:
        commands = list(itertools.islice(_commands(Path(folder), server), count))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = [trouble for trouble in pool.map(_trouble, commands) if trouble]
    print(f"{len(found)} of {count} commands did not end as they should", *found, sep="\n")
    return 1 if found else 0


def _commands(folder: Path, server: StoreServer) -> Iterator[tuple[str, ...]]:
    local, remote = LocalStorage(), server.spec.open()
    options = [f"--catalog-option={key}={text}" for key, text in server.options.items()]
    places = (
        (str(folder), ()),
        (server.root, (*options, "--unlocked-writers=guarded")),
    )
    for number in itertools.count():
        if number % _SPARK_EACH == 0:
            warehouse = folder / f"spark-{number}"
            _fill(local, str(warehouse))
            yield ("compact", "--warehouse", str(warehouse), "--table", "db.t")
            continue
        if number == 1:
            _fill(local, str(folder))
            _fill(remote, server.root)
        location, more = places[number % 2]
        name, *rest = _SHORT[number % len(_SHORT)]
        yield (name, "--warehouse", location, *rest, *more)


def _fill(storage: LocalStorage | ObjectStorage, warehouse: str) -> None:
    ref = TableRef(database="db", name="t", location=f"{warehouse}/db.db/t")
    builders.keyed_table(storage, ref.location, buckets=1)
    builders.fill_keyed(builders.writer(storage, ref), commits=6)


def _trouble(command: tuple[str, ...]) -> str:
    """How it ended, if not well."""
    done = subprocess.run(
        (sys.executable, "-m", "compactord", *command),
        capture_output=True,
        text=True,
        timeout=_SECONDS_MAX,
    )
    if done.returncode == 0 and not any(text in done.stderr for text in _TEXTS):
        return ""
    return f"{done.returncode}: {' '.join(command[:4])}: {done.stderr[-500:]}"


if __name__ == "__main__":
    sys.exit(main())
