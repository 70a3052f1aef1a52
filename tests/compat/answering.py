"""pypaimon asked over a pipe; runs in a Python that has pypaimon, and nothing of ours.

    python answering.py WAREHOUSE

A question is a line of JSON, [name of a method of `Answers`, keyword arguments]; the answer is one,
too: {"answer": ...}, or {"error": class, "message": text}. A commit that was asked to pause says
{"pause": true} right before it publishes its snapshot and goes on with the next line.

Values take the form that `tests.oracle.judge` describes. Tables are named `database.table`, with
`$branch_<name>` behind it for a branch.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

import pyarrow as pa
import pypaimon
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.manifest_sidecar import (
    SUFFIX,
    Settings,
    build_from_entries,
    select,
    sidecar_file_name,
)
from pypaimon.schema.data_types import DataField, DataTypeParser, PyarrowFieldParser
from pypaimon.schema.schema_change import SchemaChange

_UTC = datetime.timezone.utc
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_MILLISECOND = datetime.timedelta(milliseconds=1)
_DAY = datetime.timedelta(days=1)


def value_json(value: Any) -> Any:
    """A value as Arrow gives it, in the judge's form."""
    match value:
        case bytes():
            return f"x:{value.hex()}"
        case decimal.Decimal():
            return f"{value:f}"
        case datetime.datetime():
            micros = (value.replace(tzinfo=_UTC) - _EPOCH) // _MICROSECOND
            return f"{micros // 1000}:{micros % 1000 * 1000}"
        case datetime.date():
            return (value - _EPOCH.date()).days
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case float() if value == 0 and math.copysign(1, value) < 0:
            return "-0.0"
        case list() | tuple():
            return [value_json(item) for item in value]
        case dict():
            return [value_json(item) for item in value.values()]
        case _:
            return value


def arrow_value(value: Any, type_: pa.DataType) -> Any:
    """A value in the judge's form, as Arrow takes it; types that are not nested."""
    if value is None:
        return None
    if pa.types.is_binary(type_):
        return bytes.fromhex(value[2:])
    if pa.types.is_decimal(type_):
        return decimal.Decimal(value)
    if pa.types.is_date(type_):
        return _EPOCH.date() + value * _DAY
    if pa.types.is_timestamp(type_):
        millis, nanos = (int(part) for part in value.split(":"))
        return (_EPOCH + millis * _MILLISECOND + nanos // 1000 * _MICROSECOND).replace(tzinfo=None)
    if pa.types.is_floating(type_):
        return float(value)
    return value


class _WithSidecars(ManifestFileManager):
    """Writes sidecars, as Java's writers of 2.1 do; pypaimon itself only reads them."""

    def _build_meta(self, file_name: str, entries: list[Any], file_size: int | None = None) -> Any:
        meta = super()._build_meta(file_name, entries, file_size)
        path = f"{self.manifest_path}/{file_name}"
        with self.file_io.new_input_stream(path) as stream:
            avro = stream.read()
        sidecar = build_from_entries(avro, entries, Settings.from_options(self.table.options))
        self._flush(f"{file_name}{SUFFIX}", sidecar)
        meta.extra_files = [f"{file_name}{SUFFIX}"]
        return meta


class _Publishing:
    """A snapshot commit that may be held up, and that remembers what it failed to publish."""

    def __init__(self, inner: Any, pause: Callable[[], None]) -> None:
        self._inner = inner
        self._pause = pause
        self.lost: list[str] = []

    def commit(self, base_uuid: str | None, snapshot: Any, statistics: Any) -> bool:
        self._pause()
        published = bool(self._inner.commit(base_uuid, snapshot, statistics))
        if not published:
            self.lost += [snapshot.base_manifest_list, snapshot.delta_manifest_list]
        return published

    def __enter__(self) -> _Publishing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


class Answers:
    """One method for each question."""

    def __init__(self, warehouse: str, pause: Callable[[], None]) -> None:
        self._catalog = pypaimon.CatalogFactory.create({"warehouse": warehouse})
        self._pause = pause
        # What was prepared and is neither committed nor given up: (write, commit, messages).
        self._prepared: dict[int, tuple[Any, Any, Any]] = {}
        self._planned: dict[int, tuple[Any, Any]] = {}

    def create(
        self,
        table: str,
        columns: list[list[str]],
        primary_key: list[str],
        partition_by: list[str],
        options: dict[str, str],
    ) -> None:
        fields = [
            DataField(number, name, DataTypeParser.parse_data_type(type_))
            for number, (name, type_) in enumerate(columns)
        ]
        self._catalog.create_database(table.split(".")[0], ignore_if_exists=True)
        schema = pypaimon.Schema(fields, partition_by, primary_key, options)
        self._catalog.create_table(table, schema, ignore_if_exists=False)

    def set_options(self, table: str, options: dict[str, str]) -> None:
        changes = [SchemaChange.set_option(key, value) for key, value in options.items()]
        self._catalog.alter_table(table, changes, ignore_if_not_exists=False)

    def read(
        self,
        table: str,
        options: dict[str, str] | None = None,
        equal: dict[str, Any] | None = None,
    ) -> list[list[Any]]:
        """All rows of a batch read, or those that have these values."""
        builder, splits = self._plan(table, options, equal)
        return _rows(builder.new_read().to_arrow(splits))

    def plan(self, table: str, number: int) -> None:
        """Plan a read now that `read_planned` does later."""
        self._planned[number] = self._plan(table, None, None)

    def read_planned(self, number: int) -> list[list[Any]]:
        builder, splits = self._planned.pop(number)
        return _rows(builder.new_read().to_arrow(splits))

    def prepare(
        self,
        table: str,
        number: int,
        rows: list[list[Any]],
        overwrite: dict[str, Any] | None = None,
        options: dict[str, str] | None = None,
    ) -> list[str]:
        """Write the rows to files, whose names are the answer; nothing is committed yet.

        `overwrite`: a partition, or {} for the whole table or those that the rows touch.
        """
        opened = self._table(table, options)
        builder = opened.new_batch_write_builder()
        if overwrite is not None:
            builder = builder.overwrite(_typed(opened, overwrite))
        write, commit = builder.new_write(), builder.new_commit()
        if rows:
            schema = PyarrowFieldParser.from_paimon_schema(opened.fields)
            arrays = [
                pa.array([arrow_value(value, field.type) for value in column], field.type)
                for field, column in zip(schema, zip(*rows, strict=True), strict=True)
            ]
            write.write_arrow(pa.Table.from_arrays(arrays, schema=schema))
        messages = write.prepare_commit()
        self._prepared[number] = write, commit, messages
        return [file.file_name for message in messages for file in message.new_files]

    def commit(self, number: int, pause: bool = False) -> list[str]:
        """Commit what was prepared; the manifest lists of attempts that lost a race."""
        write, commit, messages = self._prepared.pop(number)
        try:
            return self._publish(commit, lambda: commit.commit(messages), pause)
        finally:
            write.close()
            commit.close()

    def abort(self, number: int) -> None:
        """Give up what was prepared, properly."""
        write, commit, messages = self._prepared.pop(number)
        commit.abort(messages)
        write.close()
        commit.close()

    def forget(self, number: int) -> None:
        """Give up what was prepared as a process that dies does: its files stay."""
        del self._prepared[number]

    def truncate(
        self, table: str, partitions: list[dict[str, Any]] | None = None, pause: bool = False
    ) -> list[str]:
        """Drop partitions, or all rows; the manifest lists of attempts that lost a race."""
        opened = self._table(table)
        commit = opened.new_batch_write_builder().new_commit()
        if partitions is None:
            act = commit.truncate_table
        else:
            specs = [_typed(opened, partition) for partition in partitions]

            def act() -> None:
                commit.truncate_partitions(specs)

        return self._publish(commit, act, pause)

    def create_tag(self, table: str, name: str, snapshot_id: int | None = None) -> None:
        self._table(table).create_tag(name, snapshot_id)

    def replace_tag(self, table: str, name: str, snapshot_id: int | None = None) -> None:
        self._table(table).replace_tag(name, snapshot_id)

    def delete_tag(self, table: str, name: str) -> None:
        self._table(table).delete_tag(name)

    def create_branch(self, table: str, name: str, tag: str) -> None:
        self._table(table).branch_manager().create_branch(name, tag)

    def drop_branch(self, table: str, name: str) -> None:
        self._table(table).branch_manager().drop_branch(name)

    def rollback(self, table: str, to: int | str) -> None:
        self._table(table).rollback_to(to)

    def check_sidecars(self, table: str) -> int:
        """How many manifests of the newest snapshot have a sidecar; each must fit its manifest."""
        opened = self._table(table)
        lists = ManifestListManager(opened)
        checked = 0
        for manifest in lists.read_all(opened.snapshot_manager().get_latest_snapshot()):
            name = sidecar_file_name(manifest)
            if name is not None:
                with opened.file_io.new_input_stream(f"{lists.manifest_path}/{name}") as stream:
                    select(stream.read(), manifest, None)
                checked += 1
        return checked

    def _table(self, name: str, options: dict[str, str] | None = None) -> Any:
        table = self._catalog.get_table(name)
        return table.copy(options) if options else table

    def _plan(
        self, name: str, options: dict[str, str] | None, equal: dict[str, Any] | None
    ) -> tuple[Any, Any]:
        table = self._table(name, options)
        builder = table.new_read_builder()
        if equal:
            terms = builder.new_predicate_builder()
            builder = builder.with_filter(
                terms.and_predicates(
                    [
                        terms.is_null(key) if value is None else terms.equal(key, value)
                        for key, value in _typed(table, equal).items()
                    ]
                )
            )
        return builder, builder.new_scan().plan().splits()

    def _publish(self, commit: Any, act: Callable[[], None], pause: bool) -> list[str]:
        pauses = iter([self._pause] if pause else [])
        store = commit.file_store_commit
        publishing = _Publishing(store.snapshot_commit, lambda: next(pauses, lambda: None)())
        store.snapshot_commit = publishing
        if store.table.options.manifest_sidecar_enabled():
            store.manifest_file_manager = _WithSidecars(store.table)
        act()
        return publishing.lost


def _typed(table: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Values by column, as pypaimon compares them."""
    types = {f.name: f.type for f in PyarrowFieldParser.from_paimon_schema(table.fields)}
    return {name: arrow_value(value, types[name]) for name, value in values.items()}


def _rows(table: pa.Table) -> list[list[Any]]:
    columns = [[value_json(value) for value in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def serve(warehouse: str, questions: TextIO, answers: TextIO) -> None:
    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    def pause() -> None:
        say({"pause": True})
        questions.readline()

    asked = Answers(warehouse, pause)
    for line in iter(questions.readline, ""):
        name, arguments = json.loads(line)
        try:
            say({"answer": getattr(asked, name)(**arguments)})
        except Exception as error:  # noqa: BLE001 - told to who asked
            say({"error": type(error).__name__, "message": str(error)})


if __name__ == "__main__":
    # Whatever pypaimon prints is no answer.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    serve(sys.argv[1], sys.stdin, out)
