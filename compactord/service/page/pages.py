"""Maps paths to pages, and renders the header and footer around them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from urllib.parse import urlencode

from compactord.clock import Clock
from compactord.model import TableName
from compactord.service.http import PageResponse
from compactord.service.page.choice import Choice, choice_of
from compactord.service.page.figures import count, iso_text, table_path
from compactord.service.page.markup import Markup, element, join
from compactord.service.page.one_table import one_table
from compactord.service.page.overview import overview, trouble_count
from compactord.service.page.runbooks import RUNBOOKS, runbook_list, runbook_page
from compactord.service.page.style import CONTENT_SECURITY_POLICY, ICON, SCRIPT, STYLE
from compactord.service.view import ServiceView, StatusSource

_ICON_PATH = "/icon.svg"
_TABLES = "/tables/"
_SERVICE_LINKS = (
    ("Metrics", "/metrics"),
    ("Configuration", "/config"),
    ("Status as JSON", "/v1/status"),
    ("Tables as JSON", "/v1/tables"),
    ("Readiness", "/readyz"),
    ("Runbooks", RUNBOOKS),
)


def render(
    status: StatusSource, path: str, query: Mapping[str, str], *, clock: Clock
) -> PageResponse | None:
    """The page at a decoded path, from memory; None where there is none.

    `/` shows all tables (`choice` reads the query),
    `/tables/{catalog}/{database}/{table}` one, `/runbooks` what to do about alerts.
    """
    if path == "/":
        view = status.view()
        now_ms = view.reading_ms(clock.steady_ms())
        troubles = trouble_count(view, now_ms)
        title = f"({count(troubles)}) compactord" if troubles else "compactord"
        return _page(view, title, overview(view, query, now_ms), choice=choice_of(query))
    if path == _ICON_PATH:
        return _response(HTTPStatus.OK, "image/svg+xml", ICON)
    if path == RUNBOOKS or path.startswith(f"{RUNBOOKS}/"):
        name = path.removeprefix(RUNBOOKS).removeprefix("/")
        main = runbook_page(name) if name else runbook_list()
        title = f"{name or 'Runbooks'} · compactord"
        return None if main is None else _page(status.view(), title, main)
    if path.startswith(_TABLES):
        return _table_page(status, path.removeprefix(_TABLES), clock)
    return None


def _table_page(status: StatusSource, path: str, clock: Clock) -> PageResponse | None:
    parts = path.split("/", 2)
    if len(parts) != 3 or not all(parts):
        return None
    name = TableName(*parts)
    view, detail = status.view(), status.detail(name)
    if detail is not None:
        main = one_table(view, detail, view.reading_ms(clock.steady_ms()))
        links = (
            ("This table as JSON", f"/v1{table_path(name)}"),
            ("Its plan as JSON", "/v1/plan?" + urlencode({"table": str(name)}, errors="replace")),
        )
        more = _links(links, "More about this table")
        return _page(view, f"{name} · compactord", main, links=more)
    missing = join(
        element("h1", "No such table"),
        element("p", "The service does not know ", element("bdi", str(name)), "."),
        element("p", element("a", "All tables", href="/")),
    )
    return _page(view, "No such table · compactord", missing, status=HTTPStatus.NOT_FOUND)


def _page(
    view: ServiceView,
    title: str,
    main: Markup,
    *,
    choice: Choice | None = None,
    links: Markup | None = None,
    status: int = HTTPStatus.OK,
) -> PageResponse:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href=_ICON_PATH, type="image/svg+xml"),
        element("style", Markup(STYLE)),
    )
    body = element(
        "body",
        element("a", "To the content", href="#main", class_="skip"),
        _header(choice or Choice()),
        element("main", main, id="main", tabindex=-1),
        element(
            "footer",
            links,
            _links(_SERVICE_LINKS, "More about the service"),
            f"compactord {view.version} on {view.instance}; numbers of {iso_text(view.now_ms)}. "
            "Times are UTC. This page is read-only.",
        ),
        element("script", Markup(SCRIPT)),
    )
    html = join(Markup("<!DOCTYPE html>"), element("html", head, body, lang="en"), separator="\n")
    return _response(status, "text/html; charset=utf-8", html)


def _header(choice: Choice) -> Markup:
    """The form keeps the state and the order that were chosen before."""
    kept = {key: value for key, value in choice.query.items() if key in ("state", "sort")}
    form = element(
        "form",
        element("label", element("span", "Tables whose name contains"), for_="q"),
        element("input", type="search", name="q", id="q", value=choice.sought, autocomplete="off"),
        *(element("input", type="hidden", name=key, value=value) for key, value in kept.items()),
        element("button", "Filter", type="submit"),
        action="/",
        role="search",
    )
    # The script replaces this line; without a script the page does not refresh.
    live = element("p", "Reload for newer numbers", id="live", class_="live")
    brand = element("a", "compactord", href="/", class_="brand")
    return element("header", brand, live, form)


def _links(links: Iterable[tuple[str, str]], label: str) -> Markup:
    items = (element("a", text, href=href) for text, href in links)
    return element("nav", *items, class_="links", aria_label=label)


def _response(status: int, content_type: str, text: str) -> PageResponse:
    # Names come from stores: one with a lone surrogate must not fail the whole page.
    return PageResponse(
        status=int(status),
        content_type=content_type,
        body=text.encode("utf-8", errors="replace"),
        security_policy=CONTENT_SECURITY_POLICY,
    )
