"""Run as a program: compacts tables in children that somebody will kill.

    python -m tests.stores.victim PORT

Each line of standard input is the location of an append table in the S3 server at PORT. A fork of
this process compacts it; its process id is printed, and once it has ended the number of its signal,
0 if it came to its end. This process itself never uses the store: its forks could not then.
"""

from __future__ import annotations

import os
import sys

from compactord import ids
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy

# Everything is imported before the first fork.
from compactord.storage.objects import store  # noqa: F401
from tests import builders
from tests.store_servers import s3


def main(port: int) -> None:
    for line in sys.stdin:
        table = TableRef(database="db", name="t", location=line.strip())
        child = os.fork()
        if child == 0:
            _compact(port, table)
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or status == 0, "a child failed"
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)


def _compact(port: int, table: TableRef) -> None:
    status = 1
    try:
        storage = s3(port).spec.open()
        totals = builders.compact(storage, table, owner=ids.this_process(), strategy=Strategy.FULL)
        status = 0 if totals.snapshots else 2
    finally:
        # Without the clean-up of the interpreter, whose threads are the parent's.
        os._exit(status)


if __name__ == "__main__":
    main(int(sys.argv[1]))
