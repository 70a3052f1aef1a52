"""Ten minutes of ingestion at a rate near what two cores can merge, with one `kill -9`.

A daemon on two cores, and beside it one write-only job each for a table with a primary key, a
partitioned one and an append table. Keyed tables are filled with all their keys first, and a commit
always brings the same share of them, so that it always costs the same to merge. Then jobs commit
more or less often until the daemon's slots are busy for four fifths of the time, and go on like
that. After a part of the time the daemon is killed and started again. At the end all rows must be
there, once, and no file that no snapshot leads to.

The interval is found rather than chosen because universal compaction picks by commits, not by
seconds: at another interval the same merges fill another share of the time. Streaming jobs commit
with their checkpoints, every ten seconds to some minutes; what is found here is rather less.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tests.bench.service_ingest import Ingestion
from tests.bench.service_process import Daemons, Spent, daemons, rise, rss_mib, spent, usage
from tests.service.daemon_process import Scrape, Service

# Of the slots' time; so near is near enough.
_BUSY = 0.8
_NEAR = 0.03
# No try is at less of the interval of the one before.
_LESS = 0.5
_KILL_AT = 0.4
# After a start, and until what had piled up is merged.
_RECOVERY_S = 30.0
_SAMPLE_S = 0.5
_STRETCH_S = 60.0
_STOP_TRIGGER = 8
_RETAINED_MAX = 30
# The append table gets this share of the rows of the others: it keeps all of them.
_APPEND_SHARE = 0.25
_OPTIONS = {
    "continuous.discovery-interval": "1 s",
    "snapshot.num-retained.min": "5",
    "snapshot.num-retained.max": str(_RETAINED_MAX),
    "snapshot.time-retained": "20 s",
}
# The daemon compresses so well that its cores are busy before the jobs' are. Not the append table,
# whose merges grow with it: at this level one of 256 MB would take minutes.
_COSTLY = {
    "match": {"table": r"db\.(keyed|parts)"},
    "set": {"options": {"file.compression.zstd-level": 19}},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """`keys` of a keyed table and `rows` of a commit; the interval of the first try.

    There are at most `tries` of `try_commits`: more than from one full compaction of a bucket to
    the next. The last expiries of snapshots are given `expiry_s`.
    """

    keys: int
    rows: int
    interval_s: float
    try_commits: int
    tries: int
    expiry_s: float


_FULL = _Scale(keys=2_000_000, rows=800_000, interval_s=6.0, try_commits=12, tries=4, expiry_s=12.0)
_TINY = _Scale(keys=50_000, rows=5_000, interval_s=0.5, try_commits=5, tries=1, expiry_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """`at_s` is since the rate was found."""

    at_s: float
    runs_max: int
    snapshots_max: int
    driver_mib: float
    jvm_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Some time of ingestion: its samples, how busy the slots were, and the CPU spent."""

    samples: Sequence[_Sample]
    slot_share: float
    spent: Spent

    @property
    def runs_max(self) -> int:
        return max(sample.runs_max for sample in self.samples)


class _Soak:
    def __init__(self, started: Daemons, warehouse: Path, scale: _Scale) -> None:
        self._daemons = started
        self._warehouse = warehouse
        self._scale = scale
        options = {"keyed": {"bucket": "4"}, "parts": {"bucket": "2"}, "log": {"bucket": "-1"}}
        self._jobs = [
            Ingestion(
                warehouse,
                name,
                seed=seed,
                keys=scale.keys,
                rows=scale.rows if name != "log" else int(scale.rows * _APPEND_SHARE),
                interval_s=scale.interval_s,
                is_keyed=name != "log",
                is_partitioned=name == "parts",
                options=_OPTIONS | own,
            )
            for seed, (name, own) in enumerate(options.items())
        ]
        self._names = [job.name for job in self._jobs]
        self._start_s = time.monotonic()

    def run(self, seconds: float) -> dict[str, Any]:
        first = self._start()
        for job in self._jobs:
            if job.is_keyed:
                job.fill()
        first.wait_settled(*self._names, seconds=120)
        for job in self._jobs:
            job.start()
        try:
            tries = self._find_interval(first)
            written = sum(job.rows_written for job in self._jobs)
            self._start_s = time.monotonic()
            before = self._stretches(first, seconds * _KILL_AT)
            os.kill(first.pid, signal.SIGKILL)
            first.process.wait()
            second = self._start()
            around = self._stretch(second, min(_RECOVERY_S, seconds / 4))
            after = self._stretches(second, seconds - (time.monotonic() - self._start_s))
        finally:
            errors = self._stop_jobs()
        rows_per_s = (sum(job.rows_written for job in self._jobs) - written) / seconds
        second.wait_settled(*self._names, seconds=120)
        time.sleep(self._scale.expiry_s)
        exit_code = second.stop()
        first.assert_no_process_remains()
        second.assert_no_process_remains()
        steady = [*before, *after]
        return {
            "interval_s": round(self._jobs[0].interval_s, 2),
            "rows_per_s": round(rows_per_s),
            "late_s": round(max(job.late_s for job in self._jobs), 2),
            "exit_code": exit_code,
            "writer_errors": errors,
            **_load(steady),
            **_runs(steady, around),
            **_memory([sample for stretch in after for sample in stretch.samples]),
            **self._left(),
            **_troubles((first, second)),
            "tries": tries,
            "stretches": [
                {
                    "at_s": round(stretch.samples[0].at_s),
                    "slot_share": round(stretch.slot_share, 2),
                    "runs_max": stretch.runs_max,
                }
                for stretch in (*before, around, *after)
            ],
        }

    def _start(self) -> Service:
        return self._daemons.start(self._warehouse, {"rules": [_COSTLY]})

    def _find_interval(self, service: Service) -> list[dict[str, Any]]:
        """What each try was like."""
        interval_s, tries = self._scale.interval_s, []
        for _ in range(self._scale.tries):
            # The first commits find the shape that another interval left.
            self._stretch(service, 2 * interval_s)
            tried = self._stretch(service, self._scale.try_commits * interval_s)
            tries.append(
                {
                    "interval_s": round(interval_s, 2),
                    "slot_share": round(tried.slot_share, 2),
                    "runs_max": tried.runs_max,
                }
            )
            if abs(tried.slot_share - _BUSY) <= _NEAR:
                break
            interval_s *= max(_LESS, tried.slot_share / _BUSY)
            for job in self._jobs:
                job.interval_s = interval_s
        self._stretch(service, 2 * interval_s)
        for job in self._jobs:
            job.late_s = 0.0
        return tries

    def _stretches(self, service: Service, seconds: float) -> list[_Stretch]:
        """At least one."""
        end_s, found = time.monotonic() + seconds, []
        while not found or time.monotonic() < end_s:
            left_s = end_s - time.monotonic()
            # A short remainder goes with the last one.
            is_last = left_s < 1.5 * _STRETCH_S
            found.append(self._stretch(service, left_s if is_last else _STRETCH_S))
        return found

    def _stretch(self, service: Service, seconds: float) -> _Stretch:
        """At least one sample."""
        end_s, jvm, samples = time.monotonic() + seconds, service.jvm(), []
        metrics, before = service.metrics(), usage(service)
        while not samples or time.monotonic() < end_s:
            assert service.process.poll() is None, f"the daemon has ended: {service.err}"
            seen = [job.seen() for job in self._jobs]
            samples.append(
                _Sample(
                    at_s=time.monotonic() - self._start_s,
                    runs_max=max(each.runs_max for each in seen),
                    snapshots_max=max(each.snapshots for each in seen),
                    driver_mib=rss_mib(service.pid),
                    jvm_mib=rss_mib(jvm),
                )
            )
            time.sleep(_SAMPLE_S)
        return _Stretch(
            samples=samples,
            slot_share=_slot_share(metrics, service.metrics()),
            spent=spent(before, usage(service)),
        )

    def _stop_jobs(self) -> list[str]:
        errors = []
        for job in self._jobs:
            try:
                job.stop()
            except Exception as error:  # noqa: BLE001 - a figure like the others
                errors.append(f"{job.name}: {type(error).__name__}: {error}")
        return errors

    def _left(self) -> dict[str, Any]:
        """What the tables hold in the end, and what they should not.

        What the killed daemon left is swept first, as its successor would after some minutes.
        """
        for job in self._jobs:
            job.sweep()
        strays = [name for job in self._jobs for name in sorted(job.stray_files())]
        return {
            "lost_rows_tables": sum(not job.has_all_rows() for job in self._jobs),
            "stray_files": len(strays),
            "strays": strays[:5],
        }


def _slot_share(before: Scrape, after: Scrape) -> float:
    """How busy the slots were; by the service's own clock of beats."""
    busy_s = rise(before, after, "slot_busy_seconds_total")
    beats = "loop_last_heartbeat_timestamp_seconds"
    seconds = rise(before, after, beats, loop="dispatcher")
    return busy_s / (seconds * after.one("task_slots")) if seconds else 0.0


def _load(stretches: Sequence[_Stretch]) -> dict[str, Any]:
    """Means over the time of all stretches."""
    seconds = sum(stretch.spent.seconds for stretch in stretches)

    def mean(figures: Sequence[float]) -> float:
        each = zip(figures, stretches, strict=True)
        return sum(figure * stretch.spent.seconds for figure, stretch in each) / seconds

    return {
        "slot_share": round(mean([stretch.slot_share for stretch in stretches]), 3),
        "driver_cores": round(mean([stretch.spent.driver for stretch in stretches]), 3),
        "jvm_cores": round(mean([stretch.spent.jvm for stretch in stretches]), 3),
        "worker_cores": round(mean([stretch.spent.workers for stretch in stretches]), 2),
    }


def _runs(steady: Sequence[_Stretch], around: _Stretch) -> dict[str, Any]:
    """`around` is the time right after the restart."""
    samples = [sample for stretch in steady for sample in stretch.samples]
    below = sum(sample.runs_max < _STOP_TRIGGER for sample in samples)
    return {
        "runs_max": max(sample.runs_max for sample in samples),
        "runs_max_after_kill": around.runs_max,
        "below_stop_share": round(below / len(samples), 4),
        "snapshots_max": max(s.snapshots_max for s in chain(samples, around.samples)),
    }


def _memory(samples: Sequence[_Sample]) -> dict[str, Any]:
    """Of the daemon that was started last."""
    return {
        "driver_mib": round(statistics.median(s.driver_mib for s in samples)),
        "driver_mib_per_minute": round(_slope(samples, "driver_mib"), 3),
        "driver_growth_mib": round(_growth([s.driver_mib for s in samples]), 1),
        "jvm_mib": round(statistics.median(s.jvm_mib for s in samples)),
        "jvm_mib_per_minute": round(_slope(samples, "jvm_mib"), 3),
    }


def _slope(samples: Sequence[_Sample], figure: str) -> float:
    """Per minute, by least squares."""
    minutes = [sample.at_s / 60 for sample in samples]
    values = [getattr(sample, figure) for sample in samples]
    if len(samples) < 3:
        return 0.0
    return statistics.linear_regression(minutes, values).slope


def _growth(values: Sequence[float]) -> float:
    """From the second quarter to the last; zero for a few values."""
    quarter = len(values) // 4
    if not quarter:
        return 0.0
    return statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter])


def _troubles(services: Sequence[Service]) -> Mapping[str, Any]:
    """What the daemons themselves complained of."""
    lines = [line for service in services for line in service.log()]
    bad = [line for line in lines if line["level"] in ("error", "critical")]
    return {
        "log_errors": len(bad),
        "conflicts": sum(line["event"] == "commit_conflict" for line in lines),
        "first_errors": [
            {key: line.get(key) for key in ("event", "message", "reason")} for line in bad[:3]
        ],
    }


def soak(
    *, seconds: float, cores: tuple[int, ...], machine: frozenset[int], folder: Path | None
) -> dict[str, Any]:
    """`cores` are the daemon's; the jobs have the others of `machine`, if there are any."""
    os.sched_setaffinity(0, machine - set(cores) or machine)
    with (
        tempfile.TemporaryDirectory(prefix="compactord-soak-", dir=folder) as warehouse,
        daemons(cores) as started,
    ):
        found = _Soak(started, Path(warehouse), _FULL if seconds > 60 else _TINY).run(seconds)
    tries, stretches = found.pop("tries"), found.pop("stretches")
    return {**found, "seconds": seconds, "lines": [found, *tries, *stretches]}


def is_sound(found: Mapping[str, Any]) -> bool:
    """Whether nothing was lost, nothing left and nothing failed; how fast is another matter."""
    return not (
        found["lost_rows_tables"]
        or found["stray_files"]
        or found["log_errors"]
        or found["writer_errors"]
        or found["exit_code"]
    )
