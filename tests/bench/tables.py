"""The tables that are measured, and fresh copies of them.

Java Paimon writes them, as write-only jobs would: a job's write buffer sorts and deduplicates each
commit into one level-0 file of one row group. Values are random; columns mean the same in all
tables: a key, then `i INT, l BIGINT, d DOUBLE, s STRING` (16 to 24 letters) `, c STRING` (50
values) `, ts TIMESTAMP(3)`. The string key is `user-` and nine digits, the three-column key 100
numbers, 300 strings `region-ddd` and 100 numbers. Tables that were altered had `l INT` and no `ts`
at first. A partition is `p INT`, the key's number modulo the partitions. Columns that are alone and
aggregated: `ar` (three numbers below 50), `m` and `ne` (three entries, keys among 20), `li` (a
short text), `rb` (a bitmap of 20 numbers below 2^16), `hl` (a sketch of six numbers).
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.bench.peers import CorePeer
from tests.oracle.judge_jvm import TypeName

VALUES = (
    ("i", "INT"),
    ("l", "BIGINT"),
    ("d", "DOUBLE"),
    ("s", "STRING"),
    ("c", "STRING"),
    ("ts", "TIMESTAMP(3)"),
)
# Of the same names and in the same order: what is missing was added, other types were changed.
_OLDER_VALUES = (
    ("i", "INT"),
    ("l", "INT"),
    ("d", "DOUBLE"),
    ("s", "STRING"),
    ("c", "STRING"),
)
_WRITE_ONLY = {"write-only": "true", "file.format": "parquet"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """`key` are the columns before `values`, the primary key unless `appends`.

    Where there are `partitions`, the first of them is the partition. `nulls` is the percentage of
    nulls among the values; `options` are those of the table besides. Half of the commits of a table
    that `is_altered` have its older schema. Where there are `above` rows, these were committed and
    compacted first, with the keys from 0 on; each commit then has distinct keys from `first_key`
    on, and a minor compaction is measured, or a full one if it `merges_above`. If they are
    `is_disjoint`, each commit has `rows` neighbouring keys, and no two have a key in common.
    Vectors mark so many percent of the rows of each file as `deleted`. With `any_order` the
    elements of arrays and maps may be in any.
    """

    key: tuple[tuple[str, str], ...]
    commits: int
    rows: int
    keys: int
    values: tuple[tuple[str, TypeName], ...] = VALUES
    partitions: int = 0
    appends: bool = False
    buckets: int = 1
    nulls: int = 0
    options: Mapping[str, str] = field(default_factory=dict)
    is_altered: bool = False
    above: int = 0
    first_key: int = 0
    merges_above: bool = False
    is_disjoint: bool = False
    deleted: int = 0
    any_order: bool = False

    @property
    def is_full(self) -> bool:
        """Whether a full compaction is measured."""
        return self.merges_above or not (self.appends or self.above)

    def tiny(self) -> Shape:
        """The same at a size where only the way is tried."""
        if self.above:
            first_key = min(self.first_key, 1000)
            return replace(self, rows=500, keys=1000, above=3000, first_key=first_key)
        few = {"dynamic-bucket.max-buckets": "5"} if self.buckets < 0 else {}
        return replace(
            self,
            commits=min(self.commits, 6),
            rows=500,
            keys=3000,
            partitions=min(self.partitions, 5),
            options={**self.options, **few},
        )


_BIGINT = (("id", "BIGINT NOT NULL"),)
_STRING = (("id", "STRING NOT NULL"),)
_THREE = (("a", "INT NOT NULL"), ("b", "STRING NOT NULL"), ("n", "BIGINT NOT NULL"))
_PARTIAL_UPDATE = {"merge-engine": "partial-update"}

_PK = Shape(key=_BIGINT, commits=10, rows=500_000, keys=3_000_000)
_WITH_NULLS = replace(_PK, nulls=30)

_LOOKUP = Shape(
    key=_BIGINT,
    commits=1,
    rows=500_000,
    keys=3_000_000,
    above=3_000_000,
    options={"changelog-producer": "lookup"},
)

_VECTORS = {"deletion-vectors.enabled": "true"}
_APPEND = Shape(key=(("id", "BIGINT"),), commits=200, rows=20_000, keys=3_000_000, appends=True)

_BUCKETS = Shape(key=_BIGINT, commits=5, rows=41_600, keys=3_000_000, buckets=32)

SHAPES = {
    "pk": _PK,
    "pk-string": replace(_PK, key=_STRING),
    "pk-three": replace(_PK, key=_THREE),
    "partial-update": replace(_WITH_NULLS, options=_PARTIAL_UPDATE),
    "sequence-groups": replace(
        _WITH_NULLS,
        options={
            **_PARTIAL_UPDATE,
            "fields.i.sequence-group": "l,s",
            "fields.ts.sequence-group": "d,c",
        },
    ),
    "aggregation": replace(
        _WITH_NULLS,
        options={
            "merge-engine": "aggregation",
            "fields.d.aggregate-function": "sum",
            "fields.l.aggregate-function": "max",
            "fields.ts.aggregate-function": "max",
        },
    ),
    "changelog": replace(_PK, options={"changelog-producer": "full-compaction"}),
    "lookup": _LOOKUP,
    "lookup-small": replace(_LOOKUP, rows=20_000, keys=40_000, first_key=1_500_000),
    "vectors": replace(_LOOKUP, options=_VECTORS),
    "vectors-small": replace(
        _LOOKUP, rows=5_000, keys=10_000, first_key=1_500_000, options=_VECTORS
    ),
    "vectors-append": replace(_APPEND, commits=100, options=_VECTORS, deleted=30),
    "altered": replace(_WITH_NULLS, options=_PARTIAL_UPDATE, is_altered=True),
    "append": _APPEND,
    "small": Shape(key=_BIGINT, commits=5, rows=1_300, keys=3_000_000),
    "buckets": _BUCKETS,
    # The same table but that its writer puts new keys into any of the buckets.
    "dynamic": replace(
        _BUCKETS,
        buckets=-1,
        options={"dynamic-bucket.target-row-num": "1", "dynamic-bucket.max-buckets": "32"},
    ),
}

_ORC = {"file.format": "orc"}
# Timestamps that close to 1970 as those of the other tables are refused in ORC files.
_ORC_VALUES = tuple(each for each in VALUES if each[0] != "ts")
_GROUPS = {"parquet.block.size": "200000"}
_PARTITIONED = Shape(
    key=(("p", "INT NOT NULL"), *_BIGINT), commits=2, rows=50_000, keys=3_000_000, partitions=500
)
_ENTRIES: TypeName = {
    "type": "ARRAY",
    "element": {
        "type": "ROW",
        "fields": [
            {"id": 0, "name": "k", "type": "INT"},
            {"id": 1, "name": "v", "type": "STRING"},
        ],
    },
}


def _aggregated(
    column: str, type_: TypeName, function: str, *, any_order: bool = False, **options: str
) -> Shape:
    """A column with an aggregator, two records for a key on average."""
    of_column = {"aggregate-function": function, **options}
    return Shape(
        key=_BIGINT,
        values=((column, type_),),
        commits=10,
        rows=40_000,
        keys=200_000,
        any_order=any_order,
        options={
            "merge-engine": "aggregation",
            **{f"fields.{column}.{name}": value for name, value in of_column.items()},
        },
    )


_NUMBERS: TypeName = {"type": "ARRAY", "element": "INT"}
_MAP: TypeName = {"type": "MAP", "key": "STRING NOT NULL", "value": "INT"}

# What was slower than Java once, or far from what is possible: the case `shapes`.
MORE_SHAPES = {
    "part500-append": replace(_PARTITIONED, appends=True, options={"compaction.min.file-num": "2"}),
    "part500-pk": _PARTITIONED,
    "dyn100": Shape(
        key=_BIGINT,
        commits=5,
        rows=130_000,
        keys=3_000_000,
        buckets=-1,
        options={"dynamic-bucket.target-row-num": "1", "dynamic-bucket.max-buckets": "100"},
    ),
    "collect": _aggregated("ar", _NUMBERS, "collect"),
    "collect-distinct": _aggregated("ar", _NUMBERS, "collect", any_order=True, distinct="true"),
    "merge-map": _aggregated("m", _MAP, "merge_map", any_order=True),
    "nested-update": _aggregated(
        "ne", _ENTRIES, "nested_update", any_order=True, **{"nested-key": "k"}
    ),
    "listagg": _aggregated("li", "STRING", "listagg"),
    "rbm32": _aggregated("rb", "BYTES", "rbm32"),
    "rbm64": _aggregated("rl", "BYTES", "rbm64"),
    "hll": _aggregated("hl", "BYTES", "hll_sketch"),
    "theta": _aggregated("th", "BYTES", "theta_sketch"),
    "pk-gzip": replace(_PK, rows=200_000, keys=1_200_000, options={"file.compression": "gzip"}),
    "pk-many-groups": replace(_PK, commits=8, rows=150_000, keys=600_000, options=_GROUPS),
    "append-many-groups": replace(_APPEND, commits=60, options=_GROUPS),
    "pk-orc": replace(_PK, rows=200_000, keys=1_200_000, values=_ORC_VALUES, options=_ORC),
    "pk-avro": replace(_PK, rows=200_000, keys=1_200_000, options={"file.format": "avro"}),
    "append-orc": replace(_APPEND, commits=60, values=_ORC_VALUES, options=_ORC),
    "disjoint": replace(_PK, rows=250_000, is_disjoint=True),
    "huge-tiny": Shape(
        key=_BIGINT,
        commits=1,
        rows=1_000,
        keys=2_000,
        above=2_000_000,
        first_key=1_000_000,
        merges_above=True,
    ),
}


def make_table(core: CorePeer, path: Path, shape: Shape) -> None:
    bucket = "-1" if shape.appends else str(shape.buckets)
    core.create_table(
        path,
        [*shape.key, *(_OLDER_VALUES if shape.is_altered else shape.values)],
        primary_key=[] if shape.appends else [name for name, _ in shape.key],
        partition_by=["p"] if shape.partitions else [],
        options={**_WRITE_ONLY, "bucket": bucket, **shape.options},
    )
    commits = shape.commits
    sizes: dict[str, Any] = {"rows": shape.rows, "keys": shape.keys, "nulls": shape.nulls}
    sizes["partitions"] = shape.partitions
    if shape.above:
        core.fill(path, commits=1, rows=shape.above, keys=shape.above, distinct=True)
        core.compact(path, full=True)
        sizes |= {"first_key": shape.first_key, "distinct": True, "seed": 8}
    if shape.is_altered:
        older = commits // 2
        core.fill(path, commits=older, **sizes)
        core.alter(path, *_alterations())
        core.fill(path, commits=commits - older, **sizes, seed=8)
    elif shape.is_disjoint:
        sizes |= {"keys": shape.rows, "distinct": True}
        for number in range(commits):
            core.fill(path, commits=1, **sizes, first_key=number * shape.rows, seed=number)
    else:
        core.fill(path, commits=commits, **sizes)
    if shape.deleted:
        chance = random.Random(shape.deleted)
        counts = {file["file_name"]: file["row_count"] for file in core.files(path)}
        core.delete_positions(
            path,
            {
                name: sorted(chance.sample(range(rows), rows * shape.deleted // 100))
                for name, rows in counts.items()
            },
        )


def _alterations() -> list[dict[str, Any]]:
    """The changes that make the newest columns of the older ones."""
    older = dict(_OLDER_VALUES)
    return [
        {"change": "type" if name in older else "add", "column": [name], "type": type_}
        for name, type_ in VALUES
        if older.get(name) != type_
    ]


@contextlib.contextmanager
def fresh_copy(table: Path, side: str, *, links: bool = True) -> Iterator[Path]:
    """A copy that may be compacted, removed afterwards.

    Data files are hard links: neither side changes one, and the page cache treats both alike. They
    are not if they are to be deleted. What was written before is flushed, so that nobody waits for
    another's data when it syncs its own.
    """
    copy = table.with_name(f"{table.name}-{side}")
    shutil.copytree(table, copy, copy_function=_copy_or_link if links else shutil.copy2)
    os.sync()
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


def _copy_or_link(source: str, target: str) -> str:
    if Path(source).parent.name.startswith("bucket-"):
        os.link(source, target)
        return target
    return shutil.copy2(source, target)
