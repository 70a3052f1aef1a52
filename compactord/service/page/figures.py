"""Numbers, sizes, times and names as the page shows them: short text, exact value as title."""

from __future__ import annotations

from urllib.parse import quote

from compactord.clock import age_text as age_text
from compactord.clock import iso_text as iso_text
from compactord.model import TableName, WorkKind
from compactord.reasons import CompactReason
from compactord.scheduler.status import PriorityClass
from compactord.service.page.markup import Markup, element, join
from compactord.service.page.need import attempt_text
from compactord.table.report import count_text, size_text

_REASONS = {
    CompactReason.EARLY_FULL_INTERVAL: "the last full compaction is older than the table allows",
    CompactReason.EARLY_FULL_TOTAL_SIZE: "the bucket is small enough to be kept in one run",
    CompactReason.EARLY_FULL_INCREMENTAL_SIZE: "enough data arrived since the last full compaction",
    CompactReason.SIZE_AMPLIFICATION: "newer runs are large compared with the oldest one",
    CompactReason.SIZE_RATIO: "neighbouring runs are of similar size",
    CompactReason.RUN_COUNT: "more sorted runs than the compaction trigger allows",
    CompactReason.FORCED_LEVEL_0: "the table's options, or readers, require an empty level 0",
    CompactReason.DELTA_COMMITS: "the table allows no more commits since the last full compaction",
    CompactReason.FRESHNESS_LAG: "readers have waited for its rows for half of max_freshness_lag",
    CompactReason.LOOKUP_BEGINS: "levels above 0 are from before the table looked keys up, or "
    "marked rows as deleted",
    CompactReason.FULL: "a full compaction was requested",
    CompactReason.FORCED_REWRITE: "every file is to be rewritten",
    CompactReason.EXPIRED_RECORDS: "files on the highest level have records that have expired",
    CompactReason.DELETED_ROWS: "files have rows that were deleted since",
    CompactReason.APPEND_SMALL_FILES: "enough small files to make a larger one",
    CompactReason.APPEND_WAITED: "small files have waited long enough",
    CompactReason.APPEND_FULL: "every file below the target size",
}

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
    return element("abbr", why.value, title=_REASONS[why])


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
