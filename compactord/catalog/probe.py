"""Whether a warehouse's store keeps the promise that commits rest on: create-if-absent."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from compactord import ids
from compactord.catalog.base import Catalog
from compactord.errors import StorageError
from compactord.storage.base import Creation

_FIRST, _SECOND = b"first\n", b"second\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """`is_exclusive`: a second creation of one name was refused, and the first content stayed.

    `changed_ms` is when the object was made by the store's clock, since the epoch.
    """

    is_exclusive: bool
    changed_ms: int


def probe(catalog: Catalog) -> Probed:
    """Create an object twice in a folder of its own below the warehouse, and remove both.

    No catalog takes the folder for a database: its name does not end in `.db`. Raises what the
    store raises; the folder may then stay.
    """
    storage = catalog.storage
    folder = f"{catalog.warehouse}/.compactord-probe-{ids.random_uuid()}"
    path, temporary = f"{folder}/probe", f"{folder}/temporary"
    try:
        created = storage.create_if_absent(path, _FIRST, temporary=temporary)
        again = storage.create_if_absent(path, _SECOND, temporary=temporary)
        content, status = storage.read(path), storage.status(path)
        storage.delete(path)
    except StorageError:
        with contextlib.suppress(StorageError):
            storage.delete(path)
            storage.remove_empty_folder(folder)
        raise
    storage.remove_empty_folder(folder)
    return Probed(
        is_exclusive=(created, again, content) == (Creation.CREATED, Creation.EXISTS, _FIRST),
        changed_ms=status.changed_ms if status is not None else 0,
    )
