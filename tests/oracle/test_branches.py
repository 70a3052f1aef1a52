"""Branches that Java made are compacted, expired and swept by both; Java reads and writes all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.clock import SystemClock
from compactord.ids import Liveness
from compactord.maintenance.orphan_search import OwnerRule, remove_orphans
from compactord.plan.table import Strategy
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.builders import FIRST, SECOND
from tests.oracle.differential import canonical, compact
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row
from tests.rounds import Expired, expire_snapshots
from tests.unit.cli.warehouses import answered

LOCAL = LocalStorage()
COLUMNS = (("k", "BIGINT NOT NULL"), ("v", "BIGINT"))
NEWEST_ONLY = {"snapshot.time-retained": "0 ms", "snapshot.num-retained.min": "1"}
LATER_MS = 4_000_000_000_000
KEYED = {"bucket": "2", "num-sorted-run.compaction-trigger": "2"}
APPEND = {"bucket": "-1", "compaction.min.file-num": "2"}


@dataclass(kw_only=True)
class Branched:
    """A table with branches, and the rows that Java last read of each."""

    judge: Judge
    path: Path
    dice: random.Random
    rows: dict[str, list[str]] = field(default_factory=dict)

    def read(self, branch: str) -> list[str]:
        return canonical(self.judge.read(self.path, options=_branch(branch)))

    def write(self, branch: str, commits: int) -> None:
        """New rows, and others in the place of old ones where there are keys."""
        for _ in range(commits):
            rows: Sequence[Row] = [(self.dice.randrange(30), self.dice.randrange(10**6))]
            rows = [*rows, (self.dice.randrange(10**9), 0)]
            self.judge.write(self.path, rows, options=_branch(branch))
        self.rows[branch] = self.read(branch)

    def fork(self, branch: str, tag: str | None) -> None:
        self.judge.create_branch(self.path, branch, tag)
        self.rows[branch] = self.read(branch)

    def check(self, what: str) -> None:
        assert {branch: self.read(branch) for branch in self.rows} == self.rows, what

    def compact_by_us(self, branch: str, strategy: Strategy) -> None:
        totals = compact(self.path, strategy, branch=branch)
        assert not totals.failures
        assert not totals.dropped
        assert not totals.lost_snapshots
        self.check(f"{branch} compacted by us")

    def compact_by_java(self, branch: str) -> None:
        self.judge.compact(self.path, full=True, options=_branch(branch))
        self.check(f"{branch} compacted by Java")

    def expire(self, branch: str) -> Expired:
        catalog = FilesystemCatalog(LOCAL, str(self.path.parent.parent))
        ref = catalog.find_table(f"db.{self.path.name}$branch_{branch}")
        table = open_table(catalog.open(ref), NEWEST_ONLY)
        done = expire_snapshots(table, table.options.expire, now_ms=LATER_MS, keep_from=None)
        assert done.why_not is None
        self.check(f"{branch} expired")
        return done


def _branch(branch: str) -> dict[str, str]:
    return {} if branch == "main" else {"branch": branch}


def _branched(judge: Judge, path: Path, options: dict[str, str], seed: int) -> Branched:
    """Main; `old` from a tag, `blank` without rows, `now` from a tag on the newest snapshot."""
    keys = ("k",) if options is KEYED else ()
    judge.create_table(path, COLUMNS, primary_key=keys, options={"write-only": "true", **options})
    table = Branched(judge=judge, path=path, dice=random.Random(seed))
    table.write("main", 3)
    judge.create_tag(path, "v2", 2)
    judge.create_tag(path, "v3", 3)
    compact(path, Strategy.FULL)
    table.write("main", 2)
    table.fork("old", "v3")
    table.fork("blank", None)
    judge.create_tag(path, "v6", 6)
    table.fork("now", "v6")
    return table


BRANCHES = ("main", "old", "blank", "now")


@pytest.mark.parametrize("still", ["main", "old", "now"])
@pytest.mark.parametrize("options", [KEYED, APPEND], ids=["keyed", "append"])
def test_java_reads_and_writes_all_branches_whoever_compacts_and_expires(
    judge: Judge,
    options: dict[str, str],
    still: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody compacts `still`: it needs the files from before the fork that others replaced."""
    table = _branched(judge, tmp_path / "db.db" / "t", options, seed=len(still))
    dice = table.dice
    kept = judge.read(table.path, options={"scan.tag-name": "v2"})
    for _ in range(2):
        for branch in BRANCHES:
            table.write(branch, dice.randrange(1, 4))
        table.check("written")
        for branch in dice.sample(BRANCHES, len(BRANCHES)):
            if branch != still and dice.random() < 0.3:
                table.compact_by_java(branch)
            if branch != still:
                table.compact_by_us(branch, Strategy.FULL)
    # Java 2.1 loses files of branches once the tag is gone (apache/paimon#10883).
    for branch, tag in (("old", "v3"), ("now", "v6")):
        judge.delete_tag(table.path, tag)
        (table.path / "branch" / f"branch-{branch}" / "tag" / f"tag-{tag}").unlink()
    expired = [table.expire(branch) for branch in dice.sample(BRANCHES, len(BRANCHES))]
    assert sum(done.data_files for done in expired) > 0
    left = judge.read(table.path, options={"scan.tag-name": "v2"})
    assert canonical(left) == canonical(kept)
    _sweep(table)
    _verify(table, capsys)
    for branch in BRANCHES:
        table.compact_by_us(branch, Strategy.FULL)
    _fast_forward(table, "old")
    _verify(table, capsys)


def _sweep(table: Branched) -> None:
    """As if all that wrote our files were dead; one of theirs is left over."""
    left = table.path / "bucket-0" / f"data-{FIRST.unique_name()}-0.parquet"
    left.write_bytes(b"half a file")
    rule = OwnerRule(
        myself=SECOND,
        liveness=lambda _: Liveness.DEAD,
        now_ms=SystemClock().now_ms() + 11 * 60_000,
        grace_ms=10 * 60_000,
    )
    removed = remove_orphans(LOCAL, str(table.path), partition_depth=0, rule=rule)
    assert [orphan.path for orphan in removed.orphans] == [str(left)]
    table.check("swept")


def _fast_forward(table: Branched, branch: str) -> None:
    """Main becomes the branch; both go on by themselves."""
    table.judge.fast_forward(table.path, branch)
    table.rows["main"] = table.rows[branch]
    table.check("fast-forwarded")
    steps: list[Callable[[str], object]] = [
        lambda each: table.write(each, 2),
        lambda each: table.compact_by_us(each, Strategy.FULL),
        table.compact_by_java,
        lambda each: table.write(each, 1),
        table.expire,
    ]
    for step in steps:
        for each in (branch, "main"):
            step(each)
    table.check("went on")


def _verify(table: Branched, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--warehouse", str(table.path.parent.parent))
    for branch in BRANCHES:
        name = f"db.{table.path.name}$branch_{branch}"
        everything = ("--all-snapshots", "--pages", "all")
        found = answered(capsys, "verify", *where, "--table", name, *everything)
        assert found["whole"], found


@pytest.mark.parametrize("expired", ["main", "old"])
def test_expiry_of_java_after_ours_finds_a_table_that_is_whole(
    judge: Judge, expired: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _branched(judge, tmp_path / "db.db" / "t", KEYED, 7)
    for branch in BRANCHES:
        table.write(branch, 2)
        table.compact_by_us(branch, Strategy.FULL)
    table.expire(expired)
    judge.expire_snapshots(table.path, 1, options=_branch(expired))
    table.check("expired by Java")
    _verify(table, capsys)


@pytest.mark.parametrize("order", [("snapshots", "branches"), ("branches", "snapshots")])
def test_all_branches_are_maintained_and_none_loses_what_another_reads(
    judge: Judge, order: Sequence[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = _branched(judge, tmp_path / "db.db" / "t", KEYED, 9)
    for branch in BRANCHES:
        table.write(branch, 2)
        options = {**NEWEST_ONLY, **({"snapshot.num-retained.min": "2"} if branch == "now" else {})}
        changes = [{"change": "set_option", "key": k, "value": v} for k, v in options.items()]
        judge.alter(table.path, *changes, branch=None if branch == "main" else branch)
    for branch in ("main", "old"):
        table.compact_by_us(branch, Strategy.FULL)
    for branch, tag in (("old", "v3"), ("now", "v6")):
        judge.delete_tag(table.path, tag)
        (table.path / "branch" / f"branch-{branch}" / "tag" / f"tag-{tag}").unlink()
    where = ("--warehouse", str(tmp_path), "--table", "db.t")
    for kind in order:
        found = answered(capsys, "maintain", *where, "--only", kind)["kinds"][kind]
        counts = [found] if kind == "snapshots" else list(found["branches"].values())
        assert all(each["snapshots"] for each in counts), found
        table.check(kind)
    assert len(judge.snapshots(table.path, options=_branch("now"))) == 2
    _verify(table, capsys)
