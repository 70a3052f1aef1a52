"""Registry of catalog kinds, by their `metastore` in a configuration.

A module of its own: it imports what it lists.
"""

from __future__ import annotations

from collections.abc import Mapping

from compactord.catalog.hive.kind import HIVE
from compactord.catalog.jdbc.kind import JDBC
from compactord.catalog.kinds import CatalogKind
from compactord.catalog.rest.kind import REST

CatalogKinds = Mapping[str, CatalogKind]
# It has no options of its own.
FILESYSTEM = CatalogKind(name="filesystem", opener="compactord.catalog.filesystem:open_filesystem")
CATALOGS: CatalogKinds = {kind.name: kind for kind in (FILESYSTEM, JDBC, HIVE, REST)}
