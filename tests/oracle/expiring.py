"""Tables of which records expire: the types of their times, and times that have passed."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Sequence, Set

from tests.oracle.differential import LiveTable, canonical
from tests.oracle.judge_jvm import Row, Value

# Seconds until a record expires, and times before now that are far from it.
EXPIRE_S = 3_600
OLD_S, YOUNG_S = 3 * EXPIRE_S, -EXPIRE_S
TIME_FIELD = "record-level.time-field"
EXPIRE_TIME = "record-level.expire-time"
EXPIRING = {EXPIRE_TIME: f"{EXPIRE_S} s", TIME_FIELD: "t"}
# By these options nothing has expired.
NOT_YET = {EXPIRE_TIME: "100 d"}
TYPES = {
    "int": ("INT", 1, ""),
    "bigint-seconds": ("BIGINT", 1, ""),
    "bigint-millis": ("BIGINT", 1_000, ""),
    "timestamp-0": ("TIMESTAMP(0)", 1_000, ":0"),
    "timestamp-3": ("TIMESTAMP(3)", 1_000, ":0"),
    "timestamp-6": ("TIMESTAMP(6)", 1_000, ":0"),
    "timestamp-9": ("TIMESTAMP(9)", 1_000, ":0"),
    "local-timestamp-3": ("TIMESTAMP(3) WITH LOCAL TIME ZONE", 1_000, ":0"),
}
_FIRST_MILLIS = 1_000_000_000_000


def at(kind: str, ago_s: int) -> Value:
    _, unit, ending = TYPES[kind]
    value = (int(time.time()) - ago_s) * unit
    return f"{value}{ending}" if ending else value


def some_times(chance: random.Random) -> tuple[str, list[Value]]:
    """A type, and times of which half have passed."""
    kind = chance.choice(list(TYPES))
    ages = (OLD_S, 2 * OLD_S, YOUNG_S, 2 * YOUNG_S)
    return TYPES[kind][0], [at(kind, age) for age in ages]


def assert_same_but_expired(
    table: LiveTable, mine: Sequence[str], theirs: Sequence[str], renewed: Set[str]
) -> None:
    """Canonical rows that are read: those of a key whose time has passed may be Java's alone.

    It does not find them, so that they are not marked where the key is written again (2.0.0). We
    have none of keys that were `renewed`.
    """
    extra, missing = Counter(mine) - Counter(theirs), Counter(theirs) - Counter(mine)
    assert not extra, f"rows too many: {list(extra)[:5]}, missing: {list(missing)[:5]}"
    alive = [row for row in missing if not has_passed(table, json.loads(row))]
    assert not alive, f"rows missing: {alive[:5]}"
    rows = [json.loads(row) for row in mine]
    keys = Counter(key_of(table, row) for row in rows)
    assert not keys or max(keys.values()) == 1, f"rows of one key: {keys.most_common(1)}"
    old = [row for row in rows if has_passed(table, row) and key_of(table, row) in renewed]
    assert not old, f"rows that were replaced: {old[:5]}"


def key_of(table: LiveTable, row: Row) -> str:
    names = [name for name, _ in table.columns]
    return canonical([[row[names.index(name)] for name in table.primary_key]])[0]


def has_passed(table: LiveTable, row: Row) -> bool:
    """Whether the row has expired."""
    value = row[[name for name, _ in table.columns].index(table.options[TIME_FIELD])]
    if value is None:
        return False
    number = int(str(value).partition(":")[0])
    return (number // 1000 if number >= _FIRST_MILLIS else number) < time.time() - EXPIRE_S
