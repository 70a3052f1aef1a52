"""One table with the rows that each of its snapshots must hold, and what its folder may hold.

After every step all that is named is there, and nothing is there that is not named, but for what
pypaimon and Java leave behind by themselves, which is told apart by who acted:

- pypaimon's `rollback_to`, `delete_tag`, `replace_tag` and `drop_branch` delete no data and no
  manifests: what only the dropped snapshots needed stays for ever;
- its commit that loses a race leaves the manifests of that attempt;
- its writer that dies leaves data files;
- Java 2.0.0 knows no sidecars: its expiry and its deletion of tags leave them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compactord.paimon.snapshot import earliest_snapshot_id, latest_snapshot_id, snapshot_ids
from compactord.storage.local import LocalStorage
from tests.compat.asking import PyPaimon
from tests.compat.reachable import Walked, Walker
from tests.compat.shapes import Rows, Shape
from tests.oracle.differential import assert_same_rows, canonical
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row

STORAGE = LocalStorage()
_SIDECAR = ".avro.sidecar"


class WatchedTable:
    """`<warehouse>/<database>.db/t`, made by pypaimon or by Java."""

    def __init__(
        self,
        pypaimon: PyPaimon,
        judge: Judge,
        shape: Shape,
        warehouse: Path,
        database: str,
        *,
        by_java: bool,
    ) -> None:
        self.pypaimon = pypaimon
        self.judge = judge
        self.shape = shape
        self.name = f"{database}.t"
        self.path = warehouse / f"{database}.db" / "t"
        self.location = str(self.path)
        self.rows = Rows(shape)
        self.snapshots: dict[int, Rows] = {}
        # Each with the id of its snapshot.
        self.tags: dict[str, tuple[int, Rows]] = {}
        self.branches: dict[str, Rows] = {}
        # Data files that pypaimon has written and not committed.
        self.pending: set[str] = set()
        # Orphans that others made, and what a process of ours left that was killed.
        self.leaked: set[str] = set()
        self.ours: set[str] = set()
        self.walker = Walker(self.path)
        # What lists have said of each manifest in the columns of 2.1.
        self._said: dict[str, dict[str, Any]] = {}
        how: dict[str, Any] = {
            "columns": shape.columns,
            "primary_key": shape.primary_key,
            "partition_by": shape.partition_by,
            "options": shape.options,
        }
        if by_java:
            judge.create_table(self.path, **how)
        else:
            self.ask("create", **how)

    def ask(self, question: str, **arguments: Any) -> Any:
        """Of pypaimon, about this table."""
        return self.pypaimon.ask(question, **{"table": self.name, **arguments})

    @property
    def latest(self) -> int:
        return latest_snapshot_id(STORAGE, self.location) or 0

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        return snapshot_ids(STORAGE, self.location)

    # Acts of others.

    def foreign(self, act: Callable[[], Any], *, leaks: bool = False) -> Any:
        """pypaimon's; `leaks`: it leaves what nothing names any more."""
        before = self.walker.walk()
        answer = act()
        if leaks:
            self.leaked |= before.named - self.walker.walk().named
        return answer

    def killed(self) -> None:
        """A process of ours has ended without any clean-up."""
        self.ours |= self._unexplained(self.walker.walk())

    def java(self, act: Callable[[], object]) -> None:
        before = self.walker.walk()
        act()
        gone = before.named - self.walker.walk().named
        self.leaked |= {path for path in gone if path.endswith(_SIDECAR)}
        # Its lists have no columns of 2.1, and what follows cannot have them either.
        self._said.clear()

    def changed(self, change: Callable[[], None]) -> None:
        """After an act: the newest snapshot, if it is new, has other rows than those before."""
        self._remember(self.latest - 1)
        change()
        self.remember()

    def remember(self) -> None:
        """Snapshots that are new have the rows of now."""
        self._remember(self.latest)

    def _remember(self, latest: int) -> None:
        earliest = earliest_snapshot_id(STORAGE, self.location) or 1
        first = max(self.snapshots, default=earliest - 1) + 1
        self.snapshots |= {id_: self.rows.copy() for id_ in range(first, latest + 1)}

    def rolled_back(self, to: int) -> None:
        self.snapshots = {id_: rows for id_, rows in self.snapshots.items() if id_ <= to}
        self.tags = {name: tag for name, tag in self.tags.items() if tag[0] <= to}
        self.rows = self.snapshots[to].copy()
        # Of a manifest that Java had listed since then, an older list tells what Java's could not.
        self._said.clear()

    # What must hold.

    def check_rows(self, chance: random.Random) -> None:
        """Both read the rows of now, pypaimon also some of them by a filter, which prunes."""
        self.remember()
        self._check_carried()
        self._read_both({}, self.rows)
        if rows := self.rows.all():
            row = dict(zip(self.shape.names, chance.choice(rows), strict=True))
            # A whole key tells the bucket.
            names = chance.choice([self.shape.primary_key or ("k",), self.shape.partition_by])
            equal = {name: row[name] for name in names}
            found = self.ask("read", equal=equal)
            _assert_read(f"pypaimon, {equal}", found, self.rows.where(equal))

    def check_history(self) -> None:
        """Both read every snapshot, tag and branch; sidecars fit their manifests."""
        self.remember()
        for id_ in self.snapshot_ids:
            self._read_both({"scan.snapshot-id": str(id_)}, self.snapshots[id_])
        for tag, (_, rows) in self.tags.items():
            self._read_both({"scan.tag-name": tag}, rows)
        for branch, rows in self.branches.items():
            found = self.ask("read", table=f"{self.name}$branch_{branch}")
            _assert_read(f"pypaimon, {branch}", found, rows.all())
            found = self.judge.read(self.path, options={"branch": branch})
            _assert_read(f"Java, {branch}", found, rows.all())
        self.ask("check_sidecars")

    def check_planned(self, number: int, rows: Rows) -> None:
        """pypaimon reads these rows, which were the table's when it planned to."""
        found = self.pypaimon.ask("read_planned", number=number)
        _assert_read("pypaimon, as planned", found, rows.all())

    def check_folder(self) -> None:
        walked = self._walk()
        assert not walked.missing, f"missing: {sorted(walked.missing)}"
        orphans = self._unexplained(walked) - self.ours
        assert not orphans, f"orphans: {sorted(orphans)}"

    def check_with_java(self) -> None:
        """What is an orphan to Java is one here, where there is nothing that it does not know.

        It takes all files that some manifest names as deleted for needed.
        """
        if self.shape.has_sidecars:
            return
        found = {str(Path(p).relative_to(self.path)) for p in self.judge.orphan_files(self.path)}
        assert found <= self._walk().orphans, found - self._walk().orphans

    def check_manifests(self) -> None:
        """They were merged: fewer are left than begin a merge."""
        rows = self.walker.manifests(f"snapshot/snapshot-{self.latest}")
        most = int(self.shape.options["manifest.merge-min-count"])
        assert len(rows) < most, f"{len(rows)} manifests, {most} begin a merge"

    def paths_of(self, names: set[str]) -> set[str]:
        there = (str(path.relative_to(self.path)) for path in self.path.rglob("bucket-*/*"))
        return {path for path in there if path.rpartition("/")[2] in names}

    def _check_carried(self) -> None:
        """What a list once said of a manifest, later ones say, too."""
        for row in self.walker.manifests(f"snapshot/snapshot-{self.latest}"):
            said = {key: row.get(key) for key in ("_TOTAL_BUCKETS", "_EXTRA_FILES")}
            name = row["_FILE_NAME"]
            known = self._said.setdefault(name, said)
            assert said == known, f"{name}: {known} became {said}"

    def _unexplained(self, walked: Walked) -> frozenset[str]:
        return walked.orphans - self.leaked - self.paths_of(self.pending)

    def _walk(self) -> Walked:
        walked = self.walker.walk()
        assert not walked.damage, walked.damage
        return walked

    def _read_both(self, options: dict[str, str], rows: Rows) -> None:
        found = self.ask("read", options=options)
        _assert_read(f"pypaimon, {options}", found, rows.all())
        found = self.judge.read(self.path, options=options)
        _assert_read(f"Java, {options}", found, rows.all())


def _assert_read(who: str, found: Sequence[Row], wanted: Sequence[Row]) -> None:
    try:
        assert_same_rows(canonical(found), canonical(wanted))
    except AssertionError as error:
        raise AssertionError(f"{who} reads {error}") from error
