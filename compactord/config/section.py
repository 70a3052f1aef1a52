"""The base class of all sections of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError


def _key(attribute: str) -> str:
    """The key of an attribute: only attributes have their unit in the name."""
    return attribute.removesuffix("_ms").removesuffix("_bytes")


class Section(BaseModel):
    """A frozen mapping with fixed keys. Unknown keys are errors; null means all defaults."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        alias_generator=_key,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_if_null(cls, value: object) -> object:
        return {} if value is None else value

    def __repr_args__(self) -> list[tuple[str | None, object]]:
        """Shows no values: any text may be a secret, and a repr appears in logs and tracebacks."""
        return []


def wrong_value(place: str, value: object, expected: str, hint: str = "") -> InitErrorDetails:
    """An error at an attribute or key of its own section."""
    context = {"expected": expected, "hint": hint}
    kind = PydanticCustomError("option", "{expected}", context)
    return InitErrorDetails(type=kind, loc=(place,), input=value)
