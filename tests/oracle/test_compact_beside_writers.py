"""Java commits while we compact: every row that Java committed is there at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from compactord.errors import CommitGaveUp
from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, compact
from tests.oracle.judge import Judge

COMMITS = 40


# Its writer adds keys, and with them HASH indexes and buckets, in every commit.
DYNAMIC = {"bucket": "-1", "dynamic-bucket.target-row-num": "40"}


@pytest.mark.parametrize(
    ("key", "options", "new_keys"),
    [(True, {"bucket": "2"}, 0), (False, {"bucket": "-1"}, 0), (True, DYNAMIC, 5)],
    ids=["primary-key", "append", "dynamic"],
)
def test_nothing_is_lost_while_java_writes_and_we_compact(
    judge: Judge,
    writer: Judge,
    tmp_path: Path,
    *,
    key: bool,
    options: dict[str, str],
    new_keys: int,
) -> None:
    """On a local path Java's rename may replace our snapshot: then it is reported, rows stay."""
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("k", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("k",) if key else (),
        options=options,
    ).create()
    table.write([[0, "first"]])

    def write() -> None:
        for commit in range(COMMITS):
            rows = [[(7 * commit + n) % 50, f"{commit}-{n}"] for n in range(20)]
            rows += [[1000 + new_keys * commit + n, "new"] for n in range(new_keys)]
            kinds = ["-D" if key and n % 5 == 4 else "+I" for n in range(len(rows))]
            writer.write(table.path, rows, kinds)
            table.apply(rows, kinds)

    compact_beside(table, write)
    judge.compact(table.path, full=True)
    table.check()


def compact_beside(table: LiveTable, write: Callable[[], None]) -> None:
    """We compact until `write` ends, which follows with the model; every row is there."""
    judge, failures = table.judge, list[BaseException]()

    def writing() -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    thread = threading.Thread(target=writing)
    thread.start()
    snapshots: list[int] = []
    lost: list[str] = []
    rounds = 0
    while thread.is_alive():
        rounds += 1
        try:
            totals = compact(table.path, Strategy.FULL if rounds % 3 == 0 else Strategy.MINOR)
        except CommitGaveUp:
            continue
        snapshots += totals.snapshots
        lost += totals.lost_snapshots
        # Nothing that a writer adds, files, keys or buckets, costs a compaction: all that is ever
        # dropped is what a replaced snapshot held.
        assert totals.lost_snapshots or not totals.dropped
        # A bucket is only ever set aside because writers were faster.
        assert all("writers changed it" in failure for failure in totals.failures), totals.failures
    thread.join()
    assert not failures
    table.check()
    assert len(snapshots) > len(lost)
    table.settle(Strategy.FULL)
    table.check()
    kinds = {
        (judge.snapshot(table.path, snapshot) or {})["commitKind"]
        for snapshot in judge.snapshots(table.path)
    }
    assert kinds == {"APPEND", "COMPACT"}


def test_java_compacts_while_we_compact_and_no_row_is_lost_or_doubled(
    judge: Judge, writer: Judge, tmp_path: Path
) -> None:
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("k", "INT NOT NULL"), ("v", "STRING")),
        primary_key=("k",),
        options={"bucket": "2"},
    ).create()
    for round_ in range(5):
        for commit in range(6):
            table.write([[n, f"{round_}-{commit}"] for n in range(commit, 60, 2)])

        def java() -> None:
            # Java fails a commit whose inputs we took; nothing else may go wrong.
            try:
                writer.compact(table.path, full=True)
            except RuntimeError as error:
                assert "conflict" in str(error)  # noqa: PT017 - a loser, not the test's outcome

        thread = threading.Thread(target=java)
        thread.start()
        compact(table.path, Strategy.FULL)
        thread.join()
        table.check()
    table.settle(Strategy.FULL)
    table.check()
