"""What the scheduler tells a kind of maintenance of a table, as tests say it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tests.simulation.world import policy


class Due:
    """Options ask for the kinds `asked`, maybe each at an interval in ms; `rules` by their keys."""

    def __init__(
        self,
        asked: Collection[str] | Mapping[str, int],
        *,
        settling_until_ms: int = 0,
        snapshot_id: int = 0,
        **rules: object,
    ) -> None:
        self.requested_maintenance = (
            asked if isinstance(asked, Mapping) else dict.fromkeys(asked, 0)
        )
        self.settling_until_ms = settling_until_ms
        self.snapshot_id = snapshot_id
        self.policy = policy(**rules)
