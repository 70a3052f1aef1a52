"""The registry of stores, and stores with paths mounted from others."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from compactord.errors import UnknownScheme, UsageError
from compactord.storage import local
from compactord.storage.base import (
    HADOOP,
    Capabilities,
    ObjectStatus,
    Storage,
    Store,
    StoreLocation,
)
from compactord.storage.fsspec import ENABLED, FSSPEC, knows_scheme
from compactord.storage.hdfs.spec import HDFS
from compactord.storage.objects import azure, gcs, oss, s3
from compactord.storage.objects.options import INSTALL_STORES
from compactord.text import has_credentials, has_reference, redact_text, suggestion

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_FILE = "file"
_LOCATION_MAX = 4096
# Prefix of all Hadoop file systems' options, including stores that are not supported here.
_FILE_SYSTEM = "fs."
# Minimum similarity, from 0 to 1, of an unknown option and the name suggested for it.
_LIKENESS_MIN = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The known stores. `wrap` is applied to each opened store, with the location.

    `schemes` are the schemes of locations that may be opened, or None for all. `hosts` are the
    hosts that the operator's own locations name.
    """

    known: Sequence[Store]
    wrap: Callable[[Storage, str], Storage] = lambda storage, location: storage
    schemes: frozenset[str] | None = None
    hosts: frozenset[str] = frozenset()

    def wrapped(self, wrapper: Callable[[Storage, str], Storage]) -> Stores:
        """The same stores, each wrapped by `wrapper` when it is opened."""
        return replace(self, wrap=lambda storage, at: wrapper(self.wrap(storage, at), at))

    def limited(self, own: Iterable[str], allowed: Iterable[str]) -> Stores:
        """The same stores for locations that a catalog's server or a table's options supply.

        They open stores behind a network, and the schemes of the operator's `own` locations and of
        `allowed`.
        """
        own = tuple(own)
        network = (s for store in self.known if not store.is_local for s in store.schemes)
        schemes = frozenset((*network, *map(self._scheme_of, own), *map(str.lower, allowed)))
        return replace(self, schemes=schemes, hosts=frozenset(map(_host_of, own)))

    def open(
        self,
        location: str,
        options: Mapping[str, str],
        served: Collection[str] | None = None,
    ) -> tuple[Storage, str]:
        """The store that holds `location`, and the path in it. Raises the errors of `located`."""
        found = self.located(location, options, served)
        return self.wrap(found.spec.open(), location), found.path

    def located(
        self,
        location: str,
        options: Mapping[str, str],
        served: Collection[str] | None = None,
    ) -> StoreLocation:
        """The resolved location. Opens no store.

        `options` are the catalog's, under Paimon's names. fsspec opens schemes that it knows and
        that have no store here. `served` are the keys of options that the catalog's server
        returned, or None if no server supplied the location. Only object stores accept them. The
        operator's keys are never sent to a host chosen by a server or by another author's location.

        Raises `UsageError` for schemes that are unknown or not allowed and for locations that their
        stores refuse, `CatalogOptionInvalid` for options that cannot be used.
        """
        found, own = self._found(location, options, served or ())
        if served is not None or self.schemes is not None:
            self._keep_keys(location, found, own, frozenset(served or ()).intersection(own))
        return found

    def path_of(
        self, location: str, options: Mapping[str, str], served: Collection[str] | None
    ) -> str:
        """The path of `located`, without its check of keys."""
        return self._found(location, options, served or ())[0].path

    def _found(
        self, location: str, options: Mapping[str, str], theirs: Collection[str]
    ) -> tuple[StoreLocation, Mapping[str, str]]:
        """The resolved location, and the options passed to its store."""
        options = {key: text for key, text in options.items() if self._counts(key, theirs)}
        store = self._store_of(location)
        scheme = self._scheme_of(location)
        if self.schemes is not None and scheme not in self.schemes:
            raise UsageError(
                f"{location}: this catalog does not open {scheme}: locations; if its tables may be "
                f"there, add {scheme} to its allow_schemes (--allow-scheme {scheme})"
            )
        own = {key: text for key, text in options.items() if _is_of(store, key)}
        return store.locate(location, own), own

    def knows(self, location: str) -> bool:
        """Whether a store has the location's scheme. Raises the other errors of `located`."""
        try:
            self._store_of(location)
        except UnknownScheme:
            return False
        return True

    def has_option(self, key: str) -> bool:
        """Whether the key is an option of stores, not of the catalog itself."""
        is_known = any(_is_of(store, key) for store in (*self.known, FSSPEC))
        return is_known or key.removeprefix(HADOOP).startswith(_FILE_SYSTEM)

    def without_effect(self, location: str, options: Mapping[str, str]) -> tuple[str, ...]:
        """Keys of store options without an effect here, each with a suggestion if a known one is
        similar.

        Raises the errors of `located`.
        """
        store, found = self._store_of(location), self.located(location, options)
        shown = []
        for key in (key for key in options if self.has_option(key)):
            if key == ENABLED:
                shown.append(f"{key} (not needed any more)")
                continue
            if _is_of(store, key) and key not in found.unknown:
                continue
            is_others = any(_is_of(each, key) for each in (*self.known, FSSPEC) if each != store)
            names = () if is_others else found.known
            bare = key.removeprefix(HADOOP)
            near = suggestion(bare, names, likeness_min=_LIKENESS_MIN)
            shown.append(f"{key} ({near})" if near else key)
        return tuple(shown)

    def literal_secrets(self, location: str, options: Mapping[str, str]) -> tuple[str, ...]:
        """Keys of options that hold a secret literally instead of a reference.

        Raises the errors of `located`.
        """
        secrets = self.located(location, options).secrets
        return tuple(key for key in secrets if not has_reference(options[key]))

    def _counts(self, key: str, served: Collection[str]) -> bool:
        takers = (store for store in self.known if store.takes_served_options)
        return key not in served or any(_is_of(store, key) for store in takers)

    def _scheme_of(self, location: str) -> str:
        """The location's scheme. Without a slash, a name with a colon is a local file."""
        found = _SCHEME.fullmatch(location)
        is_url = found is not None and (
            found[2].startswith("/") or any(found[1].lower() in s.schemes for s in self.known)
        )
        return found[1].lower() if found is not None and is_url else _FILE

    def _keep_keys(
        self, location: str, found: StoreLocation, options: Iterable[str], served: Collection[str]
    ) -> None:
        """Raises `UsageError` if keys of the operator or the machine would be sent to a foreign
        host.

        Keys are used only if the operator's own options and locations decide where requests go and
        how.
        """
        theirs = sorted(key for key in served if key not in found.unknown)
        if not found.is_ambient and all(key in served for key in found.secrets):
            return
        if theirs:
            raise UsageError(
                f"{location}: the catalog's server sets {', '.join(theirs)} but supplies no keys "
                "for the store, and your keys are never sent where a server directs: set these in "
                "the catalog's options, or let the server lend keys"
            )
        host = _host_of(location)
        own = (key.lower() for key in options if key not in served)
        if found.names_host and host not in self.hosts and not any(k.endswith(host) for k in own):
            raise UsageError(
                f"{location}: refusing to send the catalog's key to {host}, which only the table's "
                "location names; if this host is yours, set a key on the catalog whose option "
                "name ends in it"
            )

    def _store_of(self, location: str) -> Store:
        if len(location) > _LOCATION_MAX:
            raise UsageError(
                f"{location[:100]}…: a location of more than {_LOCATION_MAX} characters"
            )
        if has_credentials(location):
            # User and password would appear in every path, and so in tasks, errors and logs.
            raise UsageError(
                f"{redact_text(location)}: expected a location without user and password; give "
                "them as options of the catalog"
            )
        stores = {scheme: store for store in self.known for scheme in store.schemes}
        found = _SCHEME.fullmatch(location)
        scheme, rest = (found[1].lower(), found[2]) if found is not None else (_FILE, "")
        if scheme not in stores and rest.startswith("//") and knows_scheme(scheme):
            return FSSPEC
        if scheme not in stores and rest.startswith("/"):
            known = ", ".join(f"{name}://" for name in stores if name != _FILE)
            raise UnknownScheme(
                f"{location}: scheme {scheme}:// is not supported yet; local and mounted file "
                f"systems are, and {known}, and the schemes of fsspec if it is installed "
                f"({INSTALL_STORES})"
            )
        # Without a slash it is the name of a local file that contains a colon.
        return stores.get(scheme, stores[_FILE])


STORES = Stores(known=(local.FILES, s3.S3, gcs.GCS, azure.AZURE, oss.OSS, HDFS))


def scheme_of(location: str) -> str:
    """The scheme under which requests to the location's store are counted."""
    found = _SCHEME.fullmatch(location)
    return found[1].lower() if found is not None and found[2].startswith("//") else _FILE


def _host_of(location: str) -> str:
    """The part after @ in the location's authority, which is only a bucket in other locations."""
    authority = location.partition("://")[2].partition("/")[0]
    return authority.partition("@")[2].lower()


def _is_of(store: Store, key: str) -> bool:
    return key.removeprefix(HADOOP).startswith(tuple(store.prefixes))


def with_others(storage: Storage, others: Mapping[str, Storage]) -> Storage:
    """A store with some paths mounted from other stores.

    Routes listings, range reads and deletions by path; all other calls go to the first store.
    """
    return cast(Storage, _WithOthers(storage, others)) if others else storage


class _WithOthers:
    def __init__(self, inner: Storage, others: Mapping[str, Storage]) -> None:
        self._inner = inner
        self._others = others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def capabilities(self) -> Capabilities:
        found = [storage.capabilities for storage in (self._inner, *self._others.values())]
        return replace(found[0], behind_network=any(each.behind_network for each in found))

    def list(self, folder: str) -> Iterator[ObjectStatus]:
        return self._at(folder).list(folder)

    def list_some(self, folder: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectStatus]:
        return self._at(folder).list_some(folder, is_wanted)

    def real_folder(self, path: str) -> str:
        return self._at(path).real_folder(path)

    def read_range(self, path: str, start: int, size: int) -> bytes:
        return self._at(path).read_range(path, start, size)

    def delete(self, path: str) -> None:
        self._at(path).delete(path)

    def remove_empty_folder(self, path: str) -> bool:
        return self._at(path).remove_empty_folder(path)

    def _at(self, path: str) -> Storage:
        for root, storage in self._others.items():
            if f"{path}/".startswith(f"{root}/"):
                return storage
        return self._inner
