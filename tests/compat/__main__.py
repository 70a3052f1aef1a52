"""Many random histories: python -m tests.compat --histories 1000 [--seed 0]

Each has a seed of its own, counted from `--seed`; those that fail are named in the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.compat.asking import PyPaimon
from tests.compat.histories import History
from tests.oracle.judge import Judge


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    arguments.add_argument("--histories", type=int, default=1)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--folder", type=Path, help="where tables are made; failed ones stay")
    found = arguments.parse_args()
    folder = found.folder or Path(tempfile.mkdtemp(prefix="histories-"))
    start, failed = time.monotonic(), []
    with Judge() as judge, PyPaimon(folder) as pypaimon:
        for seed in range(found.seed, found.seed + found.histories):
            try:
                history = History(pypaimon, judge, folder, f"h{seed}", seed)
                history.run()
                history.remove()
            except Exception as error:  # noqa: BLE001 - all kinds are to be told
                failed.append(seed)
                print(f"\nFAILED {error}\n", flush=True)
            if sys.stdout.isatty() or seed % 50 == 49:
                print(f"{seed + 1 - found.seed} histories, {len(failed)} failed", flush=True)
    seconds = time.monotonic() - start
    print(f"{found.histories} histories in {seconds:.0f} s; seeds that failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
