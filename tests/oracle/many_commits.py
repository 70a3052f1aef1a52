"""Java's writers and compactord commit to one table at once, as often as one likes:

    python -m tests.oracle.many_commits --commits 200
    python -m tests.oracle.many_commits hive rest --commits 500

On S3 under the lock of a JDBC catalog, under that of a metastore, and through a REST server.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.oracle.hive_metastore import hive_metastore
from tests.oracle.judge import Judge
from tests.oracle.on_s3 import contest_under_lock, judge_on, s3a
from tests.oracle.rest_server import java_with_rest, rest_server
from tests.store_servers import moto


def _jdbc(folder: Path, commits: int) -> int:
    with moto() as server, judge_on(lake := s3a(server)) as judge:
        return len(contest_under_lock(judge, lake, folder, users=1, commits=commits))


def _hive(folder: Path, commits: int) -> int:
    with hive_metastore(folder) as metastore, Judge() as judge:
        contest = metastore.contest(commits=commits)
        contest.create_table()
        return len(contest.nothing_is_lost(metastore.catalog(), judge))


def _rest(folder: Path, commits: int) -> int:
    with java_with_rest() as java, rest_server(java, folder) as server, Judge() as judge:
        contest = server.contest(commits=commits)
        contest.create_table()
        return len(contest.nothing_is_lost(server.catalog(), judge))


# Each returns how many commits of ours there were.
_CONTESTS: Mapping[str, Callable[[Path, int], int]] = {"jdbc": _jdbc, "hive": _hive, "rest": _rest}


def main() -> int:
    """Raises AssertionError when a commit was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.many_commits")
    parser.add_argument("catalogs", nargs="*", metavar="CATALOG", help=", ".join(_CONTESTS))
    parser.add_argument("--commits", type=int, default=200, metavar="N", help="of each of Java's")
    arguments = parser.parse_args()
    for name in arguments.catalogs or _CONTESTS:
        with tempfile.TemporaryDirectory(prefix="contest-") as folder:
            began = time.monotonic()
            ours = _CONTESTS[name](Path(folder), arguments.commits)
            seconds = time.monotonic() - began
        print(
            f"{name}: {arguments.commits} commits of each of Java's writers and {ours} of ours in "
            f"{seconds:.0f} s: no snapshot lost, ids without gaps, rows equal",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
