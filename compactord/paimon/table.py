"""A table by name, place and identity."""

from __future__ import annotations

from dataclasses import dataclass

MAIN_BRANCH = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRef:
    """A table by name, and the URL-like path of its root (without a slash at the end).

    `identity` is what a catalog tells a table by from another of its name and place (a uuid, the
    time of its creation); empty where the catalog keeps none.
    """

    database: str
    name: str
    location: str
    branch: str = MAIN_BRANCH
    identity: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"
