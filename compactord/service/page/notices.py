"""Problems of the service itself, each with what to do, as the page and `top` show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from compactord.clock import iso_text
from compactord.service.view import CatalogView, LoopView, ServiceView
from compactord.text import age_text

# The loop publishes a view about once a second; a view this old means that the loop hangs.
_VIEW_STALE_MS = 30_000
_END_A_HANG = "Restart the service if it does not go on by itself; no work is lost."


class Notice(NamedTuple):
    """`severity` is `bad` (an operator must act) or `warn` (an operator may want to).

    `action` is what to do, and `alert` names a runbook. `note` is a small line that ends with the
    time `at_ms`.
    """

    severity: str
    title: str
    detail: str
    action: str = ""
    alert: str = ""
    note: str = ""
    at_ms: int = 0

    @property
    def text(self) -> str:
        """All of it in one line."""
        what = f"{self.title} {self.detail}"
        return f"{what.rstrip('.')}. What to do: {self.action}" if self.action else what


def silent_loops(view: ServiceView, now_ms: int) -> list[LoopView]:
    """Loops whose last heartbeat is too old."""
    return [loop for loop in view.loops if now_ms - loop.heartbeat_ms > loop.stale_after_ms]


def service_notices(view: ServiceView, now_ms: int) -> Iterator[Notice]:
    """Problems of the service itself."""
    yield from _loop_notices(view, now_ms)
    # Before the first start the notice that the service is starting is enough.
    if not view.engine.is_up and (view.is_started or view.engine.error):
        yield Notice(
            "bad",
            "The engine is down.",
            view.engine.error or "No table is compacted until it is up again.",
            "Wait some minutes: the service starts it again. If it stays down, look at its log.",
            "CompactordSparkUnavailable",
        )
    for catalog in view.catalogs:
        yield from _catalog_notices(catalog, now_ms, is_started=view.is_started)
    config = view.config
    if not config.last_reload_successful:
        yield Notice(
            "bad",
            f"The configuration {config.path} could not be reloaded; "
            "the last valid one stays in effect.",
            " ".join(config.error.split()),
            "Correct the file, then send SIGHUP; `compactord config check` names every error.",
            "CompactordConfigReloadFailed",
        )
    if config.restart_required:
        keys = ", ".join(config.restart_required)
        yield Notice("warn", "Some changed settings need a restart.", keys, "Restart the service.")
    for pattern in view.unmatched_patterns:
        yield Notice(
            "warn",
            "A pattern of the configuration matches no table.",
            pattern,
            "Correct or remove it, unless its tables are yet to come.",
        )
    if view.is_draining:
        detail = "It finishes running work and starts no new work."
        yield Notice("warn", "The service is draining.", detail)
    elif not view.is_started:
        yield Notice("warn", "The service is starting.", "The engine is not up yet.")


def _loop_notices(view: ServiceView, now_ms: int) -> Iterator[Notice]:
    age_ms = now_ms - view.now_ms
    if age_ms > _VIEW_STALE_MS:
        yield Notice(
            "bad",
            f"These numbers are {age_text(age_ms)} old: the service's loop does not answer.",
            f"They were taken at {iso_text(view.now_ms)}.",
            _END_A_HANG,
            "CompactordLoopStalled",
        )
    for loop in silent_loops(view, now_ms):
        yield Notice(
            "bad",
            f"The loop {loop.name} has been silent for {age_text(now_ms - loop.heartbeat_ms)}.",
            f"A heartbeat is expected every {age_text(loop.stale_after_ms)}.",
            _END_A_HANG,
            "CompactordLoopStalled",
        )


def _catalog_notices(catalog: CatalogView, now_ms: int, *, is_started: bool) -> Iterator[Notice]:
    if catalog.store_silent_since_ms:
        silent = age_text(now_ms - catalog.store_silent_since_ms)
        yield Notice(
            "bad",
            f"The store or server of catalog {catalog.name} does not answer; its tables wait.",
            f"{catalog.warehouse}: no answer for {silent}; retried every 30 s.",
            "Check the store or server, and the network to it. Its tables go on once it answers.",
            "CompactordStoreSilent",
        )
    if catalog.error:
        is_known = catalog.last_success_ms > 0
        yield Notice(
            "bad",
            f"Catalog {catalog.name} cannot be listed"
            f"{'.' if is_known else ', so none of its tables is compacted.'}",
            catalog.trouble,
            "Correct what the error names: an address, a key, a permission."
            f"{' Known tables are still compacted.' if is_known else ''}",
            "CompactordDiscoveryFailing",
            f"{catalog.warehouse}; last listed ",
            catalog.last_success_ms,
        )
    elif is_started and catalog.trouble:
        title = f"Catalog {catalog.name} was {catalog.trouble}."
        yield Notice("warn", title, "Its tables are not known yet.")
