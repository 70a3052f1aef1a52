"""A Dockerfile read: its stages and instructions, variables filled in, as far as ours goes."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
_MOUNT = re.compile(r"--mount=type=cache,target=(\S+)\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A shell command; each folder of `caches` is kept between builds and in no layer."""

    command: str
    caches: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """`stage` is None for files of the build context."""

    sources: tuple[str, ...]
    target: str
    stage: str | None
    mode: int | None


@dataclass(slots=True)
class Stage:
    """`base` is the image, or the stage, that it begins with."""

    name: str
    base: str
    steps: list[Run | Copy] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    volumes: list[str] = field(default_factory=list)
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    workdir: str = "/"
    user: str = ""
    port: str = ""
    stop_signal: str = ""


def read_dockerfile(path: Path, arguments: Mapping[str, str]) -> list[Stage]:
    """All stages, in order. ValueError for an instruction that this reader does not know."""
    stages: list[Stage] = []
    of_all: dict[str, str] = {}
    variables: dict[str, str] = {}
    for word, rest in _instructions(path.read_text()):
        if word == "ARG":
            name, _, default = rest.partition("=")
            scope = variables if stages else of_all
            scope[name] = arguments.get(name, default)
        elif word == "FROM":
            base, *named = _filled(rest, of_all).split()
            stages.append(Stage(name=named[1] if named else "", base=base))
            variables = {}
        else:
            _apply(stages[-1], word, rest, variables)
    return stages


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for instruction in re.sub(r"\\\n", "", "\n".join(lines)).splitlines():
        if instruction.strip():
            word, _, rest = instruction.strip().partition(" ")
            yield word.upper(), rest.strip()


def _apply(stage: Stage, word: str, rest: str, variables: dict[str, str]) -> None:
    match word:
        case "RUN":
            caches = tuple(_MOUNT.findall(rest))
            environment = stage.environment | variables
            stage.steps.append(
                Run(command=_MOUNT.sub("", rest), caches=caches, environment=environment)
            )
        case "COPY":
            stage.steps.append(_copy(rest))
        case "ENV" | "LABEL":
            pairs = dict(pair.split("=", 1) for pair in shlex.split(_filled(rest, variables)))
            (stage.environment if word == "ENV" else stage.labels).update(pairs)
        case "VOLUME":
            stage.volumes = json.loads(rest)
        case "ENTRYPOINT":
            stage.entrypoint = json.loads(rest)
        case "CMD":
            stage.command = json.loads(rest)
        case "WORKDIR":
            stage.workdir = rest
        case "USER":
            stage.user = rest
        case "EXPOSE":
            stage.port = rest
        case "STOPSIGNAL":
            stage.stop_signal = rest
        case _:
            raise ValueError(f"this reader knows no {word}")


def _copy(rest: str) -> Copy:
    words = rest.split()
    flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    *sources, target = [word for word in words if not word.startswith("--")]
    if unknown := flags.keys() - {"from", "chmod"}:
        raise ValueError(f"this reader knows no COPY with {unknown}")
    mode = int(flags["chmod"], 8) if "chmod" in flags else None
    return Copy(sources=tuple(sources), target=target, stage=flags.get("from"), mode=mode)


def _filled(text: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables[found.group(1) or found.group(2)], text)
