"""The runbooks of the alerts, so that who is woken needs no other place to read them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import resources

from compactord.service.page.markup import Markup, element, join

RUNBOOKS = "/runbooks"


@functools.cache
def runbooks() -> Mapping[str, str]:
    """The text of each, in Markdown, by the name of its alert. Read once."""
    folder = resources.files("compactord") / "runbooks"
    pages = [page for page in folder.iterdir() if page.name.endswith(".md")]
    return {
        page.name.removesuffix(".md"): page.read_text("utf-8")
        for page in sorted(pages, key=lambda page: page.name)
    }


def runbook_link(alert: str, text: str = "Runbook") -> Markup:
    """A link to what to do about an alert."""
    return element("a", text, href=f"{RUNBOOKS}/{alert}")


def runbook_list() -> Markup:
    """All runbooks, each with what its alert means."""
    rows = (
        element("div", element("dt", runbook_link(name, name)), element("dd", _meaning(text)))
        for name, text in runbooks().items()
    )
    return join(_up(), element("h1", "Runbooks"), element("dl", *rows, class_="runbooks"))


def runbook_page(name: str) -> Markup | None:
    """One runbook as it is written; None where there is none of this name."""
    text = runbooks().get(name)
    if text is None:
        return None
    _, _, rest = text.partition("\n")
    return join(_up(), element("h1", name), element("pre", rest.strip(), class_="runbook"))


def _meaning(text: str) -> str:
    """The first paragraph below `## What it means`."""
    _, _, after = text.partition("## What it means\n\n")
    paragraph, _, _ = after.partition("\n\n")
    return " ".join(paragraph.split()).replace("`", "")


def _up() -> Markup:
    links = (
        element("a", "All tables", href="/"),
        element("a", "All runbooks", href=RUNBOOKS),
    )
    return element("nav", join(*links, separator=" "), aria_label="Up")
