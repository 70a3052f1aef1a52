"""`compactord serve` whose requests to object stores end after two seconds without an answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from compactord.cli.command import main
from compactord.cli.registries import Registries
from compactord.storage.base import Store, StoreLocation
from compactord.storage.objects.options import Bucket
from compactord.storage.open import STORES

_TIMEOUT_S = 2.0


def impatient(store: Store) -> Store:
    """The kind of store, with another time limit."""

    def locate(location: str, options: Mapping[str, str]) -> StoreLocation:
        found = store.locate(location, options)
        if not isinstance(found.spec, Bucket):
            return found
        return replace(found, spec=replace(found.spec, timeout_s=_TIMEOUT_S))

    return replace(store, locate=locate)


if __name__ == "__main__":
    stores = replace(STORES, known=tuple(map(impatient, STORES.known)))
    sys.exit(main(["serve", *sys.argv[1:]], Registries(stores=stores)))
