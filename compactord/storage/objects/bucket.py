"""A bucket and how it is connected to, as a value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from compactord.errors import StorageError
from compactord.storage.base import Capabilities, Storage

# What the extra `stores` names: compactord itself is in no package index.
INSTALL_STORES = "pip install 'botocore>=1.35,<2' 'fsspec>=2024.12,<2027' 'opendal>=0.47.12,<0.48'"
# Of one request without an answer, or without progress.
TIMEOUT_S = 30.0
OBJECTS = Capabilities()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket(ABC):
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

    @abstractmethod
    def open(self) -> Storage:
        """See `StorageSpec`: a bucket is one, and what connects to it needs no store."""

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
