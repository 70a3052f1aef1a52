"""Opens the catalog of a warehouse: the only module that lists the catalogs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import tzinfo
from types import MappingProxyType

from compactord.catalog.base import Catalog
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.options import check_filesystem_options
from compactord.clock import SystemClock
from compactord.errors import UsageError
from compactord.storage.base import Storage
from compactord.storage.open import open_storage

# The store that holds a location, given the catalog's options, and the location's path in it.
OpenStorage = Callable[[str, Mapping[str, str]], tuple[Storage, str]]
_NONE: Mapping[str, str] = MappingProxyType({})


def open_catalog(
    warehouse: str,
    open_storage: OpenStorage = open_storage,
    *,
    metastore: str = "filesystem",
    options: Mapping[str, str] = _NONE,
    zone: tzinfo | None = None,
) -> Catalog:
    """The catalog of a warehouse; opens no connection.

    `options` are Paimon's for catalogs, `zone` is that of the writers, None the machine's. Raises
    `UsageError` as `open_storage` does and for a metastore whose packages are not installed,
    `CatalogOptionInvalid` for an option that cannot be used.
    """
    try:
        storage, path = open_storage(warehouse, options)
    except UsageError as error:
        raise UsageError(f"warehouse {error}") from error
    if metastore == "filesystem":
        check_filesystem_options(options)
        return FilesystemCatalog(storage, path)
    try:
        from compactord.catalog.jdbc import open_jdbc

        return open_jdbc(storage, path, options, clock=SystemClock(), zone=zone)
    except ImportError as error:
        raise UsageError(
            f"metastore jdbc needs packages that are not installed ({error.name}): "
            "pip install 'compactord[jdbc]'"
        ) from None
