"""A small builder of HTML and SVG: text is escaped unless it already is markup.

element("td", "a < b", class_="number")  ->  <td class="number">a &lt; b</td>

With it tables, which are captioned: wide ones scroll, on narrow screens cells stack.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from compactord.text import printable_lines

_VOID = frozenset({"br", "hr", "input", "link", "meta"})
# Rows on narrow screens where there is a link to all, as `.few` of the style has it.
_FEW = 3
_UNLABELLED = ("State", "Bucket", "Outcome", "Class")

Attribute = str | int | bool | None


class Markup(str):
    """Text that is markup already and is not escaped."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: Attribute) -> Markup:
    """One element. None and False leave a child or an attribute out, True gives it no value.

    `class_` and `for_` lose their underscore at the end, those inside become hyphens:
    `aria_label` is `aria-label`.
    """
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(*children)}</{name}>")


def join(*children: str | None, separator: str = "") -> Markup:
    """Children one after the other."""
    return Markup(separator.join(escaped(child) for child in children if child is not None))


def escaped(text: str) -> Markup:
    """Text as markup that shows it; markup as it is."""
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(printable_lines(text), quote=True))


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    # Escape quotes in markup too: they would end the attribute.
    return f' {name}="{html.escape(printable_lines(str(value)), quote=True)}"'


class Column(NamedTuple):
    """A column's title and the class of its cells: `number`, `text`, `runs` or none.

    `link` sorts by it, where that can be done; `order` is `ascending` or `descending` while it is.
    """

    title: str
    kind: str | None = None
    link: str | None = None
    order: str | None = None

    @property
    def label(self) -> str | None:
        """What a stacked cell begins with; marks speak for themselves."""
        return None if self.title in _UNLABELLED else self.title.partition(" (")[0]


def columns(described: str) -> tuple[Column, ...]:
    """Columns by their titles, and after a colon the class of cells: `Table, Size: number`."""
    found = (each.partition(":") for each in described.split(","))
    return tuple(Column(title.strip(), kind.strip() or None) for title, _, kind in found)


def grid(
    identity: str,
    caption: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    *,
    empty: str,
    more: Markup | None = None,
) -> Markup:
    """A table whose first cells name their rows; the text `empty` when there are no rows.

    With `more`, a link to all rows, narrow screens show the first three rows, and the link.
    Roles are written out because stacked tables lose theirs with their `display`.
    """
    body = [_row(columns, row) for row in rows]
    if not body:
        return element("p", empty, class_="quiet", id=identity)
    head = (
        element(
            "th",
            element("a", c.title, href=c.link) if c.link else c.title,
            class_=c.kind,
            scope="col",
            role="columnheader",
            aria_sort=c.order,
        )
        for c in columns
    )
    is_few = more is not None and len(body) > _FEW
    found = element(
        "div",
        element(
            "table",
            element("caption", caption, id=f"{identity}-caption"),
            element("thead", element("tr", *head, role="row"), role="rowgroup"),
            element("tbody", *body, role="rowgroup"),
            role="table",
        ),
        id=identity,
        class_="scroll stack few" if is_few else "scroll stack",
        tabindex=0,
        role="region",
        aria_labelledby=f"{identity}-caption",
    )
    rest = element("p", f"{len(body) - _FEW:,} more; ", more, class_="more") if is_few else None
    return join(found, rest)


def _row(columns: Sequence[Column], cells: Sequence[str]) -> Markup:
    first, *others = cells
    described = zip(columns[1:], others, strict=True)
    return element(
        "tr",
        element("th", first, scope="row", role="rowheader"),
        *(
            element("td", element("div", cell), class_=c.kind, role="cell", data_label=c.label)
            for c, cell in described
        ),
        role="row",
    )


def facts(pairs: Iterable[tuple[str, str]], kind: str = "facts") -> Markup:
    """Names and values; the kind `tiles` is for the few numbers that are read first."""
    items = (element("div", element("dt", name), element("dd", value)) for name, value in pairs)
    return element("dl", *items, class_=kind)


def section(identity: str, title: str, *content: str | None) -> Markup:
    return element(
        "section",
        element("h2", title, id=f"{identity}-title"),
        *content,
        aria_labelledby=f"{identity}-title",
    )
