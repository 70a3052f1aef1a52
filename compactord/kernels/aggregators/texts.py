"""Texts joined by a delimiter (aggregate/FieldListaggAgg.java)."""

from __future__ import annotations

from compactord.kernels.aggregators.base import Scalars
from compactord.paimon.java_text import is_blank


class Listagg(Scalars):
    """Joins texts that are not blank; `distinct`: without parts that are there already."""

    def _added(self, before: str | None, value: str | None) -> str | None:
        if value is None or is_blank(value):
            return before
        if before is None or is_blank(before):
            return value
        if not self._rule.distinct:
            return before + self._rule.delimiter + value
        known = set(self._parts(before))
        parts = [before]
        for part in self._parts(value):
            if not is_blank(part) and part not in known:
                known.add(part)
                parts.append(part)
        return self._rule.delimiter.join(parts)

    def _parts(self, text: str) -> list[str]:
        return text.split(self._rule.delimiter or " ") if text else []
