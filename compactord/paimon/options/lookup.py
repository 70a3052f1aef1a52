"""How level 0 is merged with what its keys have above it (lookup/LookupStrategy.java)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts

# Of a table that does not say how often it is polled.
DISCOVERY_INTERVAL_MS = 10_000


class LookupCompact(enum.Enum):
    """When level 0 is compacted that nothing else picks: at once, or after some rounds."""

    RADICAL = "radical"
    GENTLE = "gentle"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """How records of level 0 are merged with what their keys have above.

    `changelog`: what changes is written. `upgrades`: a file of level 0 may go to a middle level as
    it is, since its records replace those above; with `ignores_deletes` none that may have some.
    `wait_ms`: how long files may be on level 0 where nothing else picks them (None: not at all).
    `readers_wait`: they do not see level 0.
    """

    changelog: bool
    upgrades: bool
    ignores_deletes: bool
    wait_ms: int | None
    readers_wait: bool


def discovery_interval_ms(texts: OptionTexts) -> int:
    """How often the table is polled."""
    return texts.read(
        "continuous.discovery-interval", option_values.duration_ms, DISCOVERY_INTERVAL_MS
    )


def lookup_options(
    texts: OptionTexts, *, trigger: int, tells: bool, is_first_row: bool, upgrades: bool
) -> LookupOptions | None:
    """None: nothing is looked up. `tells` and `upgrades`: as `LookupOptions` has them."""
    forced = texts.read("force-lookup", option_values.boolean, False)
    mode = texts.read(
        "lookup-compact", option_values.enumeration(LookupCompact), LookupCompact.RADICAL
    )
    longest = texts.read("lookup-compact.max-interval", option_values.integer, 2 * trigger)
    if not (tells or forced or is_first_row):
        return None
    # Java counts calls of the planner, of which a table without new rows has none.
    wait_ms = max(trigger, longest) * discovery_interval_ms(texts)
    return LookupOptions(
        changelog=tells,
        upgrades=upgrades,
        ignores_deletes=texts.read("ignore-delete", option_values.boolean, False),
        wait_ms=wait_ms if mode is LookupCompact.GENTLE else None,
        readers_wait=tells or is_first_row,
    )
