"""The demo's summary: ingestion, compaction and the tables' final content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from compactord.catalog.access import table_in_folder
from compactord.paimon.snapshot import snapshot_ids
from compactord.scheduler.compaction import Outcome, TableCounters
from compactord.state.table_state import load_state
from compactord.storage.base import Storage
from compactord.table import report
from compactord.table.opening import open_table
from compactord.text import count_text, size_text
from compactord_demo.ingestion import Tally
from compactord_demo.jobs import Job
from compactord_demo.observer import History
from compactord_demo.rows import rows_of, same_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One table at the end of the demo, with what was polled while the daemon ran."""

    name: str
    tally: Tally
    counters: TableCounters
    history: History
    runs: int
    files: int
    snapshots_made: int
    snapshots_kept: int
    rows: int
    rows_expected: int
    is_same: bool
    has_runs: bool


def result_of(
    storage: Storage, job: Job, tally: Tally, counters: TableCounters, history: History
) -> Result:
    """Reads the whole table."""
    table, state = (
        open_table(table_in_folder(storage, job.table), {}),
        load_state(storage, job.table),
    )
    shapes = report.bucket_shapes(table, state)
    ids = snapshot_ids(storage, job.table.location)
    found, expected = rows_of(storage, job.table, job.sort_names), job.expected()
    return Result(
        name=job.table.full_name,
        tally=tally,
        counters=counters,
        history=history,
        runs=max((shape.sorted_runs for shape in shapes), default=0),
        files=sum(shape.files for shape in shapes),
        snapshots_made=max(ids, default=0),
        snapshots_kept=len(ids),
        rows=found.num_rows,
        rows_expected=expected.num_rows,
        is_same=same_rows(found, expected),
        has_runs=bool(table.schema.key_fields),
    )


def _commits(count: int) -> str:
    return count_text(count, "commit")


def committed(counters: TableCounters) -> int:
    """Compactions that are in the table."""
    return sum(n for (_, end), n in counters.compactions.items() if end is Outcome.COMMITTED)


def _times(count: int) -> str:
    return count_text(count, "time")


def _most(values: list[int]) -> str:
    return f"{max(values, default=0)} at most"


_LINES: tuple[tuple[str, Callable[[Result], str]], ...] = (
    (
        "ingested",
        lambda r: f"{_commits(r.tally.commits)}, {count_text(r.tally.rows, 'row')}",
    ),
    (
        "compacted",
        lambda r: f"{_times(committed(r.counters))}, {_commits(r.counters.commits_committed)}",
    ),
    ("read", lambda r: size_text(r.counters.input_bytes)),
    ("written", lambda r: size_text(r.counters.output_bytes)),
    ("sorted runs", lambda r: f"{_most(r.history.runs)}, {r.runs} now" if r.has_runs else "–"),
    ("files", lambda r: f"{_most(r.history.files)}, {r.files} now"),
    (
        "snapshots",
        lambda r: (
            f"{r.snapshots_made} made, {r.snapshots_made - r.snapshots_kept} expired, "
            f"{r.snapshots_kept} kept"
        ),
    ),
)


def summary(results: list[Result]) -> Table:
    grid = Table(box=None, padding=(0, 2, 0, 0))
    grid.add_column("", style="dim")
    for result in results:
        grid.add_column(result.name)
    for title, text in _LINES:
        grid.add_row(title, *map(text, results))
    grid.add_row("rows", *map(_rows, results))
    return grid


def verdict(results: list[Result], next_step: str) -> tuple[str, bool]:
    """The demo's outcome in one sentence, and whether it went well."""
    if different := [result.name for result in results if not result.is_same]:
        return f"Rows equal: no, {' and '.join(different)} differ from what was ingested.", False
    if idle := [result.name for result in results if not committed(result.counters)]:
        return f"Rows equal: yes, but nothing was compacted in {' and '.join(idle)}.", False
    fell = "; ".join(_fall(result) for result in results)
    return f"Rows equal: yes; {fell}; next: {next_step}", True


def _fall(result: Result) -> str:
    """The files without and with compactions, and runs, while the daemon ran."""
    history, counters = result.history, result.counters
    files = history.files[-1]
    without = files + counters.input_files - counters.output_files
    runs = f", at most {count_text(max(history.runs), 'sorted run')}" if result.has_runs else ""
    return f"{result.name} from {without} to {count_text(files, 'file')}{runs}"


def _rows(result: Result) -> Text:
    if result.is_same:
        return Text(f"{result.rows:,}, those ingested", "green")
    return Text(f"DIFFERENT: {result.rows:,}, not {result.rows_expected:,} ingested", "bold red")
