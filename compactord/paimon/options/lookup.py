"""How level 0 is merged with what its keys have above it (lookup/LookupStrategy.java)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

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
    `is_one_record`: the state of a key is one of its records, so that merging it once more with
    what it was made of makes no difference. `marks` and `finds_values`: as in `Rewrite`.
    `wait_ms`: how long files may be on level 0 where nothing else picks them (None: not at all).
    `readers_wait`: they do not see level 0.
    """

    changelog: bool
    upgrades: bool
    is_one_record: bool
    marks: bool
    finds_values: bool
    ignores_deletes: bool
    wait_ms: int | None
    readers_wait: bool


def discovery_interval_ms(texts: OptionTexts) -> int:
    """How often the table is polled."""
    return texts.read("continuous.discovery-interval", DISCOVERY_INTERVAL_MS)


def lookup_options(
    texts: OptionTexts,
    *,
    trigger: int,
    tells: bool,
    is_first_row: bool,
    is_newest: bool,
    orders: bool,
    has_vectors: bool,
) -> LookupOptions | None:
    """None: nothing is looked up.

    `tells`: changes are written. `is_newest`: a key's state is its newest record, by sequence
    fields if it `orders` records by these. `has_vectors`: what is replaced above is marked.
    """
    forced = texts.read("force-lookup", False)
    mode = texts.read("lookup-compact", LookupCompact.RADICAL)
    longest = texts.read("lookup-compact.max-interval", 2 * trigger)
    merges_on_read = texts.read("deletion-vectors.merge-on-read", False)
    ignores_deletes = texts.read("ignore-delete", False)
    if not (tells or forced or is_first_row or has_vectors):
        return None
    upgrades = is_newest and not orders
    # Java counts calls of the planner, of which a table without new rows has none.
    wait_ms = max(trigger, longest) * discovery_interval_ms(texts)
    return LookupOptions(
        changelog=tells,
        upgrades=upgrades,
        is_one_record=is_newest or is_first_row,
        marks=has_vectors,
        # Where a delete is ignored, the row that it would have deleted is marked and goes on.
        finds_values=not has_vectors or tells or not upgrades or ignores_deletes,
        ignores_deletes=ignores_deletes,
        wait_ms=wait_ms if mode is LookupCompact.GENTLE else None,
        readers_wait=tells or is_first_row or (has_vectors and not merges_on_read),
    )
