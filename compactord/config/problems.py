"""Problems of a configuration: places, origins and errors of values."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compactord.errors import UsageError

# A place in a configuration: keys and indexes from the root.
Path = tuple[str | int, ...]


def dotted(path: Iterable[str | int]) -> str:
    """`("rules", 0, "set")` → `rules.0.set`."""
    return ".".join(str(part) for part in path)


class OriginKind(enum.Enum):
    """Origins, from the weakest to the strongest."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """`name` is the file's path or the variable's name; `line` counts from 1, only for files."""

    kind: OriginKind
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case OriginKind.DEFAULT:
                return "default"
            case OriginKind.FILE:
                return self.name if self.line is None else f"{self.name}:{self.line}"
            case OriginKind.ENVIRONMENT:
                return f"env {self.name}"
            case OriginKind.COMMAND_LINE:
                return "--set"


DEFAULT = Origin(kind=OriginKind.DEFAULT)
COMMAND_LINE = Origin(kind=OriginKind.COMMAND_LINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error in the configuration. `value` is free of secrets, or None."""

    origin: Origin
    key: str
    expected: str
    value: str | None = None
    hint: str | None = None

    @property
    def file(self) -> str | None:
        return self.origin.name if self.origin.kind is OriginKind.FILE else None

    @property
    def line(self) -> int | None:
        return self.origin.line

    def __str__(self) -> str:
        found = "" if self.value is None else f" is {self.value}"
        key = f"{self.key}{found}: " if self.key else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.origin}: {key}expected {self.expected}{hint}"


class ConfigInvalid(UsageError):
    """The configuration cannot be used. `problems` are all that were found, in file order.

    `digest` distinguishes states of the file, like `LoadedConfig.digest`.
    """

    def __init__(self, problems: Sequence[Problem], *, digest: str = "") -> None:
        self.problems = tuple(problems)
        self.digest = digest
        count = f"{len(self.problems)} problem{'' if len(self.problems) == 1 else 's'}"
        self.lines = (
            f"the configuration is invalid, {count}:",
            *(f"  {problem}" for problem in self.problems),
        )
        super().__init__("\n".join(self.lines))

    def __reduce__(self) -> tuple[type[ConfigInvalid], tuple[tuple[Problem, ...]], dict[str, str]]:
        return ConfigInvalid, (self.problems,), {"digest": self.digest}
