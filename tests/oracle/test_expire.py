"""Java expires one copy of a table and compactord the other: the same files must be left."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compactord.catalog.access import table_in_folder
from compactord.errors import TransientStorageError
from compactord.paimon.schema import TableRef, latest_schema
from compactord.plan.table import Strategy
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from compactord.table.opening import describe_table
from tests.oracle.differential import LiveTable, canonical
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError
from tests.oracle.test_compact_history import History
from tests.rounds import Expired, expire_snapshots
from tests.sampling import one_in, seeds
from tests.storages import Call, Fault, FaultyStorage, HookedStorage

LOCAL = LocalStorage()
HOUR_MS = 3_600_000
# Merges that no writer starts by itself, so that a commit of Java's does nothing but expire.
QUIET = {
    "write-only": "false",
    "num-sorted-run.compaction-trigger": "1000",
    "compaction.min.file-num": "1000",
}
# Everything but the newest snapshot.
NOW = {"snapshot.time-retained": "0 ms", "snapshot.num-retained.min": "1"}
KEYED = (("k", "BIGINT NOT NULL"), ("v", "BIGINT"))
PARTITIONED = (("p", "STRING NOT NULL"), ("q", "INT NOT NULL"), *KEYED)


@dataclass(kw_only=True)
class Twin:
    """One table, twice."""

    judge: Judge
    java: Path
    ours: Path

    def files(self, path: Path) -> frozenset[str]:
        return frozenset(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())

    def folders(self, path: Path) -> frozenset[str]:
        return frozenset(str(p.relative_to(path)) for p in path.rglob("*") if p.is_dir())

    def expire(self, **options: str) -> Expired:
        """Java expires as it does after a commit, with these options; so do we."""
        java = {**NOW, **options}
        self.judge.compact(self.java, full=False, options={**QUIET, **java})
        return expire(self.ours, **java)

    def check(self) -> None:
        """The same files, the same hint, and every row of what is left can be read."""
        left = self.files(self.ours)
        assert left == self.files(self.java)
        for hint in ("EARLIEST", "LATEST"):
            theirs, ours = (p / "snapshot" / hint for p in (self.java, self.ours))
            assert theirs.exists() == ours.exists()
            assert not theirs.exists() or theirs.read_text() == ours.read_text()
        readings = everything(self.judge, self.ours)
        assert readings == everything(self.judge, self.java)


def expire(path: Path, *, storage: Storage = LOCAL, **options: str) -> Expired:
    ref = TableRef(database="db", name=path.name, location=str(path))
    # Tables with deletion vectors are not compacted; their expiry must know index files.
    schema = latest_schema(LOCAL, ref.location)
    table = describe_table(table_in_folder(LOCAL, ref), schema, options)
    return expire_snapshots(
        replace(table, access=table_in_folder(storage, ref)),
        table.options.expire,
        now_ms=int(time.time() * 1000),
        keep_from=None,
    )


def everything(judge: Judge, path: Path) -> dict[str, list[str]]:
    """What Java reads at every snapshot and tag of main, and now in the branches."""
    found: dict[str, list[str]] = {}
    for kind, option in (("snapshot", "scan.snapshot-id"), ("tag", "scan.tag-name")):
        for file in sorted((path / kind).glob(f"{kind}-*")):
            if file.is_dir():
                continue
            name = file.name.removeprefix(f"{kind}-")
            found[f"{kind} {name}"] = canonical(judge.read(path, options={option: name}))
    for folder in sorted((path / "branch").glob("branch-*")):
        name = folder.name.removeprefix("branch-")
        found[f"branch {name}"] = canonical(judge.read(path, options={"branch": name}))
    return found


def shape_keyed(judge: Judge, path: Path, **options: str) -> LiveTable:
    """Upgrades (one file alone), rewrites by Java and by us, deletes."""
    table = LiveTable(
        judge=judge,
        path=path,
        columns=KEYED,
        primary_key=("k",),
        options={"bucket": "2", "num-sorted-run.compaction-trigger": "2", **options},
    ).create()
    for round_ in range(3):
        table.write([(k, 10 * round_) for k in range(round_, 9)])
        table.settle(Strategy.FULL)
        table.write([(k, 10 * round_ + 1) for k in range(5)])
        table.write([(1, 0)], ["-D"])
        judge.compact(path, full=True)
        table.write([(100 + round_, 1)])
    table.write([(200, 1)])
    return table


def shape_append(judge: Judge, path: Path) -> LiveTable:
    table = LiveTable(judge=judge, path=path, columns=KEYED, options={"bucket": "-1"}).create()
    for round_ in range(2):
        for number in range(6):
            table.write([(round_, number)])
        table.settle(Strategy.FULL)
    for number in range(6):
        table.write([(7, number)])
    judge.compact(path, full=False)
    return table


def shape_partitioned(judge: Judge, path: Path) -> LiveTable:
    """Partitions that are overwritten and emptied, names that need escaping."""
    table = LiveTable(
        judge=judge,
        path=path,
        columns=PARTITIONED,
        primary_key=("p", "q", "k"),
        partition_by=("p", "q"),
        options={"bucket": "1"},
    ).create()
    for round_ in range(3):
        table.write([(p, q, k, round_) for p in ("a/b", "c d") for q in (1, 2) for k in range(3)])
        table.settle(Strategy.FULL)
    judge.overwrite(path, [("c d", 2, 50, 1)], {"p": "c d", "q": "2"})
    judge.truncate(path, [{"p": "a/b", "q": "1"}, {"p": "a/b", "q": "2"}])
    judge.write(path, [("c d", 1, 9, 9)])
    judge.compact(path, full=True)
    return table


def shape_changelog(judge: Judge, path: Path, **options: str) -> LiveTable:
    table = LiveTable(
        judge=judge,
        path=path,
        columns=KEYED,
        primary_key=("k",),
        options={"bucket": "1", "changelog-producer": "input", **options},
    ).create()
    for round_ in range(4):
        table.write([(k, round_) for k in range(4)])
        table.write([(2, round_)], ["-D"])
        table.settle(Strategy.FULL)
    return table


def shape_merged_manifests(judge: Judge, path: Path) -> LiveTable:
    table = LiveTable(
        judge=judge,
        path=path,
        columns=KEYED,
        primary_key=("k",),
        options={
            "bucket": "1",
            "manifest.merge-min-count": "2",
            "manifest.full-compaction-threshold-size": "1 kb",
        },
    ).create()
    for round_ in range(5):
        table.write([(k, round_) for k in range(4)])
        table.write([(round_, 5)])
        table.settle(Strategy.FULL)
    return table


def shape_indexes(judge: Judge, path: Path) -> LiveTable:
    """Deletion vectors, whose index files are written anew with each deletion."""
    table = LiveTable(
        judge=judge,
        path=path,
        columns=KEYED,
        options={"bucket": "-1", "deletion-vectors.enabled": "true"},
    ).create()
    for round_ in range(3):
        table.write([(round_, number) for number in range(10)])
        for position in range(2):
            newest = max(judge.files(path), key=lambda file: file["max_sequence_number"])
            judge.delete_positions(path, {newest["file_name"]: [position + round_]})
    table.write([(9, 9)])
    return table


def shape_dynamic(judge: Judge, path: Path) -> LiveTable:
    """HASH indexes, which writers replace when they add keys, compacted and written on."""
    table = LiveTable(
        judge=judge,
        path=path,
        columns=KEYED,
        primary_key=("k",),
        options={"dynamic-bucket.target-row-num": "4"},
    ).create()
    for round_ in range(4):
        table.write([(k, round_) for k in range(3 * round_, 3 * round_ + 6)])
        table.write([(k, -round_) for k in range(round_, 5)])
        table.settle(Strategy.FULL)
    table.write([(200, 1)])
    return table


SHAPES = (
    shape_keyed,
    shape_dynamic,
    shape_append,
    shape_partitioned,
    shape_changelog,
    shape_merged_manifests,
)
Shape = Callable[[Judge, Path], LiveTable]


@pytest.fixture(scope="module")
def made(judge: Judge, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Shape], Path]:
    """Tables of each shape, made once."""
    root = tmp_path_factory.mktemp("shapes") / "db.db"
    known: dict[Shape, Path] = {}

    def make(shape: Shape) -> Path:
        if shape not in known:
            known[shape] = shape(judge, root / shape.__name__).path
        return known[shape]

    return make


def twins(judge: Judge, template: Path, folder: Path) -> Twin:
    for name in ("java", "ours"):
        shutil.copytree(template, folder / "db.db" / name)
    return Twin(judge=judge, java=folder / "db.db" / "java", ours=folder / "db.db" / "ours")


def ids(path: Path) -> list[int]:
    return sorted(int(p.name[9:]) for p in (path / "snapshot").glob("snapshot-*"))


def age(path: Path, times: Mapping[int, int]) -> None:
    """Give snapshots other times."""
    for snapshot_id, time_ms in times.items():
        file = path / "snapshot" / f"snapshot-{snapshot_id}"
        found = json.loads(file.read_text())
        file.write_text(json.dumps({**found, "timeMillis": time_ms}, indent=2))


@one_in(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("keep", [1, 2, 5])
def test_all_but_the_newest_go(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path, shape: Shape, keep: int
) -> None:
    twin = twins(judge, made(shape), tmp_path)
    count = len(ids(twin.ours))
    before = twin.files(twin.ours)
    done = twin.expire(**{"snapshot.num-retained.min": str(keep)})
    twin.check()
    assert ids(twin.ours) == list(range(count - keep + 1, count + 1))
    assert done.snapshots == count - keep
    gone = before - twin.files(twin.ours)
    assert done.data_files + done.changelog_files == sum("bucket-" in name for name in gone)
    assert done.manifests == sum(name.startswith("manifest/") for name in gone)
    assert done.why_not is None


@pytest.mark.parametrize("shape", SHAPES)
def test_rounds_with_a_limit_take_the_same_steps(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path, shape: Shape
) -> None:
    twin = twins(judge, made(shape), tmp_path)
    more = True
    rounds = 0
    while more:
        more = twin.expire(**{"snapshot.expire.limit": "3"}).more
        twin.check()
        rounds += 1
    assert len(ids(twin.ours)) == 1
    assert rounds > 2


@pytest.mark.parametrize("tagged", [None, 3])
def test_index_files_go_too(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path, tagged: int | None
) -> None:
    template = tmp_path / "template.db" / "t"
    shutil.copytree(made(shape_indexes), template)
    if tagged is not None:
        judge.create_tag(template, "v", tagged)
    twin = twins(judge, template, tmp_path)
    for keep in (5, 1):
        # A commit of Java's would compact such a table: it expires by its procedure.
        judge.expire_snapshots(twin.java, 2**31 - 1, retain_min=keep)
        done = expire(twin.ours, **{**NOW, "snapshot.num-retained.min": str(keep)})
        assert done.index_files > 0
        twin.check()


@pytest.mark.parametrize("shape", [shape_keyed, shape_append, shape_changelog])
def test_tags_keep_what_they_need(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path, shape: Shape
) -> None:
    template = tmp_path / "template.db" / "t"
    shutil.copytree(made(shape), template)
    last = ids(template)[-1]
    for snapshot_id in (2, last // 2, last - 2):
        judge.create_tag(template, f"v{snapshot_id}", snapshot_id)
    twin = twins(judge, template, tmp_path)
    for keep in (last - 3, 3, 1):
        twin.expire(**{"snapshot.num-retained.min": str(keep)})
        twin.check()
    judge.delete_tag(twin.java, f"v{last // 2}")
    judge.delete_tag(twin.ours, f"v{last // 2}")
    for path in (twin.java, twin.ours):
        judge.compact(path, full=True, options={"compaction.force-rewrite-all-files": "true"})
    assert len(everything(judge, twin.ours)) == len(ids(twin.ours)) + 2


@pytest.mark.parametrize("shape", [shape_keyed, shape_append])
def test_a_branch_keeps_what_it_needs(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path, shape: Shape
) -> None:
    template = tmp_path / "template.db" / "t"
    shutil.copytree(made(shape), template)
    judge.create_tag(template, "root", 4)
    judge.create_branch(template, "dev", "root")
    judge.write(template, [(55, 5)], options={"branch": "dev"})
    twin = twins(judge, template, tmp_path)
    twin.expire()
    twin.check()


def test_a_branch_whose_tag_was_deleted_in_main_stays_readable(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path
) -> None:
    path = tmp_path / "t"
    shutil.copytree(made(shape_keyed), path)
    judge.create_tag(path, "root", 4)
    judge.create_branch(path, "dev", "root")
    judge.write(path, [(55, 5)], options={"branch": "dev"})
    judge.delete_tag(path, "root")
    before = everything(judge, path)
    twin = twins(judge, path, tmp_path)
    twin.expire()
    after = everything(judge, twin.ours)
    assert after == {name: rows for name, rows in before.items() if name in after}
    assert canonical([(55, 5)])[0] in after["branch dev"]
    assert twin.files(twin.ours) > twin.files(twin.java)
    with pytest.raises(JudgeError, match="not found"):
        judge.read(twin.java, options={"branch": "dev"})


@pytest.mark.parametrize("next_snapshot", [1, 4, 1000])
def test_consumers_hold_expiry_back(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path, next_snapshot: int
) -> None:
    twin = twins(judge, made(shape_keyed), tmp_path)
    for path in (twin.java, twin.ours):
        (path / "consumer").mkdir()
        for name, number in (("a", next_snapshot), ("b", 2000)):
            (path / "consumer" / f"consumer-{name}").write_text(f'{{"nextSnapshot": {number}}}')
    twin.expire()
    twin.check()
    last = ids(made(shape_keyed))[-1]
    assert ids(twin.ours)[0] == min(next_snapshot, last)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, 11),
        ({"snapshot.num-retained.max": "5"}, 15),
        ({"snapshot.num-retained.min": "12"}, 8),
        ({"snapshot.num-retained.min": "3", "snapshot.num-retained.max": "3"}, 17),
        ({"snapshot.expire.limit": "4"}, 5),
        ({"snapshot.time-retained": "100 d"}, 1),
        ({"snapshot.time-retained": "100 d", "snapshot.num-retained.max": "12"}, 8),
    ],
)
def test_time_numbers_and_limit_together(
    judge: Judge,
    made: Callable[[Shape], Path],
    tmp_path: Path,
    options: Mapping[str, str],
    first: int,
) -> None:
    """Snapshots up to the 11th are older than the 3 hours retained, the rest are not."""
    template = tmp_path / "template.db" / "t"
    shutil.copytree(made(shape_keyed), template)
    now = int(time.time() * 1000)
    last = ids(template)[-1]
    age(template, {i: now - (4 if i <= 11 else 1) * HOUR_MS + i for i in range(1, last + 1)})
    assert last == 19
    twin = twins(judge, template, tmp_path)
    twin.expire(**{"snapshot.time-retained": "3 h", **options})
    twin.check()
    assert ids(twin.ours)[0] == first


@pytest.mark.parametrize("shape", [shape_partitioned, shape_keyed])
def test_empty_folders_go_when_the_table_says_so(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path, shape: Shape
) -> None:
    twin = twins(judge, made(shape), tmp_path)
    folders = twin.folders(twin.ours)
    twin.expire(**{"snapshot.clean-empty-directories": "true"})
    twin.check()
    assert twin.folders(twin.ours) == twin.folders(twin.java)
    assert (twin.folders(twin.ours) < folders) == (shape is shape_partitioned)


def test_both_may_take_turns(judge: Judge, made: Callable[[Shape], Path], tmp_path: Path) -> None:
    twin = twins(judge, made(shape_merged_manifests), tmp_path)
    for step in range(3):
        keep = {"snapshot.num-retained.min": str(9 - 4 * step)}
        twin.expire(**keep)
        twin.check()
        twin.java, twin.ours = twin.ours, twin.java


def test_what_is_left_can_be_written_and_compacted_on(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path
) -> None:
    twin = twins(judge, made(shape_keyed), tmp_path)
    twin.expire()
    for path in (twin.java, twin.ours):
        judge.write(path, [(1, 77), (500, 5)])
        judge.compact(path, full=True)
        assert judge.orphan_files(path) == []
    assert canonical(judge.read(twin.ours)) == canonical(judge.read(twin.java))


def test_java_expiring_in_the_middle_does_no_harm(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path
) -> None:
    template = tmp_path / "template.db" / "t"
    shutil.copytree(made(shape_merged_manifests), template)
    judge.create_tag(template, "v3", 3)
    clean = twins(judge, template, tmp_path / "clean")
    clean.expire()
    for at in itertools.count(1, 17):
        twin = twins(judge, template, tmp_path / str(at))

        def other(call: Call, twin: Twin = twin, at: int = at) -> None:
            if call.number == at:
                judge.expire_snapshots(twin.ours, 1)

        storage = HookedStorage(LOCAL, before=other)
        expire(twin.ours, storage=storage, **NOW)
        if storage.calls < at:
            break
        assert twin.files(twin.ours) == clean.files(clean.ours), at
        assert everything(judge, twin.ours) == everything(judge, clean.ours)
    assert at > 80


def test_java_finishes_what_was_cut_short(
    judge: Judge, made: Callable[[Shape], Path], tmp_path: Path
) -> None:
    clean = twins(judge, made(shape_merged_manifests), tmp_path / "clean")
    clean.expire()
    for at in itertools.count(1, 9):
        twin = twins(judge, made(shape_merged_manifests), tmp_path / str(at))
        fault = Fault(
            at=at, error=TransientStorageError, lasts=True, concerns=lambda call: call.is_mutation
        )
        storage = FaultyStorage(LOCAL, fault)
        with contextlib.suppress(TransientStorageError):
            expire(twin.ours, storage=storage, **NOW)
        if not storage.failed:
            break
        judge.expire_snapshots(twin.ours, 1)
        assert twin.files(twin.ours) == clean.files(clean.ours), at
        assert everything(judge, twin.ours) == everything(judge, clean.ours)
    assert at > 40


@pytest.mark.parametrize("seed", seeds(0, 4, 8))
def test_random_histories_are_expired_alike(judge: Judge, tmp_path: Path, seed: int) -> None:
    history = History(judge, tmp_path / "db.db" / "t", seed)
    history.table.write(history.rows())
    for _ in range(12):
        history.step()
    path = history.table.path
    for number in range(history.chance.choice([0, 1, 3])):
        judge.create_tag(path, f"v{number}", history.chance.choice(ids(path)))
    twin = twins(judge, path, tmp_path)
    while len(ids(twin.ours)) > 1:
        limit = str(history.chance.randint(1, 8))
        twin.expire(**{"snapshot.expire.limit": limit, "snapshot.clean-empty-directories": "true"})
        twin.check()
        assert twin.folders(twin.ours) == twin.folders(twin.java), history.steps
