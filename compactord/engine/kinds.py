"""Kinds of engines and their registry. A module of its own: it imports what it lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from compactord.engine.base import Engine
from compactord.engine.masters import MASTERS, is_master, shown_master, what_instead
from compactord.engine.spark import check_spark, start_spark
from compactord.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """A kind of engine, chosen by the master: `takes` recognizes its masters, `masters` lists them.

    `start` gets the master and the settings, and raises `EngineUnavailable`. `instead` is advice
    for a setting that has no effect with a master, or None. `check` raises `EngineUnavailable` if
    this machine lacks what a start with this master needs, so that another try is useless.
    """

    name: str
    masters: str
    takes: Callable[[str], bool]
    start: Callable[[str | None, Mapping[str, str]], Engine]
    instead: Callable[[str, str | None], str | None]
    check: Callable[[str | None], object] = lambda master: None


EngineKinds: TypeAlias = Mapping[str, EngineKind]
SPARK = EngineKind(
    name="spark",
    masters=MASTERS,
    takes=is_master,
    start=start_spark,
    instead=what_instead,
    check=check_spark,
)
ENGINES: EngineKinds = {SPARK.name: SPARK}


def engine_of(master: str | None, kinds: EngineKinds) -> EngineKind | None:
    """The kind with this master, or None if there is none. No master means the first kind."""
    return next((each for each in kinds.values() if master is None or each.takes(master)), None)


def masters_text(kinds: EngineKinds) -> str:
    return ", or ".join(each.masters for each in kinds.values())


def check_engine(
    master: str | None, settings: Mapping[str, str], kinds: EngineKinds = ENGINES
) -> EngineKind:
    """The kind. Raises `UsageError` for an unknown master and for settings without effect."""
    kind = engine_of(master, kinds)
    if kind is None:
        shown = shown_master(master or "")
        raise UsageError(
            f"--master {shown!r} is not a Spark master; expected {masters_text(kinds)}"
        )
    for name in settings:
        if not name.startswith("spark."):
            raise UsageError(f"Spark settings begin with 'spark.', this one does not: {name}")
        instead = kind.instead(name, master)
        if instead is not None:
            raise UsageError(f"--spark-conf {name} has no effect: {instead}")
    return kind
