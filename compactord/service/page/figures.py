"""Numbers, sizes, times and names as the page shows them: short text, exact value as title.

And bars, whose widths are attributes in percent: these need neither script nor inline style, and
follow the window's width.
"""

from __future__ import annotations

from urllib.parse import quote

from compactord.clock import age_text as age_text
from compactord.clock import iso_text as iso_text
from compactord.model import CompactReason, TableName, WorkKind
from compactord.scheduler.compaction import PriorityClass
from compactord.service.page.markup import Markup, element, join
from compactord.service.page.need import attempt_text
from compactord.table.status import RunState
from compactord.text import count_text, size_text

_KINDS = {
    WorkKind.MINOR: "merges the newer sorted runs of a bucket, not all of them",
    WorkKind.FULL: "merges all sorted runs of a bucket into one on the highest level",
    WorkKind.APPEND: "puts small files of a table without keys together",
    WorkKind.EXPIRE: "deletes snapshots that need not be kept, files only they need, and "
    "tags and consumers whose time has passed",
}
CLASSES = {
    PriorityClass.FRESHNESS: "readers have waited for it for half of max_freshness_lag or longer: "
    "comes first, but for every fourth slot",
    PriorityClass.FORCED: "readers wait for it, one run below the stop trigger or beyond, or "
    "waiting twice as long as max_backlog_age allows: comes second",
    PriorityClass.BREACH: "waiting longer than max_backlog_age allows: comes third",
    PriorityClass.BENEFIT: "all other work, by the files that it saves for each byte",
}
# A stop trigger beyond this many compaction triggers is shown as a number only.
_FAR = 10


def count(number: int) -> str:
    """`1,234,567`."""
    return f"{number:,}"


def more_tables(number: int) -> str:
    """`1 more table is`, `2 more tables are`."""
    return f"{number:,} more {'table is' if number == 1 else 'tables are'}"


def size(size_bytes: float) -> Markup:
    """`1.5 MiB`, with the exact bytes as value and title."""
    exact = round(size_bytes)
    return element("data", size_text(size_bytes), value=exact, title=count_text(exact, "byte"))


def moment(epoch_ms: int, now_ms: int) -> Markup:
    """A time relative to now and as UTC; "never" for 0."""
    if not epoch_ms:
        return element("span", "never", class_="quiet")
    iso = iso_text(epoch_ms)
    distance = now_ms - epoch_ms
    text = f"{age_text(distance)} ago" if distance >= 0 else f"in {age_text(-distance)}"
    return element(
        "time", text, " ", element("small", iso), datetime=iso if iso.endswith("Z") else None
    )


def attempt(at_ms: int, now_ms: int) -> Markup:
    """When something is tried again: `attempt_text`, a time to come also as UTC."""
    if at_ms > now_ms:
        return moment(at_ms, now_ms)
    return element("span", attempt_text(at_ms, now_ms))


def words(value: str) -> str:
    """An enum's value for people."""
    return value.replace("_", " ")


def reason(why: CompactReason) -> Markup:
    """A pick reason by its closed name, with what it means."""
    return element("abbr", why.value, title=why.meaning)


def table_path(name: TableName) -> str:
    """Where the page of one table is."""
    return "/tables/" + "/".join(quote(part, safe="", errors="replace") for part in name)


def table_link(name: TableName) -> Markup:
    """A table's name as link; `bdi` isolates names in right-to-left scripts."""
    return element("a", element("bdi", str(name)), href=table_path(name))


def nothing() -> Markup:
    """The mark of an empty cell."""
    return element("span", "–", class_="none quiet")


def noted(value: str, *note: str) -> Markup:
    """A value with a smaller text that says more."""
    return join(value, element("small", *note))


def place(partition: str, bucket: int) -> Markup:
    """Which bucket: `dt=2026-01-01 bucket 3`."""
    text = element("span", f"bucket {bucket}", class_="nowrap")
    return join(element("bdi", partition), text, separator=" ") if partition else text


def kind_text(kind: WorkKind) -> Markup:
    """A kind of work by its name, with what it does."""
    return element("abbr", kind.value, title=_KINDS[kind])


def class_mark(urgency: PriorityClass) -> Markup:
    """A class of the queue by its name, with what is in it."""
    return status_mark(urgency.value, title=CLASSES[urgency])


def status_mark(value: str, *, title: str | None = None) -> Markup:
    """A state as word on its colour."""
    return element("span", words(value), class_=f"mark {value.replace('_', '-')}", title=title)


def run_state(runs: int, compaction_trigger: int, stop_trigger: int) -> RunState:
    """The band of a run count, from the last band down."""
    if runs > stop_trigger:
        return RunState.OVER_STOP
    if runs >= stop_trigger - 1:
        return RunState.NEAR_STOP
    return RunState.DUE if runs >= compaction_trigger else RunState.IDLE


def band_mark(state: RunState) -> Markup:
    """The band of a run count. Runs from the trigger on need not make anything due."""
    return status_mark("at_trigger" if state is RunState.DUE else state.value)


def runs_bar(runs: int, compaction_trigger: int, stop_trigger: int) -> Markup:
    """The run count as number, word and bar with both triggers as ticks."""
    state = run_state(runs, compaction_trigger, stop_trigger)
    is_near = stop_trigger <= _FAR * max(compaction_trigger, runs)
    scale = max(runs, stop_trigger + 1 if is_near else 2 * compaction_trigger, 1)
    ticks = [compaction_trigger, *([stop_trigger] if is_near else [])]
    drawn = element(
        "svg",
        _rect(100, "track"),
        _rect(100 * runs / scale, f"{state.value.replace('_', '-')}-fill"),
        *(_tick(100 * tick / scale) for tick in ticks),
        aria_hidden="true",
    )
    mark = band_mark(state) if state is not RunState.IDLE else None
    return join(
        element("div", element("strong", count(runs)), " ", drawn, mark, class_="bar"),
        element("small", f"trigger {count(compaction_trigger)}, stop {count(stop_trigger)}"),
    )


def meter(used: float, total: float) -> Markup:
    """How much of `total` is used; without words of its own."""
    share = 100 * min(1.0, used / total) if total > 0 else 0.0
    fill = "near-stop-fill" if share >= 95 else "plain-fill"
    return element(
        "svg", _rect(100, "track"), _rect(share, fill), class_="meter", aria_hidden="true"
    )


def _rect(width: float, kind: str) -> Markup:
    return element("rect", x="0.00%", y="2", width=f"{width:.2f}%", height="8", rx="2", class_=kind)


def _tick(x: float) -> Markup:
    return element("rect", x=f"{min(x, 99.0):.2f}%", width="2", height="12", class_="tick")
