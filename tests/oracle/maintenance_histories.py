"""Thousands of random tables, maintained: `python -m tests.oracle.maintenance_histories`.

Java maintains one copy of a table and we another, kind after kind; what happens next happens to
either of them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.oracle.differential import canonical
from tests.oracle.judge import Judge
from tests.oracle.maintained import MaintainedTable
from tests.oracle.maintaining import KINDS, branches, files, orphans

ROUNDS = 3


def run_history(judge: Judge, folder: Path, seed: int) -> Counter[str]:
    """How often each kind of maintenance changed something.

    Raises `AssertionError` with the seed and the steps for a difference.
    """
    table = MaintainedTable(judge, folder / "db.db" / "t", seed)
    effects: Counter[str] = Counter()
    try:
        for _ in range(ROUNDS):
            table.events(table.chance.randint(2, 6))
            effects += _round(table)
    except Exception as error:
        raise AssertionError(f"seed {seed}, {table.options}, {table.steps}: {error!r}") from error
    return effects


def _round(table: MaintainedTable) -> Counter[str]:
    judge, path = table.judge, table.path
    start = path.with_name("start")
    _copy(path, start)
    kinds = table.chance.choices(table.asked, k=table.chance.randint(2, 6))
    effects: Counter[str] = Counter()
    for kind in kinds:
        table.steps.append(f"maintain {kind}")
        effects[kind] += _maintain(table, kind)
    assert_readable(judge, start, path)
    return effects


def _maintain(table: MaintainedTable, name: str) -> bool:
    """Whether that changed anything. Of the two copies either goes on as the table."""
    path, kind = table.path, KINDS[name]
    java, ours = path.with_name("java"), path.with_name("ours")
    for copy in (java, ours):
        _copy(path, copy)
    kind.java(table.judge, java)
    kind.ours(ours)
    more = kind.compare(table.judge, path, ours, java)
    has_changed = files(ours) != files(path)
    if has_changed and name != "orphans":
        leaks = orphans(table.judge, ours) - orphans(table.judge, path)
        if leaks:
            print("LEAK", name, sorted(leaks), sorted(orphans(table.judge, java) - orphans(table.judge, path)), table.options, table.steps)
    shutil.rmtree(path)
    (ours if more else table.chance.choice((java, ours))).rename(path)
    return has_changed


def _copy(path: Path, copy: Path) -> None:
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(path, copy)


def assert_readable(judge: Judge, before: Path, after: Path) -> None:
    """Each snapshot, tag and branch that is left has the rows, and readers get the changes."""
    known = _rows(judge, before)
    for version, rows in _rows(judge, after).items():
        assert known.get(version, rows) == rows, f"{version}: {rows}, not {known[version]}"
    first = min(
        int(file.name[len(kind) + 1 :])
        for kind in ("snapshot", "changelog")
        for file in (after / kind).glob(f"{kind}-*")
    )
    told = [canonical(judge.changes(each, first)) for each in (before, after)]
    assert told[0] == told[1], f"changes from {first}: {told[1]}, not {told[0]}"


def _rows(judge: Judge, path: Path) -> dict[str, object]:
    """Of a snapshot, by its manifests; of branches' newest ones, too."""
    found: dict[str, object] = {}
    for kind, option in (("snapshot", "scan.snapshot-id"), ("tag", "scan.tag-name")):
        for file in (path / kind).glob(f"{kind}-*"):
            if file.is_file():
                name = json.loads(file.read_text())["deltaManifestList"]
                if name not in found:
                    options = {option: file.name.removeprefix(f"{kind}-")}
                    found[name] = judge.read_checksum(path, options=options)
    for branch in branches(path):
        found[branch] = judge.read_checksum(path, options={"branch": branch})
    return found


def main() -> int:
    """0 if all histories agree with Java, else 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    asked = parser.parse_args()
    failed: list[int] = []
    effects: Counter[str] = Counter()
    with Judge() as judge:
        for seed in range(asked.seed, asked.seed + asked.histories):
            with tempfile.TemporaryDirectory(prefix="compactord-") as folder:
                try:
                    effects += run_history(judge, Path(folder), seed)
                except Exception as error:  # noqa: BLE001 - the other seeds go on
                    failed.append(seed)
                    print(f"seed {seed}: {type(error).__name__}: {error}"[:4000], flush=True)
            done = seed - asked.seed + 1
            if done % 100 == 0:
                print(f"{done} of {asked.histories} histories, failed: {len(failed)}", flush=True)
    print(f"{asked.histories} histories, failed seeds: {failed}, rounds with an effect: {effects}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
