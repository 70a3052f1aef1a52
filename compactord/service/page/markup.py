"""A small builder of HTML and SVG: text is escaped unless it already is markup.

element("td", "a < b", class_="number")  ->  <td class="number">a &lt; b</td>
"""

from __future__ import annotations

import html

from compactord.redaction import printable_lines

_VOID = frozenset({"br", "hr", "input", "link", "meta"})

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
