"""Reads a configuration that can be used: well-formed, with values that mean something here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import tzinfo

from compactord.catalog.base import Catalog
from compactord.catalog.look import CatalogTrouble, look_at
from compactord.catalog.open import OpenStorage, open_catalog
from compactord.catalog.options import CatalogOptionInvalid
from compactord.clock import Clock
from compactord.config.load import LoadedConfig, load_config
from compactord.config.model import Catalog as CatalogSection
from compactord.config.model import ServiceConfig
from compactord.config.problems import ConfigInvalid, Problem
from compactord.engine.masters import MASTERS, is_master, shown_master, what_instead
from compactord.errors import CompactordError, ErrorAtPath, TableNotFound, UsageError
from compactord.redaction import HIDDEN, is_secret_key, redact_text
from compactord.storage.open import open_storage


def load_usable(
    path: str | None, overrides: Sequence[str], open_store: OpenStorage = open_storage
) -> LoadedConfig:
    """The configuration of file (None: there is none), environment and `overrides` (`key=value`).

    Raises `ConfigInvalid` with all problems, those of values with which nothing can be done
    included. Opens stores and asks them nothing.
    """
    loaded = load_config(path, environ=os.environ, overrides=overrides)
    if found := list(_unusable(loaded, open_store)):
        raise ConfigInvalid(found, digest=loaded.digest)
    return loaded


def open_configured(
    config: ServiceConfig, name: str, open_store: OpenStorage = open_storage
) -> Catalog:
    """The catalog of this name. Raises `UsageError` as `open_catalog` does."""
    zone = config.service.zone
    return open_section(config.catalogs[name], zone=zone, open_store=open_store)


def open_section(
    section: CatalogSection, *, zone: tzinfo | None, open_store: OpenStorage
) -> Catalog:
    """The catalog of one section of the configuration."""
    return open_catalog(
        section.warehouse,
        open_store,
        metastore=section.metastore,
        options=section.options,
        zone=zone,
    )


def is_of_database(error: CompactordError) -> bool:
    """Whether a catalog's database raised it, not the store of its tables."""
    return isinstance(error, ErrorAtPath) and error.path.startswith("jdbc:")


def problem_at(loaded: LoadedConfig, key: str, value: str, expected: str) -> Problem:
    """A problem with a value of the configuration; a value given by reference is not shown."""
    literal = HIDDEN if is_secret_key(key) else redact_text(value)
    shown = loaded.references.get(key, literal)
    return Problem(origin=loaded.origin(key), key=key, value=shown, expected=expected)


def look_online(
    loaded: LoadedConfig, clock: Clock, open_store: OpenStorage = open_storage
) -> list[tuple[CatalogTrouble, Problem]]:
    """What is wrong with the catalogs themselves, each with its place in the configuration."""
    config = loaded.config
    catalogs = {name: open_configured(config, name, open_store) for name in config.catalogs}
    return [(trouble, _problem_of(loaded, trouble)) for trouble in look_at(catalogs, clock)]


def all_unusable(loaded: LoadedConfig, found: Sequence[tuple[CatalogTrouble, Problem]]) -> bool:
    """Whether no catalog can be used, and none may heal."""
    stuck = [trouble for trouble, _ in found if not trouble.may_heal]
    return len(stuck) == len(loaded.config.catalogs)


def _problem_of(loaded: LoadedConfig, trouble: CatalogTrouble) -> Problem:
    name = trouble.catalog
    catalog = loaded.config.catalogs[name]
    if is_of_database(trouble.error):
        wait = "; serve would wait for it" if trouble.may_heal else ""
        expected = f"a catalog that can be opened ({trouble.error}){wait}"
        key = f"catalogs.{name}.options.uri"
        return problem_at(loaded, key, catalog.options["uri"], expected)
    match trouble.error:
        case TableNotFound():
            expected = "a folder that exists: create it, or mount it first"
        case error if trouble.may_heal:
            expected = f"a warehouse that answers ({error}); serve would wait for it"
        case error:
            expected = f"a folder that this user may read ({error})"
    return problem_at(loaded, f"catalogs.{name}.warehouse", catalog.warehouse, expected)


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
            open_store(catalog.warehouse, catalog.options)
        except UsageError:
            expected = (
                "a folder of this machine, such as /data/wh or file:///data/wh; other stores are "
                "not supported yet"
            )
            yield problem_at(loaded, f"catalogs.{name}.warehouse", catalog.warehouse, expected)
            continue
        try:
            open_configured(loaded.config, name, open_store)
        except CatalogOptionInvalid as error:
            key = f"catalogs.{name}.options.{error.key}"
            yield problem_at(loaded, key, catalog.options.get(error.key, ""), error.expected)
        except UsageError as error:
            key = f"catalogs.{name}.metastore"
            yield problem_at(loaded, key, catalog.metastore, str(error))
