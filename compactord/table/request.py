"""Settings of the work on one table, made from its policy and the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compactord.config.model import ServiceConfig, TableSettings
from compactord.model import PickRule
from compactord.plan.table import Strategy

# Rows that have waited for this share of `max_freshness_lag` precede all other work, and the
# compaction that makes them visible is due unconditionally.
LAG_SERVED_FIRST = 0.5
# How long a writer may wait between its check of an id and its rename (`recovery.writer_delay`).
WRITER_DELAY_MS = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactRequest:
    """Settings of a compaction. Empty `partitions` are all; `append_wait_ms` may be None for never.

    Each of `partitions` names some partition columns, and their values as texts; a text that is the
    table's `partition.default-name` means null or blank text, as in folders.
    `max_freshness_lag_ms`: how long rows may wait for visibility, or None for no limit.
    `overrides` are table options over the table's own. Partitions of append tables that were
    rewritten less than `quiet_for_ms` ago are skipped. Snapshots of ours are looked back at for
    `writer_delay_ms`, every `look_interval_ms`. If the table sets no stop trigger, its runs are
    measured against `stop_trigger_fallback` above its compaction trigger.
    """

    strategy: Strategy = Strategy.MINOR
    pick: PickRule = PickRule.RELEASE_2_1
    overrides: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[Mapping[str, str], ...] = ()
    append_wait_ms: int | None = None
    max_freshness_lag_ms: int | None = None
    quiet_for_ms: int = 0
    writer_delay_ms: int = WRITER_DELAY_MS
    look_interval_ms: int = 60_000
    stop_trigger_fallback: int = 3

    @classmethod
    def of(
        cls,
        policy: TableSettings,
        config: ServiceConfig,
        overrides: Mapping[str, str] | None = None,
    ) -> CompactRequest:
        """The request of a table with this policy; `overrides` replace the policy's options."""
        return cls(
            pick=policy.pick,
            overrides=policy.options if overrides is None else overrides,
            append_wait_ms=policy.append_wait_ms,
            max_freshness_lag_ms=policy.max_freshness_lag_ms,
            quiet_for_ms=policy.quiet_for_ms,
            writer_delay_ms=config.recovery.writer_delay_ms,
            stop_trigger_fallback=config.alerts.stop_trigger_fallback,
        )
