"""The section of one catalog; what kinds there are, and their options, the registry knows."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, ValidationInfo

from compactord.catalog.registry import CATALOGS
from compactord.config.amounts import duration_ms
from compactord.config.choices import UnlockedWriters
from compactord.config.registries import Registries, registries_of
from compactord.config.section import Section
from compactord.config.values import DurationMs, ScalarText, Text, at_least, no_entries_if_null

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_SHOWN_OPTIONS = ", ".join(option for kind in CATALOGS.values() for option in kind.shown_options)


def _metastore(value: object, info: ValidationInfo) -> str:
    known = registries_of(info).kinds
    if value not in known:
        names = " or ".join(known)
        raise ValueError(f"{names}, the metastores that are supported so far")
    return str(value)


def _name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise ValueError("a catalog's name of letters, digits, _ and -")
    return name


CatalogName = Annotated[str, AfterValidator(_name)]
# Which there are depends on the metastore: they are checked where catalogs are opened.
_Options = Annotated[dict[str, ScalarText], BeforeValidator(no_entries_if_null)]


class CatalogSection(Section):
    metastore: Annotated[str, BeforeValidator(_metastore)] = Field(
        default="filesystem", json_schema_extra={"enum": list(CATALOGS)}
    )
    """kind of the catalog"""
    warehouse: Text
    """root folder of the warehouse: a path, or a URL such as s3://bucket/wh, gs://,
    abfss://container@account.dfs.core.windows.net/wh, oss://, hdfs://; the name of a warehouse that
    the catalog's server knows
    """
    options: _Options = Field(
        default={},
        description="the catalog's options under Paimon's names, those of the writers: "
        f"{_SHOWN_OPTIONS}, s3.endpoint, s3.access-key, fs.azure.*, fs.gs.*, "
        "fs.oss.* and others; secrets as ${env:NAME} or ${file:/path}",
    )
    unlocked_writers: UnlockedWriters = UnlockedWriters.REFUSE
    """for a catalog without a lock on S3, GCS or Azure, where a writer of Java can replace a
    snapshot of another: refuse: do not serve it; guarded: serve it, and let each snapshot of
    compactord stand for settle before building on it
    """
    settle_ms: Annotated[DurationMs, at_least(1000, "1 s")] = duration_ms("10 s")
    """with guarded, how long a snapshot has to stand: longer than a writer takes from its last look
    to the end of its copy
    """

    _names_warehouse: bool = PrivateAttr(default=False)

    def model_post_init(self, context: Registries | None) -> None:
        """The context is that of the validation."""
        self._names_warehouse = (context or Registries()).kinds[self.metastore].names_warehouse

    @property
    def location(self) -> str | None:
        """Of the warehouse; None where it is a name that the catalog's service knows."""
        return None if self._names_warehouse else self.warehouse
