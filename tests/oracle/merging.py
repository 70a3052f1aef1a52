"""Random tables of every merge engine, with random histories, compacted by us and by Java."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactord.kernels.aggregators import bitmaps
from compactord.kernels.aggregators.bitmaps import Bitmap64
from compactord.paimon.deletion_vectors import Container, Kind, serialised
from compactord.plan.table import Strategy
from tests.oracle.differential import (
    LiveTable,
    assert_same_files,
    assert_same_rows,
    canonical,
    compact,
)
from tests.oracle.expiring import (
    EXPIRING,
    NOT_YET,
    TIME_FIELD,
    assert_same_but_expired,
    has_passed,
    key_of,
    some_times,
)
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError, Row, TypeName, Value
from tests.oracle.samples import ATOMIC, EVERY_TYPE, not_null
from tests.oracle.vectors import VECTORS, assert_same_vectors

# Values that a sum or product of a few of them does not overflow, beside those that it does.
SMALL: dict[str, list[Value]] = {
    "tinyint": [-3, -1, 0, 1, 2, 5],
    "smallint": [-30, -1, 0, 1, 2, 50],
    "int": [-300, -1, 0, 1, 2, 500],
    "bigint": [-3000, -1, 0, 1, 2, 2**40],
    # Without NaN and infinity, which makes one: no reader sees the sign of a NaN, but in Java's
    # statistics it is that of the value.
    "float": ["-0.0", 0.0, 0.1, -1.5, 3.25, 2.0**-149],
    "double": ["-0.0", 0.0, 0.1, -1.5, 3.25, 5e-324],
    "decimal-9": ["-1.50", "-0.01", "0.00", "0.10", "1.50", "12.34"],
    "decimal-18": ["-1.500", "-0.001", "0.000", "12.345"],
    "decimal-19": ["-7", "-1", "0", "1", "3"],
    "decimal-38": ["-1.5000000000", "0.0000000001", "0.0000000000", "3.0000000000"],
}
ANY = ("last_value", "last_non_null_value", "first_value", "first_non_null_value")
ORDERED = tuple(kind for kind in ATOMIC if kind != "boolean")
RETRACTABLE = {"sum", "product", "last_value", "last_non_null_value", "collect", "merge_map"} | {
    "nested_update"
}
SEQUENCE_KINDS = ("int", "bigint", "timestamp-3", "string", "double", "decimal-38", "date")
KINDS = ("+I", "-U", "+U", "-D")
ADDS = ("+I", "+U")
# Of keys of tables that look up.
KEY_KINDS = ("int", "int", "int", *ATOMIC)


@dataclass(kw_only=True)
class Column:
    """A column, its values, and the options that say how it is merged."""

    name: str
    type_: TypeName
    pool: Sequence[Value]
    aggregator: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    # Its values have no order of elements or entries that one could rely on.
    is_unordered: bool = False


def value_column(chance: random.Random, name: str, *, grouped: bool) -> Column:
    """A column of a random type, with an aggregator that the type allows if `grouped`."""
    if not grouped:
        kind = chance.choice(list(EVERY_TYPE))
        return Column(name=name, type_=EVERY_TYPE[kind][0], pool=EVERY_TYPE[kind][1])
    aggregator = chance.choice(
        ["sum", "sum", "product", "max", "min", *ANY, "bool_and", "bool_or", "listagg", *SPECIAL]
    )
    if aggregator in ("sum", "product"):
        kind = chance.choice(list(SMALL))
        is_extreme = chance.random() < 0.05 and kind not in ("float", "double")
        pool = ATOMIC[kind][1] if is_extreme else SMALL[kind]
        if aggregator == "product" and kind in ("float", "double"):
            pool = [value for value in pool if value not in ("-0.0", 0.0)]
        column = Column(name=name, type_=ATOMIC[kind][0], pool=pool)
    elif aggregator in ("max", "min"):
        kind = chance.choice(ORDERED)
        column = Column(name=name, type_=ATOMIC[kind][0], pool=ATOMIC[kind][1])
    elif aggregator in ("bool_and", "bool_or"):
        column = Column(name=name, type_="BOOLEAN", pool=[False, True])
    elif aggregator == "listagg":
        column = Column(name=name, type_="STRING", pool=["", " ", "a", "b", "a,b", "c;a", ",", "é"])
        if chance.random() < 0.5:
            column.options["distinct"] = "true"
        if chance.random() < 0.5:
            column.options["list-agg-delimiter"] = chance.choice([";", "--", ""])
    elif aggregator in SPECIAL:
        column = SPECIAL[aggregator](chance, name)
    else:
        kind = chance.choice(list(EVERY_TYPE))
        column = Column(name=name, type_=EVERY_TYPE[kind][0], pool=EVERY_TYPE[kind][1])
    column.aggregator = aggregator
    if isinstance(column.type_, str) and chance.random() < 0.04:
        column.type_ = not_null(column.type_)
    return column


def _row(**fields: str) -> TypeName:
    return {"type": "ROW", "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def _lists(chance: random.Random, elements: Sequence[Value]) -> list[Value]:
    """A pool of lists that share elements, some of them with one twice."""
    return [[], *(chance.choices(elements, k=chance.randint(1, 4)) for _ in range(6))]


def _collect(chance: random.Random, name: str) -> Column:
    element, elements = chance.choice(
        [
            ("INT", [1, 2, 3, None]),
            ("STRING", ["a", "b", "", None]),
            ("DOUBLE", ["NaN", "-0.0", 0.0, 1.5]),
            ("DECIMAL(20, 2)", ["1.00", "-2.50"]),
            ("TIMESTAMP(9)", ["0:1", "-1:999999", "5:0"]),
            # Java fails on null rows, and to retract rows that are not distinct.
            (_row(a="INT", b="STRING NOT NULL"), [[1, "a"], [1, "b"], [None, "a"]]),
            ({"type": "ARRAY", "element": "INT"}, [[], [1], [1, None], [2]]),
        ]
    )
    column = Column(
        name=name, type_={"type": "ARRAY", "element": element}, pool=_lists(chance, elements)
    )
    if chance.random() < 0.5 or not isinstance(element, str):
        column.options["distinct"] = "true"
        column.is_unordered = isinstance(element, str)
    return column


def _map_pool(chance: random.Random, keys: Sequence[Value], values: Sequence[Value]) -> Any:
    return [
        [],
        *(
            [[key, chance.choice(values)] for key in chance.sample(keys, chance.randint(1, 3))]
            for _ in range(6)
        ),
    ]


def _merge_map(chance: random.Random, name: str) -> Column:
    key, keys = chance.choice(
        [("STRING NOT NULL", ["a", "b", "", "é"]), ("BIGINT NOT NULL", [1, 2, 3, -1])]
    )
    value, values = chance.choice(
        [("INT", [1, 2, None]), (_row(a="TIMESTAMP(9) NOT NULL"), [["0:1"], ["5:2"], None])]
    )
    return Column(
        name=name,
        type_={"type": "MAP", "key": key, "value": value},
        pool=_map_pool(chance, keys, values),
        is_unordered=True,
    )


def _timed_map(chance: random.Random, name: str) -> Column:
    times = ["", "1", "2", "\uffff", "\U0001f600", None]
    rows = [[time, number, other] for number, time in enumerate(times) for other in ("0", "3")]
    column = Column(
        name=name,
        type_={
            "type": "MAP",
            "key": "INT NOT NULL",
            "value": _row(t="STRING", n="INT", u="STRING"),
        },
        pool=_map_pool(chance, [1, 2, 3], [*rows, None]),
        is_unordered=True,
    )
    if chance.random() < 0.5:
        column.options["ts-field"] = "t"
    return column


def _nested(chance: random.Random, name: str, *, partial: bool = False) -> Column:
    rows = [
        [key, other, chance.choice([None, "x", "y"]), chance.choice([None, "1.50", "2.00"])]
        for key in (1, 2, None)
        for other in (1, 2, None)
    ]
    column = Column(
        name=name,
        type_={
            "type": "ARRAY",
            "element": _row(a="INT", b="BIGINT", c="STRING", d="DECIMAL(20, 2)"),
        },
        pool=_lists(chance, [*rows, *rows, None]),
    )
    if partial or chance.random() < 0.6:
        column.is_unordered = True
        column.options["nested-key"] = chance.choice(["a", "a,b", "b, a"])
        if chance.random() < 0.6:
            column.options["nested-key-null-strategy"] = chance.choices(
                ["merge", "ignore", "error"], [5, 5, 1]
            )[0]
        if not partial and chance.random() < 0.4:
            column.options["nested-sequence-field"] = chance.choice(["d", "c,d", "b"])
    elif chance.random() < 0.5:
        column.options["count-limit"] = chance.choice(["0", "2", "5"])
    return column


def _bitmap(chance: random.Random, name: str) -> Column:
    """Containers of all kinds, also at the sizes where Java changes the kind; few are large."""
    pool: list[Value] = []
    for _ in range(8):
        containers = {}
        for key in sorted(chance.sample([0, 1, 2, 9, 65535], chance.randint(0, 5))):
            first, step = chance.randrange(9), chance.choice([1, 1, 2, 3])
            numbers = np.arange(first, first + step * chance.choice([1, 2, 3, 5, 30]), step)
            kind = chance.choice([Kind.ARRAY, Kind.RUNS])
            containers[key] = Container(kind, numbers.astype(np.uint16))
        if chance.random() < 0.2:
            first, step = chance.choice(
                [(0, 1), (1, 3), (57_345, 2), (57_344, 2), (65_536 - 4097, 1)]
            )
            numbers = np.arange(first, 1 << 16, step)
            kind = Kind.ARRAY if len(numbers) <= 4096 else Kind.BITS
            containers[9] = Container(kind, numbers.astype(np.uint16))
        pool.append("x:" + serialised(dict(sorted(containers.items()))).hex())
    return Column(name=name, type_="BYTES", pool=pool)


def _bitmap64(chance: random.Random, name: str) -> Column:
    """Keys that share none, some or all of their bytes, more of them than a small node takes."""
    pool: list[Value] = []
    for _ in range(8):
        bitmap = Bitmap64()
        keys = [n << chance.choice([0, 8, 24, 40]) for n in chance.sample(range(256), 20)]
        for key in dict.fromkeys(keys[: chance.choice([0, 1, 2, 5, 20])]):
            numbers = np.arange(chance.choice([1, 3, 30])) * chance.choice([1, 2])
            kind = chance.choice([Kind.ARRAY, Kind.RUNS])
            bitmap.put(key.to_bytes(6, "big"), Container(kind, numbers.astype(np.uint16)))
        pool.append("x:" + bitmaps.serialised(bitmap).hex())
    return Column(name=name, type_="BYTES", pool=pool)


def _hll_sketch(chance: random.Random, name: str) -> Column:
    """Sketches of all types and modes, most of one size, so small that rows fit the memory."""
    import datasketches as library

    pool: list[Value] = []
    for count in [0, 1, 5, 8, *chance.choices([20, 40, 200, 1000], k=4)]:
        type_ = chance.choice(["HLL_4", "HLL_6", "HLL_8"])
        made = library.hll_sketch(
            chance.choice([8, 8, 8, 5, 9]), getattr(library.tgt_hll_type, type_)
        )
        first = chance.choice([0, 100, 5000])
        for number in range(first, first + count):
            made.update(number)
        found = made.serialize_compact() if chance.random() < 0.7 else made.serialize_updatable()
        pool.append("x:" + found.hex())
    return Column(name=name, type_="BYTES", pool=pool)


def _theta_sketch(chance: random.Random, name: str) -> Column:
    """Some are estimates; unions that Java has to cut are those of test_sets.py."""
    import datasketches as library

    pool: list[Value] = []
    for count in [0, 1, 2, 20, *chance.choices([30, 80, 500], k=3)]:
        made = library.update_theta_sketch(chance.choice([12, 6, 5]) if count < 100 else 5)
        first = chance.choice([0, 10, 5000])
        for number in range(first, first + count):
            made.update(number)
        pool.append("x:" + made.compact(chance.random() < 0.7).serialize().hex())
    return Column(name=name, type_="BYTES", pool=pool)


SPECIAL: dict[str, Callable[[random.Random, str], Column]] = {
    "collect": _collect,
    "merge_map": _merge_map,
    "merge_map_with_keytime": _timed_map,
    "nested_update": _nested,
    "nested_partial_update": partial(_nested, partial=True),
    "rbm32": _bitmap,
    "rbm64": _bitmap64,
}
# Drawn where the package of the extra `sketches` is there.
if find_spec("datasketches"):
    SPECIAL |= {"hll_sketch": _hll_sketch, "theta_sketch": _theta_sketch}


def _is_told_anew(column: Column) -> bool:
    """Whether Java 2.0.0 may tell an equal value as another one, depending on where it was read.

    It orders elements anew, and no list with a null equals another one, but itself.
    """
    return column.is_unordered or any(map(_has_null, column.pool))


def _has_null(value: Value) -> bool:
    return isinstance(value, list) and any(part is None or _has_null(part) for part in value)


class MergeHistory:
    """One table of random columns and options, and what is written to it, all from one seed."""

    def __init__(
        self, judge: Judge, path: Path, seed: int, options: Mapping[str, str] | None = None
    ) -> None:
        self.chance = chance = random.Random(seed)
        self.judge = judge
        engines = ["partial-update", "aggregation", "deduplicate"]
        self.engine = chance.choices(engines, [5, 5, 1])[0]
        self.options = {"bucket": "1", "merge-engine": self.engine, **(options or {})}
        self.engine = self.options["merge-engine"]
        self.looks_up = looks_up(self.options)
        self.retracts = True
        self.keys = [Column(name="k", type_="INT NOT NULL", pool=())]
        self.key_pool: list[tuple[Value, ...]] = [(n,) for n in range(chance.choice([2, 6, 15]))]
        if self.looks_up:
            self._keys()
        # Of these keys deletes can be ignored: Java 2.0.0 fails where nothing is left to merge.
        self.inserted: set[tuple[Value, ...]] = set()
        # Keys of which a record that has not expired waits for a compaction.
        self.renewed: set[str] = set()
        self.columns: list[Column] = []
        if self.engine == "partial-update":
            self._partial_update()
        elif self.engine == "aggregation":
            self._aggregation()
        else:
            self.columns = [value_column(chance, f"v{n}", grouped=False) for n in range(3)]
            if self.looks_up and not is_shadowed(self.options) and chance.random() < 0.3:
                self.options["ignore-delete"] = "true"
        if self.engine == "first-row":
            self.retracts = "ignore-delete" in self.options or chance.random() < 0.1
        if TIME_FIELD in self.options:
            type_, times = some_times(chance)
            self.columns.append(Column(name=self.options[TIME_FIELD], type_=type_, pool=times))
            # What was inserted may have expired (see `inserted`).
            self.options.pop("ignore-delete", None)
        chance.shuffle(self.columns)
        if self.engine == "first-row" or is_shadowed(self.options):
            pass
        elif chance.random() < 0.4:
            self._sequence_field()
        elif chance.random() < 0.3:
            self.options["sequence.snapshot-ordering"] = "true"
        for column in self.keys:
            self.columns.insert(chance.randrange(len(self.columns) + 1), column)
        for column in self.columns:
            self.options |= {f"fields.{column.name}.{k}": v for k, v in column.options.items()}
        trigger = str(chance.choice([2, 3, 5]))
        self.options.setdefault("num-sorted-run.compaction-trigger", trigger)
        if self.looks_up and any(map(_is_told_anew, self.columns)):
            self.options.pop("changelog-producer.row-deduplicate", None)
        self.table = LiveTable(
            judge=judge,
            path=path,
            columns=tuple((column.name, column.type_) for column in self.columns),
            primary_key=tuple(column.name for column in self.keys),
            options=self.options,
        ).create()

    def _keys(self) -> None:
        """Keys of other types or of several columns, and so many that levels differ in size."""
        chance = self.chance
        kinds = [chance.choice(KEY_KINDS) for _ in range(chance.choice([1, 1, 1, 2]))]
        pools = [[*range(200)] if kind == "int" else ATOMIC[kind][1] for kind in kinds]
        self.keys = [
            Column(name=name, type_=not_null(ATOMIC[kind][0]), pool=())
            for name, kind in zip("kj", kinds, strict=False)
        ]
        every = list(itertools.product(*pools))
        self.key_pool = chance.sample(every, min(len(every), chance.choice([2, 6, 15, 60, 200])))

    def _partial_update(self) -> None:
        chance = self.chance
        mode = chance.choice(["plain", "ignore", "remove", "groups", "groups", "groups"])
        if mode != "groups":
            self.columns = [
                value_column(chance, f"v{n}", grouped=False) for n in range(chance.randint(1, 6))
            ]
            if chance.random() < 0.3:
                self.columns.append(
                    Column(name="n", type_="BIGINT NOT NULL", pool=ATOMIC["bigint"][1])
                )
            if mode == "ignore":
                self.options["ignore-delete"] = "true"
            if mode == "remove":
                self.options["partial-update.remove-record-on-delete"] = "true"
            self.retracts = mode != "plain" or chance.random() < 0.1
            return
        fields: list[str] = []
        for number in range(chance.randint(1, 3)):
            sequence = [self._sequence_column(f"g{number}{part}") for part in "ab"]
            sequence = sequence[: chance.choice([1, 1, 2])]
            protected = [
                value_column(chance, f"v{number}{n}", grouped=chance.random() < 0.6)
                for n in range(chance.randint(1, 3))
            ]
            self._ignoring(protected)
            names = ",".join(column.name for column in sequence)
            self.options[f"fields.{names}.sequence-group"] = ",".join(c.name for c in protected)
            self.columns += [*sequence, *protected]
            fields.append(sequence[-1].name)
        self.columns += [
            value_column(chance, f"u{n}", grouped=False) for n in range(chance.randint(0, 2))
        ]
        if chance.random() < 0.3:
            removing = ",".join(chance.sample(fields, chance.randint(1, len(fields))))
            self.options["partial-update.remove-record-on-sequence-group"] = removing
        elif chance.random() < 0.2:
            self.options["ignore-delete"] = "true"

    def _sequence_column(self, name: str) -> Column:
        kind = self.chance.choice(SEQUENCE_KINDS)
        return Column(name=name, type_=ATOMIC[kind][0], pool=ATOMIC[kind][1][:4])

    def _aggregation(self) -> None:
        chance = self.chance
        removes = chance.random() < 0.25
        if removes:
            self.options["aggregation.remove-record-on-delete"] = "true"
        self.columns = [
            value_column(chance, f"v{n}", grouped=chance.random() < 0.9)
            for n in range(chance.randint(1, 7))
        ]
        if chance.random() < 0.3:
            self.options["fields.default-aggregate-function"] = chance.choice(ANY)
        if chance.random() < 0.4:
            self.retracts = False
        elif not removes:
            default = self.options.get("fields.default-aggregate-function")
            for column in self.columns:
                column.aggregator = column.aggregator or default
            self._ignoring(self.columns)

    def _ignoring(self, columns: Sequence[Column]) -> None:
        """Let aggregators without retract ignore them, mostly."""
        for column in columns:
            name = column.aggregator
            needs = name is not None and name not in RETRACTABLE
            if name is not None and self.chance.random() < (0.95 if needs else 0.1):
                column.options["ignore-retract"] = "true"
        for column in columns:
            if column.aggregator is not None:
                column.options["aggregate-function"] = column.aggregator

    def _sequence_field(self) -> None:
        columns = [self._sequence_column(f"s{n}") for n in range(self.chance.choice([1, 1, 2]))]
        self.options["sequence.field"] = ",".join(column.name for column in columns)
        self.options["sequence.field.sort-order"] = self.chance.choice(["ascending", "descending"])
        self.columns += columns

    def some_keys(self) -> list[tuple[Value, ...]]:
        chance, most = self.chance, len(self.key_pool)
        if self.looks_up and chance.random() < 0.7:
            # Few keys or neighbours: files that are small, and files without a rival.
            most = min(most, chance.choice([1, 2, 4]))
            start = chance.randrange(len(self.key_pool) - most + 1)
            return self.key_pool[start : start + most]
        return chance.sample(self.key_pool, chance.randint(1, most))

    def _value(self, column: Column, key: tuple[Value, ...]) -> Value:
        if column in self.keys:
            return key[self.keys.index(column)]
        is_required = isinstance(column.type_, str) and column.type_.endswith("NOT NULL")
        if not is_required and self.chance.random() < 0.3:
            return None
        return self.chance.choice(column.pool)

    def write(self) -> None:
        keys = self.some_keys()
        rows = [[self._value(column, key) for column in self.columns] for key in keys]
        kinds = ["+I", "+U"] if not self.retracts else KINDS
        weights = [6, 3] if not self.retracts else [6, 2, 3, 3]
        chosen = self.chance.choices(kinds, weights, k=len(rows))
        if self.looks_up and "ignore-delete" in self.options:
            chosen = [
                kind if key in self.inserted else "+I"
                for key, kind in zip(keys, chosen, strict=True)
            ]
            self.inserted |= {key for key, kind in zip(keys, chosen, strict=True) if kind in ADDS}
        ignores = self.options.get("ignore-delete", "false")
        # Writers drop retracts that the table ignores; those before 0.8 did not.
        self._alter("ignore-delete", "false")
        self.judge.write(self.table.path, rows, chosen)
        self._alter("ignore-delete", ignores)
        if TIME_FIELD in self.options:
            table = self.table
            self.renewed |= {key_of(table, row) for row in rows if not has_passed(table, row)}

    def _alter(self, key: str, value: str) -> None:
        """Change an option in place that no ALTER TABLE may change."""
        if key in self.options:
            path = self.table.path / "schema" / "schema-0"
            schema = json.loads(path.read_text())
            schema["options"][key] = value
            path.write_text(json.dumps(schema))

    def rounds(self) -> Iterator[bool]:
        """Write; whether to compact fully then, of each round."""
        for number in range(5 if self.looks_up else 3):
            self._forget_inserted()
            if "deletion-vectors.bitmap64" in self.options:
                # A vector keeps its kind.
                self._alter("deletion-vectors.bitmap64", self.chance.choice(["true", "false"]))
            # What is looked up is on levels that minor compactions made, of us and of Java. Only
            # Java's have expired records.
            times = [0, 1, 3] if TIME_FIELD in self.options else [0, 0, 1, 3]
            for _ in range(self.chance.choice(times) if self.looks_up and number else 0):
                self.write()
                # What cannot be merged is still there: neither can merge it.
                with contextlib.suppress(JudgeError):
                    self._java_compacts()
            for _ in range(self.chance.randint(1, 6)):
                self.write()
            yield self.chance.random() < (0.15 if self.looks_up else 0.5)
        if self.looks_up:
            yield True

    def _java_compacts(self) -> None:
        """By sizes that the table does not name, so that many levels have files."""
        options = {"compaction.size-ratio": "-90", "num-sorted-run.compaction-trigger": "9"}
        if TIME_FIELD in self.options:
            # Later, when we compact, time will have passed.
            options |= NOT_YET
        self.judge.compact(self.table.path, full=False, options=options)
        self._forget_inserted()
        self.renewed.clear()

    def _forget_inserted(self) -> None:
        """A first row is not merged with what is above; an ignored delete may be lifted alone."""
        if self.engine in ("first-row", "deduplicate"):
            self.inserted.clear()

    def unordered(self) -> set[str]:
        return {column.name for column in self.columns if column.is_unordered}


def compacted_alike(history: MergeHistory, *, full: bool) -> bool:
    """Compact the table, and a copy of it by Java: the outcome is the same.

    False: both refuse to merge.
    """
    table, unordered = history.table, history.unordered()
    twin = table.copy("java" + str(len(list(table.path.parent.iterdir()))))
    totals = compact(table.path, Strategy.FULL if full else Strategy.MINOR)
    assert not totals.dropped
    refusal = _refusal(twin, full=full)
    if not (refusal and _needless(refusal, table.options)):
        assert bool(totals.failures) == bool(refusal), f"ours {totals.failures}, Java's {refusal}"
    if refusal:
        return False
    assert_same_changes(table, twin, unordered)
    expires_above = TIME_FIELD in table.options and "deletion-vectors.enabled" in table.options
    if "deletion-vectors.enabled" in table.options:
        assert_same_vectors(table, twin, may_mark_more=expires_above)
    if not _by_size(table, twin, full=full):
        assert_same_records(table, twin, unordered)
        # Bounds of many small files say less than those of a large one: some are too long.
        if not unordered and "target-file-size" not in table.options:
            assert_same_files(table, twin)
    names = [name for name, _ in table.columns]
    places = {names.index(name) for name in unordered}
    rows = [_rows_read(each, places) for each in (table, twin)]
    if expires_above:
        assert_same_but_expired(table, rows[0], rows[1], history.renewed)
        history.renewed.clear()
    else:
        assert_same_rows(*rows)
    return True


def _needless(refusal: str, options: Mapping[str, str]) -> bool:
    """Whether Java fails at what becomes of a row that is dropped.

    It divides a first retract by itself, and retracts the columns before the sequence field whose
    delete removes the row.
    """
    removes = "partial-update.remove-record-on-sequence-group" in options
    return "Division undefined" in refusal or (removes and "does not support retraction" in refusal)


def _by_size(table: LiveTable, twin: LiveTable, *, full: bool) -> bool:
    """Whether different levels were picked after the first pick, by the sizes of its outputs.

    What is read and told does not depend on that where each level has all of a key.
    """
    return not full and looks_up(table.options) and set(table.levels()) != set(twin.levels())


def _refusal(table: LiveTable, *, full: bool) -> str | None:
    """What Java's compaction says when it cannot merge."""
    try:
        table.java_settle(full=full)
    except JudgeError as error:
        return str(error)
    return None


def _rows_read(table: LiveTable, unordered: set[int]) -> list[str]:
    """What Java reads; or that it cannot, as it merges what was not compacted."""
    try:
        rows = table.judge.read(table.path)
    except JudgeError as error:
        return [str(error)]
    return canonical(_sorted_places(row, unordered) for row in rows)


def _sorted_places(row: Row, places: set[int]) -> Row:
    return [
        sorted(value, key=json.dumps) if place in places and value is not None else value
        for place, value in enumerate(row)
    ]


def assert_same_records(ours: LiveTable, java: LiveTable, unordered: set[str]) -> None:
    """Per level: the same records, each with its kind and sequence number."""
    mine, theirs = stored_records(ours, unordered), stored_records(java, unordered)
    assert list(mine) == list(theirs)
    for level, records in mine.items():
        for record, other in zip(records, theirs[level], strict=True):
            assert record == other, f"level {level}: ours {record}, Java's {other}"


def assert_same_changes(ours: LiveTable, java: LiveTable, unordered: set[str]) -> None:
    """Per key: what Java's streaming reader is told from the first snapshot on."""
    mine, theirs = _changes(ours, unordered), _changes(java, unordered)
    assert mine.keys() == theirs.keys()
    for key, changes in mine.items():
        assert changes == theirs[key], f"key {key}: ours {changes}, Java's {theirs[key]}"


def _changes(table: LiveTable, unordered: set[str]) -> dict[str, list[str]]:
    if "changelog-producer" not in table.options:
        return {}
    names = [name for name, _ in table.columns]
    places = {names.index(name) for name in unordered}
    keys = [names.index(name) for name in table.primary_key]
    found: dict[str, list[str]] = {}
    for kind, row in table.judge.changes(table.path):
        text = repr((kind, _sorted_places(list(row), places)))
        told = found.setdefault(repr([row[place] for place in keys]), [])
        if unordered and kind == "+U" and told and told[-1] == text.replace("+U", "-U", 1):
            # The two differ in an order that is Java's hash map's at most.
            told.pop()
        else:
            told.append(text)
    return found


def producer_options(seed: int) -> dict[str, str]:
    """Options of a table whose full compactions write a changelog; minor ones are not forced."""
    chance = random.Random(f"changelog of {seed}")
    options = {"changelog-producer": "full-compaction", "full-compaction.delta-commits": "1000"}
    return options | changelog_options(chance)


def changelog_options(chance: random.Random) -> dict[str, str]:
    """What is told, and how its files are made."""
    options = {}
    if chance.random() < 0.6:
        options["changelog-producer.row-deduplicate"] = "true"
        if chance.random() < 0.4:
            options["changelog-producer.row-deduplicate-ignore-fields"] = "v0,v1"
    if chance.random() < 0.3:
        options |= {"changelog-file.compression": "lz4", "changelog-file.stats-mode": "full"}
    if chance.random() < 0.2:
        options |= {"changelog-file.prefix": "told-", "data-file.thin-mode": "true"}
    return options


def looks_up(options: Mapping[str, str]) -> bool:
    """Whether compactions look up what is above, in a table of these options."""
    return (
        options.get("changelog-producer") == "lookup"
        or options.get("merge-engine") == "first-row"
        or options.get("force-lookup") == "true"
        or "deletion-vectors.enabled" in options
    )


def is_shadowed(options: Mapping[str, str]) -> bool:
    """Whether Java 2.0.0 loses what is not on the lowest level that has a key.

    It takes that for the whole state of the key, but does not make it so. We merge all levels.
    """
    is_full = options.get("changelog-producer") == "full-compaction"
    return is_full and options.get("force-lookup") == "true"


def lookup_options(seed: int) -> dict[str, str]:
    """Options of a table that looks up: for its changelog, for the engine, or by force."""
    chance = random.Random(f"lookup of {seed}")
    options = {"num-levels": chance.choice(["2", "3", "6", "6"])}
    why = chance.choices(["lookup", "first-row", "force"], [6, 3, 2])[0]
    producer = "lookup" if why == "lookup" else "none"
    if why == "first-row":
        options["merge-engine"] = "first-row"
        producer = chance.choice(["none", "lookup"])
    if why == "force":
        options["force-lookup"] = "true"
        producer = chance.choice(["none", "input", "full-compaction"])
    if producer in ("lookup", "full-compaction"):
        options |= changelog_options(chance)
    if producer == "full-compaction":
        options["merge-engine"] = "deduplicate"
        options["full-compaction.delta-commits"] = "1000"
    if producer != "none":
        options["changelog-producer"] = producer
    if chance.random() < 0.3:
        options["target-file-size"] = "2 kb"
    return options


def vector_options(seed: int) -> dict[str, str]:
    """Options of a table with deletion vectors."""
    chance = random.Random(f"vectors of {seed}")
    options = VECTORS | {"num-levels": chance.choice(["2", "3", "6", "6", "6"])}
    if chance.random() < 0.8:
        # Files of like sizes stay on levels of their own, and rows above are marked.
        options |= {"compaction.size-ratio": "-90", "num-sorted-run.compaction-trigger": "9"}
    if chance.random() < 0.4:
        options["merge-engine"] = "deduplicate"
    options["deletion-vectors.bitmap64"] = chance.choice(["true", "false"])
    producer = chance.choice(["none", "input", "lookup"])
    if producer == "lookup":
        options |= changelog_options(chance)
    if producer != "none":
        options["changelog-producer"] = producer
    if chance.random() < 0.3:
        options["target-file-size"] = "2 kb"
    if chance.random() < 0.3:
        options["bucket"] = "-1"
    return options


def expiring_options(seed: int) -> dict[str, str]:
    """Options of a table whose records expire, on levels above, too: mostly with vectors."""
    chance = random.Random(f"expiry of {seed}")
    return chance.choice([vector_options, vector_options, lookup_options])(seed) | EXPIRING


def stored_records(table: LiveTable, unordered: set[str]) -> dict[int, list[str]]:
    """By level the records of its files as text, in an order of their own."""
    levels: dict[int, list[str]] = {}
    for file in sorted(table.files(), key=lambda file: int(file["level"])):
        path = table.path / f"bucket-{file['bucket']}" / file["file_name"]
        rows = _readable(pq.ParquetFile(path).read()).to_pylist()
        for row in rows:
            for name in unordered:
                if row[name] is not None:
                    row[name] = sorted(map(repr, row[name]))
        levels.setdefault(file["level"], []).extend(map(repr, rows))
    return {level: sorted(records) for level, records in levels.items()}


def _readable(table: pa.Table) -> pa.Table:
    """With numbers in place of times, for some of which Python has no type."""
    fields = [column.with_type(_numbers(column.type)) for column in table.schema]
    return table.cast(pa.schema(fields))


def _numbers(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    if pa.types.is_map(type_):
        return pa.map_(
            type_.key_field.with_type(_numbers(type_.key_type)),
            type_.item_field.with_type(_numbers(type_.item_type)),
        )
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_numbers(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_numbers(field.type)) for field in type_])
    return type_


def run_history(
    judge: Judge, path: Path, seed: int, options: Mapping[str, str] | None = None
) -> None:
    """Write, compact and compare a few times; ends early when both refuse to merge."""
    history = MergeHistory(judge, path, seed, options)
    try:
        for full in history.rounds():
            if not compacted_alike(history, full=full):
                return
    except AssertionError as error:
        raise AssertionError(
            f"seed {seed}, {history.table.columns} {history.options}: {error}"
        ) from error
