"""Tables that older releases of Java Paimon wrote, and go on writing while we compact them.

After each of our compactions the release that wrote a table and release 2.0.0 read the same rows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from compactord.paimon.snapshot import latest_snapshot_id, read_snapshot
from compactord.plan.table import Strategy
from compactord.storage.local import LocalStorage
from tests.oracle.differential import (
    LiveTable,
    assert_exact_sizes,
    assert_same_rows,
    canonical,
    compact,
    folder_digest,
)
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import TypeName, Value
from tests.oracle.releases.release import Release
from tests.oracle.samples import EVERY_TYPE


@dataclass(frozen=True, kw_only=True)
class Shape:
    columns: tuple[tuple[str, TypeName], ...]
    primary_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)


_COLUMNS = (
    ("p", "STRING NOT NULL"),
    ("d", "DATE NOT NULL"),
    ("k", "BIGINT NOT NULL"),
    ("n", "BIGINT"),
    ("v", "STRING"),
    ("a", "DECIMAL(20, 2)"),
)
SHAPES = {
    "primary-key": Shape(columns=_COLUMNS, primary_key=("p", "d", "k"), options={"bucket": "2"}),
    "partitioned": Shape(
        columns=_COLUMNS,
        primary_key=("d", "p", "k"),
        partition_by=("p", "d"),
        options={"bucket": "1", "changelog-producer": "input", "sequence.field": "n"},
    ),
    "append": Shape(columns=_COLUMNS, partition_by=("d",), options={"bucket": "-1"}),
    "bucketed-append": Shape(columns=_COLUMNS, options={"bucket": "2", "bucket-key": "k"}),
}


class History:
    """A table that a release writes, with the rows that it must hold."""

    def __init__(self, release: Release, judge: Judge, path: Path, shape: Shape) -> None:
        self.release = release
        self._chance, self._commits = random.Random(1), count()
        self.table = LiveTable(
            judge=judge,
            path=path,
            columns=shape.columns,
            primary_key=shape.primary_key,
            partition_by=shape.partition_by,
            options=shape.options,
        )
        release.create_table(
            path,
            shape.columns,
            primary_key=shape.primary_key,
            partition_by=shape.partition_by,
            options={"file.format": "parquet", "write-only": "true", **shape.options},
        )

    def write(self, rows: Sequence[Sequence[Any]], kinds: Sequence[str] | None = None) -> None:
        self.release.write(self.table.path, rows, kinds)
        self.table.apply(rows, kinds)

    def write_rows(self, commits: int) -> None:
        """Commits of rows of `_COLUMNS`; with a primary key they overlap, and some are deletes."""
        for commit in range(commits):
            self._write_some(commit)

    def _write_some(self, commit: int) -> None:
        chance, number = self._chance, next(self._commits)
        rows = {}
        for _ in range(20):
            row = [
                chance.choice(["x", "a b/c", "é"]),
                chance.choice([0, 19_000]),
                chance.randrange(15),
                number,
                chance.choice([None, "", "v", "long " * 40]),
                chance.choice([None, "-0.01", "123456789012345678.90"]),
            ]
            rows[self.table.key(row) if self.table.primary_key else len(rows)] = row
        kinds = None
        if self.table.primary_key:
            kinds = [chance.choice(["+I", "+U", "+I", "-D"]) for _ in rows]
        self.write(list(rows.values()), kinds)

    def compact(self, strategy: Strategy) -> None:
        """We compact, and both read what was written."""
        assert self.table.settle(strategy).snapshots
        self.check()
        assert_exact_sizes(self.table)

    def compact_by_the_release(self) -> None:
        if not self.table.partition_by:
            self.release.compact(self.table.path, buckets=int(self.table.options["bucket"]))
        self.check()

    def check(self) -> None:
        self.table.check()
        assert_same_rows(canonical(self.release.read(self.table.path)), self.table.expected())


@pytest.mark.parametrize("shape", SHAPES)
def test_a_release_reads_and_writes_on_what_we_compact(
    release: Release, judge: Judge, tmp_path: Path, shape: str
) -> None:
    history = History(release, judge, tmp_path / "db.db" / "t", SHAPES[shape])
    history.write_rows(3)
    history.compact_by_the_release()
    history.write_rows(6)
    history.compact(Strategy.MINOR)
    history.write_rows(2)
    history.compact(Strategy.FULL)
    history.write_rows(1)
    history.compact_by_the_release()
    history.write_rows(1)
    history.compact(Strategy.FULL)


# What a release itself reads otherwise than it was written, or fails to read or write.
_MISREAD = {
    "0.8.2": {"array-of-arrays", "array-of-times", "map", "map-of-ints"},
    "0.9.0": set(),
}
_NANOSECONDS = {"timestamp-9", "local-timestamp-9"}
_NANOSECONDS_INSIDE = {"array-of-nanoseconds", "map-of-nanoseconds", "row-of-required"}
_MISREAD_BEFORE_1_0 = {
    "array-not-null",
    "array-of-rows",
    "row",
    "row-of-required",
    "row-of-decimals",
}


def _misread(version: str) -> set[str]:
    kinds = set() if version == "1.3.1" else set(_NANOSECONDS_INSIDE)
    if version in _MISREAD:
        kinds |= _MISREAD[version] | _MISREAD_BEFORE_1_0
    return kinds


def _types(version: str) -> dict[str, tuple[TypeName, list[Value]]]:
    """Types with values that this release itself writes and reads back."""
    types = dict(EVERY_TYPE)
    for kind, (type_, pool) in EVERY_TYPE.items():
        if version != "1.3.1" and kind in _NANOSECONDS:
            # Nanoseconds before 1970 are written, but reading them fails.
            types[kind] = type_, [value for value in pool if int(value.partition(":")[0]) >= 0]
        elif kind in _misread(version):
            del types[kind]
        elif version == "0.8.2" and kind == "array":
            types[kind] = type_, [value for value in pool if value]
    return types


def test_values_of_every_type_survive(release: Release, judge: Judge, tmp_path: Path) -> None:
    types = _types(release.version)
    columns = [(f"c-{kind}", _with_ids(type_)) for kind, (type_, _) in types.items()]
    for key in (True, False):
        shape = Shape(
            columns=(("id", "INT NOT NULL"), *columns),
            primary_key=("id",) if key else (),
            options={"bucket": "1", "bucket-key": "id"},
        )
        history = History(release, judge, tmp_path / "db.db" / f"t{key}", shape)
        chance = random.Random(2)
        for commit in range(6):
            history.write(
                [
                    [
                        5 * commit + number,
                        *(
                            None if chance.random() < 0.1 else chance.choice(p)
                            for _, p in types.values()
                        ),
                    ]
                    for number in range(20)
                ]
            )
        history.check()
        history.compact(Strategy.FULL)


def _with_ids(type_: Any) -> Any:
    """Releases before 1.1 want an id in every field of a ROW, and then give it another one."""
    if not isinstance(type_, dict):
        return type_
    inside = {name: _with_ids(type_[name]) for name in ("element", "key", "value") if name in type_}
    if "fields" in type_:
        inside["fields"] = [
            {**f, "id": 100 + number, "type": _with_ids(f["type"])}
            for number, f in enumerate(type_["fields"])
        ]
    return {**type_, **inside}


def test_snapshots_carry_on_what_the_release_did_not_know(
    release: Release, judge: Judge, tmp_path: Path
) -> None:
    history = History(release, judge, tmp_path / "db.db" / "t", SHAPES["primary-key"])
    history.write_rows(2)
    location = str(history.table.path)
    storage = LocalStorage()
    newest = latest_snapshot_id(storage, location)
    assert newest is not None
    before = read_snapshot(storage, location, newest)
    history.compact(Strategy.FULL)
    after = read_snapshot(storage, location, newest + 1)
    assert after.version == before.version
    assert (before.delta_manifest_list_size is None) == (release.version < "1.1")
    assert (before.next_row_id is None) == (release.version < "1.3")
    assert after.next_row_id == 0
    assert after.delta_manifest_list_size is not None


@pytest.mark.parametrize("release", ["0.8.2"], indirect=True)
def test_maps_of_0_8_fail_their_bucket(release: Release, judge: Judge, tmp_path: Path) -> None:
    columns: list[tuple[str, TypeName]] = [
        ("p", "INT NOT NULL"),
        ("k", "INT NOT NULL"),
        ("m", {"type": "MAP", "key": "STRING NOT NULL", "value": "INT"}),
    ]
    shape = Shape(columns=tuple(columns), primary_key=("p", "k"), options={"bucket": "1"})
    history = History(release, judge, tmp_path / "db.db" / "maps", shape)
    for commit in range(3):
        history.write([[0, commit, [["a", 1]]], [0, 9, None]])
    before = folder_digest(history.table.path)
    totals = compact(history.table.path, Strategy.FULL)
    assert not totals.snapshots
    [failure] = totals.failures
    assert failure.startswith("bucket 0: MAP m has keys that are declared optional, as Paimon 0.8")
    assert folder_digest(history.table.path) == before


@pytest.mark.parametrize("release", ["0.8.2"], indirect=True)
def test_tables_of_0_8_without_a_format_have_orc_files(
    release: Release, judge: Judge, tmp_path: Path
) -> None:
    path = tmp_path / "db.db" / "orc"
    columns = (("k", "INT NOT NULL"), ("v", "STRING"))
    release.create_table(path, list(columns), primary_key=["k"], options={"bucket": "1"})
    for commit in range(6):
        release.write(path, [[key, f"v{commit}"] for key in range(commit, 10)])
    before, theirs = judge.read(path), release.read(path)
    assert compact(path, Strategy.FULL).snapshots
    (file,) = judge.files(path)
    assert file["file_name"].endswith(".orc")
    assert judge.read(path) == before
    assert release.read(path) == theirs
