"""What is promised, and whether a measurement keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`figure` names a figure of a case; `at_least` tells the direction of `bound`."""

    figure: str
    bound: float
    at_least: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A target beside what was measured."""

    figure: str
    target: str
    measured: float
    met: bool


def _at_least(figure: str, bound: float) -> Target:
    return Target(figure=figure, bound=bound, at_least=True)


def _at_most(figure: str, bound: float) -> Target:
    return Target(figure=figure, bound=bound, at_least=False)


_MEMORY = _at_most("peak_rss_mib", 512)

TARGETS: Mapping[str, tuple[Target, ...]] = {
    "pk": (
        _at_least("java_cpu_ratio", 3.3),
        _at_least("java_wall_ratio", 4.2),
        _at_least("flink_wall_ratio", 5.0),
        _at_least("floor_share", 0.82),
        _MEMORY,
    ),
    "pk-string": (_at_least("java_wall_ratio", 3.7), _MEMORY),
    "pk-three": (_at_least("java_wall_ratio", 4.5), _MEMORY),
    "partial-update": (_at_least("java_wall_ratio", 3.5), _MEMORY),
    "sequence-groups": (_at_least("java_wall_ratio", 3.0), _MEMORY),
    "aggregation": (_at_least("java_wall_ratio", 3.5), _MEMORY),
    "changelog": (_at_least("java_wall_ratio", 4.0), _MEMORY),
    # One level-0 file of 500,000 rows, and of 20,000 neighbours, over 3 M rows.
    "lookup": (_at_least("java_wall_ratio", 5.0), _MEMORY),
    "lookup-small": (
        _at_least("java_wall_ratio", 8.0),
        _at_most("read_share", 0.3),
        _MEMORY,
    ),
    # The same with deletion vectors and without a changelog; of 5,000 neighbours.
    "vectors": (_at_least("java_wall_ratio", 5.0), _MEMORY),
    "vectors-small": (
        _at_least("java_wall_ratio", 10.0),
        _at_most("read_share", 0.2),
        _MEMORY,
    ),
    # 100 files of 20,000 rows, 30 % of each deleted.
    "vectors-append": (_at_least("java_wall_ratio", 4.0), _MEMORY),
    "altered": (_at_least("java_wall_ratio", 3.0), _MEMORY),
    "append": (_at_least("java_wall_ratio", 3.5), _MEMORY),
    "small": (_at_most("wall_s", 0.15), _MEMORY),
    "buckets": (_at_most("snapshots", 3), _MEMORY),
    "dynamic": (_at_most("snapshots", 3), _MEMORY),
    # Of `shapes`: 500 partitions of two files, 100 dynamic buckets of five files, all small.
    "part500-append": (
        _at_least("java_wall_ratio", 0.4),
        _at_most("tree_cpu_ms_per_bucket", 14),
        _MEMORY,
    ),
    "part500-pk": (
        _at_least("java_wall_ratio", 0.6),
        _at_most("tree_cpu_ms_per_bucket", 14),
        _MEMORY,
    ),
    "dyn100": (_at_least("java_wall_ratio", 1.0), _MEMORY),
    **{
        case: (_at_least("java_cpu_ratio", ratio), _MEMORY)
        for case, ratio in (
            ("collect", 3.0),
            ("collect-distinct", 3.0),
            ("merge-map", 3.0),
            ("nested-update", 3.0),
            ("listagg", 3.0),
            ("rbm32", 1.0),
            ("rbm64", 0.9),
            ("hll", 0.9),
            ("theta", 1.5),
            ("pk-gzip", 1.4),
            ("pk-many-groups", 2.0),
            ("append-many-groups", 2.0),
            ("pk-orc", 2.0),
            ("append-orc", 4.0),
            ("pk-avro", 1.0),
            ("disjoint", 8.0),
            ("huge-tiny", 6.0),
        )
    },
    # Beside the same table in local files, in turns; the delay is 10 ms for each request.
    "pk-s3": (
        _at_most("s3_cpu_ratio", 1.3),
        _at_most("delayed_wall_ratio", 1.5),
        _MEMORY,
    ),
    "small-s3": (
        _at_most("delayed_wall_s", 1),
        _at_most("requests", 25),
        _MEMORY,
    ),
    "lookup-s3": (_at_most("delayed_local_ratio", 2), _MEMORY),
    "lookup-small-s3": (_at_most("delayed_local_ratio", 2), _MEMORY),
    "scan": (
        _at_most("refresh_unchanged_ms", 5),
        _at_most("refresh_growth", 2),
        _at_least("entries_per_s", 100_000),
    ),
    # Of 100,000 small files in one partition.
    "append-plan": (
        _at_most("look_ms", 200),
        _at_most("plan_ms", 200),
        _at_most("look_10_files_ms", 50),
    ),
    # Of 10,000 dynamic buckets, all of them due.
    "bucket-plan": (
        _at_most("first_plan_s", 2),
        _at_most("plan_10_files_ms", 20),
        _at_most("plan_10_files_new_keys_ms", 20),
    ),
    # Of a million files, a tenth of them named by nothing.
    "orphans": (_at_least("files_per_s", 20_000), _at_most("peak_rss_mib", 512)),
    # Of a thousand snapshots, beside one round of Java's, on local disks.
    "expire": (_at_least("java_wall_ratio", 3), _MEMORY),
    # Of 10,000 partitions of ten files, a thousand in a snapshot.
    "partitions": (_at_most("cpu_s", 30), _MEMORY),
    # With more runs than levels, what 2.0 writes by what 2.1 writes.
    "level-1": (_at_least("picks_ratio", 5),),
    # Of a thousand tables on one core, 10 ms added to each request.
    "polls": (_at_most("polls_s", 10), _at_most("requests_per_poll", 3)),
    # As many tables, ten times as many listed, each request to server and store 10 ms.
    "catalogs": tuple(
        _at_most(f"{kind}_{figure}", bound)
        for kind in ("rest", "hive")
        for figure, bound in (
            ("requests_per_poll", 3),
            ("listings", 0),
            ("commit_requests", 25),
            ("commit_s", 1),
            ("list_s", 20),
        )
    ),
    # Beside 0.1.0 without an archive of classes; only with --base.
    "start": (_at_most("compact_wall_ratio", 0.6),),
    "large": (_at_most("peak_rss_mib", 1024),),
    "service-idle": (_at_most("idle_cpu_percent", 2), _at_most("poll_ms", 5)),
    "service-memory": (_at_most("kib_per_bucket", 20),),
    # The interval and a second.
    "service-latency": (_at_most("latency_1s_max_s", 2), _at_most("latency_5s_max_s", 6)),
    "service-fleet": (
        _at_most("requests_per_s", 100),
        _at_most("fleet_cpu_percent", 15),
        _at_most("driver_mib", 600),
    ),
    # A commit makes fifty buckets due: the mean of what waits grows by no more.
    "service-load": (
        _at_most("driver_cores", 1),
        _at_most("loop_overruns", 0),
        _at_most("backlog_growth", 50),
    ),
    # The stop-trigger is 8, near capacity; at most 30 snapshots are kept, and expired every ten
    # seconds.
    "soak": (
        _at_least("slot_share", 0.7),
        _at_most("runs_max", 7),
        _at_most("driver_growth_mib", 10),
        _at_most("snapshots_max", 100),
        _at_most("lost_rows_tables", 0),
        _at_most("stray_files", 0),
    ),
}


def verdicts(case: str, figures: Mapping[str, Any]) -> list[Verdict]:
    """Of the targets whose figures were measured: a bench without Flink has no ratio to it."""
    return [
        Verdict(
            figure=target.figure,
            target=f"{'≥' if target.at_least else '≤'} {target.bound:g}",
            measured=figures[target.figure],
            met=(figures[target.figure] >= target.bound)
            if target.at_least
            else (figures[target.figure] <= target.bound),
        )
        for target in TARGETS.get(case, ())
        if target.figure in figures
    ]
