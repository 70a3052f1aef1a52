"""Changelogs outlive their snapshots and expire as by Java, whose streaming readers go on."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import TransientStorageError
from compactord.paimon.schema import TableRef, latest_schema
from compactord.plan.table import Strategy
from compactord.storage.base import Storage
from compactord.table.opening import describe_table
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError
from tests.oracle.test_expire import (
    KEYED,
    LOCAL,
    NOW,
    QUIET,
    Twin,
    expire,
    ids,
    shape_changelog,
    shape_keyed,
    twins,
)
from tests.rounds import Expired, expire_changelogs
from tests.storages import Fault, FaultyStorage

# Readers open the table with these: any more than `NOW` keep changelogs longer than snapshots.
LONG = {"changelog.num-retained.min": "100", "snapshot.num-retained.min": "1"}


def ours(path: Path, storage: Storage = LOCAL, **options: str) -> tuple[Expired, Expired]:
    """Snapshots expire, then changelogs, as Java does after a commit."""
    ref = TableRef(database="db", name=path.name, location=str(path))
    snapshots = expire(path, storage=storage, **options)
    schema = latest_schema(LOCAL, ref.location)
    table = describe_table(table_in_folder(storage, ref), schema, options)
    return snapshots, expire_changelogs(table, int(time.time() * 1000))


def expire_both(twin: Twin, **options: str) -> tuple[Expired, Expired]:
    twin.judge.compact(twin.java, full=False, options={**QUIET, **NOW, **options})
    return ours(twin.ours, **{**NOW, **options})


def logs(path: Path) -> list[int]:
    return sorted(int(p.name[10:]) for p in (path / "changelog").glob("changelog-*"))


def check(twin: Twin) -> None:
    twin.check()
    for hint in ("EARLIEST", "LATEST"):
        theirs, found = (p / "changelog" / hint for p in (twin.java, twin.ours))
        assert theirs.exists() == found.exists(), hint
        assert not theirs.exists() or theirs.read_text() == found.read_text()


def without_producer(judge: Judge, path: Path) -> LiveTable:
    return shape_keyed(judge, path, **LONG)


def append_only(judge: Judge, path: Path) -> LiveTable:
    table = LiveTable(
        judge=judge, path=path, columns=KEYED, options={"bucket": "-1", **LONG}
    ).create()
    for round_ in range(2):
        for number in range(6):
            table.write([(round_, number)])
        table.settle(Strategy.FULL)
    table.write([(7, 1)])
    return table


def with_producer(judge: Judge, path: Path) -> LiveTable:
    return shape_changelog(judge, path, **LONG)


def looked_up(judge: Judge, path: Path) -> LiveTable:
    """Compactions tell what writers changed: commits of writers have no changelog."""
    return shape_changelog(judge, path, **LONG, **{"changelog-producer": "lookup"})


def fully_compacted(judge: Judge, path: Path) -> LiveTable:
    return shape_changelog(judge, path, **LONG, **{"changelog-producer": "full-compaction"})


SHAPES = (without_producer, append_only, with_producer, looked_up, fully_compacted)


@pytest.mark.parametrize(
    ("shape", "tagged"),
    [*itertools.product(SHAPES[:3], (False, True)), *((shape, True) for shape in SHAPES[3:])],
)
def test_the_same_is_left_and_readers_find_each_change(
    judge: Judge, tmp_path: Path, shape: Callable[[Judge, Path], LiveTable], *, tagged: bool
) -> None:
    template = shape(judge, tmp_path / "db.db" / "t").path
    last = ids(template)[-1]
    if tagged:
        judge.create_tag(template, "v", last // 2)
    changes = {first: judge.changes(template, first) for first in ids(template)}
    twin = twins(judge, template, tmp_path)
    for keep_snapshots, keep_changelogs in ((last // 2, 100), (1, 100), (1, 6), (1, 3)):
        snapshots, changelogs = expire_both(
            twin,
            **{
                "snapshot.num-retained.min": str(keep_snapshots),
                "changelog.num-retained.min": str(keep_changelogs),
                "changelog.time-retained": "0 ms",
            },
        )
        assert (snapshots.why_not, changelogs.why_not) == (None, None)
        check(twin)
        first = max(1, last - keep_changelogs + 1)
        assert logs(twin.ours) == list(range(first, last - keep_snapshots + 1))
        assert judge.changes(twin.ours, first) == changes[first]
        # The next expiry of each is the other's.
        twin.java, twin.ours = twin.ours, twin.java
    for path in (twin.java, twin.ours):
        assert judge.orphan_files(path) == []


def overwritten(judge: Judge, path: Path) -> LiveTable:
    """Readers are told what an overwrite removed, files of compactions among it."""
    table = without_producer(judge, path)
    judge.alter_options(path, {"streaming-read-overwrite": "true"})
    judge.compact(path, full=True)
    judge.overwrite(path, [(3, 3)], {})
    table.write([(4, 4)])
    judge.compact(path, full=True)
    return table


def test_readers_are_told_what_an_overwrite_removed(judge: Judge, tmp_path: Path) -> None:
    """Java deletes the files of compactions among it."""
    path = overwritten(judge, tmp_path / "db.db" / "t").path
    last = ids(path)[-1]
    changes = {first: judge.changes(path, first) for first in ids(path)}
    twin = twins(judge, path, tmp_path)
    for keep in range(last, 0, -3):
        expire_both(twin, **{**LONG, "snapshot.num-retained.min": str(keep)})
    expire_both(twin, **LONG)
    assert ids(twin.ours) == [last]
    for first, told in changes.items():
        assert judge.changes(twin.ours, first) == told
    with pytest.raises(JudgeError, match="not found"):
        judge.changes(twin.java, 1)
    expire_both(twin, **{"changelog.num-retained.min": "2"})
    check(twin)
    assert judge.orphan_files(twin.ours) == []


def test_java_goes_on_where_ours_was_cut_short(judge: Judge, tmp_path: Path) -> None:
    template = without_producer(judge, tmp_path / "db.db" / "t").path
    last = ids(template)[-1]
    options = {"changelog.num-retained.min": "6"}
    clean = twins(judge, template, tmp_path / "clean")
    expire_both(clean, **options)
    check(clean)
    told = judge.changes(clean.ours, last - 5)
    for at in itertools.count(1, 17):
        twin = twins(judge, template, tmp_path / str(at))
        fault = Fault(
            at=at, error=TransientStorageError, lasts=True, concerns=lambda call: call.is_mutation
        )
        storage = FaultyStorage(LOCAL, fault)
        with contextlib.suppress(TransientStorageError):
            ours(twin.ours, storage, **{**NOW, **options})
        if not storage.failed:
            break
        judge.compact(twin.ours, full=False, options={**QUIET, **NOW, **options})
        assert twin.files(twin.ours) == clean.files(clean.ours), at
        assert judge.changes(twin.ours, last - 5) == told
    assert at > 80
