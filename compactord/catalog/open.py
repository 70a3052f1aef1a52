"""Finds the catalog of a warehouse: the only module that lists the catalogs."""

from __future__ import annotations

from collections.abc import Callable

from compactord.catalog.base import Catalog
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.errors import UsageError
from compactord.storage.base import Storage
from compactord.storage.open import open_storage

# The store that holds a location, and the location's path in it.
OpenStorage = Callable[[str], tuple[Storage, str]]


def open_catalog(warehouse: str, open_storage: OpenStorage = open_storage) -> Catalog:
    """The catalog of a warehouse. Raises `UsageError` as `open_storage` does."""
    try:
        storage, path = open_storage(warehouse)
    except UsageError as error:
        raise UsageError(f"warehouse {error}") from error
    return FilesystemCatalog(storage, path)
