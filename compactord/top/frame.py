"""One frame of `top`: draws a view with rich, in at least 40 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from compactord.clock import iso_text
from compactord.scheduler.compaction import EndedCompaction, Outcome
from compactord.service.page.attention import (
    Attention,
    attention_of,
    freshness_text,
    is_stale,
    more_tables,
    why_text,
)
from compactord.service.view import ActiveCompaction, ServiceView, TableView
from compactord.table.status import Backlog, RunState
from compactord.text import count_text, printable
from compactord.top.status import (
    Rates,
    by_need,
    place_text,
    service_troubles,
    shown_name,
)

_BAR_CELLS = 8
_UNITS = ("B", "K", "M", "G", "T", "P")
_RUN_STYLES = {
    RunState.IDLE: "green",
    RunState.DUE: "yellow",
    RunState.NEAR_STOP: "dark_orange",
    RunState.OVER_STOP: "bold red",
}
_STYLES = {
    **dict.fromkeys((Attention.HALTED, Attention.ERROR, Attention.OVER_STOP), "bold red"),
    **dict.fromkeys((Attention.DEGRADED, Attention.LATE, Attention.NEAR_STOP), "dark_orange"),
    Attention.DUE: "yellow",
    **dict.fromkeys((Attention.AT_TRIGGER, Attention.NOTHING), "green"),
    **dict.fromkeys((Attention.PAUSED, Attention.UNSUPPORTED, Attention.EXCLUDED), "dim"),
}
_NOTES_SHOWN = 3
# States with a reason to show.
_NOTED = (
    Attention.HALTED,
    Attention.ERROR,
    Attention.DEGRADED,
    Attention.PAUSED,
    Attention.UNSUPPORTED,
    Attention.EXCLUDED,
)
_WORK_SHOWN = 6
# Columns with long texts, which may be shortened.
_NAMES = {"table", "bucket", "outcome"}
# A column with > is aligned to the right.
_TABLE_COLUMNS = "table, state, runs/trig/stop, L0>, files>, size>, backlog>, oldest>, commit>"
_RUNNING_COLUMNS = "table, bucket, why, files>, size>, subcompactions, for>"
_ENDED_COLUMNS = "table, bucket, why, files>, bytes>, outcome, ago>"
# Narrower terminals show only names and runs: numbers would leave no room for names.
_WIDE = 72
_NARROW_COLUMNS = 3


def frame(
    source: str,
    view: ServiceView,
    rates: Rates | None,
    *,
    height: int | None = None,
    trouble: str = "",
) -> RenderableType:
    """The frame of a view. With a height in lines, tables that do not fit are only counted.

    `source` is the origin of the view, `trouble` the reason if it is outdated.
    """
    head = list(_head(source, view, rates, trouble))
    notes = _notes(view)
    work = list(_work(view))
    # The other lines: an empty one, the column heads, the count of hidden tables, the cursor.
    taken = len(head) + len(notes) + sum(map(_lines, work)) + 4
    room = None if height is None else max(3, height - taken)
    return Group(*head, "", *_tables(view, room), *notes, *work)


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


def _head(source: str, view: ServiceView, rates: Rates | None, trouble: str) -> Iterator[Text]:
    title = _line(("compactord top", "bold"), (f"  {printable(source)}", ""))
    title.append(f"  {iso_text(view.now_ms)}", "dim")
    title.append(f"  {count_text(len(view.tables), 'table')}")
    yield title
    if trouble:
        yield _line((printable(trouble), "bold red"))
    if view.is_served:
        yield _service_line(view, rates)
        for text in service_troubles(view):
            yield _line((printable(text), "bold red"))
    else:
        files = sum(table.shape.files for table in view.tables)
        size = size_cell(sum(table.shape.size_bytes for table in view.tables))
        yield _line((f"{count_text(files, 'file')}, {size}", ""))


def _service_line(view: ServiceView, rates: Rates | None) -> Text:
    engine = view.engine
    memory = f"{size_cell(engine.memory_reserved_bytes)}/{size_cell(engine.memory_budget_bytes)}"
    backlog = Backlog.total([table.backlog for table in view.managed])
    blocked = Backlog.total([table.blocked for table in view.managed])
    parts = [
        f"slots {engine.running}/{engine.slots}",
        f"mem {memory}",
        f"queue {sum(view.queued.values())}",
        f"backlog {size_cell(backlog.size_bytes)}",
    ]
    if blocked.tasks:
        parts.append(f"blocked {size_cell(blocked.size_bytes)}")
    if rates is not None:
        parts.append(f"in {_speed(rates.input_bytes)}, out {_speed(rates.output_bytes)}")
    line = _line((", ".join(parts), ""))
    if not engine.is_up and not (engine.error or view.is_started):
        line.append("  the engine is starting", "yellow")
    if view.is_draining:
        line.append("  draining", "yellow")
    return line


def _speed(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e6:.1f} MB/s"


def _tables(view: ServiceView, room: int | None) -> Iterator[RenderableType]:
    tables = by_need(view)
    shown = tables if room is None else tables[:room]
    wide, narrow = _grid(_TABLE_COLUMNS), _grid(_TABLE_COLUMNS, most=_NARROW_COLUMNS)
    for table in shown:
        cells = list(_table_cells(table, view.now_ms))
        wide.add_row(*cells)
        narrow.add_row(*cells[:_NARROW_COLUMNS])
    yield _Fitting(wide, narrow)
    if not tables:
        yield _line(("no tables", "dim"))
    if more := len(tables) - len(shown):
        yield _line((f"{more_tables(more)} less urgent", "dim"))


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The wide or the narrow table, by the width of the terminal."""

    wide: Table
    narrow: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if options.max_width >= _WIDE else self.narrow


def _table_cells(table: TableView, now_ms: int) -> Iterator[Text]:
    attention, shape, backlog = attention_of(table, now_ms), table.shape, table.backlog
    has_runs = table.is_read and table.info.compaction_trigger
    yield _flexible(shown_name(table.name))
    yield Text(attention.word, _STYLES[attention])
    yield _runs_cell(table)
    yield Text(_count_cell(shape.level0_files) if has_runs else "–")
    yield Text(_count_cell(shape.files))
    yield Text(size_cell(shape.size_bytes))
    yield Text(size_cell(backlog.size_bytes) if backlog.size_bytes else "–")
    yield Text(age_cell(now_ms - backlog.oldest_ms) if backlog.oldest_ms else "–")
    yield Text(age_cell(now_ms - table.last_commit_ms) if table.last_commit_ms else "–")


def _runs_cell(table: TableView) -> Text:
    """`█████▏··  9/5/8`: the bar is full at the stop trigger."""
    info, runs = table.info, table.shape.sorted_runs_max
    trigger, stop = info.compaction_trigger, info.stop_trigger
    if not table.is_read:
        return Text(printable(info.kind) or "–", "dim")
    if not trigger:
        return Text("append", "dim")
    is_far = stop > 10 * max(trigger, runs)
    style = _RUN_STYLES[table.run_state]
    text = _bar(runs / max(1, 2 * trigger if is_far else stop), style)
    text.append(f" {_count_cell(runs)}/{trigger}/{_count_cell(stop)}")
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


def _notes(view: ServiceView) -> list[Text]:
    """Reasons of uncompacted tables, a few for each state, and the tables with the oldest rows."""
    notes, tables = [], by_need(view)
    for attention in _NOTED:
        word, style = attention.word, _STYLES[attention]
        found = [
            (shown_name(table.name), why)
            for table in tables
            if attention_of(table, view.now_ms) is attention
            and (why := why_text(table, view.now_ms))
        ]
        notes += [
            _line((printable(f"{name} {word}: "), style), (printable(why), ""))
            for name, why in found[:_NOTES_SHOWN]
        ]
        if len(found) > _NOTES_SHOWN:
            notes.append(_line((f"{len(found) - _NOTES_SHOWN} more: {word}", style)))
    stale = [
        (shown_name(table.name), text, is_stale(table, view.now_ms))
        for table in sorted(tables, key=lambda table: table.shape.waiting_since_ms)
        if (text := freshness_text(table, view.now_ms))
    ]
    notes += [
        _line((printable(f"{name} "), _STYLES[Attention.LATE] if is_late else ""), (text, ""))
        for name, text, is_late in stale[:_NOTES_SHOWN]
    ]
    return notes


def _work(view: ServiceView) -> Iterator[RenderableType]:
    yield ""
    ended = _grid(_ENDED_COLUMNS, headed=False)
    if view.is_served:
        yield _line((f"running ({len(view.running)})", "bold"))
        if view.running:
            yield _running(view.running[:_WORK_SHOWN], view.now_ms)
    yield _line((f"last compactions{'' if view.is_served else ', from snapshots'}", "bold"))
    for each in view.recent[:_WORK_SHOWN]:
        name, *cells, outcome, ago = _ended_cells(each, view.now_ms)
        ended.add_row(name, *(cells if view.is_served else [""] * len(cells)), outcome, ago)
    yield ended if ended.row_count else _line(("none yet", "dim"))
    if not view.is_served:
        yield _line(("only a daemon knows running work, speed and halts: --url", "dim"))


def _running(tasks: Sequence[ActiveCompaction], now_ms: int) -> Table:
    grid = _grid(_RUNNING_COLUMNS, headed=False)
    for task in tasks:
        progress = _bar(task.subcompactions_done / max(1, task.subcompactions), "cyan")
        progress.append(f" {task.subcompactions_done}/{task.subcompactions}")
        grid.add_row(
            _flexible(shown_name(task.name)),
            _flexible(place_text(task.partition, task.bucket)),
            Text(printable(task.reason.value), "dim"),
            Text(f"{_count_cell(task.files)} file{'' if task.files == 1 else 's'}"),
            Text(size_cell(task.size_bytes)),
            progress,
            Text(age_cell(now_ms - task.started_ms)),
        )
    return grid


def _ended_cells(ended: EndedCompaction, now_ms: int) -> Iterator[Text]:
    is_good = ended.outcome is Outcome.COMMITTED
    outcome = f"snapshot {ended.snapshot_id}" if ended.snapshot_id else ended.message
    yield _flexible(shown_name(ended.name))
    yield _flexible(place_text(ended.partition, ended.bucket))
    yield Text(printable(ended.reason.value), "dim")
    yield Text(f"{_count_cell(ended.files_in)}→{_count_cell(ended.files_out)}")
    yield Text(f"{size_cell(ended.bytes_in)}→{size_cell(ended.bytes_out)}")
    yield _flexible(
        outcome if is_good else f"{ended.outcome.value}: {outcome}", "" if is_good else "yellow"
    )
    yield Text(age_cell(now_ms - ended.finished_ms))


def _grid(columns: str, *, headed: bool = True, most: int | None = None) -> Table:
    """Rows of one line each. Narrow terminals shorten the columns of names."""
    grid = Table(box=None, padding=(0, 1, 0, 0), show_header=headed, header_style="dim")
    for column in columns.split(", ")[:most]:
        title, is_right = column.removesuffix(">"), column.endswith(">")
        grid.add_column(
            title,
            justify="right" if is_right else "left",
            no_wrap=title not in _NAMES,
            overflow="ellipsis",
        )
    return grid


def _flexible(text: str, style: str = "") -> Text:
    """A name that is shortened, not wrapped, if it does not fit."""
    return Text(printable(text), style, no_wrap=True, overflow="ellipsis")


def _line(*parts: tuple[str, str]) -> Text:
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")
