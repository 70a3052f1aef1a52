"""One table, compacted by both sides in turns: what each takes, and whether both did the same."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compactord.engine.base import Engine
from tests.bench.floor import Floor, floor
from tests.bench.ours import Measured, OurRun, OurSide
from tests.bench.peers import CorePeer, FlinkPeer
from tests.bench.tables import Shape, fresh_copy, make_table

# The Java virtual machine needs two rounds until it runs compiled code, our workers one.
WARM_UPS = 2
_MIB = 1 << 20
# What the compaction tells: the table has three snapshots before it.
_CHANGES = {"incremental-between": "3,4", "incremental-between-scan-mode": "changelog"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    repetitions: int
    warm_ups: int
    with_flink: bool
    with_floor: bool


def contest(
    folder: Path,
    shape: Shape,
    engine: Engine,
    rules: Rules,
    *,
    maker: CorePeer | None = None,
    core: CorePeer | None = None,
) -> dict[str, Any]:
    """Make the table below `folder` and let all sides compact it.

    Each side has a JVM of its own, and tables are made in another: code compiled for writing would
    not be the best for compacting. `maker` and `core` are JVMs that have done other tables.
    """
    table = folder / "bench.db" / "table"
    idle = [] if maker is None else [maker.pid]
    with _open(maker) as maker:
        make_table(maker, table, shape)
        files = maker.files(table)
    full = shape.is_full
    java: list[Measured] = []
    flink: list[Measured] = []
    ours: list[OurRun] = []
    with _open(core) as core:
        our_side = OurSide(engine, excluded=[core.pid, *idle])
        for _ in range(rules.warm_ups + rules.repetitions):
            with fresh_copy(table, "java") as copy:
                java.append(core.compact_measured(copy, full=full))
            with fresh_copy(table, "ours") as copy:
                ours.append(our_side.compact(copy, full=full))
        is_same, rows = _same_rows(core, table, our_side, shape)
    if rules.with_flink and not shape.above:  # the job compacts fully
        with FlinkPeer() as peer:
            for _ in range(rules.warm_ups + rules.repetitions):
                with fresh_copy(table, "flink") as copy:
                    flink.append(peer.compact_measured(copy))
    warm = rules.warm_ups
    found = figures(java[warm:], flink[warm:], ours[warm:])
    if shape.partitions:
        found["tree_cpu_ms_per_bucket"] = 1000 * found["tree_cpu_s"] / shape.partitions
    if not shape.is_full and shape.above:
        found["read_share"] = _read_share(found["mb_in"] * 1e6, files)
    elif rules.with_floor:
        with fresh_copy(table, "floor") as copy:
            lowest = floor(copy, full=full, repetitions=rules.repetitions)
        found |= _floor_figures(lowest)
    return found | {"rows_read_back": rows, "same_rows_as_java": is_same}


def _open(peer: CorePeer | None) -> contextlib.AbstractContextManager[CorePeer]:
    return CorePeer() if peer is None else contextlib.nullcontext(peer)


def _same_rows(core: CorePeer, table: Path, ours: OurSide, shape: Shape) -> tuple[bool, int]:
    """Whether Java reads the same rows from both results, whatever their order; and how many.

    Where rows were looked up to tell changes also the same changes, whatever their kinds.
    """
    with fresh_copy(table, "java") as theirs, fresh_copy(table, "ours") as mine:
        core.compact_measured(theirs, full=shape.is_full)
        ours.compact(mine, full=shape.is_full)
        expected, found = (_rows(core, side, shape) for side in (theirs, mine))
        is_same = expected == found
        if "changelog-producer" in shape.options and shape.above:
            changes = [core.read_checksum(side, options=_CHANGES) for side in (theirs, mine)]
            is_same &= changes[0] == changes[1] and changes[0][0] == 2 * shape.rows
    return is_same, found[0]


def _rows(core: CorePeer, table: Path, shape: Shape) -> tuple[int, Any]:
    """How many, and what is equal if they are, whatever their order."""
    if not shape.any_order:
        return core.read_checksum(table)
    rows = [
        [sorted(value) if isinstance(value, list) else value for value in row]
        for row in core.read(table)
    ]
    return len(rows), sorted(rows)


def _read_share(bytes_in: float, files: Sequence[Mapping[str, Any]]) -> float:
    """How much was read of the files in which rows were looked up."""
    merged, above = (
        sum(file["file_size"] for file in files if bool(file["level"]) == is_above)
        for is_above in (False, True)
    )
    return (bytes_in - merged) / above


def figures(java: list[Measured], flink: list[Measured], ours: list[OurRun]) -> dict[str, Any]:
    """The flat figures of one contest: medians, and minima of what is timed (`_min_`)."""
    sample = ours[0]
    found: dict[str, Any] = {
        "rows_in": sample.rows_in,
        "rows_out": sample.rows_out,
        "mb_in": sample.bytes_in / 1e6,
        "mb_out": sample.bytes_out / 1e6,
        "snapshots": sample.snapshots,
    }
    timed = (
        "wall_s",
        "plan_s",
        "work_s",
        "commit_s",
        "subcompaction_cpu_s",
        "end_s",
        "worker_cpu_s",
        "tree_cpu_s",
    )
    for name in timed:
        found |= _spread(name, (getattr(run, name) for run in ours))
    found["peak_rss_mib"] = max(run.peak_rss_bytes for run in ours) / _MIB
    for side, runs in (("java", java), ("flink", flink)):
        for name in ("wall_s", "cpu_s") if runs else ():
            found |= _spread(f"{side}_{name}", (getattr(run, name) for run in runs))
    return found | ratios(found)


def _floor_figures(lowest: Floor) -> dict[str, float]:
    return {
        **{f"floor_{name}": value for name, value in asdict(lowest).items()},
        "floor_cpu_s": lowest.cpu_s,
        "floor_share": lowest.cpu_s / lowest.rewrite_s,
        "bare_floor_share": lowest.bare_s / lowest.rewrite_s,
    }


def _spread(name: str, values: Iterable[float]) -> dict[str, float]:
    seconds = sorted(values)
    return {
        name: statistics.median(seconds),
        f"{name}_min": seconds[0],
        f"{name}_max": seconds[-1],
    }


def ratios(found: Mapping[str, float]) -> dict[str, float]:
    """How many times faster we are, by medians and by minima; rows are the same on both sides."""
    pairs = {
        "java_cpu_ratio": ("java_cpu_s", "worker_cpu_s"),
        "java_tree_cpu_ratio": ("java_cpu_s", "tree_cpu_s"),
        "java_wall_ratio": ("java_wall_s", "wall_s"),
        "flink_wall_ratio": ("flink_wall_s", "wall_s"),
    }
    made: dict[str, float] = {}
    for name, (theirs, mine) in pairs.items():
        for suffix in ("", "_min"):
            if theirs + suffix in found and found[mine + suffix]:
                made[name + suffix] = found[theirs + suffix] / found[mine + suffix]
    return made
