"""The floor of a compaction: decoding its inputs and encoding its outputs, and nothing else.

Measured on the subcompactions that the planner makes of the table, in turns with rewriting them, in
a process of its own with a worker's environment and one core: decoding and encoding alone have one
thread, and so has a rewrite then. The floor reads and writes with our settings: page checksums
verified and written, page indexes, our row groups. The bare floor leaves those away.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from compactord.catalog.access import table_in_folder
from compactord.clock import SystemClock
from compactord.engine.driver import SETTINGS
from compactord.ids import this_process
from compactord.model import PickRule, Subcompaction
from compactord.plan.table import Strategy
from compactord.rewrite.subcompaction import rewrite
from compactord.state.table_state import load_state
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from compactord.table.planning import CompactRequest, PlanContext, StatePlanner, plan_state
from compactord.table.subcompactions import WorkerSpec, subcompactions
from tests.bench.bench_rewrite import decoding_s, encoding_s
from tests.bench.ours import MEMORY_BYTES, table_ref


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """CPU seconds over all subcompactions of a table; `rewrite_s` is all of the worker's work."""

    rewrite_s: float
    decode_s: float
    encode_s: float
    bare_s: float

    @property
    def cpu_s(self) -> float:
        return self.decode_s + self.encode_s


def floor(path: Path, *, full: bool, repetitions: int) -> Floor:
    """Of a table that may be spoiled: its subcompactions are rewritten."""
    prefix = "spark.executorEnv."
    worker = {
        name.removeprefix(prefix): value
        for name, value in SETTINGS.items()
        if name.startswith(prefix)
    }
    with (
        mock.patch.dict(os.environ, worker),
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
    ):
        return process.submit(_measure, path, full, repetitions).result()


def _measure(path: Path, full: bool, repetitions: int) -> Floor:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    subcompactions = _subcompactions(path, full)
    found: dict[str, list[float]] = {name: [] for name in ("rewrite", "decode", "encode", "bare")}
    for _ in range(repetitions + 1):
        begin = time.process_time()
        rewritten = [(subcompaction, rewrite(subcompaction)) for subcompaction in subcompactions]
        found["rewrite"].append(time.process_time() - begin)
        found["decode"].append(sum(decoding_s(subcompaction) for subcompaction in subcompactions))
        found["encode"].append(sum(encoding_s(*pair) for pair in rewritten))
        decoding = sum(decoding_s(subcompaction, is_bare=True) for subcompaction in subcompactions)
        found["bare"].append(decoding + sum(encoding_s(*pair, is_bare=True) for pair in rewritten))
    # The first turn warms everything up.
    return Floor(**{f"{name}_s": statistics.median(seconds[1:]) for name, seconds in found.items()})


def _subcompactions(path: Path, full: bool) -> list[Subcompaction]:
    clock, storage, ref = SystemClock(), LocalStorage(), table_ref(path)
    table = open_table(table_in_folder(storage, ref), {})
    context = PlanContext(
        request=CompactRequest(
            strategy=Strategy.FULL if full else Strategy.MINOR, pick=PickRule.RELEASE_2_0
        ),
        now_ms=clock.now_ms(),
        steady_ms=clock.steady_ms(),
        zone=clock.time_zone,
    )
    worker = WorkerSpec(owner=this_process(), memory_bytes=MEMORY_BYTES, zone=clock.time_zone)
    state = load_state(storage, ref)
    return [
        subcompaction
        for plan in plan_state(StatePlanner(table, state, context))
        for compaction in plan.compactions
        for subcompaction in subcompactions(
            table,
            compaction,
            compaction_id=1,
            free_slots=1,
            worker=worker,
            clock=clock,
            vectors=state.indexes.vectors(compaction.bucket),
        )
    ]
