"""Texts joined by a delimiter (aggregate/FieldListaggAgg.java)."""

from __future__ import annotations

from compactord.kernels.aggregators.base import Scalars

# Java's Character.isWhitespace, which leaves out the spaces that do not break.
_BLANKS = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a\u2028\u2029\u205f\u3000"
)


class Listagg(Scalars):
    """Joins texts that are not blank; `distinct`: without parts that are there already."""

    def _added(self, before: str | None, value: str | None) -> str | None:
        if value is None or _is_blank(value):
            return before
        if before is None or _is_blank(before):
            return value
        if not self._rule.distinct:
            return before + self._rule.delimiter + value
        known = set(self._parts(before))
        parts = [before]
        for part in self._parts(value):
            if not _is_blank(part) and part not in known:
                known.add(part)
                parts.append(part)
        return self._rule.delimiter.join(parts)

    def _parts(self, text: str) -> list[str]:
        return text.split(self._rule.delimiter or " ") if text else []


def _is_blank(text: str) -> bool:
    return not text.strip(_BLANKS)
