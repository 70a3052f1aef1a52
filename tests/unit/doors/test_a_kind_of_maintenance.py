"""A kind of maintenance is one module and one line of a registry: a toy runs wherever kinds run."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from compactord.cli.command import _parser, main
from compactord.cli.maintenance import MaintenanceRun, of_choice
from compactord.cli.registries import Registries
from compactord.cli.running import FAILED, USAGE
from compactord.cli.select import choose
from compactord.clock import SystemClock
from compactord.config.model import Recovery
from compactord.errors import TransientStorageError
from compactord.maintenance.kind import AnyKind, OpenedTable, UnderWay
from compactord.maintenance.new_tags import CreateTags
from compactord.maintenance.registry import maintenance_kinds
from compactord.paimon.snapshot import read_tags, snapshot_ids
from tests.builders import fill_keyed, keyed_table, one_shot, writer
from tests.storages import MemoryStorage
from tests.unit.cli.warehouses import keyed
from tests.unit.doors.toy_maintenance import CountSnapshots
from tests.unit.service.test_wall_clock import Running

TOY = CountSnapshots()


def _kinds(recovery: Recovery) -> tuple[AnyKind, ...]:
    return (*maintenance_kinds(recovery), TOY)


def test_the_daemon_runs_a_toy_beside_its_own_kinds_and_tells_of_it(tmp_path: Path) -> None:
    with capture_logs(processors=[merge_contextvars]) as events:
        running = Running(tmp_path, kinds=_kinds)
        with running:
            for _ in range(12):
                running.second()
    scheduled = running.scheduled
    record = scheduled.rounds[TOY.name]
    assert 0 < record.began_ms <= record.succeeded_ms == record.ended_ms
    report = [event for event in events if event["event"] == "toy_finished"]
    counted = record.counts["toy_snapshots"]
    assert counted == sum(event["snapshots"] for event in report) > 0
    assert report[0].items() >= running.name.log_fields.items()
    scraped = b"".join(running.metrics.expose(running.daemon.view())[0]).decode()
    assert f"compactord_toy_snapshots_total {float(counted)}" in scraped
    assert f"compactord_toy_duration_seconds_count {float(len(report))}" in scraped
    assert {"sweep", "expire"} < scheduled.rounds.keys(), "the others run, too"


def test_a_toy_that_fails_does_not_count_as_a_round_that_succeeded(tmp_path: Path) -> None:
    with Running(tmp_path, kinds=lambda _: (TOY,)) as running:
        running.second()
        succeeded_ms = running.scheduled.rounds[TOY.name].succeeded_ms
        running.is_unlisted = True
        for _ in range(3):
            running.second()
    record = running.scheduled.rounds[TOY.name]
    assert record.succeeded_ms == succeeded_ms < record.ended_ms


def test_tags_are_made_after_new_snapshots_and_quiet_tables_have_no_rounds(tmp_path: Path) -> None:
    asked = {"tag.automatic-creation": "process-time", "sink.process-time-zone": "UTC"}
    with Running(tmp_path, **asked) as running:
        running.second()
        record = running.scheduled.rounds[CreateTags.name]
        assert set(read_tags(running.memory, running.table.root)) == {"2023-11-13"}
        assert record.counts["new_tags"] == 1
        for _ in range(5):
            running.pass_by(61)
        began_ms = record.began_ms
        for _ in range(5):
            running.pass_by(61)
        assert record.began_ms == began_ms
        running.second()
        assert record.began_ms > began_ms


def test_a_command_runs_a_toy_before_it_compacts() -> None:
    storage = MemoryStorage()
    table = keyed_table(storage, "/wh/db.db/t")
    fill_keyed(writer(storage, table), commits=6)
    run = one_shot(storage, table)
    assert run.maintain(TOY) == {"toy_snapshots": len(snapshot_ids(storage, table.location))}
    assert run.run().compactions > 0


def test_people_choose_a_toy_by_its_name_and_all_kinds_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path, "d.t", commits=3)
    place = ["maintain", "--warehouse", str(tmp_path), "--table", "d.t"]
    toy, registries = ["--only", "toy"], Registries(maintenance=_kinds)
    for asked, line in (
        (toy, "d.t: counted 3 snapshots"),
        ([*toy, "--dry-run"], "d.t: would count 3 snapshots"),
        ([], "d.t: counted 3 snapshots"),
    ):
        assert main([*place, *asked], registries) == 0
        assert capsys.readouterr().out.splitlines()[-1] == line
    assert main([*place, *toy, "--json"], registries) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kinds"] == {"toy": {"counted": 3}}
    assert main([*place, *toy]) == USAGE
    assert "--only toy: unknown; it is one of tags, " in capsys.readouterr().err


def test_once_it_is_to_stop_no_round_begins_and_the_command_has_failed(tmp_path: Path) -> None:
    keyed(tmp_path, "d.t", commits=3)
    place = ["maintain", "--warehouse", str(tmp_path), "--table", "d.t"]
    args, stop = _parser().parse_args(place), threading.Event()
    choice = choose(args)
    run = MaintenanceRun(
        args=args, choice=choice, clock=SystemClock(), stop=stop, kinds=[TOY], grace_ms=1
    )
    for counted, code in ((3, 0), (0, 3)):
        result = of_choice("toy", run, choice.targets[0])
        assert (result.found, result.code) == ({"counted": counted}, code)
        stop.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _FailsLater(CountSnapshots):
    """Has always more to do; the second round fails."""

    done: list[int] = field(default_factory=list)

    def has_more(self, result: int) -> bool:
        return True

    def run(self, table: OpenedTable, under_way: UnderWay | None) -> int:
        if self.done:
            raise TransientStorageError(table.table.ref.location, "the store is away")
        self.done.append(CountSnapshots.run(self, table, under_way))
        return self.done[0]


def test_what_rounds_did_is_told_though_a_later_one_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path, "d.t", commits=3)
    place = ["maintain", "--warehouse", str(tmp_path), "--table", "d.t", "--only", "toy"]
    kinds = (_FailsLater(),)
    assert main(place, Registries(maintenance=lambda _: kinds)) == FAILED
    report = capsys.readouterr()
    assert report.out.splitlines()[-1] == "d.t: counted 3 snapshots"
    assert "d.t: FAILED: " in report.err
    assert "the store is away" in report.err


@pytest.mark.parametrize(("command", "kind"), [("expire", "snapshots"), ("orphans", "orphans")])
def test_a_command_says_that_its_kind_is_not_registered(
    command: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path, "d.t", commits=3)
    place = [command, "--warehouse", str(tmp_path), "--table", "d.t"]
    assert main(place, Registries(maintenance=lambda _: (TOY,))) == USAGE
    assert f"there is no kind of maintenance {kind}" in capsys.readouterr().err
