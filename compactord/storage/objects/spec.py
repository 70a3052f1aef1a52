"""Locations in object stores: the service that opens the store, and the path in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from compactord.errors import UsageError
from compactord.storage.base import Capabilities, Store, StoreLocation
from compactord.storage.objects.options import (
    INSTALL_STORES,
    OBJECTS,
    Bucket,
    OptionNames,
    StoreService,
)
from compactord.text import escaped, handed_over

if TYPE_CHECKING:
    from compactord.storage.objects.store import ObjectStorage

_AUTHORITY = re.compile(r"[A-Za-z0-9._$@:-]+")
# Maps scheme, authority and options to the service that opens the store.
Service = Callable[[str, str, Mapping[str, str]], StoreService]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSpec(Bucket):
    """A bucket that opens itself as a store."""

    def open(self) -> ObjectStorage:
        """The store. Raises `UsageError` without the extra or for unresolved references."""
        # Imported here: the package must be usable without the extra.
        try:
            from compactord.storage.objects.store import ObjectStorage
        except ImportError as error:
            raise UsageError(
                f"{self.root}: object stores need packages that are not installed "
                f"({error.name or error}): {INSTALL_STORES}"
            ) from None
        return ObjectStorage(self)


def object_store(
    names: OptionNames,
    schemes: Sequence[str],
    service_of: Service,
    capabilities: Capabilities = OBJECTS,
) -> Store:
    """A kind of object store, by its option names and the factory of its service."""
    locate = partial(_locate, service_of, capabilities)
    return Store(schemes=schemes, locate=locate, prefixes=names.prefixes, takes_served_options=True)


def _locate(
    service_of: Service, capabilities: Capabilities, location: str, options: Mapping[str, str]
) -> StoreLocation:
    """The store of a URL such as `s3://bucket/wh`, and the URL without trailing slashes.

    Secrets given literally in the options are passed on through environment variables of this
    process.
    """
    scheme, _, rest = location.partition(":")
    scheme = scheme.lower()
    authority, _, path = rest.removeprefix("//").partition("/")
    if not authority:
        raise UsageError(f"{location}: a bucket is missing, as in {scheme}://bucket/warehouse")
    if _AUTHORITY.fullmatch(authority) is None:
        # The library copies it into URLs, where other characters could end the host's name.
        raise UsageError(
            f"{location}: the bucket's name has other characters than letters, digits, .-_$"
        )
    found = service_of(scheme, authority, options)
    root = f"{scheme}://{authority}"
    spec = ObjectSpec(
        root=root,
        service=found.service,
        options=_without_secrets(found, found.options),
        environment=_without_secrets(found, found.environment),
        capabilities=capabilities,
    )
    path = path.strip("/")
    return StoreLocation(
        spec=spec,
        path=f"{root}/{path}" if path else root,
        secrets=tuple(found.given.secrets.values()),
        unknown=found.given.unknown(),
        known=found.given.known(),
        is_ambient=found.is_ambient,
        names_host=found.names_host,
    )


def _without_secrets(found: StoreService, values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    secrets = found.given.secrets
    return tuple(
        (name, handed_over(text) if name in secrets else escaped(text))
        for name, text in sorted(values.items())
    )
