"""Opens the catalog of a warehouse: the only module that lists the kinds of catalogs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import tzinfo
from types import MappingProxyType
from typing import TYPE_CHECKING

from compactord.catalog.base import Catalog
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.options import check_filesystem_options, jdbc_options
from compactord.catalog.refused import RefusedCatalog
from compactord.clock import SystemClock
from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.references import LateValues, ReferenceMissing, resolve
from compactord.storage.base import Storage
from compactord.storage.open import open_storage
from compactord.storage.store_options import PREFIXES

# Databases need packages that are not always installed.
if TYPE_CHECKING:
    from compactord.catalog.registration import Registration

# The store that holds a location, given the catalog's options, and the location's path in it.
OpenStorage = Callable[[str, Mapping[str, str]], tuple[Storage, str]]
# How long a snapshot of ours stands before we build on it, where nothing excludes writers.
SETTLE_MS = 10_000
_NONE: Mapping[str, str] = MappingProxyType({})


def open_catalog(
    warehouse: str,
    open_storage: OpenStorage = open_storage,
    *,
    metastore: str = "filesystem",
    options: Mapping[str, str] = _NONE,
    zone: tzinfo | None = None,
    is_guarded: bool = False,
    settle_ms: int = SETTLE_MS,
) -> Catalog:
    """The catalog of a warehouse; opens no connection.

    `options` are Paimon's for catalogs; references in them are resolved where they are needed.
    `zone` is that of the writers, None the machine's. Where nothing excludes Java's writers, every
    use of the catalog is refused unless `is_guarded`; then snapshots stand for `settle_ms`.

    Raises `UsageError` as `open_storage` does and for a metastore whose packages are not installed,
    `CatalogOptionInvalid` for an option that cannot be used.
    """
    try:
        storage, path = open_storage(warehouse, options)
    except CatalogOptionInvalid:
        raise
    except UsageError as error:
        raise UsageError(f"warehouse {error}") from error
    is_jdbc = metastore == "jdbc"
    own = _own(options, has_options=not storage.capabilities.has_folders)
    values = _resolved(own)
    is_exposed = not storage.capabilities.excludes_java_writers
    settle_ms = settle_ms if is_exposed and is_guarded else 0
    if not is_jdbc:
        check_filesystem_options(values)
        if is_exposed and not is_guarded:
            return RefusedCatalog(storage, path)
        return FilesystemCatalog(storage, path, settle_ms=settle_ms)
    try:
        from compactord.catalog.jdbc import open_jdbc
    except ImportError as error:
        raise _no_packages(error) from None
    late = LateValues(own)
    catalog = open_jdbc(storage, path, late, clock=SystemClock(), zone=zone, settle_ms=settle_ms)
    if is_exposed and not is_guarded and not catalog.has_lock:
        return RefusedCatalog(storage, path)
    return catalog


def open_registration(
    warehouse: str,
    open_storage: OpenStorage = open_storage,
    *,
    options: Mapping[str, str],
    zone: tzinfo | None = None,
) -> Registration:
    """What registers a warehouse's tables in the JDBC catalog of the options, as `open_catalog`.

    It publishes nothing, so whatever lock the catalog has or lacks is no matter.
    """
    storage, path = open_storage(warehouse, options)
    own = _own(options, has_options=not storage.capabilities.has_folders)
    try:
        from compactord.catalog.jdbc import open_database
        from compactord.catalog.registration import Registration
    except ImportError as error:
        raise _no_packages(error) from None
    given = jdbc_options(_resolved(own), is_locked=not storage.capabilities.has_folders)
    return Registration(
        FilesystemCatalog(storage, path),
        open_database(given, zone=zone),
        warehouse=warehouse,
        given=given,
    )


def _no_packages(error: ImportError) -> UsageError:
    return UsageError(
        f"metastore jdbc needs packages that are not installed ({error.name}): "
        "pip install 'psycopg[binary]>=3.2,<4' 'pymysql[rsa]>=1.1,<2' 'sqlalchemy>=2.0,<3'"
    )


def _own(options: Mapping[str, str], *, has_options: bool) -> dict[str, str]:
    """The options of the catalog itself; those of stores have been looked at."""
    own = {}
    for key, text in options.items():
        if key.startswith(PREFIXES):
            if not has_options:
                raise CatalogOptionInvalid(
                    key, "no option of an object store: the warehouse is a folder"
                )
            continue
        own[key] = text
    return own


def _resolved(options: Mapping[str, str]) -> dict[str, str]:
    """The options without references. Raises `CatalogOptionInvalid`."""
    found = {}
    for key, text in options.items():
        try:
            found[key] = resolve(text)
        except ReferenceMissing as error:
            raise CatalogOptionInvalid(key, error.expected) from None
    return found
