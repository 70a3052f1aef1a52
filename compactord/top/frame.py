"""One frame of `top`: a look drawn with rich, for any width from 40 columns on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from compactord.redaction import printable
from compactord.service.page.bars import run_state
from compactord.service.page.figures import NO_STOP, iso_text, more_tables
from compactord.service.page.need import Need
from compactord.table.report import count_text
from compactord.table.status import RunState
from compactord.top.look import Look, Rates, TopCommit, TopService, TopTable, TopTask

_BAR_CELLS = 8
_UNITS = ("B", "K", "M", "G", "T", "P")
_RUN_STYLES = {
    RunState.IDLE: "green",
    RunState.DUE: "yellow",
    RunState.NEAR_STOP: "dark_orange",
    RunState.OVER_STOP: "bold red",
}
_STYLES = {
    Need.HALTED: "bold red",
    Need.ERROR: "bold red",
    Need.OVER_STOP: "bold red",
    Need.LATE: "dark_orange",
    Need.NEAR_STOP: "dark_orange",
    Need.DUE: "yellow",
    Need.AT_TRIGGER: "green",
    Need.NOTHING: "green",
    Need.PAUSED: "dim",
    Need.UNSUPPORTED: "dim",
    Need.EXCLUDED: "dim",
}
_NOTES_SHOWN = 3
# States whose tables have a reason.
_NOTED = (Need.HALTED, Need.ERROR, Need.PAUSED, Need.UNSUPPORTED, Need.EXCLUDED)
_WORK_SHOWN = 6
# Columns whose texts may be long.
_NAMES = {"table", "bucket", "outcome"}
# Narrower terminals show names and runs alone: numbers would leave no room for names.
_WIDE = 72
_NARROW_COLUMNS = 3


def frame(
    look: Look, rates: Rates | None, *, height: int | None = None, trouble: str = ""
) -> RenderableType:
    """The frame of a look. With a height in lines, tables that do not fit are counted only.

    `trouble` says why this is an old status.
    """
    head = list(_head(look, rates, trouble))
    notes = _notes(look)
    work = list(_work(look))
    # The other lines: an empty one, the column heads, the count of hidden tables, the cursor.
    taken = len(head) + len(notes) + sum(map(_lines, work)) + 4
    room = None if height is None else max(3, height - taken)
    return Group(*head, "", *_tables(look, room), *notes, *work)


def size_cell(size_bytes: float) -> str:
    """A size in five characters at most: `18.0G`, `512M`."""
    for unit in _UNITS:
        if size_bytes < 1000 or unit == _UNITS[-1]:
            break
        size_bytes /= 1024
    return (
        f"{size_bytes:.1f}{unit}"
        if size_bytes < 99.95 and unit != "B"
        else f"{size_bytes:.0f}{unit}"
    )


def age_cell(milliseconds: int) -> str:
    """A span of time in four characters at most: `41m`, `2h`, `120d`."""
    seconds = max(0, milliseconds) // 1000
    for unit, unit_s in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= unit_s:
            return f"{seconds // unit_s}{unit}"
    return f"{seconds}s"


def _lines(part: RenderableType) -> int:
    return part.row_count if isinstance(part, Table) else 1


def _head(look: Look, rates: Rates | None, trouble: str) -> Iterator[Text]:
    title = _line(("compactord top", "bold"), (f"  {printable(look.source)}", ""))
    title.append(f"  {iso_text(look.now_ms)}", "dim")
    title.append(f"  {count_text(len(look.tables), 'table')}")
    yield title
    if trouble:
        yield _line((printable(trouble), "bold red"))
    if look.service is not None:
        yield _service_line(look, look.service, rates)
        for text in look.service.troubles:
            yield _line((printable(text), "bold red"))
    else:
        files = sum(table.files for table in look.tables)
        size = size_cell(sum(table.size_bytes for table in look.tables))
        yield _line((f"{count_text(files, 'file')}, {size}", ""))


def _service_line(look: Look, service: TopService, rates: Rates | None) -> Text:
    memory = f"{size_cell(service.memory_reserved_bytes)}/{size_cell(service.memory_budget_bytes)}"
    # What is paused or excluded waits for nobody.
    meant = (t for t in look.tables if look.need(t) not in (Need.PAUSED, Need.EXCLUDED))
    backlog = size_cell(sum(table.backlog_bytes for table in meant))
    parts = [
        f"slots {service.running}/{service.slots}",
        f"mem {memory}",
        f"queue {service.queued}",
        f"backlog {backlog}",
    ]
    if rates is not None:
        parts.append(f"in {_speed(rates.input_bytes)}, out {_speed(rates.output_bytes)}")
    line = _line((", ".join(parts), ""))
    if service.is_starting:
        line.append("  the engine is starting", "yellow")
    if service.is_draining:
        line.append("  draining", "yellow")
    return line


def _speed(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.1f} MB/s"


def _tables(look: Look, room: int | None) -> Iterator[RenderableType]:
    tables = look.by_need()
    shown = tables if room is None else tables[:room]
    columns: tuple[tuple[str, _Justify], ...] = (
        ("table", "left"),
        ("state", "left"),
        ("runs/trig/stop", "left"),
        ("L0", "right"),
        ("files", "right"),
        ("size", "right"),
        ("backlog", "right"),
        ("oldest", "right"),
        ("commit", "right"),
    )
    wide, narrow = _grid(*columns), _grid(*columns[:_NARROW_COLUMNS])
    for table in shown:
        cells = list(_table_cells(look, table))
        wide.add_row(*cells)
        narrow.add_row(*cells[:_NARROW_COLUMNS])
    yield _Fitting(wide, narrow)
    if not tables:
        yield _line(("no tables", "dim"))
    if more := len(tables) - len(shown):
        yield _line((f"{more_tables(more)} less urgent", "dim"))


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The long or the short text, whichever fits."""

    wide: Table
    narrow: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if options.max_width >= _WIDE else self.narrow


def _table_cells(look: Look, table: TopTable) -> Iterator[Text]:
    need = look.need(table)
    yield _flexible(table.name)
    yield Text(need.word, _STYLES[need])
    yield _runs_cell(table)
    yield Text(_count_cell(table.level0_files) if table.compaction_trigger else "–")
    yield Text(_count_cell(table.files))
    yield Text(size_cell(table.size_bytes))
    yield Text(size_cell(table.backlog_bytes) if table.backlog_bytes else "–")
    yield Text(age_cell(look.now_ms - table.oldest_ms) if table.oldest_ms else "–")
    yield Text(age_cell(look.now_ms - table.last_commit_ms) if table.last_commit_ms else "–")


def _runs_cell(table: TopTable) -> Text:
    """`█████▏··  9/5/8`: the bar is full at the stop trigger."""
    trigger, stop, runs = table.compaction_trigger, table.stop_trigger, table.sorted_runs
    if not table.is_read:
        return Text(printable(table.kind) or "–", "dim")
    if not trigger:
        return Text("append", "dim")
    is_far = stop > 10 * max(trigger, runs)
    style = _RUN_STYLES[run_state(runs, trigger, stop)]
    text = _bar(runs / max(1, 2 * trigger if is_far else stop), style)
    stop_text = "–" if stop >= NO_STOP else _count_cell(stop)
    text.append(f" {_count_cell(runs)}/{trigger}/{stop_text}")
    return text


def _bar(share: float, style: str) -> Text:
    filled = min(_BAR_CELLS, round(share * _BAR_CELLS))
    bar = Text("█" * filled, style)
    bar.append("·" * (_BAR_CELLS - filled), "dim")
    return bar


def _count_cell(number: int) -> str:
    """A count in five characters at most."""
    if number < 100_000:
        return str(number)
    return f"{number // 1000}k" if number < 10_000_000 else f"{number // 1_000_000}M"


def _notes(look: Look) -> list[Text]:
    """Why tables are not compacted, the first few for each state."""
    notes = []
    for need in _NOTED:
        word, style = need.word, _STYLES[need]
        found = [table for table in look.by_need() if look.need(table) is need and table.note]
        notes += [
            _line((printable(f"{table.name} {word}: "), style), (printable(table.note), ""))
            for table in found[:_NOTES_SHOWN]
        ]
        if len(found) > _NOTES_SHOWN:
            notes.append(_line((f"{len(found) - _NOTES_SHOWN} more: {word}", style)))
    return notes


def _work(look: Look) -> Iterator[RenderableType]:
    if look.service is None:
        yield ""
        yield _line(("last compactions, as snapshots tell", "bold"))
    else:
        yield ""
        yield _line((f"running ({len(look.running)})", "bold"))
        if look.running:
            yield _running(look, look.running[:_WORK_SHOWN])
        yield _line(("last compactions", "bold"))
    if look.recent:
        yield _recent(look, look.recent[:_WORK_SHOWN])
    else:
        yield _line(("none yet", "dim"))
    if look.service is None:
        yield _line(("running work, speed and halts are known to a daemon only: --url", "dim"))


def _running(look: Look, tasks: Sequence[TopTask]) -> Table:
    grid = _grid(
        ("table", "left"),
        ("bucket", "left"),
        ("why", "left"),
        ("files", "right"),
        ("size", "right"),
        ("subcompactions", "left"),
        ("for", "right"),
        headed=False,
    )
    for task in tasks:
        progress = _bar(task.subcompactions_done / max(1, task.subcompactions), "cyan")
        progress.append(f" {task.subcompactions_done}/{task.subcompactions}")
        grid.add_row(
            _flexible(task.table),
            _flexible(task.place),
            Text(printable(task.why), "dim"),
            Text(f"{_count_cell(task.files)} file{'' if task.files == 1 else 's'}"),
            Text(size_cell(task.size_bytes)),
            progress,
            Text(age_cell(look.now_ms - task.started_ms)),
        )
    return grid


def _recent(look: Look, commits: Sequence[TopCommit]) -> Table:
    grid = _grid(
        ("table", "left"),
        ("bucket", "left"),
        ("why", "left"),
        ("files", "right"),
        ("bytes", "right"),
        ("outcome", "left"),
        ("ago", "right"),
        headed=False,
    )
    for ended in commits:
        is_good = ended.outcome == "committed"
        outcome = ended.detail if is_good else f"{ended.outcome}: {ended.detail}"
        grid.add_row(
            _flexible(ended.table),
            _flexible(ended.place),
            Text(printable(ended.why), "dim"),
            _change(ended.files_in, ended.files_out, _count_cell),
            _change(ended.bytes_in, ended.bytes_out, size_cell),
            _flexible(outcome, "" if is_good else "yellow"),
            Text(age_cell(look.now_ms - ended.finished_ms)),
        )
    return grid


def _change(before: int | None, after: int | None, cell: Callable[[int], str]) -> Text:
    return Text("" if before is None or after is None else f"{cell(before)}→{cell(after)}")


_Justify = Literal["left", "right"]


def _grid(*columns: tuple[str, _Justify], headed: bool = True) -> Table:
    """Rows of one line each. On narrow terminals the columns of names are shortened."""
    grid = Table(box=None, padding=(0, 1, 0, 0), show_header=headed, header_style="dim")
    for title, justify in columns:
        grid.add_column(title, justify=justify, no_wrap=title not in _NAMES, overflow="ellipsis")
    return grid


def _flexible(text: str, style: str = "") -> Text:
    """A name that is shortened, not wrapped, if it does not fit."""
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def _line(*parts: tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")
