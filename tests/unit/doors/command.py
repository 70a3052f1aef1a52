"""Commands of this process, with what a test has registered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from compactord.cli.registries import Registries
from compactord.engine.base import Engine
from compactord.engine.kinds import SPARK, EngineKinds
from compactord.rewrite.subcompaction import run_subcompaction
from tests.inline_engine import InlineEngine


def registered(**given: Any) -> Registries:
    """The product's own but for what is `given`; subcompactions run in this process."""
    found = Registries(**given)
    run = partial(run_subcompaction, formats=found.formats, functions=found.functions)
    is_given = "engines" in given
    return found if is_given else replace(found, engines=started_by(lambda *_: InlineEngine(run)))


def started_by(start: Callable[[str | None, Mapping[str, str]], Engine]) -> EngineKinds:
    """Spark, started in another way."""
    return {SPARK.name: replace(SPARK, start=start)}
