"""The registry of the kinds of maintenance. A module of its own: it imports what it lists."""

from __future__ import annotations

from compactord.config.model import Recovery
from compactord.maintenance.changelog_expiry import ExpireChangelogs
from compactord.maintenance.consumer_expiry import ExpireConsumers
from compactord.maintenance.done import MarkDone
from compactord.maintenance.kind import AnyKind
from compactord.maintenance.new_tags import CreateTags
from compactord.maintenance.orphans import SweepForeign, SweepOrphans
from compactord.maintenance.partitions import ExpirePartitions
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.maintenance.tags import ExpireTags

# Shortest time between two expiries of a table, unless the last one left work.
_EXPIRE_INTERVAL_MS = 10_000
_CHANGELOGS_INTERVAL_MS = 600_000
_CONSUMERS_INTERVAL_MS = 600_000
_NEW_TAGS_INTERVAL_MS = 60_000
_TAGS_INTERVAL_MS = 600_000
_DONE_INTERVAL_MS = 60_000
_PARTITIONS_INTERVAL_MS = 60_000


def maintenance_kinds(recovery: Recovery) -> tuple[AnyKind, ...]:
    """All kinds, as configured, in the order of commands, which run sweeps last.

    If two are due, the service first runs the one that started longest ago.
    """
    grace_ms = recovery.orphan_grace_ms
    return (
        SweepOrphans(interval_ms=recovery.interval_ms, grace_ms=grace_ms),
        SweepForeign(grace_ms=grace_ms),
        # Tags are created before the snapshots expire that need them.
        CreateTags(interval_ms=_NEW_TAGS_INTERVAL_MS, grace_ms=grace_ms),
        ExpireTags(interval_ms=_TAGS_INTERVAL_MS, grace_ms=grace_ms),
        ExpireConsumers(interval_ms=_CONSUMERS_INTERVAL_MS, grace_ms=grace_ms),
        ExpirePartitions(interval_ms=_PARTITIONS_INTERVAL_MS, grace_ms=grace_ms),
        ExpireSnapshots(interval_ms=_EXPIRE_INTERVAL_MS, grace_ms=grace_ms),
        ExpireChangelogs(interval_ms=_CHANGELOGS_INTERVAL_MS, grace_ms=grace_ms),
        MarkDone(interval_ms=_DONE_INTERVAL_MS),
    )
