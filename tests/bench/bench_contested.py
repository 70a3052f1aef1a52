"""Commits of four processes to one table at the same time, on every store that can be had here.

    python -m tests.bench.bench_contested                            # 40 on each
    python -m tests.bench.bench_contested --commits 1000 --few 100   # 1,000 on a disk and S3

One JSON line for each store. It ends with an error where a commit is lost, or an id has a gap.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from dataclasses import asdict

from compactord.storage.base import StorageSpec
from compactord.storage.local import LocalStorage
from tests.store_servers import SERVERS
from tests.stores.contested import PROCESSES, contest
from tests.tools.workbench import ToolError

# Those with as many commits as `--commits` says; the others have `--few`.
_MANY = ("local", "minio")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--few", type=int, default=40)
    parser.add_argument("--stores", nargs="*", default=["local", *SERVERS])
    arguments = parser.parse_args()
    # Four processes on one core would hardly meet.
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    for name in arguments.stores:
        commits = arguments.commits if name in _MANY else arguments.few
        with contextlib.ExitStack() as ends:
            try:
                spec, location = _place(name, ends)
            except ToolError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
                continue
            found = contest(spec, location, each=commits // PROCESSES)
        line = {"bench": "contested", "store": name, **asdict(found)}
        print(json.dumps(line | {"commits_per_s": found.commits / found.seconds}), flush=True)


def _place(name: str, ends: contextlib.ExitStack) -> tuple[StorageSpec, str]:
    if name == "local":
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="compactord-bench-"))
        return LocalStorage(), f"{folder}/db.db/t"
    server = ends.enter_context(SERVERS[name]())
    return server.spec, f"{server.root}/contested/db.db/t"


if __name__ == "__main__":
    main()
