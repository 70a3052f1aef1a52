"""How large level 1 becomes, and what that costs, by the picks of 2.0 and by those of 2.1.

    python -m tests.bench.bench_level_1                  # tiny, less than a second
    python -m tests.bench.bench_level_1 --commits 4000 --seeds 6

One bucket on paper, nothing but sizes: 10 GB on the highest of six levels, and commits of 5 to
15 MB of updates, each compacted until nothing is due. One JSON line for each trigger and rule.
`write_amplification` is the bytes that compactions write for each byte that is ingested, the mean
of all seeds. Runs are those that a reader merges after a commit's compactions, `runs_max` those
before them. `level_1_mb` is level 1 after each tenth of the commits of the first seed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from dataclasses import dataclass, field

from compactord.model import Compaction, PickRule, Rewrite
from compactord.paimon.data_file import DataFile
from compactord.plan.table import PlanRequest, plan_bucket
from tests.unit.plan.builders import MB, bucket_of, compaction_options, data_file, plan_request

LEVELS = 6
# Paimon's default, for which it has as many levels, and one that leaves fewer levels than runs.
TRIGGERS = (5, 8)
TABLE = 10_000 * MB
COMMIT = (5 * MB, 15 * MB)
POINTS = 10


@dataclass(slots=True, kw_only=True)
class Bucket:
    """Every run has random keys of the whole table; a merge drops what is there twice."""

    files: list[DataFile] = field(default_factory=list)
    made: int = 0
    ingested: int = 0
    written: int = 0
    runs: list[int] = field(default_factory=list)
    runs_max: int = 0
    level_1: list[int] = field(default_factory=list)

    def add(self, level: int, size: int) -> None:
        self.made += 1
        file = data_file(
            f"f{self.made}",
            level=level,
            size=size,
            keys=(0, 99),
            sequences=(self.made, self.made),
        )
        self.files.append(file)

    def commit(self, size: int, request: PlanRequest) -> None:
        self.add(0, size)
        self.ingested += size
        self.runs_max = max(self.runs_max, len(self.files))
        while compactions := plan_bucket(bucket_of(self.files), request).compactions:
            (compaction,) = compactions
            self._publish(compaction)
        self.runs.append(len(self.files))
        self.level_1.append(sum(file.file_size for file in self.files if file.level == 1))

    def _publish(self, compaction: Compaction) -> None:
        assert all(isinstance(action, Rewrite) for action in compaction.actions), "all overlap"
        inputs = compaction.inputs
        # A key is missing if it is in none of the inputs.
        missing = math.prod(1 - file.file_size / TABLE for file in inputs)
        size = round(TABLE * (1 - missing))
        self.files = [file for file in self.files if file not in inputs]
        self.add(compaction.output_level, size)
        self.written += size


def ingested(rule: PickRule, trigger: int, commits: int, seed: int) -> Bucket:
    options = compaction_options(num_levels=LEVELS, compaction_trigger=trigger)
    request = plan_request(pick=rule, options=options)
    chance = random.Random(seed)
    bucket = Bucket()
    bucket.add(LEVELS - 1, TABLE)
    for _ in range(commits):
        bucket.commit(chance.randint(*COMMIT), request)
    return bucket


def measure(rule: PickRule, trigger: int, commits: int, seeds: int) -> dict[str, object]:
    buckets = [ingested(rule, trigger, commits, seed) for seed in range(seeds)]
    every = max(1, commits // POINTS)
    return {
        "bench": "level-1",
        "trigger": trigger,
        "pick": rule.value,
        "commits": commits,
        "ingested_mb": round(statistics.mean(each.ingested for each in buckets) / MB),
        "write_amplification": round(
            statistics.mean(each.written / each.ingested for each in buckets), 1
        ),
        "runs_mean": round(statistics.mean(statistics.mean(each.runs) for each in buckets), 2),
        "runs_max": max(each.runs_max for each in buckets),
        "level_1_max_mb": max(max(each.level_1) for each in buckets) // MB,
        "level_1_mb": [size // MB for size in buckets[0].level_1[every - 1 :: every]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args()
    for trigger in TRIGGERS:
        for rule in PickRule:
            print(json.dumps(measure(rule, trigger, asked.commits, asked.seeds)), flush=True)


if __name__ == "__main__":
    main()
