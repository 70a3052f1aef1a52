"""What a table's options ask for besides compaction and the expiry of snapshots."""

from __future__ import annotations

from dataclasses import dataclass

from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOptions:
    """`consumer_time_ms`: consumers that have not moved for longer expire; None: never."""

    consumer_time_ms: int | None = None

    @property
    def asked(self) -> tuple[str, ...]:
        """The kinds of maintenance that run only where options ask for them."""
        return () if self.consumer_time_ms is None else ("consumers",)


def maintenance_options(texts: OptionTexts) -> MaintenanceOptions:
    """What cannot be parsed is in `texts.unreadable`, or raises `UsageError` (`OptionTexts`)."""
    return MaintenanceOptions(
        consumer_time_ms=texts.maybe("consumer.expiration-time", option_values.duration_ms)
    )
