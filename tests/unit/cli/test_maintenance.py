"""`maintain`, `expire`, `orphans`: a dry run names what goes, changes nothing; then that goes."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from compactord import ids
from compactord.catalog.access import TableAccess
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.hive import wire
from compactord.cli.command import _parser
from compactord.cli.maintain import maintain, orphans
from compactord.cli.maintenance import CommandTable, MaintenanceRun
from compactord.cli.plan import plan
from compactord.cli.registries import Registries
from compactord.cli.select import SelectedTable, choose
from compactord.clock import Clock, SystemClock
from compactord.commit.publish import StorePublisher
from compactord.config.policy import config_of_warehouse
from compactord.errors import AccessDenied
from compactord.ids import Owner
from compactord.maintenance.kind import Done, ShownTable
from compactord.maintenance.rounds import RoundResult
from compactord.maintenance.snapshots import ExpireSnapshots
from compactord.paimon import paths
from compactord.paimon.binary_row import encode_row
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import CommitKind, snapshot_ids
from compactord.state.table_state import load_state
from compactord.storage.open import STORES
from compactord.verify.holds import HOLD_FILE
from compactord_demo.writer import create_table
from tests import builders
from tests.e2e.tables import digest
from tests.simulation.world import policy
from tests.storages import Fault, FaultyStorage, HookedStorage
from tests.unit.catalog.metastore import Metastore, running
from tests.unit.catalog.metastore import table as in_metastore
from tests.unit.cli import warehouses
from tests.unit.cli.warehouses import LOCAL, answered, configuration, said
from tests.unit.maintenance.days import DT
from tests.unit.paimon.table_builder import SoundStatistics, data_file, entry

KEEP_ONE = {"snapshot_num__retained_min": "1", "snapshot_time__retained": "1 ms"}
# Commands expire nothing of tables that look as if they had been copied lately.
keyed = partial(warehouses.keyed, clock=SystemClock())
append = partial(warehouses.append, clock=SystemClock())
_ELSEWHERE = Owner(host=0x555555, start_ticks=1, pid=1)
_IN_TWO_DAYS = builders.VirtualClock(SystemClock().now_ms() + 2 * builders.DAY_MS)


def _compacted(warehouse: Path, **options: str) -> TableRef:
    """A table of six commits and their compaction: its inputs go with the old snapshots."""
    ref = keyed(warehouse, "d.t", commits=6, **{**KEEP_ONE, **options})
    builders.one_shot(LOCAL, ref, clock=SystemClock()).run()
    return ref


@pytest.mark.parametrize("limit", ["50", "2"])
def test_a_dry_run_of_expiry_names_every_file_that_then_goes(
    limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = _compacted(tmp_path, snapshot_expire_limit=limit)
    rows = builders.read_keyed(LOCAL, ref)
    table = ("expire", "--warehouse", str(tmp_path), "--table", "d.t")
    before = digest(tmp_path)
    found = answered(capsys, *table, "--dry-run")
    assert digest(tmp_path) == before
    assert (found["snapshots"], found["data_files"], found["first"], found["end"]) == (6, 6, 1, 7)
    assert "d.t: would expire 6 snapshots (1..6): 6 data files" in said(capsys, *table, "--dry-run")
    assert digest(tmp_path) == before
    text = said(capsys, *table)
    assert "d.t: expired 6 snapshots (1..6): 6 data files" in text
    gone = {f"{tmp_path}/{name}" for name in before.keys() - digest(tmp_path).keys()}
    assert gone == set(found["files"])
    assert snapshot_ids(LOCAL, ref.location) == (7,)
    assert builders.read_keyed(LOCAL, ref) == rows
    assert said(capsys, *table) == "d.t: no snapshot expired\n"


def test_a_rule_that_keeps_snapshots_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = _compacted(tmp_path / "wh")
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        rules:
        - {match: {table: 'd.*'}, set: {expire_snapshots: off}}
        """,
    )
    for choice in (("--table", "d.t"), ("--tables", "d.*")):
        text = said(capsys, "expire", "--config", config, *choice)
        assert f"because rules.0.set.expire_snapshots ({config}:3) is off" in text
    assert len(snapshot_ids(LOCAL, ref.location)) == 7


def test_several_tables_expire_by_their_own_options_and_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warehouse = tmp_path / "wh"
    append(warehouse, "d.a", commits=3)
    append(warehouse, "d.b", commits=3, **KEEP_ONE)
    keyed(warehouse, "d.self", commits=3, write__only="false", **KEEP_ONE)
    keyed(warehouse, "d.agg", row__tracking_enabled="true")
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        rules:
        - match: {table: 'd\\.a'}
          set: {options: {snapshot.num-retained.min: 2, snapshot.time-retained: 1 ms}}
        """,
    )
    found = answered(capsys, "expire", "--all", "--config", config, code=4)
    outcomes = {each["table"]: each["outcome"] for each in found["tables"]}
    assert outcomes == {"d.a": "done", "d.b": "done", "d.agg": "refused", "d.self": "passed_over"}
    counts = {each["table"]: each.get("snapshots") for each in found["tables"]}
    assert counts == {"d.a": 1, "d.b": 2, "d.agg": None, "d.self": None}


@pytest.mark.parametrize("command", ["maintain", "expire", "orphans"])
def test_all_tables_of_a_warehouse_are_those_that_serve_works_on(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(tmp_path, "d.a", commits=3, **KEEP_ONE)
    append(tmp_path, "e.b", commits=3)
    keyed(tmp_path, "d.self", commits=3, write__only="false", **KEEP_ONE)
    found = answered(capsys, command, "--all", "--warehouse", str(tmp_path), "--dry-run")
    outcomes = {each["table"]: each["outcome"] for each in found["tables"]}
    assert outcomes == {"d.a": "done", "d.self": "passed_over", "e.b": "done"}


def _left_over(ref: TableRef) -> dict[str, Path]:
    """A file of a process of elsewhere, one of this process, one that Java could have written."""
    folder = Path(ref.location) / "bucket-0"
    names = {
        "elsewhere": f"data-{_ELSEWHERE.unique_name()}-0.parquet",
        "ours": f"data-{ids.this_process().unique_name()}-0.parquet",
        "java": "data-0b4e1a2c-7f1d-4c3a-9d2e-0123456789ab-0.parquet",
    }
    for name in names.values():
        (folder / name).write_bytes(b"left")
    return {owner: folder / name for owner, name in names.items()}


def test_only_files_of_dead_runs_of_ours_that_nothing_names_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = keyed(tmp_path, "d.t", commits=3)
    rows = builders.read_keyed(LOCAL, ref)
    files = _left_over(ref)
    table = ["--warehouse", str(tmp_path), "--table", "d.t"]
    dry = _parser().parse_args(["orphans", *table, "--dry-run", "--json"])
    # Young files of a process that cannot be checked are kept for the grace.
    assert answered(capsys, "orphans", *table, "--dry-run")["orphans"] == []
    before = digest(tmp_path)
    assert orphans(dry, _IN_TWO_DAYS) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["orphans"] == [{"path": str(files["elsewhere"]), "bytes": 4}]
    assert plan(_parser().parse_args(["plan", *table]), _IN_TWO_DAYS) == 0
    assert "d.t: would remove 1 left-over file of earlier runs (4 B)" in capsys.readouterr().out
    assert digest(tmp_path) == before
    assert orphans(_parser().parse_args(["orphans", *table]), _IN_TWO_DAYS) == 0
    assert "d.t: removed 1 left-over file of earlier runs (4 B)" in capsys.readouterr().out
    assert {owner for owner, path in files.items() if path.exists()} == {"ours", "java"}
    assert set(before) - set(digest(tmp_path)) == {f"d.db/t/bucket-0/{files['elsewhere'].name}"}
    assert builders.read_keyed(LOCAL, ref) == rows


@pytest.mark.parametrize(
    "words", ["orphans", "orphans --foreign", "maintain --only orphans", "orphans --dry-run"]
)
def test_uploads_that_cannot_be_listed_are_a_failure_and_files_go_all_the_same(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = _left_over(keyed(tmp_path, "d.t", commits=3))
    fault = Fault(
        at=1, error=AccessDenied, lasts=True, concerns=lambda c: c.method == "unfinished_uploads"
    )
    faulty = STORES.wrapped(lambda storage, location: FaultyStorage(storage, fault))
    command = [*words.split(), "--warehouse", str(tmp_path), "--table", "d.t"]
    for is_json in (True, False):
        args = _parser().parse_args([*command, *(["--json"] if is_json else [])])
        args.registries = Registries(stores=faulty)
        run = maintain if "maintain" in words else orphans
        assert run(args, _IN_TWO_DAYS) == 3
        said = capsys.readouterr()
        assert "FAILED: " in said.err
        assert said.err.count("unfinished uploads cannot be listed, so they stay") == 1
        assert "nothing left over" not in said.out
        if is_json:
            found = json.loads(said.out.splitlines()[-1])
            found = found.get("kinds", {}).get("orphans", found)
            assert found["kind"] == "StorageError"
            # The owner's process is gone, so its file is as well.
            assert str(files["elsewhere"]) in {each["path"] for each in found["orphans"]}
    assert files["elsewhere"].exists() == ("--dry-run" in words)


def test_maintain_does_each_kind_that_is_asked_for_and_says_what_went(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = _compacted(tmp_path)
    files = _left_over(ref)
    table = ["maintain", "--warehouse", str(tmp_path), "--table", "d.t"]
    both = [*table, "--only", "orphans", "--only", "snapshots", "--json"]
    before = digest(tmp_path)
    kinds = answered(capsys, *table, "--dry-run")["kinds"]
    usual = ["tags", "consumers", "partitions", "snapshots", "changelogs", "branches", "done"]
    assert list(kinds) == usual
    found = _maintained(capsys, [*both, "--dry-run"])
    assert found["dry_run"]
    assert digest(tmp_path) == before
    going = {*found["kinds"]["snapshots"]["files"], found["kinds"]["orphans"]["orphans"][0]["path"]}
    assert str(files["elsewhere"]) in going
    done = _maintained(capsys, both)["kinds"]
    assert list(done) == ["snapshots", "orphans"]
    assert (done["snapshots"]["snapshots"], len(done["orphans"]["orphans"])) == (6, 1)
    gone = {f"{tmp_path}/{name}" for name in before.keys() - digest(tmp_path).keys()}
    assert gone == going


def _maintained(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any]:
    assert maintain(_parser().parse_args(arguments), _IN_TWO_DAYS) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_tags_expire_with_their_files_unless_a_rule_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = keyed(tmp_path / "wh", "d.t", commits=6, **KEEP_ONE)
    tag = Path(paths.tag_path(ref.root, "old"))
    tag.parent.mkdir()
    times = {"tagCreateTime": [2024, 1, 1, 0, 0], "tagTimeRetained": 1.5}
    snapshot = json.loads(Path(paths.snapshot_path(ref.root, 6)).read_text())
    tag.write_text(json.dumps(snapshot | times))
    builders.one_shot(LOCAL, ref, clock=SystemClock()).run()
    place = ("maintain", "--warehouse", f"{tmp_path}/wh", "--table", "d.t")
    assert answered(capsys, *place, "--only", "snapshots")["kinds"]["snapshots"]["snapshots"] == 6
    rows, before = builders.read_keyed(LOCAL, ref), digest(tmp_path / "wh")
    found = answered(capsys, *place, "--dry-run")["kinds"]["tags"]
    assert digest(tmp_path / "wh") == before
    assert (found["tags"], found["data_files"]) == (["old"], 6)
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        rules:
        - {match: {table: 'd.t'}, set: {expire_tags: off}}
        """,
    )
    kept = said(capsys, "maintain", "--all", "--config", config, "--only", "tags")
    assert "d.t: no tag expired\n  because rules.0.set.expire_tags" in kept
    assert "d.t: expired 1 tag (old): 6 data files, " in said(capsys, *place)
    gone = {f"{tmp_path}/wh/{name}" for name in before.keys() - digest(tmp_path / "wh").keys()}
    assert gone == set(found["files"])
    assert builders.read_keyed(LOCAL, ref) == rows
    assert "d.t: no tag expired\n" in said(capsys, *place)


@pytest.mark.parametrize("is_of_age", [False, True])
def test_tags_are_created_as_the_table_asks_unless_a_rule_forbids_it(
    is_of_age: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The old one is too many then; if it is of age, too, it is told of once nevertheless."""
    asks = {"tag_automatic__creation": "process-time", "tag_num__retained__max": "1"}
    asks |= {"sink_process__time__zone": "UTC"}
    ref = keyed(tmp_path / "wh", "d.t", commits=2, **asks)
    place = ("maintain", "--warehouse", f"{tmp_path}/wh", "--table", "d.t", "--only", "tags")
    old = Path(paths.tag_path(ref.root, "2023-11-10"))
    old.parent.mkdir()
    times = {"tagCreateTime": [2024, 1, 1, 0, 0], "tagTimeRetained": 1.5} if is_of_age else {}
    snapshot = json.loads(Path(paths.snapshot_path(ref.root, 1)).read_text())
    old.write_text(json.dumps(snapshot | times))
    before = digest(tmp_path / "wh")
    yesterday = str(datetime.now(timezone.utc).date() - timedelta(days=1))
    found = answered(capsys, *place, "--dry-run")["kinds"]["tags"]
    assert digest(tmp_path / "wh") == before
    assert (found["created"], found["tags"]) == ({yesterday: 2}, ["2023-11-10"])
    assert found["files"] == [str(old)]
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        rules:
        - {match: {table: 'd.t'}, set: {create_tags: off}}
        """,
    )
    kept = said(capsys, "maintain", "--all", "--config", config, "--only", "tags", "--dry-run")
    assert "d.t: no tags created\n  because rules.0.set.create_tags" in kept
    text = said(capsys, *place)
    assert f"d.t: created 1 tag ({yesterday})\nd.t: expired 1 tag (2023-11-10)\n" in text
    assert [path.name for path in old.parent.iterdir()] == [f"tag-{yesterday}"]
    assert "created" not in said(capsys, *place)


def test_consumers_expire_by_the_table_s_option_unless_a_rule_keeps_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = keyed(tmp_path / "wh", "d.t", commits=1, consumer_expiration__time="1 h")
    keyed(tmp_path / "wh", "d.u", commits=1)
    path = Path(builders.consumer_path(ref.root, "a"))
    path.parent.mkdir()
    path.write_text('{"nextSnapshot": 2}')
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        rules:
        - {match: {table: 'd.u'}, set: {expire_consumers: off}}
        """,
    )
    command = ["maintain", "--config", config, "--only", "consumers"]
    dry = [*command, "--table", "d.t", "--dry-run", "--json"]
    found = _maintained(capsys, dry)["kinds"]["consumers"]
    assert [(each["name"], each["next_snapshot"]) for each in found["consumers"]] == [("a", 2)]
    assert path.exists()
    assert maintain(_parser().parse_args([*command, "--all"]), _IN_TWO_DAYS) == 0
    text = capsys.readouterr().out
    assert "d.t: expired 1 consumer\n  a, next snapshot 2\n" in text
    assert "d.u: no consumer expired\n  because rules.0.set.expire_consumers" in text
    assert not path.exists()
    text = said(capsys, "maintain", "--warehouse", f"{tmp_path}/wh", "--table", "d.u")
    assert "d.u: no consumer expired\n  because consumer.expiration-time is not set\n" in text


def test_snapshots_of_branches_expire_by_their_own_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One keeps five, one has no schema; main's snapshots are not touched."""
    ref = _compacted(tmp_path / "wh", snapshot_expire_limit="2")
    root = Path(ref.location)
    for name in ("five", "one", "torn"):
        branch = Path(paths.branch_root(ref.location, name))
        for folder in ("schema", "snapshot"):
            shutil.copytree(root / folder, branch / folder)
    schema = Path(paths.schema_path(paths.branch_root(ref.location, "five"), 0))
    text = schema.read_text()
    assert '"snapshot.num-retained.min": "1"' in text
    schema.write_text(
        text.replace('"snapshot.num-retained.min": "1"', '"snapshot.num-retained.min": "5"')
    )
    shutil.rmtree(Path(paths.branch_root(ref.location, "torn")) / "schema")
    rows, before = builders.read_keyed(LOCAL, ref), digest(tmp_path / "wh")
    only = ("maintain", "--warehouse", f"{tmp_path}/wh", "--table", "d.t", "--only", "branches")
    found = answered(capsys, *only, "--dry-run", code=3)["kinds"]["branches"]["branches"]
    assert digest(tmp_path / "wh") == before
    assert {name: each.get("snapshots") for name, each in found.items()} == {
        "five": 2,
        "one": 6,
        "torn": None,
    }
    answered(capsys, *only, code=3)
    left = {
        name: snapshot_ids(LOCAL, paths.branch_root(ref.location, name))
        for name in ("main", "five", "one", "torn")
    }
    seven = tuple(range(1, 8))
    assert left == {"main": seven, "five": seven[2:], "one": (7,), "torn": seven}
    assert builders.read_keyed(LOCAL, ref) == rows
    # Those of main need all files.
    gone = before.keys() - digest(tmp_path / "wh").keys()
    assert all("/snapshot/" in name for name in gone)
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        defaults: {branches: [main, five]}
        rules:
        - {match: {table: 'd.t.branch_one'}, set: {expire_snapshots: off}}
        """,
    )
    where = ("maintain", "--config", config, "--database", "d", "--only", "branches")
    tables = answered(capsys, *where, code=3)["tables"]
    names = {each["table"]: set(each["kinds"]["branches"]["branches"]) for each in tables}
    assert names == {"d.t": {"one", "torn"}, "d.t$branch_five": set()}
    assert "rules.0.set.expire_snapshots" in str(tables)


def _years(tmp_path: Path, clock: Clock | None = None, **options: str) -> TableRef:
    """Table d.t, whose partitions are the years 2022, 2023 and 2998."""
    ref = TableRef(database="d", name="t", location=f"{tmp_path}/wh/d.db/t")
    asks = {"partition.timestamp-pattern": "$v-01-01", "bucket": "1", "write-only": "true"}
    asks |= {key.replace("__", "-").replace("_", "."): text for key, text in options.items()}
    keys = {"primary_keys": ["k", "v"], "partition_keys": ["v"]}
    fields = [builders.FIELDS[0], replace(builders.FIELDS[1], type=builders.FIELDS[0].type)]
    create_table(LOCAL, ref, fields, options=asks, **keys)
    rows = _of_years((1, 2023), (1, 2998), (2, 2023), (1, 2022))
    builders.writer(LOCAL, ref, clock=clock).write(rows)
    return ref


def _of_years(*rows: tuple[int, int]) -> pa.Table:
    nullable = [pa.field(name, pa.int64(), nullable=False) for name in ("k", "v")]
    return builders.rows_of(rows).cast(pa.schema(nullable))


def test_partitions_expire_as_the_table_and_the_rules_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = {"partition_expiration__time": "1 d", "partition_expiration__max__num": "1"}
    ref = _years(tmp_path, SystemClock(), **asks)
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        rules:
        - {match: {catalog: lake}, set: {expire_partitions: off}}
        """,
    )
    only = ("--only", "partitions")
    text = said(capsys, "maintain", "--all", "--config", config, *only)
    assert "d.t: no partition expired\n  because rules.0.set.expire_partitions" in text
    place = ("maintain", "--all", "--warehouse", f"{tmp_path}/wh", *only)
    before = digest(tmp_path)
    text = said(capsys, *place, "--dry-run")
    assert text.startswith(
        "d.t: would expire 1 partition: 1 data file, 1 row\n  v=2022\n  1 partition more"
    )
    assert digest(tmp_path) == before
    (found,) = answered(capsys, *place)["tables"]
    counts = {"partitions": ["v=2022"], "files": 1, "rows": 1, "left": 1, "why_not": None}
    assert found["kinds"]["partitions"] == counts
    assert snapshot_ids(LOCAL, ref.location) == (1, 2)
    assert "d.t: expired 1 partition: 1 data file, 2 rows\n  v=2023\n" in said(capsys, *place)
    assert said(capsys, *place).startswith("d.t: no partition expired\n")
    assert snapshot_ids(LOCAL, ref.location) == (1, 2, 3)
    builders.set_options(LOCAL, ref, {"partition.expiration-strategy": "mine"})
    text = said(capsys, *place)
    assert "because option partition.expiration-strategy=mine: only values-time and" in text
    # What has gone goes with its snapshots.
    builders.set_options(LOCAL, ref, {"snapshot.num-retained.min": "1"})
    expire = ("expire", "--warehouse", f"{tmp_path}/wh", "--table", "d.t")
    builders.set_options(LOCAL, ref, {"snapshot.time-retained": "1 ms"})
    assert "expired 2 snapshots (1..2): 2 data files" in said(capsys, *expire)


def test_partitions_are_marked_as_the_table_and_the_rules_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = {"partition_idle__time__to__done": "1 h", "partition_time__interval": "1 d"}
    ref = _years(tmp_path, **asks)
    config = configuration(
        tmp_path,
        """\
        catalogs: {lake: {warehouse: WH}}
        rules:
        - {match: {catalog: lake}, set: {mark_done: off}}
        """,
    )
    mark = Path(ref.location) / "v=2023" / "_SUCCESS"
    only = ("--only", "done")
    text = said(capsys, "maintain", "--all", "--config", config, *only)
    assert "d.t: no partition marked done\n  because rules.0.set.mark_done" in text
    place = ("maintain", "--all", "--warehouse", f"{tmp_path}/wh", *only)
    assert said(capsys, *place, "--dry-run").startswith(
        "d.t: would mark done 2 partitions\n  v=2022\n  v=2023\n  by success-file\n"
    )
    assert not mark.exists()
    (found,) = answered(capsys, *place)["tables"]
    assert found["kinds"]["done"] == {"partitions": ["v=2022", "v=2023"], "why_not": None}
    assert json.loads(mark.read_text()).keys() == {"creationTime", "modificationTime"}
    assert "d.t: no partition marked done\n" in said(capsys, *place)
    for action, why in (
        ("custom", "only success-file, done-partition and mark-event are served\n"),
        ("mark-event", "=mark-event without metastore.partitioned-table=true\n"),
    ):
        builders.set_options(LOCAL, ref, {"partition.mark-done-action": action})
        assert why in said(capsys, *place)
    builders.set_options(LOCAL, ref, {"metastore.partitioned-table": "true"})
    text = said(capsys, *place)
    assert "because option partition.mark-done-action=mark-event: the table's catalog" in text


def test_a_dry_run_of_marks_goes_on_behind_the_partitions_of_one_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = TableRef(database="d", name="t", location=f"{tmp_path}/d.db/t")
    options = {
        "write-only": "true",
        "partition.idle-time-to-done": "1 ms",
        "partition.time-interval": "1 d",
        "bucket": "-1",
    }
    fields = [DT, builders.FIELDS[1]]
    create_table(LOCAL, ref, fields, partition_keys=["dt"], options=options)
    history = SoundStatistics(LOCAL, ref, (DT.type,), sound=encode_row(["x"], [DT.type]))  # type: ignore[arg-type]
    first = date(2001, 1, 1)
    days = [str(first + timedelta(days=number)) for number in range(1_002)]
    history.commit(
        [
            entry(
                replace(data_file(f"data-{day}.parquet"), creation_time_ms=builders.NOW_MS),
                partition=encode_row([day], [DT.type]),
                total_buckets=-1,
            )
            for day in days
        ],
        CommitKind.APPEND,
    )
    place = ("maintain", "--all", "--warehouse", str(tmp_path), "--only", "done", "--dry-run")
    (found,) = answered(capsys, *place)["tables"]
    assert found["kinds"]["done"]["partitions"] == [f"dt={day}" for day in days]


def test_entries_in_a_catalog_go_and_come_and_a_dry_run_changes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = _years(
        tmp_path,
        SystemClock(),
        metastore_partitioned__table="true",
        partition_expiration__time="700 d",
        partition_idle__time__to__done="1 ms",
        partition_time__interval="1 d",
        partition_mark__done__action="done-partition,mark-event",
    )
    metastore = Metastore(in_metastore("d", "t", f"file:{ref.location}"))
    with running(metastore) as uri:
        where = ("--metastore", "hive", "--catalog-option", f"uri={uri}")
        kinds = ("--only", "partitions", "--only", "done")
        place = ("maintain", "--all", "--warehouse", f"{tmp_path}/wh", *where, *kinds)
        text = said(capsys, *place, "--dry-run")
        gone = "2 partitions: 2 data files, 3 rows\n  v=2022\n  v=2023\n"
        assert f"would expire {gone}  with their entries in the catalog\n" in text
        assert "  by done-partition, mark-event\n" in text
        changing = {"drop_partition", "add_partitions_req", "markPartitionForEvent"}
        assert not changing & {*metastore.names()}
        metastore.entries[("d", "t", "2022")] = wire.HivePartition(values=["2022"], created_s=1)
        assert f"expired {gone}  with their entries in the catalog\n" in said(capsys, *place)
        assert not metastore.entries
        builders.set_options(LOCAL, ref, {"partition.expiration-time": "99999 d"})
        builders.writer(LOCAL, ref).write(_of_years((3, 2023)))
        assert "marked done 1 partition\n" in said(capsys, *place)
        assert [key[2:] for key in metastore.entries] == [("2023.done",)]
        assert metastore.marks == [{"v": "2023"}]
        assert "no partition marked done\n" in said(capsys, *place)


def test_a_kind_that_fails_does_not_keep_the_others_from_their_turn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = _compacted(tmp_path)
    tags = Path(ref.location) / "tag"
    tags.mkdir()
    (tags / "tag-x").write_bytes(b"half")
    table = ("maintain", "--warehouse", str(tmp_path), "--table", "d.t")
    kinds = ("--only", "snapshots", "--only", "orphans")
    found = answered(capsys, *table, *kinds, code=3)["kinds"]
    assert found["snapshots"]["kind"] == "FormatError"
    assert found["orphans"] == {"orphans": []}
    assert "d.t: snapshots: FAILED: " in said(capsys, *table, *kinds, code=3)
    text = said(capsys, *table, "--only", "y", code=2)
    assert "--only y: unknown; it is one of tags, consumers, partitions, snapshots, " in text


def test_nothing_is_removed_from_a_table_that_is_being_restored_or_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = keyed(tmp_path, "d.t", commits=3)
    files = _left_over(ref)
    snapshots = Path(ref.location) / "snapshot"
    for path in snapshots.glob("snapshot-*"):
        path.rename(snapshots / f".{path.name}")
    table = ["orphans", "--warehouse", str(tmp_path), "--table", "d.t"]
    with capture_logs(processors=[merge_contextvars]) as logs:
        assert orphans(_parser().parse_args(table), _IN_TWO_DAYS) == 0
    named = {"catalog": "warehouse", "database": "d", "table": "t"}
    assert [{**log, **named} for log in logs if log["event"] == "sweep_skipped"] == logs
    assert "d.t: nothing left over" in capsys.readouterr().out
    keyed(tmp_path, "d.agg", row__tracking_enabled="true")
    text = said(capsys, *table[:3], "--table", "d.agg", code=4)
    assert "row-tracking" in text
    assert all(path.exists() for path in files.values())


def test_nothing_expires_while_a_late_rename_has_lost_a_writers_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = keyed(tmp_path, "d.t", commits=6, **KEEP_ONE)
    folder, aside = Path(ref.location), tmp_path / "aside"
    shutil.copytree(folder, aside)
    late = builders.writer(LOCAL, replace(ref, location=str(aside))).write(
        builders.rows_of([(9_000, 1)])
    )
    builders.one_shot(LOCAL, ref, clock=SystemClock()).run()
    for commit in range(6):
        builders.writer(LOCAL, ref).write(builders.rows_of([(commit, commit)]))
    builders.one_shot(LOCAL, ref, clock=SystemClock()).run()
    # All of the writer's files come, its snapshot in the place of ours.
    shutil.copytree(aside, folder, dirs_exist_ok=True)
    (folder / "snapshot" / "LATEST").unlink()
    before = digest(folder)
    assert snapshot_ids(LOCAL, ref.location)[-1] > late
    table = ("expire", "--warehouse", str(tmp_path), "--table", "d.t")
    for more in ((), ("--dry-run",)):
        found = answered(capsys, *table, *more)
        assert found["snapshots"] == 0
        assert "another writer replaced a snapshot" in found["why_not"]
    assert digest(folder) == before


def test_a_later_round_that_is_kept_from_beginning_changes_no_figures() -> None:
    rounds = [
        RoundResult(first=1, end=3, items=[1, 2], more=True),
        RoundResult(why_not="a commit was lost"),
    ]
    shown = ShownTable(name="d.t", is_dry=False, table=None)
    told = ExpireSnapshots(interval_ms=0).report(shown, Done(rounds=rounds))
    assert (told.found["first"], told.found["end"], told.found["snapshots"]) == (1, 3, 2)
    assert told.lines[0].startswith("d.t: expired 2 snapshots (1..2): ")
    assert told.lines[1] == "  no more because a commit was lost"


def test_expiry_waits_until_the_newest_snapshot_of_ours_has_stood(tmp_path: Path) -> None:
    ref = keyed(tmp_path, "d.t", commits=6, **KEEP_ONE)
    builders.one_shot(LOCAL, ref, clock=builders.VirtualClock(SystemClock().now_ms())).run()

    class Settling(FilesystemCatalog):
        def open(self, table: TableRef) -> TableAccess:
            publisher = StorePublisher(LOCAL, settle_ms=500)
            return TableAccess(ref=table, storage=LOCAL, publisher=publisher)

    catalog = Settling(LOCAL, str(tmp_path))
    target = SelectedTable(
        catalog_name="", catalog=catalog, ref=ref, policy=policy(), registries=Registries()
    )
    config = config_of_warehouse(".").config
    clock, stop = SystemClock(), threading.Event()
    start_s = clock.monotonic_s()
    assert (
        CommandTable(target, config, clock, stop, holds_of=lambda access: None).expiry_blocker()
        is None
    )
    assert clock.monotonic_s() - start_s >= 0.5
    stop.set()
    why = CommandTable(target, config, clock, stop, holds_of=lambda access: None).expiry_blocker()
    assert why is not None
    assert "may still be replaced" in why


def _lost(ref: TableRef) -> tuple[Path, bytes]:
    """A live file is gone: its path and bytes."""
    state = load_state(LOCAL, ref)
    path = Path(next(iter(builders.live_paths(LOCAL, ref, state))))
    data = path.read_bytes()
    path.unlink()
    return path, data


@pytest.mark.parametrize(
    "command", [("expire",), ("maintain",), ("orphans",), ("orphans", "--foreign")]
)
def test_no_command_deletes_while_a_live_file_is_missing_unless_it_is_forced(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = _compacted(tmp_path)
    path, data = _lost(ref)
    table = (*command, "--warehouse", str(tmp_path), "--table", "d.t")
    before = digest(tmp_path)
    text = said(capsys, *table, "--dry-run")
    assert "would be refused: a live data file does not exist" in text
    assert digest(tmp_path) == before, "a dry run writes no hold"
    text = said(capsys, *table, code=3)
    assert text.count("nothing of d.t is deleted: a live data file does not exist") == 1
    for part in (str(path), "the newest version without it is snapshot 6", "verify", "--force"):
        assert part in text
    held = digest(tmp_path)
    hold = f"d.db/t/{HOLD_FILE}"
    named = ("--table", "d.t")
    for tells, code in (
        (("tables",), 3),
        (("why", "d.t"), 0),
        (("plan", *named), 0),
        (("inspect", *named), 0),
    ):
        text = said(capsys, *tells, "--warehouse", str(tmp_path), code=code)
        assert "halted" in text
        assert "the newest version without it is snapshot 6" in text
        assert "What to do: Restore the file; or stop the table's writers" in text
    assert {name: found for name, found in held.items() if name != hold} == before
    assert hold in held
    found = answered(capsys, *table, code=3)
    assert found["kind"] == "TableHeld"
    path.write_bytes(data)
    said(capsys, *table)
    assert hold not in digest(tmp_path)


def test_forced_commands_delete_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = _compacted(tmp_path)
    _lost(ref)
    table = ("--warehouse", str(tmp_path), "--table", "d.t", "--force")
    assert "expired 6 snapshots" in said(capsys, "expire", *table)


def test_all_kinds_of_one_run_list_a_table_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each kind opens the table by itself."""
    ref = _compacted(tmp_path)
    listed: list[str] = []

    class Watched(FilesystemCatalog):
        def open(self, table: TableRef) -> TableAccess:
            access = super().open(table)
            hooked = HookedStorage(access.storage, before=lambda call: listed.append(call.path))
            return replace(access, storage=hooked)

    target = SelectedTable(
        catalog_name="",
        catalog=Watched(LOCAL, str(tmp_path)),
        ref=ref,
        policy=policy(),
        registries=Registries(),
    )
    args = _parser().parse_args(["maintain", "--warehouse", str(tmp_path), "--table", "d.t"])
    args.registries = Registries()
    run = MaintenanceRun(
        args=args,
        choice=choose(args),
        clock=SystemClock(),
        stop=threading.Event(),
        kinds=(),
        grace_ms=builders.DAY_MS,
    )
    for _ in range(3):
        config = run.choice.loaded.config
        opened = CommandTable(target, config, run.clock, run.stop, holds_of=run.holds_of)
        assert opened.why_held() is None
    assert listed.count(f"{ref.location}/bucket-0") == 1
