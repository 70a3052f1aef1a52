"""Run as a program: random workloads of the scheduler on a virtual clock.

python -m tests.simulation.many_workloads --runs 1000 --seed 0
"""

from __future__ import annotations

import argparse
import logging
import sys

import structlog

from tests.simulation.test_random_workloads import workload_of


def main() -> int:
    """Print the seeds of workloads that broke a rule; 1 if any did."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.many_workloads")
    parser.add_argument("--runs", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    wrong = 0
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        try:
            workload_of(seed).run()
        except AssertionError as error:
            wrong += 1
            print(f"seed {seed}: {str(error)[:300]}", flush=True)
    print(f"{wrong} of {arguments.runs} workloads broke a rule")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
