"""The same table compacted by compactord and by Java: what must be equal, and what may differ.

Everything that may differ is named here, with its reason, and nowhere else.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from compactord import ids
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.clock import SystemClock
from compactord.model import Compaction, PickRule
from compactord.plan.table import Strategy
from compactord.service.one_shot import OneShot
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from compactord.table.jobs import CompactTotals, InFlight
from compactord.table.opening import OpenTable
from compactord.table.planning import CompactRequest
from compactord.table.subcompactions import WorkerSpec
from tests.inline_engine import InlineEngine
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row, TypeName, Value

# Facts of a file that only whoever wrote it decides. An upgraded file keeps all of them.
FILE_DIFFERENCES = {
    "file_name": "names are chosen by who writes",
    "file_size": "Arrow and parquet-mr encode pages in their own ways",
    "creation_time": "the two compactions happen one after the other",
}
# Facts of a snapshot that say who committed, when, and where its metadata lies.
SNAPSHOT_DIFFERENCES = {
    "uuid": "random",
    "id": "Java may need another number of commits for the same work",
    "commitUser": "random",
    "commitIdentifier": "Java's batch commits all use Long.MAX_VALUE, ours count from 1",
    "timeMillis": "the two commits happen one after the other",
    "baseManifestList": "names are random",
    "deltaManifestList": "names are random",
    "baseManifestListSize": "Avro schemas are spelled in another way; compared with the file",
    "deltaManifestListSize": "Avro schemas are spelled in another way; compared with the file",
    # Files that only ever lived between two commits of one side are in no delta of the other.
    "deltaRecordCount": "follows the number of commits; checked against the delta's entries",
}
# Outputs roll by estimates of encoded size, which differ: a level is compared as a whole when
# either side has more than one file in it.
MERGED_BY_LEVEL = "file boundaries inside a level follow each writer's size estimate"
# Java packs append files in the order of a hash set where sizes are equal, and ours by name.
UNAWARE_SEQUENCES = (
    "sequence numbers of a table without buckets start at that of the first input, "
    "and which one comes first is chance in Java"
)
# Java restarts the counter in every output of one append rewrite, ours goes on.
ORDERED_SEQUENCES = "several outputs of one bucketed append rewrite have disjoint sequence ranges"


# Values that are their own canonical form.
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


AnyTable = TypeVar("AnyTable", bound="LiveTable")


@dataclass(kw_only=True)
class LiveTable:
    """A table on disk that Java made, and the rows that it must hold.

    `model` maps keys to rows for tables with a primary key that keep the last record; `appended`
    are the rows of other tables.
    """

    judge: Judge
    path: Path
    columns: tuple[tuple[str, TypeName], ...]
    primary_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    model: dict[str, Row] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)

    def create(self) -> LiveTable:
        self.judge.create_table(
            self.path,
            self.columns,
            primary_key=self.primary_key,
            partition_by=self.partition_by,
            options={"write-only": "true", **self.options},
        )
        return self

    def write(
        self,
        rows: Sequence[Row],
        kinds: Sequence[str] | None = None,
        *,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Java commits the rows; the model follows the deduplicate rule without sequence fields."""
        self.judge.write(self.path, rows, kinds, options=options)
        self.apply(rows, kinds)

    def apply(self, rows: Sequence[Row], kinds: Sequence[str] | None = None) -> None:
        if not self.primary_key:
            self.appended += rows
            return
        for position, row in enumerate(rows):
            kind = "+I" if kinds is None else kinds[position]
            if kind in ("+I", "+U"):
                self.model[self.key(row)] = row
            else:
                self.model.pop(self.key(row), None)

    def key(self, row: Row) -> str:
        names = [name for name, _ in self.columns]
        return json.dumps([row[names.index(name)] for name in self.primary_key])

    def expected(self) -> list[str]:
        rows = self.model.values() if self.primary_key else self.appended
        return canonical(rows)

    def check(self) -> None:
        """Java reads exactly the rows of the model."""
        assert_same_rows(canonical(self.judge.read(self.path)), self.expected())

    def copy(self: AnyTable, name: str) -> AnyTable:
        """A twin with the same bytes and a model of its own."""
        twin = self.path.with_name(name)
        shutil.copytree(self.path, twin)
        return replace(self, path=twin, model=dict(self.model), appended=list(self.appended))

    def files(self) -> list[dict[str, Any]]:
        return self.judge.files(self.path)

    def levels(self) -> list[tuple[int, int]]:
        """(bucket, level) of every live file."""
        return sorted((file["bucket"], file["level"]) for file in self.files())

    def column_type(self, name: str) -> TypeName:
        return dict(self.columns)[name]

    def java_settle(self, *, full: bool, options: Mapping[str, str] | None = None) -> int:
        """Java's compaction until it finds nothing to do; the number of commits."""
        for commits in range(20):
            if self.judge.compact(self.path, full=full, options=options) is None:
                return commits
        raise AssertionError("Java's compaction does not come to an end")

    def settle(
        self, strategy: Strategy = Strategy.MINOR, overrides: Mapping[str, str] | None = None
    ) -> CompactTotals:
        """Our compaction, which must neither fail nor drop anything."""
        totals = compact(self.path, strategy, overrides=overrides)
        assert not totals.failures
        assert not totals.dropped
        assert not totals.lost_snapshots
        return totals


def assert_same_rows(found: Sequence[str], wanted: Sequence[str]) -> None:
    """Both in canonical form; says which rows are too many and which are missing."""
    extra, missing = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
    assert not extra, f"rows too many: {_shown(extra)}, missing: {_shown(missing)}"
    assert not missing, f"rows missing: {_shown(missing)}"


def _assert_equal_rows(found: Iterable[Row], wanted: Iterable[Row], what: object) -> None:
    try:
        assert_same_rows(canonical(found), canonical(wanted))
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error


def _shown(rows: Counter[str]) -> str:
    return "; ".join(row[:300] for row in list(rows.elements())[:5])


def canonical(rows: Iterable[Row]) -> list[str]:
    """Rows as texts in an order of their own: values of one column need not be comparable."""
    return sorted(json.dumps(_canonical_value(list(row))) for row in rows)


def _canonical_value(value: Value) -> Value:
    # 1.0 and 1 are one value of a FLOAT column.
    if isinstance(value, float) and value == int(value) and abs(value) < 2**53:
        return int(value)
    if isinstance(value, (list, tuple)):
        # Most values are none of these, and there are millions of them.
        return [v if type(v) in _AS_THEY_ARE else _canonical_value(v) for v in value]
    return value


class _Silent:
    """Hears of the progress of a run and says nothing."""

    def planned(self, table: OpenTable, compaction: Compaction) -> None:
        pass

    def finished(self, in_flight: InFlight) -> None:
        pass

    def committed(self, snapshot_id: int) -> None:
        pass

    def waiting(self, wait_ms: int) -> None:
        pass


def compact(
    path: Path,
    strategy: Strategy = Strategy.MINOR,
    *,
    overrides: Mapping[str, str] | None = None,
    partitions: Sequence[Mapping[str, str]] = (),
    quiet_for_ms: int = 0,
    pick: PickRule = PickRule.RELEASE_2_0,
    storage: Storage | None = None,
    branch: str = "main",
) -> CompactTotals:
    """A one-shot run of compactord in this process, on `<warehouse>/<database>.db/<name>`.

    It picks as the judge does, unless told otherwise. `storage` is what its driver sees of the
    local files.
    """
    storage, clock = storage or LocalStorage(), SystemClock()
    catalog = FilesystemCatalog(storage, str(path.parent.parent))
    name = f"{path.parent.name.removesuffix('.db')}.{path.name}$branch_{branch}"
    run = OneShot(
        catalog.open(catalog.find_table(name)),
        CompactRequest(
            strategy=strategy,
            overrides=overrides or {},
            partitions=tuple(partitions),
            quiet_for_ms=quiet_for_ms,
            pick=pick,
        ),
        start_engine=InlineEngine,
        clock=clock,
        worker=WorkerSpec(owner=ids.this_process(), memory_bytes=512 << 20, zone=clock.time_zone),
        progress=_Silent(),
        stop=threading.Event(),
    )
    return run.run()


def folder_digest(path: Path) -> dict[str, str]:
    """Every file below `path` with a hash of its bytes."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def assert_same_outcome(ours: LiveTable, java: LiveTable) -> None:
    """Rows, files and snapshot are those of Java's compaction but for the allowed differences."""
    ours.check()
    java.check()
    assert_same_files(ours, java)
    assert_same_snapshot(ours, java)


def assert_same_files(ours: LiveTable, java: LiveTable) -> None:
    """Per bucket and level: keys, counts, sequence numbers and statistics agree."""
    mine, theirs = _by_level(ours), _by_level(java)
    _assert_equal(
        {place: len(files) > 0 for place, files in mine.items()},
        dict.fromkeys(theirs, True),
        "levels",
    )
    for place, files in mine.items():
        others = theirs[place]
        if len(files) == len(others) == 1:
            allowed = _allowed(ours, files[0], others[0])
            _assert_equal(_without(files[0], allowed), _without(others[0], allowed), place)
        elif {file["file_name"] for file in files} == {file["file_name"] for file in others}:
            for file, other in zip(_sorted_by_name(files), _sorted_by_name(others), strict=True):
                _assert_equal(file, other, place)
        else:
            _assert_equal(merged(ours, files), merged(ours, others), place)


def _assert_equal(mine: Mapping[Any, Any], theirs: Mapping[Any, Any], what: object) -> None:
    """Names what differs: pytest explains no assertion outside of test modules."""
    different = {
        key: (mine.get(key, "absent"), theirs.get(key, "absent"))
        for key in mine.keys() | theirs.keys()
        if mine.get(key, "absent") != theirs.get(key, "absent")
    }
    assert not different, f"{what}: (ours, Java's) {different}"


def assert_filters(
    table: LiveTable, samples: Mapping[str, tuple[TypeName, Sequence[Value]]]
) -> None:
    """Java prunes files by our statistics and still finds every row that a filter asks for.

    Asked of every column of `samples`, which are types and all values; only that column is read.
    """
    names = [name for name, _ in table.columns]
    rows = list(table.model.values()) if table.primary_key else table.appended
    for name, (type_, pool) in samples.items():
        held = [row[names.index(name)] for row in rows]

        def ask(name: str, op: str, value: Value, wanted: Iterable[Value]) -> None:
            found = table.judge.read(table.path, columns=[name], filter=[(name, op, value)])
            _assert_equal_rows(found, [(value,) for value in wanted], (name, op, value))

        ask(name, "is_null", None, [value for value in held if value is None])
        if not isinstance(type_, str):
            continue
        order = table.judge.algorithms.sort_rows([type_], [(value,) for value in pool])
        ranks = {str(pool[position]): rank for rank, position in enumerate(order)}
        known = [value for value in held if value is not None]
        for value in (pool[0], pool[len(pool) // 2]):
            rank = ranks[str(value)]
            ask(name, "equal", value, [item for item in known if ranks[str(item)] == rank])
            ask(name, "lt", value, [item for item in known if ranks[str(item)] < rank])
            ask(name, "ge", value, [item for item in known if ranks[str(item)] >= rank])


def _by_level(table: LiveTable) -> dict[tuple[str, int, int], list[dict[str, Any]]]:
    levels: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for file in table.files():
        place = (file["partition_hex"], file["bucket"], file["level"])
        levels.setdefault(place, []).append(file)
    return levels


def _sorted_by_name(files: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(files, key=lambda file: str(file["file_name"]))


def _allowed(table: LiveTable, file: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """What two files that hold the same rows may differ in."""
    if file["file_name"] == other["file_name"]:
        return set()
    allowed = set(FILE_DIFFERENCES)
    if not table.primary_key and table.options.get("bucket", "-1") == "-1":
        allowed |= {"min_sequence_number", "max_sequence_number"}  # UNAWARE_SEQUENCES
    return allowed


def merged(table: LiveTable, files: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the files of a level say together (MERGED_BY_LEVEL)."""
    facts: dict[str, Any] = {
        "rows": sum(file["row_count"] for file in files),
        "deletes": sum(file["delete_row_count"] for file in files),
        "total_buckets": {file["total_buckets"] for file in files},
        "schema_ids": {file["schema_id"] for file in files},
        "stats_columns": {json.dumps(file["value_stats_cols"]) for file in files},
        "extra_files": {json.dumps(file["extra_files"]) for file in files},
    }
    if table.primary_key:
        facts["min_sequence"] = min(file["min_sequence_number"] for file in files)
        facts["max_sequence"] = max(file["max_sequence_number"] for file in files)
        names = [name for name in table.primary_key if name not in table.partition_by]
        types = [table.column_type(name) for name in names]
        facts["min_key"] = _extreme(table, types, [file["min_key"] for file in files], 0)
        facts["max_key"] = _extreme(table, types, [file["max_key"] for file in files], -1)
        facts["key_stats"] = _merged_stats(table, names, [file["key_stats"] for file in files])
    # Statistics are of the columns of a file's own schema.
    newest = max(file["schema_id"] for file in files)
    files = [file for file in files if file["schema_id"] == newest]
    columns = files[0]["value_stats_cols"]
    if columns is None:
        columns = [name for name, _ in table.columns]
    if newest == _latest_schema_id(table):
        stats = [file["value_stats"] for file in files]
        facts["value_stats"] = _merged_stats(table, columns, stats)
    return facts


def _latest_schema_id(table: LiveTable) -> int:
    schemas = (table.path / "schema").glob("schema-*")
    return max(int(path.name.removeprefix("schema-")) for path in schemas)


def _extreme(table: LiveTable, types: Sequence[TypeName], rows: Sequence[str], which: int) -> Row:
    values = table.judge.algorithms.decode_rows(types, rows)
    return values[table.judge.algorithms.sort_rows(types, values)[which]]


def _merged_stats(
    table: LiveTable, columns: Sequence[str], stats: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    types = [table.column_type(name) for name in columns]
    lows = table.judge.algorithms.decode_rows(types, [entry["min"] for entry in stats])
    highs = table.judge.algorithms.decode_rows(types, [entry["max"] for entry in stats])
    facts = {}
    for index, name in enumerate(columns):
        counts = [entry["null_counts"][index] for entry in stats]
        facts[name] = (
            _bound(table, types[index], [row[index] for row in lows], 0),
            _bound(table, types[index], [row[index] for row in highs], -1),
            None if None in counts else sum(counts),
        )
    return facts


def _bound(table: LiveTable, type_: TypeName, values: Sequence[Value], which: int) -> Value:
    known = [(value,) for value in values if value is not None]
    return known[table.judge.algorithms.sort_rows([type_], known)[which]][0] if known else None


def assert_same_snapshot(ours: LiveTable, java: LiveTable) -> None:
    """The newest snapshots agree; sizes and counts that may differ are right by themselves."""
    mine, theirs = _snapshot(ours), _snapshot(java)
    _assert_equal(
        _without(mine, SNAPSHOT_DIFFERENCES), _without(theirs, SNAPSHOT_DIFFERENCES), "snapshot"
    )
    assert_exact_sizes(ours)


def assert_exact_sizes(table: LiveTable) -> None:
    """Sizes and counts that readers trust: lists, manifests, data files, records."""
    snapshot = _snapshot(table)
    folder = table.path / "manifest"
    for name in ("baseManifestList", "deltaManifestList"):
        assert snapshot[f"{name}Size"] == (folder / snapshot[name]).stat().st_size
    manifests = table.judge.manifests(table.path)
    for manifest in manifests:
        assert manifest["file_size"] == (folder / manifest["file_name"]).stat().st_size
    by_name = {file.name: file.stat().st_size for file in table.path.rglob("bucket-*/*")}
    live = table.files()
    assert all(by_name[file["file_name"]] == file["file_size"] for file in live)
    assert snapshot["totalRecordCount"] == sum(file["row_count"] for file in live)
    delta = table.judge.entries(table.path, "delta")
    counted = sum(entry["row_count"] * (1 if entry["kind"] == "ADD" else -1) for entry in delta)
    assert snapshot["deltaRecordCount"] == counted


def _snapshot(table: LiveTable) -> dict[str, Any]:
    snapshot = table.judge.snapshot(table.path)
    assert snapshot is not None
    return snapshot


def _without(facts: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key not in set(keys)}
