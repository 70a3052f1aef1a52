"""What the scheduler tells a kind of maintenance of a table, as tests say it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from compactord.config.model import Recovery
from compactord.maintenance.kind import RuledKind
from compactord.maintenance.registry import maintenance_kinds
from compactord.paimon.options.maintenance import (
    MaintenanceOptions,
    MarkDoneOptions,
    PartitionExpiryOptions,
)
from compactord.paimon.options.tag_options import TagCreationOptions, TagPeriod
from tests.simulation.world import policy


class Due:
    """Options ask for the kinds `asked`, maybe each at an interval in ms; `rules` by their keys."""

    def __init__(
        self,
        asked: Collection[str] | Mapping[str, int],
        *,
        held_until_ms: int = 0,
        snapshot_id: int = 0,
        **rules: object,
    ) -> None:
        self.maintenance_options = _asking(
            asked if isinstance(asked, Mapping) else dict.fromkeys(asked, 0)
        )
        self.held_until_ms = held_until_ms
        self.snapshot_id = snapshot_id
        self.policy = policy(**rules)


def _asking(asked: Mapping[str, int]) -> MaintenanceOptions:
    creation = TagCreationOptions(period=TagPeriod(length_ms=86_400_000, form="%Y-%m-%d"))
    mark = MarkDoneOptions(idle_ms=1, interval_ms=1)
    expiry = PartitionExpiryOptions(time_ms=1, interval_ms=asked.get("partitions", 0))
    return MaintenanceOptions(
        consumer_time_ms=1 if "consumers" in asked else None,
        mark_done=mark if "done" in asked else None,
        expire_partitions=expiry if "partitions" in asked else None,
        expires_tags="tags" in asked,
        keeps_changelogs="changelogs" in asked,
        tag_creation=creation if "create_tags" in asked else None,
    )


def asked(options: MaintenanceOptions) -> Mapping[str, int]:
    """The kinds that options ask for, by name, with the time between two rounds in ms."""
    kinds = (kind for kind in maintenance_kinds(Recovery()) if isinstance(kind, RuledKind))
    found = {kind.name: kind.asked_ms(options) for kind in kinds}
    return {name: ms for name, ms in found.items() if ms is not None}
