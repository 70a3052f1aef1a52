"""Tables to which a newer Paimon has committed: Java 2.0.0 reads what we make of their metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compactord.catalog.access import table_in_folder
from compactord.paimon.avro.container import open_container
from compactord.paimon.avro.types import codec_of
from compactord.paimon.data_file import EntryKind
from compactord.paimon.options.maintenance import ExpireOptions
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import latest_snapshot_id, read_snapshot
from compactord.plan.table import Strategy
from compactord.state.table_state import data_manifests, delta_entries
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.containers import encode_container, records_of
from tests.oracle.differential import LiveTable, assert_exact_sizes, compact
from tests.oracle.judge import Judge
from tests.rounds import expire_snapshots
from tests.unit.paimon.foreign_files import (
    ENTRY,
    FILE,
    SEQUENCES,
    SEQUENCES_TYPE,
    Added,
    filled,
    sequences,
    with_columns,
)

CODEC = codec_of("zstd", 1)
STORAGE = LocalStorage()
EXTRA_FILES = ["null", {"type": "array", "items": "string"}]


def _as_2_1(path: Path, valued: set[str]) -> None:
    """The newest snapshot with metadata as release 2.1 writes it.

    Each manifest gets a sidecar. The files of these names get values, all others null.
    """
    id_ = latest_snapshot_id(STORAGE, str(path))
    file = path / "snapshot" / f"snapshot-{id_}"
    snapshot = json.loads(file.read_text())
    for key in ("baseManifestList", "deltaManifestList"):
        container = _open(path, snapshot[key])
        rows: list[dict[str, Any]] = records_of(container)
        for row in rows:
            row["_FILE_NAME"], row["_FILE_SIZE"] = _manifest(path, row["_FILE_NAME"], valued)
            (path / "manifest" / f"{row['_FILE_NAME']}.avro.sidecar").write_bytes(b"PMSC\x01")
        sidecars = [[f"{row['_FILE_NAME']}.avro.sidecar"] for row in rows]
        columns = [
            Added(ENTRY, "_TOTAL_BUCKETS", ["null", "int"], [1] * len(rows)),
            Added(ENTRY, "_EXTRA_FILES", EXTRA_FILES, sidecars),
        ]
        snapshot[key], snapshot[f"{key}Size"] = _written(path, snapshot[key], rows, columns)
    snapshot["writerVersion"] = "2.1.0"
    file.write_text(json.dumps(snapshot))


def _open(path: Path, name: str) -> Any:
    return open_container((path / "manifest" / name).read_bytes(), name)


def _manifest(path: Path, name: str, valued: set[str]) -> tuple[str, int]:
    records: list[dict[str, Any]] = records_of(_open(path, name))
    values = [[7, 8] if one["_FILE"]["_FILE_NAME"] in valued else None for one in records]
    entry_values = [None if value is None else {"a": 0.5} for value in values]
    columns = [
        Added(FILE, SEQUENCES, SEQUENCES_TYPE, values),
        Added(ENTRY, "_ODD", ["null", {"type": "map", "values": "double"}], entry_values),
    ]
    return _written(path, name, records, columns)


def _written(
    path: Path, name: str, records: list[dict[str, Any]], columns: list[Added]
) -> tuple[str, int]:
    schema = with_columns(_open(path, name).schema.json, columns)
    data = encode_container(schema, filled(records, columns), CODEC)
    (path / "manifest" / f"{name}-newer").write_bytes(data)
    return f"{name}-newer", len(data)


def test_java_reads_what_is_carried(judge: Judge, tmp_path: Path) -> None:
    """Partition 0 moves up with its values, 1 has none and is merged, 2 has some: it is refused."""
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("p", "INT NOT NULL"), ("k", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("p", "k"),
        partition_by=("p",),
        options={"bucket": "1", "manifest.merge-min-count": "100"},
    ).create()
    table.write([[p, k, "first"] for p in range(3) for k in range(20)])
    for commit in range(3):
        table.write([[p, k, f"{commit}"] for p in (1, 2) for k in range(commit, 20, 3)])
    of_partition: dict[str, set[str]] = {}
    for file in table.files():
        of_partition.setdefault(file["partition_hex"], set()).add(file["file_name"])
    moved, _, refused = (of_partition[key] for key in sorted(of_partition))
    _as_2_1(table.path, moved | refused)
    table.check()

    totals = compact(table.path, Strategy.FULL)
    assert len(totals.failures) == 1
    assert "_FILE._WRITE_COLS_SEQUENCES, _ODD: rewriting it would lose them" in totals.failures[0]
    assert totals.upgraded_files == 1
    table.check()
    assert_exact_sizes(table)
    levels = {file["file_name"]: file["level"] for file in table.files()}
    assert {levels[name] for name in moved} == {5}
    ref = TableRef(database="db", name="t", location=str(table.path))
    ours = [read_snapshot(STORAGE, ref.location, id_) for id_ in totals.snapshots]
    entries = [e for snapshot in ours for e in delta_entries(STORAGE, ref.location, snapshot)]
    of_moved = [entry for entry in entries if entry.file.file_name in moved]
    assert {entry.kind for entry in of_moved} == set(EntryKind)
    for entry in of_moved:
        assert [value.column for value in entry.file.foreign] == [f"_FILE.{SEQUENCES}", "_ODD"]
        assert entry.file.foreign[0] == sequences(7, 8)
    assert not [entry for entry in entries if entry.file.foreign and entry not in of_moved]
    rows = data_manifests(STORAGE, ref.location, ours[-1])
    assert [bool(row.extra_files) for row in rows] == [True] * 4 + [False] * len(ours)

    # Manifests merged by us, then commits, compaction and expiry by Java and by us.
    judge.alter_options(table.path, {"manifest.merge-min-count": "2"})
    table.write([[1, 3, "later"]])
    assert compact(table.path, Strategy.FULL).snapshots
    table.check()
    table.write([[2, 3, "later"], [0, 3, "later"]])
    expire_snapshots(
        open_table(table_in_folder(STORAGE, ref), {}),
        ExpireOptions(
            num_retained_min=1,
            num_retained_max=2**31 - 1,
            time_retained_ms=0,
            limit=50,
            clean_empty_directories=False,
        ),
        now_ms=2**50,
        keep_from=None,
    )
    assert not list((table.path / "manifest").glob("*.sidecar"))
    table.check()
    table.java_settle(full=True)
    table.check()
