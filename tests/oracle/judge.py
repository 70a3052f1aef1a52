"""Java Paimon 2.0.0, driven from Python: compactord must agree with what it does with a table.

One JVM serves a whole test session. A call costs a third of a millisecond, so nothing is called per
row: rows travel as lines of JSON, planning cases as one JSON list.

Values, both ways: whole numbers as int; FLOAT and DOUBLE as float (FLOAT widened), but "NaN",
"Infinity", "-Infinity" and "-0.0" come back as strings, so that == compares bits (Python's own
float forms may be written); DECIMAL as string; strings as str; BINARY and BYTES as "x:<hex>"; DATE
as days; TIME as milliseconds of the day; timestamps as "<epoch milliseconds>:<nanoseconds of the
millisecond>"; ARRAY and ROW as list; MAP as list of [key, value]; MULTISET as list of [element,
count]; VARIANT as ["x:<value>", "x:<metadata>"]; BLOB as "x:<hex>"; null as None.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.oracle.judge_algorithms import Algorithms
from tests.oracle.judge_jvm import JAVA_OPTIONS, JudgeJvm, Row, TypeName, Value


def lines(text: str) -> list[Any]:
    # Not splitlines: strings may hold U+2028 and its like, which JSON leaves as they are.
    return [json.loads(line) for line in text.split("\n") if line]


AnyJudge = TypeVar("AnyJudge", bound="Judge")


class Judge:
    """One JVM with Java Paimon. Paths are table roots; `options` are dynamic table options.

    `algorithms` answers questions that no table is needed for. With `store`, the options of a
    catalog, tables lie there and not on this machine; `jars` are what Java needs for it.
    """

    def __init__(
        self,
        *,
        time_zone: str = "UTC",
        java_options: Sequence[str] = JAVA_OPTIONS,
        jars: Sequence[Path] = (),
        store: Mapping[str, str] | None = None,
    ) -> None:
        self._jvm = JudgeJvm(time_zone=time_zone, java_options=java_options, jars=jars)
        self._store = {} if store is None else {"store": dict(store)}
        self.algorithms = Algorithms(self._jvm)

    def __enter__(self: AnyJudge) -> AnyJudge:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self._jvm.start()

    def stop(self) -> None:
        self._jvm.stop()

    @property
    def jvm(self) -> JudgeJvm:
        """For programs of a test's own."""
        return self._jvm

    @property
    def pid(self) -> int:
        """Of the JVM, for those who measure it."""
        return self._jvm.pid

    def create_table(
        self,
        path: str | Path,
        columns: Sequence[tuple[str, TypeName]],
        *,
        primary_key: Sequence[str] = (),
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Types are atomic SQL ("BIGINT NOT NULL") or the JSON of the schema format (nested)."""
        arguments = {
            "path": str(path),
            "columns": [list(column) for column in columns],
            "primary_key": list(primary_key),
            "partition_by": list(partition_by),
            "options": dict(options or {}),
        }
        self._call("createTable", arguments)

    def alter(
        self, path: str | Path, *changes: Mapping[str, Any], branch: str | None = None
    ) -> int:
        """Apply the changes as one new schema version and return its id.

        A change is {"change": kind, ...}: set_option(key, value), remove_option(key),
        add(column, type, after?, first?), rename(column, to), drop(column), type(column, type),
        nullability(column, nullable), default(column, value), move_first(column),
        move_after(column, after), drop_primary_key. `column` is a list of names, one per nesting
        level; element, key and value name the inside of arrays and maps.
        """
        arguments = {"path": str(path), "changes": list(changes), "branch": branch}
        return int(self._call("alter", arguments))

    def alter_options(
        self, path: str | Path, set: Mapping[str, str], unset: Sequence[str] = ()
    ) -> int:
        changes = [{"change": "set_option", "key": k, "value": v} for k, v in set.items()]
        changes += [{"change": "remove_option", "key": key} for key in unset]
        return self.alter(path, *changes)

    def add_column(self, path: str | Path, name: str, type: TypeName) -> int:
        return self.alter(path, {"change": "add", "column": [name], "type": type})

    def rename_column(self, path: str | Path, name: str, to: str) -> int:
        return self.alter(path, {"change": "rename", "column": [name], "to": to})

    def drop_column(self, path: str | Path, name: str) -> int:
        return self.alter(path, {"change": "drop", "column": [name]})

    def change_column_type(self, path: str | Path, name: str, type: TypeName) -> int:
        return self.alter(path, {"change": "type", "column": [name], "type": type})

    def write(
        self,
        path: str | Path,
        rows: Iterable[Row],
        kinds: Sequence[str] | None = None,
        *,
        options: Mapping[str, str] | None = None,
        commit_user: str | None = None,
        identifier: int | None = None,
        buckets: Sequence[int] | None = None,
        force_snapshot: bool = False,
    ) -> int | None:
        """Commit the rows, all +I unless `kinds` says otherwise; the id of the newest snapshot.

        None when there was nothing to commit. `buckets` places each row itself; otherwise Java
        hashes, or assigns dynamic buckets by the HASH indexes, which it keeps.
        """
        return self._write(
            path,
            rows,
            kinds,
            buckets,
            options=options,
            commit_user=commit_user,
            identifier=identifier,
            force_snapshot=force_snapshot,
        )

    def overwrite(
        self,
        path: str | Path,
        rows: Iterable[Row],
        partition: Mapping[str, str] | None = None,
        *,
        options: Mapping[str, str] | None = None,
        commit_user: str | None = None,
    ) -> int | None:
        """INSERT OVERWRITE of one static partition, {} or None for those that the rows touch."""
        return self._write(
            path,
            rows,
            None,
            None,
            options=options,
            commit_user=commit_user,
            overwrite=dict(partition or {}),
        )

    def _write(
        self,
        path: str | Path,
        rows: Iterable[Row],
        kinds: Sequence[str] | None,
        buckets: Sequence[int] | None,
        **arguments: Any,
    ) -> int | None:
        lines = []
        for position, row in enumerate(rows):
            line: list[Any] = ["+I" if kinds is None else kinds[position], list(row)]
            if buckets is not None:
                line.append(buckets[position])
            lines.append(json.dumps(line))
        snapshot = self._call("write", {"path": str(path), **arguments}, "\n".join(lines))
        return None if snapshot is None else int(snapshot)

    def compact(
        self,
        path: str | Path,
        *,
        full: bool,
        partition: Row | None = None,
        bucket: int | None = None,
        options: Mapping[str, str] | None = None,
        commit_user: str | None = None,
        identifier: int | None = None,
    ) -> int | None:
        """Java's own compaction, write-only or not; the id of the snapshot, None if none was made.

        Tables without buckets are packed by the batch coordinator, which knows no `full`.
        `partition` holds values in their JSON form. Data evolution and postponed buckets are
        refused: this does not drive their coordinators.
        """
        arguments = {
            "path": str(path),
            "full": full,
            "partition": None if partition is None else list(partition),
            "bucket": bucket,
            "options": options,
            "commit_user": commit_user,
            "identifier": identifier,
        }
        snapshot = self._call("compact", arguments)
        return None if snapshot is None else int(snapshot)

    def compact_seconds(
        self,
        path: str | Path,
        *,
        full: bool,
        repetitions: int,
        options: Mapping[str, str] | None = None,
    ) -> list[float]:
        """Time of each of several compactions, each of a fresh copy; the table stays as it is.

        Timed inside the JVM. The first two or three warm it up: discard them. To measure, start a
        Judge of its own with java_options fit for that (no TieredStopAtLevel, more memory).
        """
        seconds = []
        for _ in range(repetitions):
            copy = self._jvm.scratch / "timed.db" / "copy"
            shutil.copytree(path, copy)
            try:
                arguments = {"path": str(copy), "full": full, "options": options}
                seconds.append(self._call("compactNanos", arguments) / 1e9)
            finally:
                shutil.rmtree(copy)
        return seconds

    def read(
        self,
        path: str | Path,
        *,
        options: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        filter: Sequence[Sequence[Value]] | None = None,
    ) -> list[tuple[Value, ...]]:
        """All rows of a batch read, merged.

        `filter` holds (column, op, value) terms joined by and, pushed down and executed; op is
        equal, not_equal, lt, le, gt, ge, is_null, is_not_null, in (a list of values) or any (a list
        of terms joined by or, of any columns).
        """
        arguments = self._read_arguments(path, options, columns, filter)
        return [tuple(row) for row in lines(self._call("read", arguments))]

    def read_checksum(
        self,
        path: str | Path,
        *,
        options: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
    ) -> tuple[int, str]:
        """Row count and a hash that ignores row order; equal tables give equal answers."""
        count, digest = self._ask(
            "readChecksum", self._read_arguments(path, options, columns, None)
        )
        return count, digest

    @staticmethod
    def _read_arguments(
        path: str | Path,
        options: Mapping[str, str] | None,
        columns: Sequence[str] | None,
        filter: Sequence[Sequence[Value]] | None,
    ) -> dict[str, Any]:
        return {
            "path": str(path),
            "options": options,
            "columns": None if columns is None else list(columns),
            "filter": None if filter is None else [list(term) for term in filter],
        }

    def files(
        self, path: str | Path, *, options: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """The live files of the latest snapshot with every field that the manifest holds.

        Rows (partition_hex, min_key, stats min and max) are hex with their four bytes of arity.
        """
        return self._ask("files", {"path": str(path), "options": options})

    def snapshot(
        self, path: str | Path, id: int | None = None, *, options: Mapping[str, str] | None = None
    ) -> dict[str, Any] | None:
        """The JSON of one snapshot, of the latest by default; None for a table without any."""
        return self._ask("snapshot", {"path": str(path), "id": id, "options": options})

    def snapshots(self, path: str | Path, *, options: Mapping[str, str] | None = None) -> list[int]:
        return self._ask("snapshots", {"path": str(path), "options": options})

    def changes(
        self, path: str | Path, first: int = 1, *, options: Mapping[str, str] | None = None
    ) -> list[tuple[str, tuple[Value, ...]]]:
        """(kind, row) as a streaming reader sees them from snapshot `first` to the latest."""
        arguments = {"path": str(path), "first": first, "options": options}
        return [(kind, tuple(row)) for kind, row in lines(self._call("changes", arguments))]

    def manifests(
        self, path: str | Path, id: int | None = None, *, options: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Manifests of a snapshot (the latest by default); "list" is base, delta or changelog."""
        return self._ask("manifests", {"path": str(path), "id": id, "options": options})

    def entries(
        self,
        path: str | Path,
        which: str,
        id: int | None = None,
        *,
        options: Mapping[str, str] | None = None,
    ) -> list[dict[str, Any]]:
        """Entries, as of `files` and with "kind", of the base, delta or changelog manifests."""
        arguments = {"path": str(path), "list": which, "id": id, "options": options}
        return self._ask("entries", arguments)

    def index_files(
        self, path: str | Path, *, options: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """Index files of the latest snapshot; dv_ranges as [file, offset, length, cardinality]."""
        return self._ask("indexFiles", {"path": str(path), "options": options})

    def deletion_vectors(
        self, path: str | Path, *, options: Mapping[str, str] | None = None
    ) -> dict[str, list[int]]:
        """Deleted positions by data file, of the latest snapshot; the files need not be live."""
        arguments = {"path": str(path), "options": options, **self._store}
        return self._jvm.ask("Vectors", "deletionVectors", arguments)

    def files_table(self, path: str | Path) -> list[list[Value]]:
        """The rows of the system table `$files`."""
        found: list[list[Value]] = self._jvm.ask("Vectors", "filesTable", {"path": str(path)})
        return found

    def delete_positions(
        self,
        path: str | Path,
        positions: Mapping[str, Sequence[int]],
        *,
        rows: Iterable[Row] = (),
        options: Mapping[str, str] | None = None,
        commit_user: str | None = None,
    ) -> int | None:
        """Mark rows of an append table as deleted by file name, in one commit, as a DELETE.

        With `rows`, which are appended in the same commit, as an UPDATE.
        """
        arguments = {
            "path": str(path),
            "positions": {file: list(rows) for file, rows in positions.items()},
            "options": options,
            "commit_user": commit_user,
            **self._store,
        }
        appended = "\n".join(json.dumps(list(row)) for row in rows)
        snapshot = self._jvm.call("Vectors", "deletePositions", arguments, appended)
        return None if snapshot is None else int(snapshot)

    def add_vectors(
        self,
        path: Path,
        vectors: Mapping[str, Sequence[int]],
        *,
        partition: Row = (),
        bucket: int = 0,
    ) -> None:
        """Put an index file of a bucket beside those of the newest snapshot, in place.

        No commit does this: the bucket may have two then, and vectors of files that are gone.
        """
        arguments = {
            "path": str(path),
            "vectors": {file: list(rows) for file, rows in vectors.items()},
            "partition": list(partition),
            "bucket": bucket,
        }
        manifest = self._jvm.call("Vectors", "manifestWithVectors", arguments)
        newest = path / "snapshot" / f"snapshot-{max(self.snapshots(path))}"
        newest.write_text(json.dumps(json.loads(newest.read_text()) | {"indexManifest": manifest}))

    def delete_files(
        self,
        path: str | Path,
        files: Sequence[str],
        *,
        read: int,
        commit_user: str | None = None,
    ) -> int | None:
        """A copy-on-write DELETE of all rows of files that its reader found in snapshot `read`."""
        arguments = {
            "path": str(path),
            "files": list(files),
            "read": read,
            "commit_user": commit_user,
        }
        snapshot = self._call("deleteFiles", arguments)
        return None if snapshot is None else int(snapshot)

    def create_tag(self, path: str | Path, name: str, snapshot_id: int | None = None) -> None:
        self._call("createTag", {"path": str(path), "name": name, "id": snapshot_id})

    def delete_tag(self, path: str | Path, name: str) -> None:
        self._call("deleteTag", {"path": str(path), "name": name})

    def create_branch(self, path: str | Path, name: str, tag: str | None = None) -> None:
        """Reach the branch afterwards with options={"branch": name}."""
        self._call("createBranch", {"path": str(path), "name": name, "tag": tag})

    def fast_forward(self, path: str | Path, name: str) -> None:
        self._call("fastForward", {"path": str(path), "name": name})

    def expire_snapshots(
        self,
        path: str | Path,
        retain_max: int,
        *,
        retain_min: int = 1,
        time_retain_millis: int = 0,
        options: Mapping[str, str] | None = None,
    ) -> int:
        """How many snapshots Java expired."""
        arguments = {
            "path": str(path),
            "retain_max": retain_max,
            "retain_min": min(retain_min, retain_max),
            "time_retain_millis": time_retain_millis,
            "options": options,
        }
        return int(self._call("expireSnapshots", arguments))

    def rollback(self, path: str | Path, snapshot_id: int) -> None:
        self._call("rollback", {"path": str(path), "id": snapshot_id})

    def truncate(
        self, path: str | Path, partitions: Sequence[Mapping[str, str]] | None = None
    ) -> None:
        """Empty the table, or only the partitions named by specs such as {"dt": "2024-01-01"}."""
        arguments = {
            "path": str(path),
            "partitions": None if partitions is None else [dict(spec) for spec in partitions],
        }
        self._call("truncate", arguments)

    def orphan_files(
        self, path: str | Path, *, delete: bool = False, before_ms: int | None = None
    ) -> list[str]:
        """Paths that no snapshot, tag, branch or changelog of the table needs.

        Of any age, or only those that were modified last before a moment. With `delete` they go.
        """
        arguments = {"path": str(path), "delete": delete, "before_ms": before_ms}
        return self._ask("orphanFiles", arguments)

    def plan_append(
        self, path: str | Path, *, options: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """What the batch coordinator would rewrite: [{"partition": row, "files": [name]}]."""
        return self._ask("planAppend", {"path": str(path), "options": options})

    def _call(self, method: str, arguments: Mapping[str, Any], *texts: str) -> Any:
        return self._jvm.call("Oracle", method, {**arguments, **self._store}, *texts)

    def _ask(self, method: str, arguments: Mapping[str, Any]) -> Any:
        return self._jvm.ask("Oracle", method, {**arguments, **self._store})
