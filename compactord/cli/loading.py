"""Reads a configuration that can be used: well-formed, with values that mean something here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import tzinfo

import structlog

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.catalog.trouble import CatalogTrouble, check_catalogs
from compactord.cli.registries import Registries
from compactord.clock import Clock
from compactord.config.load import LoadedConfig, load_config
from compactord.config.model import CatalogSection, ServiceConfig
from compactord.config.problems import ConfigInvalid, Problem
from compactord.config.section import UnlockedWriters
from compactord.engine.masters import MASTERS, is_local, is_master, shown_master, what_instead
from compactord.errors import (
    CatalogOptionInvalid,
    StoreMissing,
    TableNotFound,
    UnsafeStore,
    UsageError,
)
from compactord.storage.open import Stores
from compactord.text import has_reference, is_secret_option, redact_value

_log = structlog.get_logger()
NO_LITERAL = (
    "${file:/path} or ${env:NAME}, which workers on other machines read there, or no key at all, "
    "for variables and roles of the machines: keys are not sent to them"
)


def load_usable(path: str | None, overrides: Sequence[str], registries: Registries) -> LoadedConfig:
    """The configuration of file (None: there is none), environment and `overrides` (`key=value`).

    Raises `ConfigInvalid` with all problems, those of values with which nothing can be done
    included. Opens stores and asks them nothing.
    """
    loaded = load_config(path, environ=os.environ, overrides=overrides, known=registries)
    if found := list(_unusable(loaded, registries)):
        raise ConfigInvalid(found, digest=loaded.digest)
    return loaded


def open_configured(config: ServiceConfig, name: str, registries: Registries) -> Catalog:
    """The catalog of this name. Raises `UsageError` as `open_catalog` does."""
    return open_section(config.catalogs[name], registries, zone=config.service.zone)


def open_section(
    section: CatalogSection, registries: Registries, *, zone: tzinfo | None
) -> Catalog:
    """The catalog of one section of the configuration. Raises `UsageError` as `open_catalog`."""
    return open_catalog(
        section.warehouse,
        registries.stores,
        metastore=section.metastore,
        options=section.options,
        zone=zone,
        is_guarded=section.unlocked_writers is UnlockedWriters.GUARDED,
        settle_ms=section.settle_ms,
        allow_http=section.allow_http,
        allow_schemes=section.allow_schemes,
        kinds=registries.kinds,
    )


def refuse_literal_secrets(config: ServiceConfig, master: str | None, stores: Stores) -> None:
    """Raises `UsageError` for keys of stores in the configuration with workers elsewhere."""
    if is_local(master):
        return
    for catalog in config.catalogs.values():
        for key in _literal_secrets(catalog, stores):
            raise CatalogOptionInvalid(key, NO_LITERAL)


def _location(catalog: CatalogSection, stores: Stores) -> str | None:
    """See `CatalogKind.location_of`."""
    return catalog.kind.location_of(catalog.warehouse, catalog.options, stores)


def _literal_secrets(catalog: CatalogSection, stores: Stores) -> Sequence[str]:
    """Keys of options whose secret values would have to be sent to workers."""
    location = _location(catalog, stores)
    if location is not None:
        return stores.literal_secrets(location, catalog.options)
    # Which stores there are the catalog's service says later.
    return [
        key
        for key, text in catalog.options.items()
        if stores.has_option(key) and is_secret_option(key) and not has_reference(text)
    ]


def warn_of_options(config: ServiceConfig, names: Iterable[str], stores: Stores) -> None:
    """Log which options of stores have no effect in these catalogs, which have been opened."""
    for name, found in without_effect(config, names, stores):
        _log.warning("options_without_effect", catalog=name, options=found)


def without_effect(
    config: ServiceConfig, names: Iterable[str], stores: Stores
) -> Iterator[tuple[str, Sequence[str]]]:
    """Catalogs with options that their warehouses' stores do not know, and these."""
    for name in names:
        section = config.catalogs[name]
        location = _location(section, stores)
        found = () if location is None else stores.without_effect(location, section.options)
        if found:
            yield name, found


def problem_at(loaded: LoadedConfig, key: str, value: str, expected: str) -> Problem:
    """A problem with a value of the configuration; a value given by reference is not shown."""
    shown = loaded.references.get(key, redact_value(key, value))
    return Problem(origin=loaded.origin(key), key=key, value=shown, expected=expected)


def check_online(
    loaded: LoadedConfig,
    clock: Clock,
    registries: Registries,
    *,
    commits: bool = False,
) -> list[tuple[CatalogTrouble, Problem]]:
    """What is wrong with the catalogs themselves, each with its place in the configuration.

    With `commits` stores are tried, which makes an object in each.
    """
    config = loaded.config
    catalogs = {name: open_configured(config, name, registries) for name in config.catalogs}
    found = check_catalogs(catalogs, clock, commits=commits)
    return [(each, _problem_of(loaded, catalogs[each.catalog], each)) for each in found]


def _problem_of(loaded: LoadedConfig, catalog: Catalog, trouble: CatalogTrouble) -> Problem:
    name = trouble.catalog
    section = loaded.config.catalogs[name]
    if trouble.advice:
        wait = "; serve would wait for it" if trouble.may_pass else ""
        expected = f"a catalog that can be opened ({trouble.error}){wait}"
        key = f"catalogs.{name}.options.uri"
        return problem_at(loaded, key, section.options.get("uri", ""), expected)
    match trouble.error:
        case TableNotFound():
            expected = "a folder that exists: create it, or mount it first"
            storage = catalog.warehouse_storage
            if storage is not None and not storage.capabilities.has_folders:
                expected = "a folder with something in it: correct the bucket or the path"
        case StoreMissing() as error:
            expected = f"a store that exists ({error})"
        case UsageError() | UnsafeStore() as error:
            expected = f"a warehouse whose snapshots are safe ({error})"
        case error if trouble.may_pass:
            expected = f"a warehouse that answers ({error}); serve would wait for it"
        case error:
            expected = f"a folder that this user may read ({error})"
    return problem_at(loaded, f"catalogs.{name}.warehouse", section.warehouse, expected)


def _unusable(loaded: LoadedConfig, registries: Registries) -> Iterator[Problem]:
    """Values that are well-formed but with which nothing can be served."""
    master = loaded.config.spark.master
    if master is not None and not is_master(master):
        yield problem_at(loaded, "spark.master", shown_master(master), MASTERS)
    for name, value in loaded.config.spark.conf.items():
        instead = what_instead(name, master)
        if instead is not None:
            expected = f"no such setting, as it has no effect: {instead}"
            yield problem_at(loaded, f"spark.conf.{name}", value, expected)
    for name in loaded.config.catalogs:
        yield from _unusable_catalog(loaded, name, registries)


def _unusable_catalog(loaded: LoadedConfig, name: str, registries: Registries) -> Iterator[Problem]:
    catalog, here = loaded.config.catalogs[name], f"catalogs.{name}"
    stores = registries.stores
    key, value = f"{here}.warehouse", catalog.warehouse
    try:
        location = _location(catalog, stores)
        if location is not None:
            stores.open(location, catalog.options)
        key, value = f"{here}.metastore", catalog.metastore
        open_configured(loaded.config, name, registries)
    except CatalogOptionInvalid as error:
        text = catalog.options.get(error.key, "")
        yield problem_at(loaded, f"{here}.options.{error.key}", text, error.expected)
        return
    except UsageError as error:
        expected = str(error)
        if key.endswith(".warehouse"):
            expected = f"a folder, or the URL of a store that can be opened ({error})"
            if loaded.reference(key) is not None:
                # The error names the value.
                expected = "a folder, or the URL of a store that can be opened"
        yield problem_at(loaded, key, value, expected)
        return
    if not is_local(loaded.config.spark.master):
        for literal in _literal_secrets(catalog, stores):
            text = catalog.options[literal]
            yield problem_at(loaded, f"{here}.options.{literal}", text, NO_LITERAL)
