"""How fast and how large: our compaction beside Java's, on the same tables and the same cores.

    python -m tests.bench                          # all cases, more than an hour
    python -m tests.bench pk small --json /tmp/b.json
    python -m tests.bench pk small --compare /tmp/b.json    # beside an earlier run's figures
    python -m tests.bench --quick                  # tiny sizes: only that it runs
    python -m tests.bench start --base FOLDER      # in turns with another checkout's commands
    python -m tests.bench --large                  # a bucket of 5 GB; needs 10 GB of disk
    python -m tests.bench --soak --seconds 600     # ingestion beside a daemon that is killed once

Cases: pk (with pk-bigint, pk-string and pk-three), partial-update, sequence-groups, aggregation,
changelog (of full compaction, with a row for each change), lookup (a minor compaction that looks up
the keys of one level-0 file above) and lookup-small (a smaller one of neighbouring keys), vectors
and vectors-small (the same with deletion vectors, which mark what is found), vectors-append (files
of which a third is deleted), altered (half of the files have an older schema), append, small,
buckets (32 of them) and dynamic (as many dynamic ones) compare both sides, and so do the tables of
shapes, each of which is a case, too: those that were slower than Java once; scan looks at reading a
table's state, append-plan at planning very many small files, bucket-plan at planning very many
buckets, orphans at looking for files that nothing names among a million, expire at the expiry of a
thousand snapshots beside Java's, partitions at that of ten thousand partitions, kernel at the merge
kernel, rewrite at one subcompaction beside its floor, start at whole commands, from the start of
the process to its end. polls says how soon a thousand quiet tables in an object store are polled,
catalogs how soon those of a REST server and a metastore are, and what a commit and a long list
take; contested lets four processes commit to one table, on each store of this machine. level-1
compares, on paper, what compactions write by the picks of 2.0 and of 2.1.
Of the daemon, service-idle, service-memory, service-latency and service-load say what it costs and
how soon it answers in 12 minutes; service-fleet what 5,000 quiet tables cost, in 14 more.
pk-s3, small-s3, lookup-s3 and lookup-small-s3 are these cases on an S3 server of this machine
(MinIO, or moto where that is missing), also with 10 ms added to each request.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

from compactord.engine.base import Engine
from compactord.engine.spark import start_spark
from tests.bench.compare import Cases, compare, comparison_text, is_as_quick, read_cases
from tests.bench.contest import WARM_UPS, Rules, contest
from tests.bench.large import large
from tests.bench.peers import CorePeer
from tests.bench.report import contest_text, environment, figures_text, write_json
from tests.bench.service_soak import is_sound, soak
from tests.bench.stores import STORE_CASES, in_store
from tests.bench.tables import MORE_SHAPES, SHAPES, Shape

_CORES = 2
_Run = Callable[[], dict[str, Any]]
_FULL, _QUICK = "full", "quick"
# Case: arguments of a bench that prints lines of JSON, at full and at tiny size.
_LINES = {
    "scan": {
        _FULL: ["tests.bench.bench_scan", "--files", "10000", "1000000"],
        _QUICK: ["tests.bench.bench_scan", "--files", "20", "2000"],
    },
    "append-plan": {
        _FULL: ["tests.bench.bench_append_plan", "--files", "10000", "100000"],
        _QUICK: ["tests.bench.bench_append_plan", "--files", "100", "1000"],
    },
    "bucket-plan": {
        _FULL: ["tests.bench.bench_bucket_plan", "--buckets", "1000", "10000"],
        _QUICK: ["tests.bench.bench_bucket_plan", "--buckets", "10", "100"],
    },
    "orphans": {
        _FULL: ["tests.bench.bench_orphans", "--files", "1000000"],
        _QUICK: ["tests.bench.bench_orphans", "--files", "2000"],
    },
    "expire": {
        _FULL: [
            "tests.bench.bench_expire",
            "--snapshots",
            "1000",
            "--repeat",
            "5",
            "--warm-ups",
            "2",
        ],
        _QUICK: ["tests.bench.bench_expire"],
    },
    "partitions": {
        _FULL: [
            "tests.bench.bench_partitions",
            "--partitions",
            "10000",
            "--at-once",
            "1000",
            "100",
        ],
        _QUICK: ["tests.bench.bench_partitions"],
    },
    "level-1": {
        _FULL: ["tests.bench.bench_level_1", "--commits", "4000", "--seeds", "6"],
        _QUICK: ["tests.bench.bench_level_1"],
    },
    "kernel": {
        _FULL: ["tests.bench.bench_kernel", "--rows", "4000000"],
        _QUICK: ["tests.bench.bench_kernel", "--rows", "2000", "--repetitions", "1"],
    },
    "rewrite": {
        _FULL: ["tests.bench.bench_rewrite", "--rows", "500000", "--files", "10", "--repeat", "5"],
        _QUICK: ["tests.bench.bench_rewrite", "--rows", "500", "--files", "2", "--repeat", "1"],
    },
    "polls": {
        _FULL: ["tests.bench.bench_polls", "--tables", "1000"],
        _QUICK: ["tests.bench.bench_polls", "--tables", "5", "--rounds", "1"],
    },
    "catalogs": {
        _FULL: ["tests.bench.bench_catalogs", "--tables", "1000", "--listed", "10000"],
        _QUICK: ["tests.bench.bench_catalogs", "--tables", "5", "--listed", "8"],
    },
    "contested": {
        _FULL: ["tests.bench.bench_contested", "--commits", "1000", "--few", "100"],
        _QUICK: ["tests.bench.bench_contested", "--commits", "12", "--stores", "local"],
    },
}
_RATIOS = ("wall_ratio", "cpu_ratio")
_START = {
    _FULL: ["tests.bench.bench_start"],
    _QUICK: ["tests.bench.bench_start", "--repeat", "1"],
}
# Measured from outside, with the cores that the merges have.
_SERVICE = {
    f"service-{case}": {
        _FULL: ["tests.bench.service", case],
        _QUICK: ["tests.bench.service", case, "--quick"],
    }
    for case in ("idle", "memory", "latency", "load", "fleet")
}
_CASES = (*SHAPES, "shapes", *_LINES, "start", *_SERVICE, *STORE_CASES)


def main() -> int:
    arguments = _arguments()
    machine = frozenset(os.sched_getaffinity(0))
    cores = arguments.cores or sorted(machine)[:_CORES]
    # All processes inherit it: both sides' machines, workers and threads.
    os.sched_setaffinity(0, cores)
    judged = not arguments.quick
    where = environment(cores)
    found: dict[str, dict[str, Any]] = {}
    for name, run in _runs(arguments, cores, machine):
        load = os.getloadavg()[0]
        found[name] = run() | {"load_average": max(load, os.getloadavg()[0])}
        text = contest_text if "same_rows_as_java" in found[name] else figures_text
        print(text(name, found[name], judged=judged), end="\n\n", flush=True)
        write_json(arguments.json, where, found, judged=judged)
    print(f"figures: {arguments.json}")
    is_right = all(_is_right(name, case) for name, case in found.items())
    before, tolerance = arguments.compare, arguments.tolerance / 100
    if before is not None:
        is_right &= _is_as_quick(before, found, tolerance)
    return 0 if is_right else 1


def _is_right(name: str, found: dict[str, Any]) -> bool:
    """Whether rows and files are what they should be; how fast is another matter."""
    names = ("same_rows_as_java", "same_rows_as_local", "same_files_as_java")
    same = all(found.get(name, True) for name in names)
    return is_sound(found) if name == "soak" else bool(same)


def _is_as_quick(before: Cases, now: Cases, tolerance: float) -> bool:
    """Prints the comparison."""
    compared = compare(before, now)
    print("\n" + comparison_text(compared, now, tolerance))
    return is_as_quick(compared, tolerance)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="all when none is named")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing is judged")
    parser.add_argument(
        "--large", action="store_true", help="one large bucket instead of the cases"
    )
    parser.add_argument("--soak", action="store_true", help="a soak instead of the cases")
    parser.add_argument("--seconds", type=float, default=600, help="of the soak (%(default)s)")
    parser.add_argument(
        "--base", type=Path, metavar="FOLDER", help="another checkout, for start (default: none)"
    )
    parser.add_argument("--no-flink", action="store_true", help="leave the Flink job out")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cores", type=_core_list, help="such as 0,1 (default: the first two)")
    parser.add_argument(
        "--folder", type=Path, help="where tables are made (default: the temporary folder)"
    )
    parser.add_argument(
        "--json",
        type=Path,
        default=Path(tempfile.gettempdir()) / "compactord-bench.json",
        help="file for the figures (default: %(default)s)",
    )
    parser.add_argument(
        "--compare",
        type=_earlier,  # read at once: the new figures may be written over them
        metavar="FILE",
        help="figures that an earlier run wrote: exit with 1 when CPU has grown",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=5,
        metavar="PERCENT",
        help="by which CPU may grow (%(default)s)",
    )
    arguments = parser.parse_args()
    for case in arguments.cases:
        if case not in (*_CASES, *MORE_SHAPES, "pk-bigint"):
            parser.error(f"unknown case {case}; cases are {', '.join(_CASES)}")
    return arguments


def _earlier(path: str) -> Cases:
    try:
        return read_cases(Path(path))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _core_list(text: str) -> list[int]:
    return [int(core) for core in text.split(",")]


def _runs(
    arguments: argparse.Namespace, cores: list[int], machine: frozenset[int]
) -> Iterator[tuple[str, _Run]]:
    """What to run before the next is asked for, by name."""
    if arguments.soak:
        how = {"cores": tuple(cores), "machine": machine, "folder": arguments.folder}
        yield "soak", lambda: soak(seconds=arguments.seconds, **how)
        return
    if arguments.large:
        yield "large", lambda: _in_folder(arguments, lambda f, e: large(f, e, arguments.quick))
        return
    wanted = set(arguments.cases or _CASES)
    if "pk" in wanted:
        wanted |= {"pk-string", "pk-three"}
    if "pk-bigint" in wanted:
        wanted.add("pk")
    if "shapes" in wanted:
        wanted |= MORE_SHAPES.keys()
    for case, shape in SHAPES.items():
        if case in wanted:
            yield case, lambda shape=shape: _contest(arguments, shape)
    yield from _more_contests(arguments, wanted)
    size = _QUICK if arguments.quick else _FULL
    for case in _LINES:
        if case in wanted:
            # On one core, as its figures are per core; of a contest both sides have all.
            on = cores if case == "expire" else cores[:1]
            command = _LINES[case][size]
            yield case, lambda case=case, command=command, on=on: _line_figures(case, command, on)
    if "start" in wanted:
        beside = [] if arguments.base is None else ["--base", str(arguments.base.resolve())]
        yield "start", lambda: _line_figures("start", [*_START[size], *beside], cores)
    for case in _SERVICE:
        if case in wanted:
            command = _SERVICE[case][size]
            yield case, lambda case=case, command=command: _line_figures(case, command, cores)
    for case, shape in STORE_CASES.items():
        if case in wanted:
            yield case, lambda shape=shape: _in_store(arguments, shape)


def _more_contests(
    arguments: argparse.Namespace, wanted: Container[str]
) -> Iterator[tuple[str, _Run]]:
    """In the same JVMs: Java takes longer for the first tables, and a job runs for hours."""
    shapes = {case: shape for case, shape in MORE_SHAPES.items() if case in wanted}
    if not shapes:
        return
    rules = _rules(arguments, with_flink=False, with_floor=False)
    with start_spark(f"local[{_CORES}]") as engine, CorePeer() as maker, CorePeer() as core:
        for case, shape in shapes.items():
            sized = shape.tiny() if arguments.quick else shape
            with _folder(arguments) as folder:
                yield (
                    case,
                    lambda folder=folder, sized=sized: contest(
                        folder, sized, engine, rules, maker=maker, core=core
                    ),
                )


def _in_store(arguments: argparse.Namespace, shape: Shape) -> dict[str, Any]:
    shape = shape.tiny() if arguments.quick else shape
    repetitions = 1 if arguments.quick else arguments.repetitions
    warm_ups = 0 if arguments.quick else 1
    return _in_folder(
        arguments, lambda folder, engine: in_store(folder, shape, engine, repetitions, warm_ups)
    )


def _contest(arguments: argparse.Namespace, shape: Shape) -> dict[str, Any]:
    sized = shape.tiny() if arguments.quick else shape
    with_flink = not (arguments.quick or arguments.no_flink)
    rules = _rules(arguments, with_flink=with_flink, with_floor=True)
    return _in_folder(arguments, lambda folder, engine: contest(folder, sized, engine, rules))


def _rules(arguments: argparse.Namespace, *, with_flink: bool, with_floor: bool) -> Rules:
    return Rules(
        repetitions=1 if arguments.quick else arguments.repetitions,
        warm_ups=0 if arguments.quick else WARM_UPS,
        with_flink=with_flink,
        with_floor=with_floor,
    )


def _in_folder(
    arguments: argparse.Namespace, run: Callable[[Path, Engine], dict[str, Any]]
) -> dict[str, Any]:
    """With a folder that goes afterwards and a Spark that is up."""
    with _folder(arguments) as folder, start_spark(f"local[{_CORES}]") as engine:
        return run(folder, engine)


@contextlib.contextmanager
def _folder(arguments: argparse.Namespace) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="compactord-bench-", dir=arguments.folder) as folder:
        yield Path(folder)


def _line_figures(case: str, command: list[str], cores: list[int]) -> dict[str, Any]:
    """The lines of a bench of its own; one of the daemon has one line."""
    run = subprocess.run(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    found: dict[str, Any] = {"lines": lines}
    if case == "scan":
        small, large_table = lines[0], lines[-1]
        found |= {
            "refresh_unchanged_ms": max(line["refresh_unchanged_ms"] for line in lines),
            "refresh_growth": large_table["refresh_10_files_ms"] / small["refresh_10_files_ms"],
            "entries_per_s": large_table["entries_per_s"],
        }
    elif case == "append-plan":
        found |= {name: lines[-1][name] for name in ("look_ms", "plan_ms", "look_10_files_ms")}
    elif case == "bucket-plan":
        found |= {name: figure for name, figure in lines[-1].items() if name != "bench"}
    elif case == "level-1":
        found["picks_ratio"] = lines[-2]["write_amplification"] / lines[-1]["write_amplification"]
    elif case == "expire":
        found |= {
            name: lines[0][name] for name in ("java_wall_ratio", "java_cpu_ratio", "peak_rss_mib")
        }
        # For each way of Java's.
        found["same_files_as_java"] = all(line["same_files_as_java"] for line in lines)
    elif case == "catalogs":
        of_kinds = [(line["catalog"], line.items()) for line in lines]
        found |= {f"{kind}_{name}": n for kind, line in of_kinds for name, n in line}
    elif case == "start":
        ratios = {f"{line['case']}_{name}": line.get(name) for line in lines for name in _RATIOS}
        found |= {name: ratio for name, ratio in ratios.items() if ratio is not None}
    elif case in _SERVICE or (case in ("polls", "orphans", "partitions") and lines):
        found |= lines[0]
    return found


if __name__ == "__main__":
    sys.exit(main())
