"""A table by name and place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRef:
    """A table by name, and the URL-like path of its root (without a slash at the end)."""

    database: str
    name: str
    location: str

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"
