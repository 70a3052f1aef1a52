"""Configurations as texts, for tests of this package."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from compactord.config.load import LoadedConfig, load_config
from compactord.config.problems import ConfigInvalid, Problem

SMALLEST = "catalogs: {lake: {warehouse: /data/wh}}\n"


def load(
    folder: Path,
    text: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    whole: bool = False,
) -> LoadedConfig:
    """What a file with `text` says; the smallest catalog is put on its first line."""
    path = folder / "compactord.yaml"
    path.write_text(textwrap.dedent(text) if whole else SMALLEST + textwrap.dedent(text))
    return load_config(str(path), environ=environ or {}, overrides=overrides)


def problems(
    folder: Path,
    text: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
    whole: bool = False,
) -> tuple[Problem, ...]:
    with pytest.raises(ConfigInvalid) as caught:
        load(folder, text, environ=environ, overrides=overrides, whole=whole)
    return caught.value.problems
