"""The base class of all sections of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A frozen mapping with fixed keys: unknown ones are errors, null means all defaults."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _empty_if_null(cls, value: object) -> object:
        return {} if value is None else value

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        """Shows no values: any text may be a secret, and a repr ends up in logs and tracebacks."""
        return []
