"""Commands of this process, with what a test has registered."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from compactord.cli.registries import Registries
from compactord.rewrite.subcompaction import run_subcompaction
from tests.inline_engine import InlineEngine


def registered(**given: Any) -> Registries:
    """The product's own but for what is `given`; subcompactions run in this process."""
    found = Registries(**given)
    run = partial(run_subcompaction, formats=found.formats, functions=found.functions)
    return replace(found, start_engine=lambda *_: InlineEngine(run))
