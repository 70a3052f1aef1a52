"""Finds the store of a location: the only module that lists the stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from compactord.errors import CatalogOptionInvalid, UsageError
from compactord.redaction import has_credentials, redact_text
from compactord.storage import local
from compactord.storage.base import Storage, StorageSpec
from compactord.storage.fsspec import store as fsspec_store
from compactord.storage.objects import spec as objects
from compactord.storage.store_options import SCHEMES

# A location and its catalog's options to how its store is opened, and the path in that store.
Locate = Callable[[str, Mapping[str, str]], tuple[StorageSpec, str]]
STORES: Mapping[str, Locate] = {
    "file": local.locate,
    **dict.fromkeys(SCHEMES, objects.locate),
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


def scheme_of(location: str) -> str:
    """The scheme of a location's store, by which its requests are counted."""
    found = _SCHEME.fullmatch(location)
    return found[1].lower() if found is not None and found[2].startswith("//") else "file"


def open_storage(
    location: str, options: Mapping[str, str], stores: Mapping[str, Locate] = STORES
) -> tuple[Storage, str]:
    """The store that holds `location`, and the location's path in it.

    `options` are those of the catalog, under Paimon's names. With `fsspec.enabled` a scheme that is
    not among `stores` is opened by fsspec.

    Raises `UsageError` for schemes that are not among `stores` and for what their stores refuse.
    """
    found = _SCHEME.fullmatch(location)
    if has_credentials(location):
        # They would be in every path, and so in tasks, errors and logs.
        raise UsageError(
            f"{redact_text(location)}: expected a location without user and password; give them "
            "as options of the catalog"
        )
    by_fsspec = options.get(fsspec_store.ENABLED, "false").lower()
    if by_fsspec not in ("true", "false"):
        raise CatalogOptionInvalid(fsspec_store.ENABLED, "true or false")
    locate: Locate = local.locate
    if found is not None:
        scheme, rest = found[1].lower(), found[2]
        if scheme in stores:
            locate = stores[scheme]
            if by_fsspec == "true":
                raise CatalogOptionInvalid(
                    fsspec_store.ENABLED, f"no such option: {scheme}: is opened without fsspec"
                )
        elif by_fsspec == "true" and rest.startswith("//"):
            locate = fsspec_store.locate
        # Otherwise, without a slash, it is a file name with a colon in it.
        elif rest.startswith("/"):
            raise UsageError(
                f"{location}: scheme {scheme}:// is not supported yet; local and mounted file "
                f"systems are, and {', '.join(f'{name}://' for name in stores if name != 'file')}; "
                f"others by fsspec, with the option {fsspec_store.ENABLED}"
            )
    spec, path = locate(location, options)
    return spec.open(), path
