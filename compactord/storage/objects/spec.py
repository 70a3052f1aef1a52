"""Locations in object stores: which store, opened how, and the path in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from compactord.errors import StorageError, UsageError
from compactord.references import handed_over
from compactord.storage.base import Capabilities, Located, Store
from compactord.storage.objects import INSTALL_STORES
from compactord.storage.objects.options import OptionNames, StoreService

if TYPE_CHECKING:
    from compactord.storage.objects.store import ObjectStorage

_OBJECTS = Capabilities()
# Scheme, authority and options to how the store is opened.
Service = Callable[[str, str, Mapping[str, str]], StoreService]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSpec:
    """A bucket and how it is opened; each process opens it for itself.

    `root` is the bucket's URL as the user wrote it, `s3://bucket`: paths begin with it. `service`
    and `options` are the library's, `environment` what it reads from the process. Values of both
    may be references, which are resolved where the store is opened; secrets are nothing else.
    `timeout_s` is for one request without an answer, or without progress.
    """

    root: str
    service: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    capabilities: Capabilities = _OBJECTS
    timeout_s: float = 30.0

    @property
    def scheme(self) -> str:
        return self.root.partition(":")[0]

    def key_of(self, path: str) -> str:
        """The name of the object at a path; empty for the bucket itself.

        Raises `StorageError` for paths of other stores, and for names that the library would
        change into others.
        """
        if path in (self.root, self.root + "/"):
            return ""
        if not path.startswith(self.root + "/"):
            raise StorageError(path, f"the path is outside the store {self.root}")
        key = path[len(self.root) + 1 :]
        if key != key.strip() or key.endswith("/") or "" in key.split("/"):
            raise StorageError(
                path, "the store's library cannot address this name (empty parts, outer spaces)"
            )
        return key

    def open(self) -> ObjectStorage:
        """Raises `UsageError` when the extra is missing or a reference cannot be resolved."""
        # Imported here: the package has to be usable without the extra.
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
    capabilities: Capabilities = _OBJECTS,
) -> Store:
    """A kind of object store, by the names of its options and what opens one."""
    locate = partial(_locate, service_of, capabilities)
    return Store(schemes=schemes, locate=locate, prefixes=names.prefixes)


def _locate(
    service_of: Service, capabilities: Capabilities, location: str, options: Mapping[str, str]
) -> Located:
    """The store of a URL such as `s3://bucket/wh`, and the URL without slashes at its end.

    Secrets that stand in the options themselves are handed over by the environment of this process.
    """
    scheme, _, rest = location.partition(":")
    scheme = scheme.lower()
    authority, _, path = rest.removeprefix("//").partition("/")
    if not authority:
        raise UsageError(f"{location}: a bucket is missing, as in {scheme}://bucket/warehouse")
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
    return Located(
        spec=spec,
        path=f"{root}/{path}" if path else root,
        secrets=tuple(found.given.secrets.values()),
        unknown=found.given.unknown(),
        known=found.given.known(),
    )


def _without_secrets(found: StoreService, values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    secrets = found.given.secrets
    return tuple(
        (name, handed_over(text) if name in secrets else text.replace("${", "$${"))
        for name, text in sorted(values.items())
    )
