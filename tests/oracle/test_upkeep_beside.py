"""Java writes and reads old snapshots while maintenance of all kinds goes on at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.clock import SystemClock
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, read_snapshot, snapshot_ids
from compactord.plan.table import Strategy
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests import builders
from tests.faults import upkeep
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge
from tests.rounds import expire_consumers

LOCAL = LocalStorage()
COMMITS, KEYS = 24, 10
STAYS, EXPIRES = "2999-01-01", "2020-01-01"


def _consumer(judge: Judge, path: Path, name: str, next_id: int) -> None:
    arguments = {"path": str(path), "branch": "main", "name": name, "next": next_id}
    judge.jvm.call("Upkeep", "moveConsumer", arguments)


class _Maintained(threading.Thread):
    """Rounds of everything until it is to stop; `error` is what ended it before."""

    def __init__(self, table: LiveTable) -> None:
        super().__init__()
        self.rounds = 0
        self.error: BaseException | None = None
        self.stopped = threading.Event()
        self._table = table
        self._ref = TableRef(database="db", name="t", location=str(table.path))
        self._catalog = FilesystemCatalog(LOCAL, str(table.path.parent.parent))

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self._round()
                self.rounds += 1
        except BaseException as error:  # noqa: BLE001
            self.error = error

    def _round(self) -> None:
        strategy = Strategy.FULL if self.rounds % 3 == 2 else Strategy.MINOR
        builders.compact(LOCAL, self._ref, strategy=strategy, clock=SystemClock())
        upkeep.maintain(LOCAL, self._ref, clock=SystemClock())
        opened = open_table(self._catalog.open(self._catalog.find_table("db.t")), {})
        expire_consumers(opened, SystemClock().now_ms())
        builders.sweep_later(LOCAL, self._ref.location, partition_depth=1)


def test_a_writer_readers_of_old_snapshots_and_maintenance_go_on_at_the_same_time(
    judge: Judge, tmp_path: Path
) -> None:
    """Each commit gives all keys its number: a snapshot that is whole has all keys with one."""
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("p", "STRING NOT NULL"), ("k", "INT NOT NULL"), ("v", "INT")),
        primary_key=("p", "k"),
        partition_by=("p",),
        options={"bucket": "1", "consumer.expiration-time": "1 h", **upkeep.OPTIONS},
    ).create()
    path = table.path

    def write(number: int) -> None:
        judge.write(path, [(STAYS, key, number) for key in range(KEYS)] + [(EXPIRES, 0, number)])

    def number_in(**options: str) -> int:
        names = {name.replace("_", "-"): text for name, text in options.items()}
        rows = judge.read(path, options={f"scan.{name}": text for name, text in names.items()})
        kept = [(key, value) for partition, key, value in rows if partition == STAYS]
        assert sorted(key for key, _ in kept) == list(range(KEYS)), options
        (number,) = {value for _, value in kept}
        return int(number)

    for number in range(4):
        write(number)
    judge.create_tag(path, "old", 2)
    # One reader stays where it is, another reads on.
    read, numbers = 3, list[int]()
    _consumer(judge, path, "reads", read)
    maintained = _Maintained(table)
    maintained.start()
    try:
        for number in range(4, COMMITS):
            write(number)
            assert number_in(tag_name="old") == 1
            numbers.append(number_in(snapshot_id=str(read)))
            read += 1
            _consumer(judge, path, "reads", read)
            if maintained.error is not None:
                raise maintained.error
    finally:
        maintained.stopped.set()
        maintained.join(180)
    assert maintained.error is None
    assert maintained.rounds >= 2
    assert numbers == sorted(numbers)
    # Once more, with nobody beside it.
    maintained._round()
    assert number_in() == COMMITS - 1
    assert number_in(tag_name="old") == 1
    assert numbers[-1] <= number_in(snapshot_id=str(read)) <= COMMITS - 1
    ids = snapshot_ids(LOCAL, str(path))
    assert ids[0] == read
    kinds = {read_snapshot(LOCAL, str(path), id_).commit_kind for id_ in ids}
    assert kinds >= {CommitKind.COMPACT, CommitKind.OVERWRITE}
    rows = judge.read(path)
    assert {partition for partition, _, _ in rows} == {STAYS}
    ref = TableRef(database="db", name="t", location=str(path))
    assert not upkeep.lacking(ref, None)
