"""Notices about the service and its tables, the worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from compactord.scheduler.compaction import Halt
from compactord.service.page.figures import (
    age_text,
    attempt,
    count,
    iso_text,
    moment,
    place,
    status_mark,
    table_link,
)
from compactord.service.page.markup import Markup, element, join
from compactord.service.page.runbooks import runbook_link
from compactord.service.view import CatalogView, ServiceView, TableStatus, TableView

# The loop publishes a view about once a second; when one is this old, the loop hangs.
_VIEW_STALE_MS = 30_000


class Notice(NamedTuple):
    """`severity` is `bad` (somebody must act), `warn` (somebody may want to) or `plain`."""

    severity: str
    text: Markup


def notice_list(notices: Sequence[Notice]) -> Markup | None:
    if not notices:
        return None
    items = (element("li", text, class_=f"notice {severity}") for severity, text in notices)
    return element("ul", *items, class_="notices")


def service_notices(view: ServiceView, now_ms: int) -> Iterator[Notice]:
    """What is wrong with the service itself."""
    yield from _loop_notices(view, now_ms)
    # Before the first start the notice that the service is starting is enough.
    if not view.engine.is_up and (view.is_started or view.engine.error):
        yield _notice(
            "bad",
            "The engine is down.",
            view.engine.error or "Nothing is compacted until it is up again.",
            "CompactordSparkUnavailable",
        )
    for catalog in view.catalogs:
        if catalog.store_silent_since_ms:
            yield _notice(
                "bad",
                f"The store or server of catalog {catalog.name} does not answer; its tables wait.",
                f"{catalog.warehouse}: no answer for "
                f"{age_text(now_ms - catalog.store_silent_since_ms)}; asked again every 30 s.",
                "CompactordStoreSilent",
            )
        if catalog.error:
            yield _catalog_notice(catalog, now_ms)
    config = view.config
    if not config.last_reload_successful:
        yield _notice(
            "bad",
            f"The configuration {config.path} could not be reloaded; "
            "the last valid one stays in effect.",
            config.error,
            "CompactordConfigReloadFailed",
        )
    if config.restart_required:
        keys = ", ".join(config.restart_required)
        yield _notice("warn", "Some changed settings need a restart.", keys)
    for pattern in view.unmatched_patterns:
        yield _notice("warn", "A pattern of the configuration matches no table.", pattern)
    if view.is_draining:
        yield _notice(
            "warn", "The service is draining.", "It finishes running work and starts no new work."
        )
    elif not view.is_started:
        yield _notice("warn", "The service is starting.", "The engine is not up yet.")


def table_notices(table: TableView, now_ms: int, *, names_table: bool) -> Iterator[Notice]:
    """Why a table, or buckets of it, are not compacted: one notice; with its name where needed.

    Excluded tables may be many: a list of notices with names leaves them out.
    """
    name = element("p", element("strong", table_link(table.name))) if names_table else None
    if table.halt is not None:
        is_meant = table.status is TableStatus.UNSUPPORTED
        text = join(name, _halt_text(table.status, table.halt, now_ms))
        yield Notice("plain" if is_meant else "bad", text)
    elif table.status is TableStatus.EXCLUDED and names_table:
        return
    elif table.status in (TableStatus.ERROR, TableStatus.PAUSED, TableStatus.EXCLUDED):
        severity = "bad" if table.status is TableStatus.ERROR else "plain"
        yield Notice(severity, join(name, _sentence(table.status, table.why)))
    elif table.quarantined_count:
        yield Notice("warn", join(name, _quarantined_text(table, now_ms)))


def _halt_text(status: TableStatus, halt: Halt, now_ms: int) -> Markup:
    todo = element("p", element("strong", "What to do: "), element("bdi", halt.action))
    again = join("; next attempt ", attempt(halt.next_try_ms, now_ms))
    since = element(
        "small",
        f"{halt.reason.value}, since ",
        moment(halt.since_ms, now_ms),
        again if halt.next_try_ms else None,
    )
    return join(
        _sentence(status, halt.message),
        todo if halt.action else None,
        element("p", since, " ", runbook_link("CompactordTableHalted")),
    )


def _quarantined_text(table: TableView, now_ms: int) -> Markup:
    """How many buckets are quarantined, and what happened to the first of them."""
    buckets = "bucket is" if table.quarantined_count == 1 else "buckets are"
    text = element("p", f"{count(table.quarantined_count)} {buckets} quarantined.")
    if not table.quarantined:
        return text
    first = table.quarantined[0]
    why = element("p", place(first.partition, first.bucket), ": ", element("bdi", first.message))
    again = element("p", element("small", "Next attempt ", attempt(first.until_ms, now_ms)))
    return join(text, why, again)


def _sentence(status: TableStatus, text: str) -> Markup:
    return element("p", join(status_mark(status.value), element("bdi", text), separator=" "))


def _loop_notices(view: ServiceView, now_ms: int) -> Iterator[Notice]:
    age_ms = now_ms - view.now_ms
    if age_ms > _VIEW_STALE_MS:
        yield _notice(
            "bad",
            f"These numbers are {age_text(age_ms)} old: the service's loop does not answer.",
            f"They were taken at {iso_text(view.now_ms)}.",
        )
    for loop in view.loops:
        silent_ms = now_ms - loop.heartbeat_ms
        if silent_ms > loop.stale_after_ms:
            yield _notice(
                "bad",
                f"The loop {loop.name} has been silent for {age_text(silent_ms)}.",
                f"A heartbeat is expected every {age_text(loop.stale_after_ms)}.",
                "CompactordLoopStalled",
            )


def _catalog_notice(catalog: CatalogView, now_ms: int) -> Notice:
    listed = moment(catalog.last_success_ms, now_ms)
    return _notice(
        "bad",
        f"Catalog {catalog.name} cannot be listed. ",
        catalog.error,
        "CompactordDiscoveryFailing",
        element("p", element("small", f"{catalog.warehouse}; last listed ", listed)),
    )


def _notice(
    severity: str, title: str, detail: str, alert: str = "", more: Markup | None = None
) -> Notice:
    """`alert` has a runbook that says more."""
    detailed = element("p", element("bdi", detail)) if detail else None
    runbook = element("p", runbook_link(alert)) if alert else None
    text = join(element("p", element("strong", title)), detailed, more, runbook)
    return Notice(severity, text)
