"""Routes and rendering of the page: paths to pages, and the environment of their templates.

Jinja2 escapes every text. The page is one response: its style and script are in it, and its content
security policy names both by their hashes.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from urllib.parse import quote, urlencode

import jinja2
from markupsafe import Markup

from compactord.clock import Clock, iso_text
from compactord.model import TableName, WorkKind
from compactord.scheduler.compaction import PriorityClass
from compactord.service.http import PageResponse
from compactord.service.page.attention import (
    action_of,
    attempt_text,
    attention_of,
    freshness_text,
    is_stale,
    measured_need,
    more_tables,
)
from compactord.service.page.lsm import drawing_of, scale_text
from compactord.service.page.overview import (
    TableFilter,
    columns,
    notice_severity,
    overview,
    with_work,
)
from compactord.service.view import StatusSource
from compactord.table.report import REWRITTEN, rewrite_text
from compactord.table.status import RunState, run_state
from compactord.text import age_text, count_text, printable_lines, size_text

_ICON = "/icon.svg"
_RUNBOOKS = "/runbooks"
_TABLES = "/tables/"
_TEMPLATES = Path(__file__).parent / "templates"


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text("utf-8")


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


STYLE, SCRIPT = _text("page.css"), _text("page.js")
# A browser may use the page's own style and script, and request the page again.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_source(STYLE)}",
        f"script-src {_source(SCRIPT)}",
        "connect-src 'self'",
        "img-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)


def _printable(value: object) -> object:
    """The text of a value with control and format characters shown; Jinja2 then escapes it."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else printable_lines(str(value))


def _table_path(name: TableName) -> str:
    return _TABLES + "/".join(quote(part, safe="", errors="replace") for part in name)


@functools.cache
def environment() -> jinja2.Environment:
    """The templates with their filters and functions. Loaded once."""
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        auto_reload=False,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "age_text": age_text,
        "counted": count_text,
        "iso_text": iso_text,
        "number": lambda number: f"{number:,}",
        "size_text": size_text,
        "table_path": _table_path,
        "words": lambda value: value.replace("_", " "),
    }
    names: tuple[type | Callable[..., object], ...] = (
        *(
            action_of,
            attempt_text,
            attention_of,
            measured_need,
            freshness_text,
            is_stale,
            more_tables,
        ),
        *(columns, drawing_of, notice_severity, rewrite_text, scale_text, max, min, zip),
        *(PriorityClass, RunState, WorkKind, run_state),
    )
    found.globals |= {each.__name__: each for each in names}
    found.globals |= {"STYLE": Markup(STYLE), "SCRIPT": Markup(SCRIPT), "REWRITTEN": REWRITTEN}
    return found


def render(
    status: StatusSource, path: str, query: Mapping[str, str], *, clock: Clock
) -> PageResponse | None:
    """The page at a decoded path, from memory, or None if there is none.

    `/` shows all tables (the query is a `TableFilter`), `/tables/{catalog}/{database}/{table}` one,
    `/runbooks` what to do about alerts.
    """
    if path == "/":
        whole, selected = status.view(), TableFilter.of_query(query)
        now_ms = whole.reading_ms(clock.steady_ms())
        troubles, values = overview(whole, selected, now_ms)
        title = f"({troubles:,}) compactord" if troubles else "compactord"
        return _page("overview", title, {**values, "filter": selected, "now_ms": now_ms})
    if path == _ICON:
        return _response(HTTPStatus.OK, "image/svg+xml", _text("icon.svg"))
    if path == _RUNBOOKS:
        values = {"view": status.view(), "alert": "", "meanings": _meanings()}
        return _page("runbooks", "Runbooks", values)
    if path.startswith(f"{_RUNBOOKS}/"):
        alert = path.removeprefix(f"{_RUNBOOKS}/")
        text = _runbooks().get(alert)
        if text is None:
            return None
        return _page("runbooks", alert, {"view": status.view(), "alert": alert, "text": text})
    if path.startswith(_TABLES):
        return _table_page(status, path.removeprefix(_TABLES), clock)
    return None


def _table_page(status: StatusSource, path: str, clock: Clock) -> PageResponse | None:
    parts = path.split("/", 2)
    if len(parts) != 3 or not all(parts):
        return None
    name = TableName(*parts)
    view, detail = status.view(), status.detail(name)
    if detail is None:
        values = {"view": view, "name": name}
        return _page("no_table", "No such table", values, HTTPStatus.NOT_FOUND)
    values = {
        "view": with_work(view, lambda each: each == detail.view.name),
        "now_ms": view.reading_ms(clock.steady_ms()),
        "table": detail.view,
        "buckets": detail.buckets,
        "bucket_count": detail.bucket_count,
        "plan_link": "/v1/plan?" + urlencode({"table": str(name)}, errors="replace"),
    }
    return _page("table", str(name), values)


def _page(
    template: str, title: str, values: Mapping[str, object], status: int = HTTPStatus.OK
) -> PageResponse:
    if template != "overview":
        title = f"{title} · compactord"
    found = environment().get_template(f"{template}.html.j2")
    html = found.render({"title": title, "filter": TableFilter(), **values})
    return _response(status, "text/html; charset=utf-8", html)


def _response(status: int, content_type: str, text: str) -> PageResponse:
    # Names come from stores: a lone surrogate must not fail the whole page.
    return PageResponse(
        status=int(status),
        content_type=content_type,
        body=text.encode("utf-8", errors="replace"),
        security_policy=CONTENT_SECURITY_POLICY,
    )


@functools.cache
def _runbooks() -> Mapping[str, str]:
    """The Markdown of each runbook without its title, by the name of its alert. Read once."""
    folder = resources.files("compactord") / "runbooks"
    pages = [page for page in folder.iterdir() if page.name.endswith(".md")]
    return {
        page.name.removesuffix(".md"): page.read_text("utf-8").partition("\n")[2].strip()
        for page in sorted(pages, key=lambda page: page.name)
    }


def _meanings() -> Mapping[str, str]:
    """The first paragraph below `## Meaning` of each runbook."""
    found = {}
    for alert, text in _runbooks().items():
        paragraph = text.partition("## Meaning\n\n")[2].partition("\n\n")[0]
        found[alert] = " ".join(paragraph.split()).replace("`", "")
    return found
