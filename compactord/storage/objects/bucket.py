"""A bucket and how it is opened, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from compactord.errors import StorageError, UsageError
from compactord.storage.base import Capabilities

if TYPE_CHECKING:
    from compactord.storage.objects.store import ObjectStorage

# What the extra `stores` names: compactord itself is in no package index.
INSTALL_STORES = "pip install 'botocore>=1.35,<2' 'fsspec>=2024.12,<2027' 'opendal>=0.47.12,<0.48'"
# Of one request without an answer, or without progress.
TIMEOUT_S = 30.0
OBJECTS = Capabilities()


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSpec:
    """A bucket and how it is opened; each process opens it for itself.

    `root` is the bucket's URL as the user wrote it, `s3://bucket`: paths begin with it. `service`
    and `options` are the library's, `environment` what it reads from the process. Values of both
    may be references, which are resolved where the store is opened; secrets are nothing else.
    """

    root: str
    service: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    capabilities: Capabilities = OBJECTS
    timeout_s: float = TIMEOUT_S

    @property
    def scheme(self) -> str:
        return self.root.partition(":")[0]

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
