"""Thousands of random tables, maintained: `python -m tests.oracle.maintenance_histories`.

Java maintains one copy of a table and we another, kind after kind; what happens next happens to
either of them.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from compactord.errors import CompactordError, TransientStorageError
from tests.oracle.differential import canonical
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError
from tests.oracle.maintained import MaintainedTable
from tests.oracle.maintaining import KINDS, STORAGE, Kind, branches, files, orphans
from tests.oracle.many_histories import run_histories
from tests.storages import Fault, FaultyStorage

ROUNDS = 3
# So many rounds of ours may be interrupted, and then another one follows.
INTERRUPTED = 0.6


def run_history(judge: Judge, folder: Path, seed: int) -> Counter[str]:
    """How often each kind of maintenance changed something, and left more than Java's.

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
        effects += _maintain(table, kind)
    assert_readable(judge, start, path)
    return effects


def _maintain(table: MaintainedTable, name: str) -> Counter[str]:
    """Whether that changed anything, and left more. Of the two copies either goes on as the table.

    Unless we alone have left files: their readers are to find them.
    """
    path, kind = table.path, KINDS[name]
    java, ours = path.with_name("java"), path.with_name("ours")
    for copy in (java, ours):
        _copy(path, copy)
    kind.java(table.judge, java)
    may_fail = _goes_on(name, table.options) and table.aside.random() < INTERRUPTED
    is_interrupted = may_fail and _is_interrupted(table, kind, ours)
    if is_interrupted or not may_fail:
        kind.ours(ours, STORAGE)
    if may_fail:
        # A sweep removes what is named by nothing, and the next expiry moves a hint that lags on.
        for each in orphans(table.judge, ours) - orphans(table.judge, path):
            (ours / each).unlink()
        for hint in java.rglob("EARLIEST"):
            shutil.copy2(hint, ours / hint.relative_to(java))
    more = kind.compare(table.judge, path, ours, java)
    has_changed = files(ours) != files(path)
    if has_changed:
        left = orphans(table.judge, ours) - orphans(table.judge, path)
        assert not left, f"left over, and named by nothing: {sorted(left)}"
    shutil.rmtree(path)
    (ours if more else table.chance.choice((java, ours))).rename(path)
    return Counter(
        {
            name: has_changed,
            f"{name}, where we leave more": bool(more),
            f"{name}, interrupted": has_changed and is_interrupted,
        }
    )


def _goes_on(name: str, options: Mapping[str, str]) -> bool:
    """Whether an interrupted round and the next one come to one round of Java's.

    What a round may do at most counts anew, folders that are empty already stay, and tags that are
    too many until there is a new one (docs/limits.md).
    """
    match name:
        case "consumers" | "consumers of branches" | "done" | "orphans":
            return True
        case "partitions":
            return "partition.expiration-max-num" not in options
        case "tags":
            return "tag.num-retained-max" not in options
    is_all = options["snapshot.expire.limit"] == "50"
    return is_all and options["snapshot.clean-empty-directories"] == "false"


def _is_interrupted(table: MaintainedTable, kind: Kind, path: Path) -> bool:
    """Whether a round of ours fails of which nothing has an effect from some change on."""
    at = table.aside.choice((1, 2, 3, 5, 8))
    fault = Fault(
        at=at, error=TransientStorageError, lasts=True, concerns=lambda call: call.is_mutation
    )
    try:
        kind.ours(path, FaultyStorage(STORAGE, fault))
    except CompactordError:
        table.steps.append(f"interrupted at {at}")
        return True
    return False


def _copy(path: Path, copy: Path) -> None:
    if copy.exists():
        shutil.rmtree(copy)
    shutil.copytree(path, copy)


def assert_readable(judge: Judge, before: Path, after: Path) -> None:
    """Each snapshot, tag and branch that is left has the rows, and readers get the changes.

    After them they may be told of partitions that expired.
    """
    known = _rows(judge, before)
    for version, rows in _rows(judge, after).items():
        assert known.get(version, rows) == rows, f"{version}: {rows}, not {known[version]}"
    first = _first_told(after)
    try:
        wanted = Counter(canonical(judge.changes(before, first)))
    except JudgeError:
        # Java's rollbacks and deletions of tags do not ask what readers of changelogs need.
        return
    told = Counter(canonical(judge.changes(after, first)))
    more = {change for change in told - wanted if not change.startswith('["-D"')}
    assert wanted <= told, f"not told from {first} on: {wanted - told}"
    assert not more, f"told from {first} on, too: {more}"


def _first_told(path: Path) -> int:
    """Where readers of changes may begin, at a snapshot or a long-lived changelog."""
    kinds = {
        int(file.name[len(kind) + 1 :]): (kind, json.loads(file.read_text())["commitKind"])
        for kind in ("snapshot", "changelog")
        for file in (path / kind).glob(f"{kind}-*")
    }
    # Changelogs from a time when options kept them stay behind.
    first = next(id_ for id_ in range(max(kinds), 0, -1) if id_ - 1 not in kinds)
    # What an overwrite removed goes, as with Java, with the snapshot before.
    return first + (kinds[first] == ("snapshot", "OVERWRITE"))


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
    """0 if all histories agree with Java, else 1. Prints how often each kind changed something."""
    effects: Counter[str] = Counter()

    def run(judge: Judge, folder: Path, seed: int) -> None:
        effects.update(run_history(judge, folder, seed))

    code = run_histories("tests.oracle.maintenance_histories", run)
    print(", ".join(f"{kind}: {count}" for kind, count in sorted(effects.items())))
    return code


if __name__ == "__main__":
    sys.exit(main())
