"""The floor of a compaction: decoding its inputs and encoding its outputs, and nothing else.

Measured on the parts that the planner makes of the table, in a process of its own.
"""

from __future__ import annotations

import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from compactord.clock import SystemClock
from compactord.ids import this_process
from compactord.model import Subcompaction
from compactord.paimon.table import load_state
from compactord.plan.table import Strategy
from compactord.rewrite.task import rewrite
from compactord.service.parts import WorkerSpec, subcompactions
from compactord.service.planning import PlanContext, plan_state
from compactord.service.table import open_table
from compactord.storage.local import LocalStorage
from tests.bench.bench_rewrite import decoding_s, encoding_s
from tests.bench.ours import MEMORY_BYTES, table_ref


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """CPU seconds over all parts of a table, one thread."""

    decode_s: float
    encode_s: float

    @property
    def cpu_s(self) -> float:
        return self.decode_s + self.encode_s


def floor(path: Path, *, full: bool, repetitions: int) -> Floor:
    """Of a table that may be spoiled: each part is once rewritten to have something to encode."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(_measure, path, full, repetitions).result()


def _measure(path: Path, full: bool, repetitions: int) -> Floor:
    rewritten = [(part, rewrite(part)) for part in _parts(path, full)]
    decode = [sum(decoding_s(part) for part, _ in rewritten) for _ in range(repetitions)]
    encode = [sum(encoding_s(*pair) for pair in rewritten) for _ in range(repetitions)]
    return Floor(decode_s=statistics.median(decode), encode_s=statistics.median(encode))


def _parts(path: Path, full: bool) -> list[Subcompaction]:
    clock, storage, ref = SystemClock(), LocalStorage(), table_ref(path)
    table = open_table(storage, ref, {})
    context = PlanContext(
        strategy=Strategy.FULL if full else Strategy.MINOR,
        partitions=(),
        append_wait_ms=None,
        now_ms=clock.now_ms(),
        zone=clock.time_zone,
        last_full_ms={},
        settled=frozenset(),
    )
    worker = WorkerSpec(owner=this_process(), memory_bytes=MEMORY_BYTES, zone=clock.time_zone)
    return [
        part
        for plan in plan_state(storage, table, load_state(storage, ref), context)
        for compaction in plan.compactions
        for part in subcompactions(
            table, compaction, number=1, free_slots=1, worker=worker, clock=clock
        )
    ]
