"""Links from the page to what else is served."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

from compactord.model import TableName
from compactord.service.page.figures import table_path
from compactord.service.page.markup import Markup, element
from compactord.service.page.runbooks import RUNBOOKS

_SERVICE = (
    ("Metrics", "/metrics"),
    ("Configuration", "/config"),
    ("Status as JSON", "/v1/status"),
    ("Tables as JSON", "/v1/tables"),
    ("Readiness", "/readyz"),
    ("Runbooks", RUNBOOKS),
)


def service_links() -> Markup:
    """What there is about the whole service."""
    return _links(_SERVICE, "More about the service")


def table_links(name: TableName) -> Markup:
    """What there is about one table."""
    return _links(
        (
            ("This table as JSON", f"/v1{table_path(name)}"),
            ("Its plan as JSON", "/v1/plan?" + urlencode({"table": str(name)}, errors="replace")),
        ),
        "More about this table",
    )


def _links(links: Iterable[tuple[str, str]], label: str) -> Markup:
    items = (element("a", text, href=href) for text, href in links)
    return element("nav", *items, class_="links", aria_label=label)
