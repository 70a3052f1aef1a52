"""What `compactord` commands do to tables: they run in this process, on a Spark that all share."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from compactord.cli.command import main
from compactord.cli.registries import Registries
from compactord.engine.base import PooledEngine
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_ids
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.state.table_state import load_state
from compactord_demo.writer import create_table
from tests import builders
from tests.e2e import tables
from tests.e2e.command import SECONDS_MAX, Outcome
from tests.e2e.tables import LOCAL, of_table
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge
from tests.unit.doors.command import started_by

pytestmark = pytest.mark.spark
Command: TypeAlias = Callable[..., Outcome]


class _LentEngine(PooledEngine):
    """The shared engine; a command that closes it only ends its own subcompactions."""

    def __init__(self, engine: PooledEngine) -> None:
        self.__dict__ = engine.__dict__  # one state

    def close(self) -> None:
        self.cancel()
        while self.next_outcome(None) is not None:
            pass


@pytest.fixture
def command(spark_engine: PooledEngine, capsys: pytest.CaptureFixture[str]) -> Command:
    registries = Registries(engines=started_by(lambda *_: _LentEngine(spark_engine)))

    def run(*arguments: str) -> Outcome:
        code = main(arguments, registries)
        out, err = capsys.readouterr()
        return Outcome(code=code, out=out, err=err)

    return run


def _planned(command: Command, warehouse: Path, *arguments: str) -> list[dict[str, Any]]:
    outcome = command("plan", *of_table(warehouse), "--json", *arguments)
    assert outcome.code == 0, outcome.err
    compactions: list[dict[str, Any]] = outcome.found["compactions"]
    return compactions


def test_full_with_small_target_size_makes_many_files_on_the_highest_level(
    command: Command, tmp_path: Path
) -> None:
    tables.large_keyed(tmp_path, buckets=1)
    rows = tables.rows_of(tmp_path)
    how = ("--strategy", "full", "--option", "target-file-size=256kb")
    outcome = command("compact", *of_table(tmp_path), "--json", *how)
    assert outcome.code == 0, outcome.err
    assert outcome.found["files_out"] > 5
    (bucket,) = command("inspect", *of_table(tmp_path), "--json").found["buckets"]
    assert [level["level"] for level in bucket["levels"]] == [5]
    assert tables.rows_of(tmp_path).equals(rows)
    assert _planned(command, tmp_path, *how) == []


def _partitioned_append_table(warehouse: Path) -> TableRef:
    """Partitions of `dt` a and b with ten small files each."""
    fields = (
        DataField(
            id=0,
            name="dt",
            type=AtomicType(root=TypeRoot.VARCHAR, precision=2**31 - 1, nullable=False),
        ),
        DataField(id=1, name="v", type=AtomicType(root=TypeRoot.BIGINT)),
    )
    table = tables.ref(warehouse)
    options = {"bucket": "-1", "write-only": "true"}
    create_table(LOCAL, table, fields, partition_keys=["dt"], options=options)
    writer = builders.writer(LOCAL, table)
    for commit in range(10):
        writer.write(pa.table({"dt": ["a", "b"] * 5, "v": list(range(commit, commit + 10))}))
    return table


def test_only_the_named_partition_of_an_append_table_is_compacted(
    command: Command, tmp_path: Path
) -> None:
    table = _partitioned_append_table(tmp_path)
    where = ("--partition", "dt=a")
    outcome = command("compact", *of_table(tmp_path), "--json", *where)
    assert outcome.code == 0, outcome.err
    assert (outcome.found["files_in"], outcome.found["files_out"]) == (10, 1)
    assert outcome.found["rows_in"] == outcome.found["rows_out"] == 50
    assert _planned(command, tmp_path, *where) == []
    left = _planned(command, tmp_path)
    assert [compaction["partition"].rstrip("/") for compaction in left] == ["dt=b"]
    builders.check_chain(LOCAL, table)
    (bucket_a, bucket_b) = command("inspect", *of_table(tmp_path), "--json").found["buckets"]
    assert {bucket_a["files"], bucket_b["files"]} == {1, 10}


def test_a_branch_that_is_named_is_compacted_by_itself(command: Command, tmp_path: Path) -> None:
    tables.small_keyed(tmp_path)
    main = tables.ref(tmp_path)
    branch = builders.make_branch(LOCAL, main, "b", 5)
    rows, before = builders.read_keyed(LOCAL, branch), tables.digest(f"{main.root}/snapshot")
    place = ("--warehouse", str(tmp_path), "--table", branch.full_name)
    outcome = command("compact", *place, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.found["snapshots"] == [6]
    assert snapshot_ids(LOCAL, branch.root) == (5, 6)
    assert tables.digest(f"{main.root}/snapshot") == before
    assert builders.read_keyed(LOCAL, branch) == rows
    shown = command("inspect", *place, "--json").found
    assert (shown["table"], shown["snapshot"]) == ("db.t$branch_b", 6)
    (listed,) = command("tables", *place, "--json").found["tables"]
    assert listed["table"] == "db.t$branch_b"
    # The options of its own schema hold.
    retained = {"snapshot.num-retained.min": "1", "snapshot.time-retained": "0 s"}
    builders.set_options(LOCAL, branch, retained)
    expired = command("expire", *place, "--json")
    assert expired.code == 0, expired.err
    assert expired.found["snapshots"] == 1
    assert builders.read_keyed(LOCAL, branch) == rows
    assert tables.digest(f"{main.root}/snapshot") == before


def test_levels_and_compression_beyond_all_bounds_are_moved_to_the_nearest_that_there_are(
    command: Command, tmp_path: Path
) -> None:
    options = {
        "file.compression.zstd-level": "2147483647",
        "num-sorted-run.compaction-trigger": "2147483647",
        "data-file.prefix": "a b.ü%#?-",
    }
    table = builders.keyed_table(LOCAL, tables.location(tmp_path), options=options)
    expected = builders.fill_keyed(builders.writer(LOCAL, table), commits=6)
    outcome = command("compact", *of_table(tmp_path), "--strategy", "full", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.found["snapshots"]
    state = load_state(LOCAL, tables.ref(tmp_path))
    files = [f for bucket in state.files.bucket_ids() for f in state.files.files_in(bucket)]
    assert {file.level for file in files} == {999}
    assert all(file.file_name.startswith(options["data-file.prefix"]) for file in files)
    rows = tables.rows_of(tmp_path)
    assert dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True)) == expected
    assert tables.leftovers(tmp_path) == set()


def _first_data_file(warehouse: Path, bucket: int) -> Path:
    return min(Path(tables.location(warehouse)).glob(f"bucket-{bucket}/data-*"))


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    """One bit in the middle of the pages, which only a checksum can tell."""
    content = bytearray(path.read_bytes())
    content[len(content) // 8] ^= 4
    path.write_bytes(content)


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    """Another file's whole content, as a restore from a backup might leave it."""
    path.write_bytes(json.dumps({"not": "parquet"}).encode())


def test_damaged_data_files_fail_their_buckets_by_name_and_all_others_are_compacted(
    command: Command, tmp_path: Path
) -> None:
    expected = tables.small_keyed(tmp_path, buckets=5)
    damages = (_cut, _flip, _remove, _replace)
    damaged = [_first_data_file(tmp_path, bucket) for bucket in range(len(damages))]
    intact = {path: path.read_bytes() for path in damaged}
    for damage, path in zip(damages, damaged, strict=True):
        damage(path)
    before = tables.digest(tmp_path)
    outcome = command("compact", *of_table(tmp_path), "--json")
    assert outcome.code == 3
    assert "Traceback" not in outcome.err
    assert outcome.found["compactions"] == 1
    failures = sorted(outcome.found["failures"])
    assert len(failures) == len(damages)
    for bucket, (failure, path) in enumerate(zip(failures, damaged, strict=True)):
        assert failure.startswith(f"bucket {bucket}: ")
        assert path.name in failure
    assert tables.leftovers(tmp_path) == set()
    after = tables.digest(tmp_path)
    # The hint alone is ever overwritten.
    assert {path for path in before if after.get(path) != before[path]} <= {
        "db.db/t/snapshot/LATEST"
    }
    for path, content in intact.items():
        path.write_bytes(content)
    again = command("compact", *of_table(tmp_path), "--json")
    assert again.code == 0
    assert again.found["compactions"] == len(damages)
    assert builders.read_keyed(LOCAL, tables.ref(tmp_path)) == expected


def test_verify_finds_a_lost_file_where_nothing_else_notices_it(
    command: Command, tmp_path: Path
) -> None:
    tables.small_keyed(tmp_path)
    table = ("verify", *tables.of_table(tmp_path), "--pages", "all", "--json")
    whole = command(*table)
    assert (whole.code, whole.found["whole"]) == (0, True)
    lost = sorted(Path(tables.location(tmp_path)).glob("bucket-0/data-*"))[0]
    lost.unlink()
    found = command(*table)
    assert found.code == 3
    assert [each["path"] for each in found.found["findings"]] == [str(lost)]


@pytest.mark.oracle
@pytest.mark.parametrize("is_keyed", [True, False], ids=["primary-key", "append"])
def test_commands_in_a_loop_beside_a_java_writer_lose_nothing(
    command: Command, judge: Judge, tmp_path: Path, *, is_keyed: bool
) -> None:
    """On a local path Java's rename may replace our snapshot: then it is told, rows stay."""
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("k", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("k",) if is_keyed else (),
        options={"bucket": "2" if is_keyed else "-1"},
    ).create()
    table.write([[0, "first"]])
    enough = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        commit = 0
        try:
            # So slowly that a command finds, now and then, that nothing is left to do.
            while not enough.wait(0.2):
                commit += 1
                rows = [[(7 * commit + n) % 50, f"{commit}-{n}"] for n in range(20)]
                table.write(rows, ["-D" if is_keyed and n % 5 == 4 else "+I" for n in range(20)])
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    arguments = ("compact", *of_table(tmp_path), "--json")
    outcomes: list[Outcome] = []
    deadline_s = time.monotonic() + SECONDS_MAX
    try:
        while sum(bool(outcome.found["snapshots"]) for outcome in outcomes) < 2:
            assert time.monotonic() < deadline_s
            outcomes.append(command(*arguments))
    finally:
        enough.set()
        thread.join()
    outcomes.append(command(*arguments, "--strategy", "full"))
    assert not failures
    table.check()
    for outcome in outcomes:
        assert outcome.code == 0 or "writers changed it" in outcome.err, outcome.err
        assert "Traceback" not in outcome.err
    published = {id_ for outcome in outcomes for id_ in outcome.found["snapshots"]}
    lost = [why for outcome in outcomes for why in outcome.found["lost_snapshots"]]
    assert published
    kept = {
        id_
        for id_ in published
        if (judge.snapshot(table.path, id_) or {})["commitKind"] == "COMPACT"
    }
    assert len(lost) >= len(published - kept)
    judge.compact(table.path, full=True)
    table.check()
