"""Tables of random columns and options, and the rows that they must hold."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.oracle.judge_jvm import Row, Value
from tests.oracle.samples import ATOMIC, not_null

_KEY_KINDS = ("int", "bigint", "varchar", "date", "decimal-18")
_PARTITION_KINDS = ("varchar", "int", "date")
_VALUE_KINDS = (
    "boolean",
    "int",
    "bigint",
    "double",
    "decimal-9",
    "string",
    "bytes",
    "date",
    "timestamp-3",
    "timestamp-6",
)
BUCKETS = (1, 2, 3)
_CHANGEABLE: dict[str, tuple[str, ...]] = {
    "file.compression": ("zstd", "none", "gzip", "snappy"),
    "metadata.stats-mode": ("truncate(16)", "full", "none"),
    "target-file-size": ("128 mb", "3 kb"),
    "num-sorted-run.compaction-trigger": ("2", "3", "5"),
    "manifest.compression": ("zstd", "null", "deflate"),
    "manifest.merge-min-count": ("3", "5", "30"),
    "manifest.full-compaction-threshold-size": ("1 kb", "16 mb"),
    "manifest.merge.skip-on-write-only": ("true", "false"),
    "manifest.delete-file-drop-stats": ("true", "false"),
}
# Neither Python's dates nor names of folders can be all that Java's values can.
_LEFT_OUT: dict[str, set[Value]] = {
    "date": {-719_162, 2_932_896, -(2**31), 2**31 - 1},
    "varchar": {"", "a\x00"},
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of table. `pools` are the values of each column; the partition columns come first.

    `options` change as those of the table do.
    """

    columns: tuple[tuple[str, str], ...]
    pools: tuple[tuple[Value, ...], ...]
    primary_key: tuple[str, ...]
    partition_by: tuple[str, ...]
    options: dict[str, str]

    def __str__(self) -> str:
        columns = ", ".join(f"{name} {type_}" for name, type_ in self.columns)
        return f"{columns}; key {self.primary_key}, by {self.partition_by}, {self.options}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    @property
    def has_sidecars(self) -> bool:
        return self.options["manifest.sidecar.enabled"] == "true"

    def some_rows(self, chance: random.Random) -> list[Row]:
        count = chance.choice([1, 5, 5, 40])
        return [[chance.choice(pool) for pool in self.pools] for _ in range(count)]

    def partition(self, row: Row) -> tuple[Value, ...]:
        return tuple(row[: len(self.partition_by)])


def some_shape(chance: random.Random) -> Shape:
    has_key = chance.random() < 0.6
    has_buckets = has_key or chance.random() < 0.5
    partitions = chance.sample(_PARTITION_KINDS, chance.choice([0, 0, 1, 1, 2]))
    keys = chance.sample(_KEY_KINDS, chance.choice([1, 1, 2]))
    values = chance.sample(_VALUE_KINDS, chance.randrange(1, 5))
    # pypaimon cannot write to buckets of rows without a partition value once others have one.
    nulls = () if has_buckets else (None,)
    columns = [
        (f"p{n}", ATOMIC[kind][0] if nulls else not_null(ATOMIC[kind][0]))
        for n, kind in enumerate(partitions)
    ]
    columns += [(f"k{n}", not_null(ATOMIC[kind][0])) for n, kind in enumerate(keys)]
    # A column of numbers makes enough different keys of few values.
    columns.append(("k", "SMALLINT NOT NULL"))
    names = tuple(name for name, _ in columns)
    columns += [(f"v{n}", ATOMIC[kind][0]) for n, kind in enumerate(values)]
    return Shape(
        columns=tuple(columns),
        pools=(
            # Rows without a value have a partition with a name of its own.
            *((*chance.sample(_pool(kind), 2), *nulls) for kind in partitions),
            *(_pool(kind) for kind in keys),
            tuple(range(12)),
            *((None, *_pool(kind)) for kind in values),
        ),
        primary_key=names if has_key else (),
        partition_by=names[: len(partitions)],
        options=_some_options(
            chance, has_key=has_key, bucket_key=names[len(partitions)] if has_buckets else None
        ),
    )


def _pool(kind: str) -> tuple[Value, ...]:
    return tuple(v for v in ATOMIC[kind][1] if v not in _LEFT_OUT.get(kind, ()))


def some_change(chance: random.Random) -> dict[str, str]:
    """An option that may be another one at any time."""
    key, values = chance.choice(list(_CHANGEABLE.items()))
    return {key: chance.choice(values)}


def _some_options(
    chance: random.Random, *, has_key: bool, bucket_key: str | None
) -> dict[str, str]:
    options = {
        "write-only": "true",
        "bucket": str(chance.choice(BUCKETS)),
        "manifest.sidecar.enabled": chance.choice(["true", "false"]),
        **{key: chance.choice(values) for key, values in _CHANGEABLE.items()},
    }
    if has_key:
        options["num-levels"] = str(chance.choice([2, 3, 6]))
    else:
        options["compaction.min.file-num"] = str(chance.choice([2, 5]))
        if bucket_key is None:
            options["bucket"] = "-1"
        else:
            options["bucket-key"] = bucket_key
    return options


@dataclass
class Rows:
    """The rows of a table that keeps the last of each key, or all where there is no key."""

    shape: Shape
    keyed: dict[str, Row] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)

    def copy(self) -> Rows:
        return Rows(self.shape, dict(self.keyed), list(self.appended))

    def apply(self, rows: Sequence[Row], kinds: Sequence[str] | None = None) -> None:
        if not self.shape.primary_key:
            self.appended += rows
            return
        places = [self.shape.names.index(name) for name in self.shape.primary_key]
        for row, kind in zip(rows, kinds or ["+I"] * len(rows), strict=True):
            key = json.dumps([row[place] for place in places])
            if kind in ("+I", "+U"):
                self.keyed[key] = row
            else:
                self.keyed.pop(key, None)

    def drop(self, goes: Callable[[Row], bool]) -> None:
        self.keyed = {key: row for key, row in self.keyed.items() if not goes(row)}
        self.appended = [row for row in self.appended if not goes(row)]

    def all(self) -> list[Row]:
        return [*self.keyed.values(), *self.appended]

    def where(self, equal: dict[str, Value]) -> list[Row]:
        places = {self.shape.names.index(name): value for name, value in equal.items()}
        return [r for r in self.all() if all(r[at] == value for at, value in places.items())]
