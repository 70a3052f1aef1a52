"""Registries of kinds and formats that a configuration may name.

A module of its own: it imports what it lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import ValidationInfo

from compactord.catalog.registry import CATALOGS, CatalogKinds
from compactord.formats.registry import FORMATS, Formats, options_of
from compactord.paimon.options.catalogue import check_override
from compactord.plan.triggers import TRIGGERS, Triggers, trigger_options


@dataclass(frozen=True, kw_only=True)
class ConfigRegistries:
    """Kinds of catalogs, formats of data files, and triggers of minor picks."""

    kinds: CatalogKinds = field(default_factory=lambda: CATALOGS)
    formats: Formats = field(default_factory=lambda: FORMATS)
    triggers: Triggers = TRIGGERS

    def check_option(self, key: str, value: str) -> None:
        """Raises `UsageError` for an option that a run cannot set, or not to this value."""
        check_override(key, value, options_of(self.formats), trigger_options(self.triggers))


OWN = ConfigRegistries()


def registries_of(info: ValidationInfo) -> ConfigRegistries:
    """The context of a validation, or the product's own registries."""
    return info.context or OWN
