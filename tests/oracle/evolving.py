"""Random tables that are altered between commits: all that Java's ALTER TABLE does to columns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compactord.paimon.types import (
    BINARIES,
    INTEGERS,
    MOMENTS,
    TEXTS,
    AtomicType,
    DataType,
    TypeRoot,
    parse_type,
)
from compactord.rewrite.casting.rules import why_not_castable
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row, TypeName, Value
from tests.oracle.samples import ATOMIC, EVERY_TYPE, not_null

_KEYS = ("int", "bigint", "varchar", "decimal-9", "timestamp-6", "boolean", "date", "bytes")
_NESTED_CHANGES = ("add", "rename", "drop", "type")


@dataclass
class Column:
    """A column as it is now. `types` are all that its values were written with."""

    name: str
    type: TypeName
    pool: list[Value]
    types: list[DataType] = field(default_factory=list)
    is_key: bool = False
    is_partition: bool = False


class EvolvingTable:
    """A table of Java's from a seed; `step` writes or alters it."""

    def __init__(self, judge: Judge, path: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.judge = judge
        self.names = 0
        self.steps: list[str] = []
        self.columns = [
            *(self._partition(kind) for kind in self.chance.choice([[], [], ["int"]])),
            *(self._key(kind) for kind in self.chance.sample(_KEYS, self.chance.choice([1, 1, 2]))),
            *(self._value(kind) for kind in self.chance.sample(list(EVERY_TYPE), 4)),
        ]
        self.has_key = self.chance.random() < 0.7
        self.live = LiveTable(
            judge=judge,
            path=path,
            columns=self._column_types(),
            primary_key=self._key_names() if self.has_key else (),
            partition_by=tuple(c.name for c in self.columns if c.is_partition),
            options=self._options(),
        ).create()

    def table(self, path: Path | None = None) -> LiveTable:
        """The table, or a copy of it, with the columns as they are now."""
        return replace(
            self.live,
            path=path or self.live.path,
            columns=self._column_types(),
            primary_key=self._key_names() if self.has_key else (),
        )

    def step(self) -> None:
        if self.chance.random() < 0.5:
            self.write()
        else:
            self.alter()

    def write(self) -> None:
        rows: dict[str, Row] = {}
        for _ in range(self.chance.choice([1, 6, 30])):
            row = [self._cell(column) for column in self.columns]
            key = [v for v, c in zip(row, self.columns, strict=True) if c.is_key or c.is_partition]
            rows[str(key)] = row
        kinds = None
        if self.has_key:
            kinds = [self.chance.choice(["+I", "+U", "-D", "+I"]) for _ in rows]
        self.steps.append(f"write {len(rows)}")
        self.judge.write(self.live.path, list(rows.values()), kinds)

    def alter(self) -> None:
        change = self.chance.choice(
            [self._add, self._drop, self._rename, self._move, self._retype, self._inside]
        )()
        if change is not None:
            self.steps.append(str(change))
            self.judge.alter(self.live.path, change)

    def _cell(self, column: Column) -> Value:
        is_fixed = column.is_key or column.is_partition
        if not is_fixed and self.chance.random() < 0.2:
            return None
        return self.chance.choice(column.pool)

    def _column_types(self) -> tuple[tuple[str, TypeName], ...]:
        return tuple((column.name, column.type) for column in self.columns)

    def _key_names(self) -> tuple[str, ...]:
        return tuple(c.name for c in self.columns if c.is_key or c.is_partition)

    def _options(self) -> dict[str, str]:
        chance = self.chance
        options = {
            "bucket": str(chance.choice([1, 1, 2])),
            "file.compression": chance.choice(["zstd", "none"]),
            "metadata.stats-mode": chance.choice(["truncate(16)", "full", "none"]),
            "num-sorted-run.compaction-trigger": str(chance.choice([2, 3, 5])),
            # Or columns of bytes may not become narrower texts.
            "disable-explicit-type-casting": "false",
            "alter-column-null-to-not-null.disabled": "false",
        }
        if self.has_key:
            options["data-file.thin-mode"] = chance.choice(["true", "false"])
        elif chance.random() < 0.5:
            options["bucket"] = "-1"
        else:
            options["bucket-key"] = next(c.name for c in self.columns if c.is_key)
        return options

    def _new_name(self) -> str:
        self.names += 1
        return f"c{self.names}"

    def _key(self, kind: str) -> Column:
        type_, pool = ATOMIC[kind]
        return Column(self._new_name(), not_null(type_), pool, is_key=True)

    def _partition(self, kind: str) -> Column:
        type_, _ = ATOMIC[kind]
        return Column(self._new_name(), not_null(type_), [1, 2], is_partition=True)

    def _value(self, kind: str) -> Column:
        type_, pool = EVERY_TYPE[kind]
        return Column(self._new_name(), type_, pool, [parsed(type_)])

    def _values(self) -> list[Column]:
        return [c for c in self.columns if not c.is_key and not c.is_partition]

    def _add(self) -> dict[str, Any] | None:
        # A dropped column's name may come back as another column.
        column = self._value(self.chance.choice(list(EVERY_TYPE)))
        if self.chance.random() < 0.3:
            free = {f"c{n + 1}" for n in range(self.names)} - {c.name for c in self.columns}
            column.name = self.chance.choice(sorted(free))
        place = self.chance.randrange(len(self.columns) + 1)
        self.columns.insert(place, column)
        change: dict[str, Any] = {"change": "add", "column": [column.name], "type": column.type}
        if place == 0:
            return change | {"first": True}
        return change | {"after": self.columns[place - 1].name}

    def _drop(self) -> dict[str, Any] | None:
        values = self._values()
        if len(values) < 2:
            return None
        column = self.chance.choice(values)
        self.columns.remove(column)
        return {"change": "drop", "column": [column.name]}

    def _rename(self) -> dict[str, Any] | None:
        # Without a primary key the key columns are those of the buckets, which keep their names.
        can = [c for c in self.columns if not c.is_partition and (self.has_key or not c.is_key)]
        column = self.chance.choice(can)
        old, column.name = column.name, self._new_name()
        return {"change": "rename", "column": [old], "to": column.name}

    def _move(self) -> dict[str, Any] | None:
        column = self.chance.choice(self.columns)
        before = self.columns.index(column)
        place = self.chance.randrange(len(self.columns))
        if place == before:
            return None
        self.columns.remove(column)
        self.columns.insert(place, column)
        if place == 0:
            return {"change": "move_first", "column": [column.name]}
        after = self.columns[place - 1].name
        return {"change": "move_after", "column": [column.name], "after": after}

    def _retype(self) -> dict[str, Any] | None:
        column = self.chance.choice(self._values())
        found = self._target(column.types)
        if found is None:
            return None
        type_, column.pool = EVERY_TYPE[found]
        column.type = type_
        column.types.append(parsed(type_))
        return {"change": "type", "column": [column.name], "type": type_}

    def _target(self, types: list[DataType]) -> str | None:
        """A kind of type to which values of all these types can be cast."""
        targets = {kind: parsed(type_) for kind, (type_, _) in ATOMIC.items()}
        able = [
            kind
            for kind, target in targets.items()
            if target != types[-1] and all(never_fails(old, target) for old in types)
        ]
        return self.chance.choice(able) if able else None

    def _inside(self) -> dict[str, Any] | None:
        """A change of a field of a ROW, of the elements of an array or the values of a map."""
        nested = [c for c in self._values() if isinstance(c.type, dict)]
        if not nested:
            return None
        column = self.chance.choice(nested)
        change, type_, renew = self._change_of(column.type)
        if change is None:
            return None
        column.type = type_
        column.pool = [renew(value) for value in column.pool]
        # No further change of the column as a whole.
        return {**change, "column": [column.name, *change["column"]]}

    def _change_of(self, type_: Any) -> tuple[dict[str, Any] | None, Any, Callable[[Value], Value]]:
        """The change, the type after it, and how a value of the old type becomes one of it."""
        match type_:
            case {"type": "ROW", "fields": fields}:
                return self._change_of_row(type_, fields)
            case {"type": "ARRAY", "element": "INT"}:
                change = {"change": "type", "column": ["element"], "type": "BIGINT"}
                return change, {**type_, "element": "BIGINT"}, lambda value: value
            case {"type": "ARRAY", "element": {"type": "ROW"} as element}:
                change, inner, renew = self._change_of(element)
                if change is None:
                    return None, type_, _same
                change["column"] = ["element", *change["column"]]
                return (
                    change,
                    {**type_, "element": inner},
                    lambda values: [None if v is None else renew(v) for v in values],
                )
            case {"type": "MAP", "value": "BIGINT"}:
                change = {"change": "type", "column": ["value"], "type": "STRING"}
                return (
                    change,
                    {**type_, "value": "STRING"},
                    lambda pairs: [[k, None if v is None else str(v)] for k, v in pairs],
                )
        return None, type_, _same

    def _change_of_row(
        self, type_: Any, fields: list[Any]
    ) -> tuple[dict[str, Any] | None, Any, Callable[[Value], Value]]:
        what = self.chance.choice(_NESTED_CHANGES)
        place = self.chance.randrange(len(fields))
        old = fields[place]["name"]
        match what:
            case "add":
                name = self._new_name()
                grown = [*fields, {"name": name, "type": "STRING"}]
                change = {"change": "add", "column": [name], "type": "STRING"}
                return change, {**type_, "fields": grown}, lambda value: [*value, "new"]
            case "rename":
                name = self._new_name()
                named = [*fields]
                named[place] = {**fields[place], "name": name}
                change = {"change": "rename", "column": [old], "to": name}
                return change, {**type_, "fields": named}, _same
            case "drop" if len(fields) > 1:
                kept = fields[:place] + fields[place + 1 :]
                change = {"change": "drop", "column": [old]}
                return (
                    change,
                    {**type_, "fields": kept},
                    lambda value: value[:place] + value[place + 1 :],
                )
            case "type" if fields[place]["type"] == "INT":
                widened = [*fields]
                widened[place] = {**fields[place], "type": "BIGINT"}
                change = {"change": "type", "column": [old], "type": "BIGINT"}
                return change, {**type_, "fields": widened}, _same
        return None, type_, _same


def _same(value: Value) -> Value:
    return value


def parsed(type_: TypeName) -> DataType:
    """A column's type; of nested ones only what it is."""
    return parse_type(type_) if isinstance(type_, str) else parse_type("VARIANT")


def never_fails(source: DataType, target: DataType) -> bool:
    """Whether no sample of the source's type fails to be cast, and none is cast in another way."""
    assert isinstance(target, AtomicType)
    if not isinstance(source, AtomicType) or why_not_castable(source, target) is not None:
        return source == target
    root = source.root
    if root in TEXTS:
        return target.root in TEXTS or target.root in BINARIES
    if target.root is TypeRoot.DECIMAL:
        return root is TypeRoot.BOOLEAN  # no NaN, and no overflow: Java fails on its own null
    if root in BINARIES and target.root in TEXTS:
        return False  # bytes that are not UTF-8 have other statistics in Java
    if root is TypeRoot.DATE:
        return False  # years that are printed as garbage or are beyond TIMESTAMP(6)
    if root is TypeRoot.TIMESTAMP and target.root is TypeRoot.DATE:
        return False  # we give the right day
    if target.root in MOMENTS:
        # Numbers do not all fit more digits.
        return root not in INTEGERS or (target.precision or 0) <= 3
    return True
