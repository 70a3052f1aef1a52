"""Reads a configuration that can be used: well-formed, with values that mean something here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from compactord.catalog.open import OpenStorage
from compactord.config.load import LoadedConfig, load_config
from compactord.config.problems import ConfigInvalid, Problem
from compactord.engine.masters import MASTERS, is_master, shown_master, what_instead
from compactord.errors import UsageError
from compactord.redaction import redact_text
from compactord.storage.open import open_storage


def load_usable(
    path: str, overrides: Sequence[str], open_store: OpenStorage = open_storage
) -> LoadedConfig:
    """The configuration of file, environment and `overrides` (`key=value`).

    Raises `ConfigInvalid` with all problems, those of values with which nothing can be done
    included. Opens stores and asks them nothing.
    """
    loaded = load_config(path, environ=os.environ, overrides=overrides)
    if found := list(_unusable(loaded, open_store)):
        raise ConfigInvalid(found, digest=loaded.digest)
    return loaded


def problem_at(loaded: LoadedConfig, key: str, value: str, expected: str) -> Problem:
    """A problem with a value of the configuration; a value given by reference is not shown."""
    shown = loaded.references.get(key, redact_text(value))
    return Problem(origin=loaded.origins[key], key=key, value=shown, expected=expected)


def _unusable(loaded: LoadedConfig, open_store: OpenStorage) -> Iterator[Problem]:
    """Values that are well-formed but with which nothing can be served."""
    master = loaded.config.spark.master
    if master is not None and not is_master(master):
        yield problem_at(loaded, "spark.master", shown_master(master), MASTERS)
    for name, value in loaded.config.spark.conf.items():
        instead = what_instead(name, master)
        if instead is not None:
            expected = f"no such setting, as it has no effect: {instead}"
            yield problem_at(loaded, f"spark.conf.{name}", value, expected)
    for name, catalog in loaded.config.catalogs.items():
        try:
            open_store(catalog.warehouse)
        except UsageError:
            expected = (
                "a folder of this machine, such as /data/wh or file:///data/wh; other stores are "
                "not supported yet"
            )
            yield problem_at(loaded, f"catalogs.{name}.warehouse", catalog.warehouse, expected)
