"""Opens the catalog of a warehouse by its kind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import tzinfo
from functools import partial
from types import MappingProxyType

from compactord.catalog.base import Catalog, CatalogPlace
from compactord.catalog.kinds import CatalogKind, check_names
from compactord.catalog.registry import CATALOGS, CatalogKinds
from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.storage.base import Storage
from compactord.storage.open import STORES, Stores
from compactord.text import resolve_option

# Minimum age of our own snapshot before we build on it, if writers are not excluded.
SETTLE_MS = 10_000
_NONE: Mapping[str, str] = MappingProxyType({})


def open_catalog(
    warehouse: str,
    stores: Stores = STORES,
    *,
    metastore: str = "filesystem",
    options: Mapping[str, str] = _NONE,
    zone: tzinfo | None = None,
    is_guarded: bool = False,
    settle_ms: int = SETTLE_MS,
    creates_root: bool = False,
    allow_http: bool = False,
    allow_schemes: Iterable[str] = (),
    kinds: CatalogKinds = CATALOGS,
) -> Catalog:
    """The catalog of a warehouse; opens no connection.

    `metastore` names one of `kinds`. `options` are Paimon's catalog options; references in them are
    resolved where needed. `zone` is the writers' time zone, or None for the machine's. Tables whose
    Java writers are not excluded are refused unless `is_guarded`; then snapshots settle for
    `settle_ms`. With `creates_root` the warehouse's folder need not exist yet. For `allow_http` and
    `allow_schemes` see `CatalogSection`.

    Raises as `Stores.open`, `UsageError` for a metastore whose packages are not installed,
    `CatalogOptionInvalid` for an unusable option.
    """
    kind = kinds[metastore]
    location, storage, path = _located(kind, warehouse, options, stores)
    # Stores read their own options.
    own = {key: text for key, text in options.items() if not stores.has_option(key)}
    check_names(own, kind, kinds.values())

    tables = stores.limited(() if location is None else (location,), allow_schemes)
    place = CatalogPlace(
        warehouse=warehouse,
        storage=storage,
        path=path,
        is_located=location is not None,
        options=own,
        values={key: resolve_option(key, text) for key, text in own.items()},
        store_options=options,
        locate=tables.open,
        path_of=partial(_path_of, tables),
        zone=zone,
        is_guarded=is_guarded,
        settle_ms=settle_ms,
        creates_root=creates_root,
        allows_http=allow_http,
    )
    try:
        return kind.open(place)
    except ImportError as error:
        raise UsageError(
            f"metastore {metastore} needs packages that are not installed ({error.name}): "
            f"{kind.install}"
        ) from None


def _located(
    kind: CatalogKind, warehouse: str, options: Mapping[str, str], stores: Stores
) -> tuple[str | None, Storage, str]:
    """The warehouse's location, or None without one; its store, and its path there."""
    try:
        location = kind.location_of(warehouse, stores)
        at = (".", _NONE) if location is None else (location, options)
        return (location, *stores.open(*at))
    except CatalogOptionInvalid:
        raise
    except UsageError as error:
        raise UsageError(f"warehouse {error}") from error


def _path_of(
    tables: Stores, location: str, given: Mapping[str, str], served: Collection[str] | None
) -> str:
    try:
        return tables.path_of(location, given, served)
    except UsageError:
        return location
