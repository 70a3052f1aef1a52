"""Run as a program: random workloads of the scheduler on a virtual clock.

python -m tests.simulation.many_workloads --runs 1000 --seed 0
"""

from __future__ import annotations

import sys

from tests.simulation.test_random_workloads import workload_of
from tests.tools.seeds import run_seeds

if __name__ == "__main__":
    sys.exit(
        run_seeds(
            "tests.simulation.many_workloads", lambda seed: workload_of(seed).run(), AssertionError
        )
    )
