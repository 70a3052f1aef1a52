"""Locations in HDFS: the name service, its settings and the path.

A module of its own, because the library is imported only when a store is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compactord.errors import UsageError
from compactord.storage.base import HADOOP, Store, StoreLocation
from compactord.storage.hadoop import CONF_DIR
from compactord.storage.hdfs.settings import PROPERTIES, NameService, is_known, settings_of

if TYPE_CHECKING:
    from compactord.storage.hdfs.store import HdfsStorage

# The extra `hdfs`, spelled out: compactord itself is in no package index.
INSTALL_HDFS = "pip install 'hdfs-native>=0.14.7,<0.15'"


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsSpec(NameService):
    """A name service that opens itself as a store."""

    def open(self) -> HdfsStorage:
        """The store; sends no request. Raises `UsageError` if the extra is not installed."""
        # Imported here: the package must be usable without the extra.
        try:
            from compactord.storage.hdfs.store import HdfsStorage
        except ImportError as error:
            raise UsageError(
                f"{self.root}: HDFS needs a package that is not installed "
                f"({error.name or error}): {INSTALL_HDFS}"
            ) from None
        return HdfsStorage(self)


def _locate(location: str, options: Mapping[str, str]) -> StoreLocation:
    """The name service of a URL, and the URL without trailing slashes."""
    scheme, _, rest = location.partition(":")
    service, _, path = rest.removeprefix("//").partition("/")
    if not service:
        raise UsageError(
            f"{location}: a name service is missing, as in {scheme}://service/warehouse or "
            f"{scheme}://namenode:8020/warehouse"
        )
    settings = settings_of(service, options)
    root = f"hdfs://{service}"
    path = path.strip("/")
    return StoreLocation(
        spec=HdfsSpec(root=root, settings=tuple(sorted(settings.items()))),
        path=f"{root}/{path}" if path else root,
        unknown=tuple(key for key in options if not is_known(key.removeprefix(HADOOP))),
        known=(CONF_DIR, *settings),
    )


HDFS = Store(schemes=("hdfs",), locate=_locate, prefixes=(CONF_DIR, PROPERTIES))
