"""Each kind of maintenance by Java and by us, each on a copy of one table; the same must be left.

What Java and we do differently on purpose is named here, with its reason, and nowhere else.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timezone
from pathlib import Path
from typing import Any

from compactord import ids
from compactord.catalog.access import table_in_folder
from compactord.clock import SystemClock
from compactord.maintenance.orphan_search import OrphanSearch, OwnerRule, TableFolders
from compactord.maintenance.orphans import remove_found
from compactord.paimon.schema import TableRef, branch_of
from compactord.storage.base import ObjectStatus, Storage
from compactord.storage.local import LocalStorage
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from tests.oracle.judge import Judge
from tests.rounds import (
    create_tags,
    expire_changelogs,
    expire_consumers,
    expire_partitions,
    expire_snapshots,
    expire_tags,
    mark_done,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# A mark of a partition without buckets goes with Java's sweep, which takes the partition's folder
# for one of files (docs/limits.md); ours leaves it.
MARKS_STAY = "_SUCCESS"
# With this producer Java's trigger marks partitions before their readers see all rows; ours waits.
TOLD_LATER = "lookup"
# Java writes it at its first expiry of a new branch, which has one snapshot and no hint LATEST;
# ours looks at none before the branch has a commit of its own.
HINTS_OF_NEW_BRANCHES = "EARLIEST"


class ByModification(LocalStorage):
    """Local files that tell when they were modified, which a test can set and a copy keeps.

    Not when their inodes changed.
    """

    def status(self, path: str) -> ObjectStatus | None:
        found = LocalStorage.status(self, path)
        return None if found is None else _modified(found, path)

    def list_some(self, folder: str, is_wanted: Callable[[str], bool]) -> Iterator[ObjectStatus]:
        """`list` goes through it."""
        for found in LocalStorage.list_some(self, folder, is_wanted):
            yield _modified(found, f"{folder}/{found.name}")


def _modified(found: ObjectStatus, path: str) -> ObjectStatus:
    return replace(found, changed_ms=os.stat(path).st_mtime_ns // 1_000_000)


STORAGE = ByModification()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """`java` and `ours` do one round of it in a table.

    `compare` is told of a table before, ours and Java's, and says which files we alone have left,
    all of which something names.
    """

    java: Callable[[Judge, Path], object]
    ours: Callable[[Path, Storage], object]
    compare: Callable[[Judge, Path, Path, Path], Collection[str]]


def now_ms() -> int:
    return int(time.time() * 1000)


def schema_of(path: Path) -> Mapping[str, Any]:
    newest = max((path / "schema").glob("schema-*"), key=lambda file: int(file.name[7:]))
    found: Mapping[str, Any] = json.loads(newest.read_text())
    return found


def options_of(path: Path) -> Mapping[str, str]:
    found: Mapping[str, str] = schema_of(path)["options"]
    return found


def partition_folder(keys: Sequence[str], values: Sequence[str]) -> str:
    """Of the values that the histories have; with a slash at the end if there are any."""
    texts = (value.replace(":", "%3A") for value in values)
    return "".join(f"{key}={text}/" for key, text in zip(keys, texts, strict=True))


def branches(path: Path) -> list[str]:
    return sorted(each.name[7:] for each in (path / "branch").glob("branch-*"))


def opened(path: Path, storage: Storage = STORAGE, branch: str = "main") -> TableSession:
    """The table as the service has it before it maintains anything."""
    ref = branch_of(TableRef(database="db", name=path.name, location=str(path)), branch)
    followed = TableSession(
        table_in_folder(storage, ref),
        CompactRequest(),
        clock=SystemClock(timezone.utc),
        owner=ids.this_process(),
    )
    followed.refresh()
    followed.look_back(busy=(), may_commit=False)
    assert followed.expiry_blocker() is None
    return followed


def _ask(judge: Judge, method: str, path: Path, **arguments: Any) -> Any:
    return judge.jvm.call("Upkeep", method, {"path": str(path), **arguments})


def _expire_snapshots(path: Path, storage: Storage, branch: str = "main") -> None:
    table = opened(path, storage, branch).table
    done = expire_snapshots(table, table.options.expire, now_ms=now_ms(), keep_from=None)
    assert done.why_not is None, done


def _expire_changelogs(path: Path, storage: Storage, branch: str = "main") -> None:
    done = expire_changelogs(opened(path, storage, branch).table, now_ms())
    assert done.why_not is None, done


def _upkeep_tags(path: Path, storage: Storage) -> None:
    table = opened(path, storage).table
    made = create_tags(table, now_ms())
    assert made.why_not is None, made
    gone = expire_tags(table, now_ms())
    assert gone.why_not is None, gone


def _consumers(of: Callable[[Path], Sequence[str]]) -> Kind:
    """Those of some branches, one after the other."""

    def by_java(judge: Judge, path: Path) -> None:
        days = options_of(path)["consumer.expiration-time"].removesuffix(" d")
        before_ms = now_ms() - int(days) * DAY_MS
        for branch in of(path):
            _ask(judge, "expireConsumers", path, branch=branch, before_ms=before_ms)

    def by_us(path: Path, storage: Storage) -> None:
        for branch in of(path):
            expire_consumers(opened(path, storage, branch).table, now_ms())

    return Kind(java=by_java, ours=by_us, compare=_same)


def _expire_partitions(path: Path, storage: Storage) -> None:
    followed = opened(path, storage)
    done = expire_partitions(followed, now_ms())
    assert done.why_not is None, done


def _mark_done(path: Path, storage: Storage) -> None:
    followed = opened(path, storage)
    mark_done(followed.table, now_ms(), state=followed.state)


def _java_marks_done(judge: Judge, path: Path) -> None:
    """Those that Java's trigger, which needs a Flink job, would have been told of.

    Of rows that came and were compacted since the last mark, ours knows nothing: a job remembers.
    """
    schema = schema_of(path)
    options = schema["options"]
    waits = bool(schema["primaryKeys"]) and (
        options.get("changelog-producer") == TOLD_LATER or "deletion-vectors.enabled" in options
    )
    live = judge.files(path)
    for values in sorted({tuple(file["partition"]) for file in live}):
        own = [file for file in live if tuple(file["partition"]) == values]
        if waits and any(file["level"] == 0 for file in own):
            continue
        appended_ms = [f["creation_time"] for f in own if f["file_source"] != "COMPACT"]
        folder = partition_folder(schema["partitionKeys"], values).removesuffix("/")
        marked = json.loads(_ask(judge, "marked", path, partition=folder))
        if marked and marked[1] > max(appended_ms, default=-1):
            continue
        if _day_ms(values[0]) + DAY_MS < now_ms():
            _ask(judge, "markDone", path, partition=folder)


def _day_ms(day: str) -> float:
    """Where a day begins; a text that is none never does."""
    try:
        return 1000 * time.mktime(time.strptime(day, "%Y-%m-%d")) - 1000 * time.timezone
    except ValueError:
        return float("inf")


def _sweep(path: Path, storage: Storage) -> None:
    _age_folders(path)
    table = opened(path, storage).table
    folders = TableFolders(
        location=str(path), partition_depth=len(table.schema.partition_keys), of_others=True
    )
    rule = OwnerRule(
        myself=ids.this_process(),
        liveness=ids.liveness,
        now_ms=now_ms(),
        grace_ms=DAY_MS,
        others_grace_ms=DAY_MS,
    )
    search = OrphanSearch(storage, folders, rule)
    remove_found(storage, folders, search, search.find())


def _java_sweeps(judge: Judge, path: Path) -> None:
    _age_folders(path)
    judge.orphan_files(path, delete=True, before_ms=now_ms() - DAY_MS)


def _age_folders(path: Path) -> None:
    """As if nothing had been in them for long."""
    for folder, _, _ in os.walk(path):
        modify(Path(folder), 3 * DAY_MS)


def modify(path: Path, age_ms: int) -> None:
    """Have a file or folder modified last so long ago."""
    moment = (now_ms() - age_ms) / 1000
    os.utime(path, (moment, moment))


def _same(judge: Judge, before: Path, ours: Path, java: Path) -> Collection[str]:
    """The same files, those of metadata with the same content but for moments."""
    new = [f"branch/branch-{b}/snapshot" for b in branches(ours)]
    new = [folder for folder in new if not (ours / folder / "LATEST").exists()]
    unlike = {f"{folder}/{HINTS_OF_NEW_BRANCHES}" for folder in new}
    more = _more(judge, ours, java, unlike)
    for name in files(ours) & files(java):
        folder = name.rsplit("/", 2)[-2] if "/" in name else ""
        if folder in ("snapshot", "tag", "changelog", "consumer"):
            _same_texts(name, *((each / name).read_text() for each in (ours, java)))
    return more


def _more(judge: Judge, ours: Path, java: Path, unlike: Collection[str] = ()) -> Collection[str]:
    """What we alone have left, for branches or readers of changelogs.

    Java would have kept it, too, had it looked whether anything names it, as its sweep does.
    """
    mine, theirs = files(ours) - {*unlike}, files(java) - {*unlike}
    assert mine >= theirs, f"left by Java alone: {sorted(theirs - mine)}"
    more = mine - theirs
    if more:
        unnamed = more & orphans(judge, ours)
        assert not unnamed, f"left by us alone, and unnamed: {sorted(unnamed)}"
        keepers = [*ours.glob("branch/branch-*"), *ours.glob("changelog/changelog-*")]
        assert keepers, f"left by us alone: {sorted(more)}"
    return more


def orphans(judge: Judge, path: Path) -> set[str]:
    """What nothing names, as Java's sweep finds it, but for marks of partitions."""
    found = {str(Path(each).relative_to(path)) for each in judge.orphan_files(path)}
    return {name for name in found if not name.endswith(MARKS_STAY)}


def _same_names(ours: set[str], java: set[str]) -> None:
    assert ours == java, f"by us alone: {sorted(ours - java)}, by Java: {sorted(java - ours)}"


def _same_texts(name: str, *texts: str) -> None:
    try:
        mine, theirs = ({**json.loads(text)} for text in texts)
    except (ValueError, TypeError):
        mine, theirs = ({"text": text} for text in texts)
    times = mine.pop("tagCreateTime", None), theirs.pop("tagCreateTime", None)
    assert (mine, type(times[0])) == (theirs, type(times[1])), f"{name}: {texts}"


def files(path: Path) -> set[str]:
    return {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}


def _folders(path: Path) -> set[str]:
    """Of partitions and buckets: Java's sweep also removes those of index files and statistics.

    It does so while they are empty.
    """
    found = (f for f in path.rglob("*") if f.is_dir())
    return {str(f.relative_to(path)) for f in found if "=" in f.name or "bucket-" in f.name}


def _same_folders_too(judge: Judge, before: Path, ours: Path, java: Path) -> Collection[str]:
    more = _same(judge, before, ours, java)
    if not more and options_of(ours).get("snapshot.clean-empty-directories") == "true":
        _same_names(_folders(ours), _folders(java))
    return more


def _same_after_sweep(judge: Judge, before: Path, ours: Path, java: Path) -> Collection[str]:
    for mark in before.glob(f"*=*/**/{MARKS_STAY}"):
        name = mark.relative_to(before)
        assert (ours / name).exists()
        if not (java / name).exists():
            (java / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(mark, java / name)
    _same_names(_folders(ours), _folders(java))
    return _same(judge, before, ours, java)


def _same_partitions(judge: Judge, before: Path, ours: Path, java: Path) -> Collection[str]:
    """The same live files after as many commits, whose own files each side names itself."""
    for ask in (judge.snapshots, judge.files, judge.index_files):
        mine, theirs = ask(ours), ask(java)
        assert mine == theirs, f"{mine}, Java's: {theirs}"
    left = [{f for f in files(each) if not f.startswith("manifest/")} for each in (ours, java)]
    _same_names(*left)
    mine, theirs = (judge.snapshot(each) or {} for each in (ours, java))
    for key in ("commitKind", "totalRecordCount", "deltaRecordCount", "watermark", "schemaId"):
        assert mine.get(key) == theirs.get(key), (key, mine, theirs)
    return ()


def _same_marks(judge: Judge, before: Path, ours: Path, java: Path) -> Collection[str]:
    _same_names(files(ours), files(java))
    for name in files(ours):
        if name.endswith(MARKS_STAY) and (before / name).exists():
            old, mine, theirs = (
                json.loads((each / name).read_text()) for each in (before, ours, java)
            )
            assert mine["creationTime"] == theirs["creationTime"] == old["creationTime"]
            assert (mine == old) == (theirs == old), name
    return ()


def _of_branches(java: str, ours: Callable[[Path, Storage, str], None]) -> Kind:
    """Of all branches but main, one after the other."""

    def by_java(judge: Judge, path: Path) -> None:
        for branch in branches(path):
            _ask(judge, java, path, options={"branch": branch})

    def by_us(path: Path, storage: Storage) -> None:
        for branch in branches(path):
            ours(path, storage, branch)

    return Kind(java=by_java, ours=by_us, compare=_same_folders_too)


def _of_main(java: str, ours: Callable[[Path, Storage], object]) -> Kind:
    return Kind(
        java=lambda judge, path: _ask(judge, java, path), ours=ours, compare=_same_folders_too
    )


KINDS: Mapping[str, Kind] = {
    "snapshots": _of_main("expireSnapshots", _expire_snapshots),
    "changelogs": _of_main("expireChangelogs", _expire_changelogs),
    # Java also removes the folders of buckets that are empty then (docs/limits.md).
    "tags": replace(_of_main("upkeepTags", _upkeep_tags), compare=_same),
    "branches": _of_branches("expireSnapshots", _expire_snapshots),
    "changelogs of branches": _of_branches("expireChangelogs", _expire_changelogs),
    # Not tags of branches: Java's committer to a branch makes and deletes main's (docs/limits.md).
    "consumers": _consumers(lambda path: ["main"]),
    "consumers of branches": _consumers(branches),
    "partitions": Kind(
        java=lambda judge, path: _ask(judge, "expirePartitions", path),
        ours=_expire_partitions,
        compare=_same_partitions,
    ),
    "done": Kind(java=_java_marks_done, ours=_mark_done, compare=_same_marks),
    "orphans": Kind(java=_java_sweeps, ours=_sweep, compare=_same_after_sweep),
}
