"""Random histories of one table: pypaimon writes, compactord compacts, expires and sweeps.

All chance comes from a seed.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compactord import ids
from compactord.catalog.access import table_in_folder
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.clock import SystemClock
from compactord.ids import Liveness
from compactord.maintenance.orphan_search import OwnerRule, remove_orphans
from compactord.paimon.options.maintenance import ExpireOptions
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy
from compactord.table.jobs import CompactTotals
from compactord.table.opening import open_table
from tests.compat.asking import PyPaimon
from tests.compat.shapes import BUCKETS, some_change, some_shape
from tests.compat.watched import STORAGE, WatchedTable
from tests.oracle.differential import compact
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row, Value
from tests.rounds import expire_snapshots
from tests.storages import Call, HookedStorage
from tests.unit.table.compacting import Driver, compactor_of

STEPS = 14
# A run of our driver makes about so many storage calls.
_CALLS = 40
_TURNS = 6
_DAY_MS = 86_400_000


class _Killed(BaseException):
    """Nothing can be done any more."""


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A write of pypaimon that is not committed yet; `since` is the snapshot that it knew."""

    number: int
    rows: list[Row]
    since: int


class History:
    """One table and what happens to it."""

    def __init__(
        self, pypaimon: PyPaimon, judge: Judge, warehouse: Path, database: str, seed: int
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.pypaimon = pypaimon
        self.shape = some_shape(self.chance)
        self.table = WatchedTable(
            pypaimon,
            judge,
            self.shape,
            warehouse,
            database,
            by_java=self.chance.random() < 0.3,
        )
        self.prepared: _Prepared | None = None
        self.steps: list[str] = []
        self._numbers = 0
        # Older snapshots have other buckets than the schema says.
        self._rescaled_at = 0
        # It lives as long as the table, as the one of a service.
        self._driver: Driver | None = None
        # Whether snapshots that it made may have been rolled back since it looked.
        self._is_undone = False

    def run(self) -> None:
        """Raises what goes wrong, with the seed and the steps up to there."""
        try:
            self._write()
            for _ in range(STEPS):
                self._step()
                self.table.remember()
                self.table.check_folder()
            self._end()
        except Exception as error:
            done = "\n  ".join(self.steps)
            raise AssertionError(
                f"seed {self.seed}: {type(error).__name__}: {error}\n"
                f"{self.shape}\n  {done}\n{self.table.path}"
            ) from error

    def remove(self) -> None:
        shutil.rmtree(self.table.path.parent)

    def _end(self) -> None:
        """A full compaction leaves nothing to do; all that is there is read, and then expires."""
        if self.prepared is not None:
            self._commit_prepared()
        self._full()
        assert not compact(self.table.path, Strategy.FULL).snapshots
        self._sweep()
        self._read_all()
        self._expire_all_but(1, limit=1000)
        self.table.check_folder()
        self.table.check_with_java()

    def _step(self) -> None:
        acts: dict[Callable[[], None], float] = {
            self._minor: 2.5,
            self._full: 1.5,
            self._cycles: 2,
            self._compact_beside: 1.5,
            self._expire: 1.5,
            self._sweep: 1,
            self._kill: 0.7,
            self._tag: 0.7,
            self._read_all: 0.4,
            self._alter: 0.4,
        }
        if self.prepared is None:
            acts |= {
                self._write: 7,
                self._prepare: 2,
                self._java_write: 0.7,
                self._overwrite: 1,
                self._truncate: 0.5,
                self._roll_back: 0.4,
                self._plan_and_read: 0.5,
                self._java_expire: 0.4,
            }
            if self.shape.primary_key:
                acts[self._java_compact] = 0.4
            if self.shape.options["bucket"] != "-1":
                acts[self._rescale] = 0.3
        else:
            acts |= {self._commit_prepared: 4, self._abort: 0.5, self._die: 0.3}
        if self.table.tags:
            acts |= {self._drop_tag: 0.4, self._replace_tag: 0.3, self._branch: 0.3}
        if self.table.branches:
            acts |= {self._write_branch: 0.5, self._drop_branch: 0.3}
        [act] = self.chance.choices(list(acts), weights=list(acts.values()))
        act()

    # pypaimon and Java.

    def _write(self) -> None:
        rows = self._some_rows()
        self._say("write", len(rows))
        number, _ = self._prepare_rows(rows)
        self._commit(number)
        self.table.changed(lambda: self.table.rows.apply(rows))

    def _prepare(self) -> None:
        """Only we act until it is committed: two writers would give rows the same sequence."""
        rows = self._some_rows()
        self._say("prepare", len(rows))
        since = self.table.latest
        number, files = self._prepare_rows(rows)
        self.prepared = _Prepared(number=number, rows=rows, since=since)
        self.table.pending = files

    def _commit_prepared(self) -> None:
        """Maybe we commit first: then it loses a race."""
        prepared = self._taken()
        races = self.chance.random() < 0.5
        strategy = self.chance.choice(list(Strategy))
        self._say("commit prepared", *(["after", strategy.value] if races else ()))
        before = self.table.latest

        def meanwhile() -> None:
            # pypaimon, which waits, cannot be asked what it reads now.
            assert not compact(self.table.path, strategy).failures

        lost = self._commit(prepared.number, pause=races, meanwhile=meanwhile)
        assert bool(lost) == (self.table.latest > before + 1), "pypaimon's commit replaced ours"
        self.table.changed(lambda: self.table.rows.apply(prepared.rows))

    def _abort(self) -> None:
        self._say("abort")
        self.pypaimon.ask("abort", number=self._taken().number)

    def _die(self) -> None:
        self._say("die")
        self.table.leaked |= self.table.paths_of(self.table.pending)
        self.pypaimon.ask("forget", number=self._taken().number)

    def _overwrite(self) -> None:
        """The partitions that the rows touch, one of them, or the whole table."""
        shape, rows = self.shape, self._some_rows()
        options, spec = {}, {}
        gone = {shape.partition(row) for row in rows}
        if shape.partition_by and self.chance.random() < 0.5:
            options = {"dynamic-partition-overwrite": "false"}
            gone = {shape.partition(rows[0])}
            rows = [row for row in rows if shape.partition(row) in gone]
            spec = dict(zip(shape.partition_by, rows[0], strict=False))
        self._say("overwrite", len(rows), spec or "what they touch")
        number, _ = self._prepare_rows(rows, overwrite=spec, options=options)
        self._commit(number)

        def change() -> None:
            self.table.rows.drop(lambda row: shape.partition(row) in gone)
            self.table.rows.apply(rows)

        self.table.changed(change)

    def _truncate(self) -> None:
        row = self._some_rows()[0]
        spec: dict[str, Value] = {}
        if self.chance.random() < 0.6:
            spec = dict(zip(self.shape.partition_by, row, strict=False))
        self._say("truncate", spec or "")
        act = lambda: self.table.ask("truncate", partitions=[spec] if spec else None)  # noqa: E731
        self.table.foreign(act)
        gone = self.shape.partition(row)
        self.table.changed(
            lambda: self.table.rows.drop(lambda row: not spec or self.shape.partition(row) == gone)
        )

    def _rescale(self) -> None:
        """Other buckets for all rows that there are."""
        buckets = str(self.chance.choice(BUCKETS))
        rows = self.table.rows.all()
        self._say("rescale to", buckets)
        self.table.ask("set_options", options={"bucket": buckets})
        self.shape.options["bucket"] = buckets
        static = {"dynamic-partition-overwrite": "false"}
        number, _ = self._prepare_rows(rows, overwrite={}, options=static)
        self._commit(number)
        self.table.changed(lambda: None)
        self._rescaled_at = self.table.latest

    def _alter(self) -> None:
        change, by_java = some_change(self.chance), self.chance.random() < 0.5
        self._say("alter", change, *(["by Java"] if by_java else ()))
        if by_java:
            self.table.judge.alter_options(self.table.path, change)
        else:
            self.table.ask("set_options", options=change)
        self.shape.options.update(change)

    def _roll_back(self) -> None:
        to = self.chance.choice([i for i in self.table.snapshot_ids if i >= self._rescaled_at])
        self._say("roll back to", to)
        self.table.foreign(lambda: self.table.ask("rollback", to=to), leaks=True)
        self.table.rolled_back(to)
        self._is_undone = True

    def _tag(self) -> None:
        id_, name = self.chance.choice(self.table.snapshot_ids), f"t{self._number()}"
        self._say("tag", name, id_)
        self.table.foreign(lambda: self.table.ask("create_tag", name=name, snapshot_id=id_))
        self.table.tags[name] = (id_, self.table.snapshots[id_])

    def _replace_tag(self) -> None:
        name, id_ = self._some_tag(), self.chance.choice(self.table.snapshot_ids)
        self._say("replace tag", name, id_)
        act = lambda: self.table.ask("replace_tag", name=name, snapshot_id=id_)  # noqa: E731
        self.table.foreign(act, leaks=True)
        self.table.tags[name] = (id_, self.table.snapshots[id_])

    def _drop_tag(self) -> None:
        name, by_java = self._some_tag(), self.chance.random() < 0.5
        self._say("drop tag", name, *(["by Java"] if by_java else ()))
        if by_java:
            self.table.java(lambda: self.table.judge.delete_tag(self.table.path, name))
        else:
            self.table.foreign(lambda: self.table.ask("delete_tag", name=name), leaks=True)
        del self.table.tags[name]

    def _branch(self) -> None:
        tag, name = self._some_tag(), f"b{self._number()}"
        if self.table.tags[tag][0] not in self.table.snapshot_ids:
            return  # pypaimon copies the snapshot's own file
        self._say("branch", name, tag)
        self.table.foreign(lambda: self.table.ask("create_branch", name=name, tag=tag))
        self.table.branches[name] = self.table.tags[tag][1].copy()

    def _write_branch(self) -> None:
        name, rows = self._some_branch(), self._some_rows()
        self._say("write", len(rows), "to branch", name)
        number, _ = self._prepare_rows(rows, table=f"{self.table.name}$branch_{name}")
        self._commit(number)
        self.table.branches[name].apply(rows)

    def _drop_branch(self) -> None:
        name = self._some_branch()
        self._say("drop branch", name)
        self.table.foreign(lambda: self.table.ask("drop_branch", name=name), leaks=True)
        del self.table.branches[name]

    def _plan_and_read(self) -> None:
        """pypaimon plans a read, we compact, and it still reads what it planned."""
        self._say("plan, compact, read")
        number, planned = self._number(), self.table.rows.copy()
        self.table.ask("plan", number=number)
        self._compacted(Strategy.FULL)
        self.table.check_planned(number, planned)

    def _java_write(self) -> None:
        rows, kinds = self._some_rows(), None
        if self.shape.primary_key:
            # pypaimon deletes no rows but by `rowkind.field`, and its files then claim to hold no
            # deletions: it and Java read the deleted rows as long as such a file is alone.
            kinds = [self.chance.choice(["+I", "-D", "+U", "-U"]) for _ in rows]
        self._say("Java writes", len(rows))
        self.table.java(lambda: self.table.judge.write(self.table.path, rows, kinds))
        self.table.changed(lambda: self.table.rows.apply(rows, kinds))

    def _java_expire(self) -> None:
        keep = self.chance.choice([1, 2, 4])
        self._say("Java expires, keeping", keep)
        self.table.java(lambda: self.table.judge.expire_snapshots(self.table.path, keep))

    def _java_compact(self) -> None:
        """Not of append tables with buckets, where Java adds and deletes one file in one commit."""
        full = self.chance.random() < 0.5
        self._say("Java compacts", "all" if full else "")
        self.table.java(lambda: self.table.judge.compact(self.table.path, full=full))

    # compactord.

    def _minor(self) -> None:
        self._compact(Strategy.MINOR)

    def _full(self) -> None:
        self._compact(Strategy.FULL)

    def _compact(self, strategy: Strategy) -> None:
        self._say("compact", strategy.value)
        totals = self._compacted(strategy)
        assert not totals.dropped
        assert not totals.lost_snapshots

    def _cycles(self) -> None:
        """What a service does, which has known the table from the first time on."""
        self._say("turns")
        if self._driver is None:
            table = self._ref()
            self._driver = Driver(compactor_of(STORAGE, table, clock=SystemClock()))
        known = len(self._driver.cycles)
        self._driver.run(cycles=_TURNS)
        assert not self._driver.errors, self._driver.errors
        lost = [reason for cycle in self._driver.cycles[known:] for reason in cycle.lost_snapshots]
        assert not lost or self._is_undone, lost
        self._is_undone = False
        self.table.check_rows(self.chance)

    def _compact_beside(self) -> None:
        """pypaimon acts before one of the calls of our driver."""
        strategy, at = self.chance.choice(list(Strategy)), self.chance.randrange(1, _CALLS)
        act = self._tag
        if self.prepared is None:
            act = self.chance.choice([self._write, self._truncate, self._overwrite, self._tag])
        self._say("compact", strategy.value, "and, before call", at)
        waiting = [act]

        def before(call: Call) -> None:
            if call.number >= at and waiting:
                self.table.remember()
                waiting.pop()()

        totals = self._compacted(strategy, HookedStorage(STORAGE, before=before))
        assert not totals.lost_snapshots

    def _kill(self) -> None:
        """A run ends before one of the calls of our driver, and none comes after it."""
        strategy, at = self.chance.choice(list(Strategy)), self.chance.randrange(1, _CALLS)
        self._say("compact", strategy.value, "until killed before call", at)

        def before(call: Call) -> None:
            if call.number >= at:
                raise _Killed

        with contextlib.suppress(_Killed):
            compact(self.table.path, strategy, storage=HookedStorage(STORAGE, before=before))
        self.table.killed()
        self.table.check_rows(self.chance)

    def _expire(self) -> None:
        self._expire_all_but(self.chance.choice([1, 1, 2, 4]), limit=self.chance.choice([2, 50]))

    def _ref(self) -> TableRef:
        catalog = FilesystemCatalog(STORAGE, str(self.table.path.parent.parent))
        return catalog.find_table(self.table.name)

    def _expire_all_but(self, keep: int, *, limit: int) -> None:
        """What a write under way may ask for stays, too."""
        self._say("expire, keeping", keep)
        expired = expire_snapshots(
            open_table(table_in_folder(STORAGE, self._ref()), {}),
            ExpireOptions(
                num_retained_min=keep,
                num_retained_max=keep,
                time_retained_ms=0,
                limit=limit,
                clean_empty_directories=self.chance.random() < 0.5,
            ),
            now_ms=SystemClock().now_ms(),
            keep_from=None if self.prepared is None else self.prepared.since,
        )
        assert expired.why_not is None, expired.why_not
        self.table.check_rows(self.chance)

    def _sweep(self) -> None:
        """As a process would tomorrow that could prove all others of ours dead."""
        self._say("sweep")
        now_ms = SystemClock().now_ms() + _DAY_MS
        rule = OwnerRule(
            myself=ids.this_process(),
            liveness=lambda owner: Liveness.DEAD,
            now_ms=now_ms,
            grace_ms=0,
            own_before_ms=now_ms,
        )
        depth = len(self.shape.partition_by)
        remove_orphans(STORAGE, self.table.location, partition_depth=depth, rule=rule)
        self.table.ours.clear()

    def _compacted(self, strategy: Strategy, storage: HookedStorage | None = None) -> CompactTotals:
        totals = compact(self.table.path, strategy, storage=storage)
        assert not totals.failures, totals.failures
        self.table.check_rows(self.chance)
        return totals

    def _read_all(self) -> None:
        self._say("read all")
        self.table.check_history()

    # Small help.

    def _prepare_rows(self, rows: list[Row], **how: Any) -> tuple[int, set[str]]:
        number = self._number()
        return number, set(self.table.ask("prepare", number=number, rows=rows, **how))

    def _commit(self, number: int, **how: Any) -> list[str]:
        """The manifest lists of attempts that lost a race."""
        act = lambda: self.pypaimon.ask("commit", number=number, **how)  # noqa: E731
        lost: list[str] = self.table.foreign(act)
        self.table.leaked |= self.table.walker.lost_attempt(lost)
        return lost

    def _taken(self) -> _Prepared:
        prepared = self.prepared
        assert prepared is not None
        self.prepared, self.table.pending = None, set()
        return prepared

    def _some_rows(self) -> list[Row]:
        return self.shape.some_rows(self.chance)

    def _some_tag(self) -> str:
        return self.chance.choice(sorted(self.table.tags))

    def _some_branch(self) -> str:
        return self.chance.choice(sorted(self.table.branches))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _say(self, *what: object) -> None:
        self.steps.append(" ".join(map(str, what)))
