"""Java Paimon and a daemon on the same tables, by turns and at the same time."""

from __future__ import annotations

import pytest

from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge
from tests.service.conftest import Served

pytestmark = pytest.mark.oracle


def _table(served: Served, judge: Judge, name: str, *, keyed: bool) -> LiveTable:
    return LiveTable(
        judge=judge,
        path=served.lake.path(name),
        columns=(("k", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("k",) if keyed else (),
        options={"bucket": "2" if keyed else "-1"},
    ).create()


@pytest.mark.parametrize("keyed", [True, False], ids=["primary-key", "append"])
def test_what_java_writes_is_compacted_and_read_by_java_through_changes_of_the_table(
    served: Served, judge: Judge, keyed: bool
) -> None:
    service = served.service
    name = f"java_{keyed}".lower()
    table = _table(served, judge, name, keyed=keyed)
    for commit in range(8):
        table.write([[n, f"{commit}-{n}"] for n in range(commit, 40, 2)])
    service.wait_settled(name)
    table.check()
    # Another trigger, while the daemon runs.
    judge.alter_options(table.path, {"num-sorted-run.compaction-trigger": "2"})
    for commit in range(4):
        table.write([[n, f"again {commit}-{n}"] for n in range(commit, 60, 3)])
    service.wait_settled(name)
    table.check()
    snapshots = judge.snapshots(table.path)
    kinds = [(judge.snapshot(table.path, snapshot) or {})["commitKind"] for snapshot in snapshots]
    assert kinds.count("COMPACT") >= 2
    assert kinds.count("APPEND") == 12
    if keyed:
        assert sum(level == 0 for _, level in table.levels()) <= 2
    else:
        assert len(table.files()) < 12
    # A new column, which older files lack, without a restart.
    judge.add_column(table.path, "w", "BIGINT")
    table.columns = (*table.columns, ("w", "BIGINT"))
    table.model = {key: [*row, None] for key, row in table.model.items()}
    table.appended = [[*row, None] for row in table.appended]
    for commit in range(4):
        table.write([[n, f"wide {commit}-{n}", n] for n in range(commit, 60, 3)])
    scrape = service.wait_settled(name)
    table.check()
    assert scrape.sum("table_halted", table=name) == 0
    newest = judge.snapshot(table.path)
    assert newest is not None
    assert (newest["commitKind"], newest["schemaId"]) == ("COMPACT", 2)


def test_after_a_rollback_by_java_the_daemon_goes_on_from_there(
    served: Served, judge: Judge
) -> None:
    service = served.service
    table = _table(served, judge, "java_back", keyed=True)
    for commit in range(3):
        table.write([[n, f"{commit}"] for n in range(20)])
    kept = dict(table.model)
    for commit in range(3):
        table.write([[n, f"later {commit}"] for n in range(30)])
    service.wait_settled("java_back")
    table.check()
    judge.rollback(table.path, 3)
    table.model = kept
    table.check()
    for commit in range(4):
        table.write([[n, f"after {commit}"] for n in range(10, 25)])
    scrape = service.wait_settled("java_back")
    table.check()
    assert scrape.sum("table_halted", table="java_back") == 0
    # Seven runs were too many; how many of them came before a poll decides what is left on level 0.
    assert any(level > 0 for _, level in table.levels())
