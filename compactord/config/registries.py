"""Registries of kinds and formats that a configuration may name.

A module of its own: it imports what it lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import ValidationInfo

from compactord.catalog.registry import CATALOGS, CatalogKinds
from compactord.formats.registry import FORMATS, Formats


@dataclass(frozen=True, kw_only=True)
class ConfigRegistries:
    """Kinds of catalogs, and formats of data files."""

    kinds: CatalogKinds = field(default_factory=lambda: CATALOGS)
    formats: Formats = field(default_factory=lambda: FORMATS)


OWN = ConfigRegistries()


def registries_of(info: ValidationInfo) -> ConfigRegistries:
    """The context of a validation, or the product's own registries."""
    return info.context or OWN
