"""Ten minutes of ingestion at a rate near what two cores can merge, with one `kill -9`.

A daemon on two cores, and beside it one write-only job each for a table with a primary key, a
partitioned one and an append table, each with a commit every two seconds. First the jobs write more
and more until the daemon's slots have no rest; what they write from then on is a share of that.
After a part of the time the daemon is killed and started again. At the end all rows must be there,
once, and no file that no snapshot leads to.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.service_ingest import Ingestion
from tests.bench.service_process import Daemons, daemons, rise, rss_mib, spent, usage
from tests.service.daemon_process import Service

_FIRST_ROWS = 20_000
_GROWTH = 1.5
_STEP_S = 15.0
_STEPS_MAX = 12
# Of the rate at which slots had no rest.
_SHARE = 0.6
_BUSY = 0.9
_SETTLE_S = 20.0
_KILL_AT = 0.4
# After a start, and until what had piled up is merged.
_RECOVERY_S = 30.0
_SAMPLE_S = 0.5
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


# The daemon compresses so well that its cores are busy before the jobs' are.
_COSTLY = {"match": {"table": ".*"}, "set": {"options": {"file.compression.zstd-level": 12}}}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """`at_s` is since the rate was found; `life` counts daemons."""

    at_s: float
    life: int
    runs_max: int
    snapshots_max: int
    driver_mib: float
    jvm_mib: float


class _Soak:
    def __init__(self, started: Daemons, warehouse: Path) -> None:
        self._daemons = started
        self._warehouse = warehouse
        options = {"keyed": {"bucket": "4"}, "parts": {"bucket": "2"}, "log": {"bucket": "-1"}}
        self._jobs = [
            Ingestion(
                warehouse,
                name,
                seed=seed,
                is_keyed=name != "log",
                is_partitioned=name == "parts",
                options=_OPTIONS | own,
            )
            for seed, (name, own) in enumerate(options.items())
        ]
        self._samples: list[_Sample] = []
        self._start_s = 0.0

    def run(self, seconds: float, steps: int) -> dict[str, Any]:
        first = self._start()
        self._set_rows(_FIRST_ROWS)
        for job in self._jobs:
            job.start()
        try:
            rows, step_lines = self._find_rate(first, steps)
            self._set_rows(rows)
            self._sample_for(first, 0, min(_SETTLE_S, seconds / 4), is_kept=False)
            self._start_s = time.monotonic()
            written = sum(job.rows_written for job in self._jobs)
            before, metrics = usage(first), first.metrics()
            self._sample_for(first, 0, seconds * _KILL_AT)
            shares, slots = spent(before, usage(first)), self._slot_share(first, metrics)
            os.kill(first.pid, signal.SIGKILL)
            first.process.wait()
            second = self._start()
            self._sample_for(second, 1, seconds - (time.monotonic() - self._start_s))
        finally:
            errors = self._stop_jobs()
        rows_per_s = (sum(job.rows_written for job in self._jobs) - written) / seconds
        second.wait_settled(*(job.name for job in self._jobs), seconds=120)
        # The last expiries of snapshots.
        self._sample_for(second, 1, 12.0, is_kept=False)
        exit_code = second.stop()
        first.assert_no_process_remains()
        second.assert_no_process_remains()
        return {
            "rows_per_commit": rows,
            "rows_per_s": round(rows_per_s),
            "slot_share": round(slots, 2),
            "driver_cores": round(shares.driver, 3),
            "jvm_cores": round(shares.jvm, 3),
            "worker_cores": round(shares.workers, 2),
            "late_s": round(max(job.late_s for job in self._jobs), 2),
            "exit_code": exit_code,
            "writer_errors": errors,
            **self._found(),
            **_troubles((first, second)),
            "steps": step_lines,
        }

    def _start(self) -> Service:
        return self._daemons.start(self._warehouse, {"rules": [_COSTLY]})

    def _set_rows(self, rows: int) -> None:
        for job in self._jobs:
            job.rows = rows if job.is_keyed else int(rows * _APPEND_SHARE)

    def _find_rate(self, service: Service, steps: int) -> tuple[int, list[dict[str, Any]]]:
        """Rows of a commit, and what each try was like."""
        rows, lines = _FIRST_ROWS, []
        for _ in range(steps):
            self._set_rows(rows)
            metrics, before = service.metrics(), len(self._samples)
            self._sample_for(service, 0, _STEP_S)
            runs = max(sample.runs_max for sample in self._samples[before:])
            del self._samples[before:]
            share = self._slot_share(service, metrics)
            late = any(job.late_s > 1 for job in self._jobs)
            lines.append({"rows": rows, "slot_share": round(share, 2), "runs_max": runs})
            if share > _BUSY or runs >= _STOP_TRIGGER or late:
                break
            rows = int(rows * _GROWTH)
        for job in self._jobs:
            job.late_s = 0.0
        return int(rows * _SHARE), lines

    @staticmethod
    def _slot_share(service: Service, before: Any) -> float:
        """How busy the slots were since then; by the service's own clock of beats."""
        after = service.metrics()
        busy = rise(before, after, "slot_busy_seconds_total")
        beats = "loop_last_heartbeat_timestamp_seconds"
        seconds = rise(before, after, beats, loop="dispatcher")
        return busy / (seconds * after.one("task_slots")) if seconds else 0.0

    def _sample_for(
        self, service: Service, life: int, seconds: float, *, is_kept: bool = True
    ) -> None:
        end_s, jvm = time.monotonic() + seconds, service.jvm()
        while time.monotonic() < end_s:
            assert service.process.poll() is None, f"the daemon has ended: {service.err}"
            seen = [job.seen() for job in self._jobs]
            if is_kept:
                self._samples.append(
                    _Sample(
                        at_s=time.monotonic() - self._start_s,
                        life=life,
                        runs_max=max(each.runs_max for each in seen),
                        snapshots_max=max(each.snapshots for each in seen),
                        driver_mib=rss_mib(service.pid),
                        jvm_mib=rss_mib(jvm),
                    )
                )
            time.sleep(_SAMPLE_S)

    def _stop_jobs(self) -> list[str]:
        errors = []
        for job in self._jobs:
            try:
                job.stop()
            except Exception as error:  # noqa: BLE001 - a figure like the others
                errors.append(f"{job.name}: {type(error).__name__}: {error}")
        return errors

    def _found(self) -> dict[str, Any]:
        samples = self._samples
        again_s = next(sample.at_s for sample in samples if sample.life == 1)
        steady = [s for s in samples if s.life == 0 or s.at_s > again_s + _RECOVERY_S]
        around = [s for s in samples if s.life == 1 and s.at_s <= again_s + _RECOVERY_S]
        last = [s for s in steady if s.life == 1] or around
        at_most = sum(sample.runs_max < _STOP_TRIGGER for sample in steady)
        return {
            "runs_max": max(sample.runs_max for sample in steady),
            "runs_max_after_kill": max(sample.runs_max for sample in around),
            "below_stop_share": round(at_most / len(steady), 4),
            "snapshots_max": max(sample.snapshots_max for sample in samples),
            "driver_mib": round(statistics.median(s.driver_mib for s in last)),
            "driver_mib_per_minute": round(_slope(last, "driver_mib"), 3),
            "driver_growth_mib": round(_growth([s.driver_mib for s in last]), 1),
            "jvm_mib": round(statistics.median(s.jvm_mib for s in last)),
            "jvm_mib_per_minute": round(_slope(last, "jvm_mib"), 3),
            "lost_rows_tables": sum(not job.has_all_rows() for job in self._jobs),
            "stray_files": sum(len(job.stray_files()) for job in self._jobs),
            "strays": [name for job in self._jobs for name in sorted(job.stray_files())][:5],
        }


def _slope(samples: Sequence[_Sample], figure: str) -> float:
    """Per minute, by least squares."""
    minutes = [sample.at_s / 60 for sample in samples]
    values = [getattr(sample, figure) for sample in samples]
    if len(samples) < 3:
        return 0.0
    return statistics.linear_regression(minutes, values).slope


def _growth(values: Sequence[float]) -> float:
    """From the second quarter to the last."""
    quarter = max(1, len(values) // 4)
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
        found = _Soak(started, Path(warehouse)).run(seconds, _STEPS_MAX if seconds > 60 else 2)
    lines = [{key: value for key, value in found.items() if key != "steps"}, *found.pop("steps")]
    return {**found, "seconds": seconds, "lines": lines}


def is_sound(found: Mapping[str, Any]) -> bool:
    """Whether nothing was lost, nothing left and nothing failed; how fast is another matter."""
    return not (
        found["lost_rows_tables"]
        or found["stray_files"]
        or found["log_errors"]
        or found["writer_errors"]
        or found["exit_code"]
    )
