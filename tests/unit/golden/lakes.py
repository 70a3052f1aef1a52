"""Warehouses for the golden files of commands: sizes and times of their tables are fixed."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from compactord.clock import SystemClock
from compactord.ids import Owner
from compactord.paimon import paths
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, TypeRoot
from compactord.state.table_state import load_state
from compactord_demo.writer import create_table
from tests import builders
from tests.unit.cli import warehouses
from tests.unit.cli.warehouses import LOCAL
from tests.unit.maintenance.days import DT
from tests.unit.paimon.table_builder import History, data_file, entry

MIB = 1 << 20
_KEY = (AtomicType(root=TypeRoot.BIGINT, nullable=False),)
_CONFIG = """\
catalogs:
  lake: {warehouse: WH}
discovery:
  excluding_tables: "tmp\\\\..*"
defaults:
  append_wait: 1 h
rules:
- match: {table: "sales\\\\.lazy"}
  set: {options: {num-sorted-run.compaction-trigger: 9}, append_wait: null, priority: 5}
- match: {table: "sales\\\\.held"}
  set: {mode: paused}
- match: {table: "no\\\\.such"}
  set: {expire_snapshots: off}
"""
_BROKEN = """\
catalogs:
  lake: {warehouse: WH, metastor: jdbc}
limits:
  task_slots: many
"""
_NOWHERE = """\
catalogs:
  lake: {warehouse: WH}
  pond: {warehouse: WH-none}
"""


def _ref(warehouse: Path, name: str) -> TableRef:
    database, table = name.split(".")
    return TableRef(database=database, name=table, location=f"{warehouse}/{database}.db/{table}")


def _history(warehouse: Path, name: str, *, keyed: bool, **options: str) -> History:
    """A table without a commit, partitioned by `dt`."""
    ref = _ref(warehouse, name)
    given = {key.replace("__", "-").replace("_", "."): text for key, text in options.items()}
    base = {"bucket": "2" if keyed else "-1", "write-only": "true"}
    keys = ["dt", "k"] if keyed else []
    fields = [*builders.FIELDS, DT]
    create_table(
        LOCAL, ref, fields, primary_keys=keys, partition_keys=["dt"], options={**base, **given}
    )
    return History(LOCAL, ref, partition_types=(DT.type,))


def _file(number: int, size: int, keys: tuple[int, int], level: int = 0) -> ManifestEntry:
    return entry(
        data_file(
            f"data-{number}.parquet",
            file_size=size,
            row_count=size // 100,
            min_key=encode_row([keys[0]], _KEY),
            max_key=encode_row([keys[1]], _KEY),
            min_sequence_number=10 * number,
            max_sequence_number=10 * number + 9,
            level=level,
        )
    )


def _placed(files: Sequence[ManifestEntry], day: str, bucket: int) -> list[ManifestEntry]:
    partition = encode_row([day], [DT.type])
    total = -1 if bucket < 0 else 2
    return [
        entry(each.file, bucket=max(bucket, 0), partition=partition, total_buckets=total)
        for each in files
    ]


def _runs(first: int, count: int) -> list[ManifestEntry]:
    """A file on the highest level, and so many on level 0 that overlap."""
    top = _file(first, 400 * MIB, (0, 9_999), level=5)
    return [top, *(_file(first + n, n * MIB, (n, 100 * n)) for n in range(1, count + 1))]


def lake(folder: Path) -> None:
    """Tables whose data files are only named: due, calm, damaged, refused, and so on.

    With configurations: CONFIG, one with errors, and one whose second warehouse is not there.
    """
    warehouse = folder / "wh"
    orders = _history(warehouse, "sales.orders", keyed=True)
    orders.commit(_placed(_runs(1, 6), "2026-11-18", 0))
    orders.commit(_placed(_runs(21, 9), "2026-11-18", 1))
    orders.commit(_placed(_runs(41, 1), "2026-11-17", 0))
    for name in ("sales.lazy", "sales.held", "tmp.x"):
        _history(warehouse, name, keyed=True).commit(_placed(_runs(1, 6), "2026-11-18", 0))
    self_made = _history(warehouse, "sales.self", keyed=True, write__only="false")
    self_made.commit(_placed(_runs(1, 2), "2026-11-18", 0))
    waiting = _history(warehouse, "sales.waiting", keyed=True, changelog__producer="lookup")
    waiting.commit(_placed(_runs(1, 1), "2026-11-18", 0))
    damaged = _history(warehouse, "sales.damaged", keyed=True)
    damaged.commit(_placed(_runs(1, 6), "2026-11-18", 0))
    overlapping = [_file(n, MIB, (0, 9), level=4) for n in (21, 22)]
    damaged.commit(_placed(overlapping, "2026-11-18", 1))
    _history(warehouse, "sales.refused", keyed=True, row__tracking_enabled="true")
    _history(warehouse, "sales.empty", keyed=True)
    raw = _history(warehouse, "logs.raw", keyed=False, snapshot_num__retained_max="1")
    small = [_file(n, n * MIB, (0, 0)) for n in range(1, 8)]
    raw.commit(_placed(small, "2026-11-18", -1))
    raw.commit(_placed([_file(9, 300 * MIB, (0, 0))], "2026-11-17", -1))
    torn = _history(warehouse, "logs.torn", keyed=False)
    torn.commit(_placed(small, "2026-11-18", -1))
    Path(paths.snapshot_path(torn.table.location, 1)).write_text("{")
    for name, text in (("config", _CONFIG), ("broken", _BROKEN), ("nowhere", _NOWHERE)):
        (folder / f"{name}.yaml").write_text(textwrap.dedent(text).replace("WH", str(warehouse)))
    # An empty file is an empty database.
    (folder / "c.db").touch()


# A process on another machine, whose files are removed by age.
_ELSEWHERE = Owner(host=0x555555, start_ticks=1, pid=1)
_FOREIGN = "data-0b4e1a2c-7f1d-4c3a-9d2e-0123456789ab-0.parquet"


def files(folder: Path) -> None:
    """Small tables with real rows for what reads, writes or deletes files.

    d.done is compacted, with a tag, a consumer, left-over files and old snapshots; d.lost lacks a
    live file; d.due and d.raw have something to compact; d.refused is refused.
    """
    warehouse, clock = folder / "wh", SystemClock()
    old = {"snapshot_num__retained_min": "1", "snapshot_time__retained": "1 ms"}
    old |= {"consumer_expiration__time": "1 h"}
    done = warehouses.keyed(warehouse, "d.done", commits=6, clock=clock, **old)
    _tag(done, "old", 2)
    builders.one_shot(LOCAL, done, clock=clock).run()
    consumer = Path(builders.consumer_path(done.root, "a"))
    consumer.parent.mkdir()
    consumer.write_text('{"nextSnapshot": 4}')
    bucket = Path(done.location) / "bucket-0"
    (bucket / f"data-{_ELSEWHERE.unique_name()}-0.parquet").write_bytes(b"left")
    (bucket / _FOREIGN).write_bytes(b"foreign")
    lost = warehouses.keyed(warehouse, "d.lost", commits=2, clock=clock, **old)
    state = load_state(LOCAL, lost)
    Path(next(iter(builders.live_paths(LOCAL, lost, state)))).unlink()
    warehouses.keyed(warehouse, "d.due", commits=6)
    warehouses.append(warehouse, "d.raw", commits=6)
    warehouses.keyed(warehouse, "d.calm", commits=1)
    warehouses.keyed(warehouse, "d.refused", row__tracking_enabled="true")
    (folder / "c.db").touch()


def copy(made: Path, folder: Path) -> None:
    """Copies what `files` made, with the times of all files, and CONFIG for the copy."""
    shutil.copytree(made, folder, dirs_exist_ok=True)
    (folder / "config.yaml").write_text(f"catalogs: {{lake: {{warehouse: {folder}/wh}}}}\n")


def _tag(ref: TableRef, name: str, snapshot_id: int) -> None:
    """A tag whose time is over."""
    path = Path(paths.tag_path(ref.root, name))
    path.parent.mkdir()
    snapshot = json.loads(Path(paths.snapshot_path(ref.root, snapshot_id)).read_text())
    times = {"tagCreateTime": [2024, 1, 1, 0, 0], "tagTimeRetained": 1.5}
    path.write_text(json.dumps(snapshot | times))
