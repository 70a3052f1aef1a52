"""Tags that Java made expire as Java's expire: the same files are left, and Java reads them all.

Tags are made of the same snapshots as Java makes, and with the same fields.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from datetime import timezone
from pathlib import Path

import pytest

from compactord.catalog.access import table_in_folder
from compactord.maintenance.new_tags import CreatedTags
from compactord.maintenance.tags import due_tags
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.oracle.differential import canonical
from tests.oracle.judge import Judge
from tests.oracle.maintained import QUIET
from tests.oracle.maintaining import KINDS, STORAGE
from tests.oracle.test_expire import NOW, everything
from tests.rounds import create_tags, expire_tags

LOCAL = LocalStorage()
_OPTIONS = {
    "write-only": "true",
    "tag.create-success-file": "true",
    # Else Java expires them with each compaction.
    "tag.time-expire-enabled": "false",
    "num-sorted-run.compaction-trigger": "2",
    "compaction.min.file-num": "2",
    "manifest.merge-min-count": "3",
}


def _files(path: Path) -> set[str]:
    """All but the hint that Java's commands write anew."""
    return {str(f.relative_to(path)) for f in path.rglob("*") if f.is_file()}


@pytest.mark.parametrize("buckets", ["2", "-1"])
@pytest.mark.parametrize("seed", range(6))
def test_the_same_tags_and_files_go(judge: Judge, tmp_path: Path, buckets: str, seed: int) -> None:
    dice = random.Random(seed)
    ours = tmp_path / "db.db" / "ours"
    keys = ("k",) if buckets == "2" else ()
    columns = (("k", "BIGINT NOT NULL"), ("v", "BIGINT"))
    judge.create_table(ours, columns, primary_key=keys, options={"bucket": buckets, **_OPTIONS})
    names: set[str] = set()
    kept: set[str] = set()
    for commit in range(9):
        judge.write(ours, [(dice.randrange(12), commit) for _ in range(4)])
        if dice.random() < 0.7:
            judge.compact(ours, full=True)
        newest = judge.snapshots(ours)[-1]
        for number in range(dice.choice((0, 1, 1, 2))):
            name, is_short = f"t{commit}-{number}", dice.random() < 0.6
            (names if is_short else kept).add(name)
            arguments = {"path": str(ours), "name": name, "id": newest}
            arguments["retained_ms"] = 1 if is_short else 10**9
            judge.jvm.call("Upkeep", "createTag", arguments)
    judge.expire_snapshots(ours, dice.choice((1, 3)))
    java = tmp_path / "db.db" / "java"
    shutil.copytree(ours, java)
    time.sleep(0.01)
    ref = TableRef(database="db", name="t", location=str(ours))
    table = open_table(table_in_folder(LOCAL, ref), {"tag.time-expire-enabled": "true"})
    now_ms = int(time.time() * 1000)
    assert {tag.name for tag in due_tags(table, now_ms, timezone.utc)} == names
    done = expire_tags(table, now_ms)
    assert done.why_not is None
    assert done.data_files
    assert done.metadata
    theirs = judge.jvm.ask("Upkeep", "expireTags", {"path": str(java)})
    assert set(done.tags) == set(theirs) == names
    left = everything(judge, ours)
    assert left == everything(judge, java)
    assert len(left) >= len(kept)
    assert _files(ours) == _files(java)


@pytest.mark.parametrize(
    ("first", "then", "kept"),
    [
        # What the changelog of the tag's snapshot has to tell lies in the tag's files.
        ("none", "none", 3),
        ("none", "lookup", 3),
        # It has nothing to tell before the compaction.
        ("lookup", "lookup", 0),
    ],
)
def test_files_stay_for_a_changelog_that_readers_take_from_them(
    judge: Judge, tmp_path: Path, first: str, then: str, kept: int
) -> None:
    ours, java = tmp_path / "db.db" / "ours", tmp_path / "db.db" / "java"
    columns = (("k", "BIGINT NOT NULL"), ("v", "BIGINT"))
    options = {"bucket": "1", "write-only": "true", "changelog-producer": first}
    judge.create_table(ours, columns, primary_key=("k",), options=options)
    judge.write(ours, [(1, 1)])
    arguments = {"path": str(ours), "name": "t", "id": 1, "retained_ms": 1}
    judge.jvm.call("Upkeep", "createTag", arguments)
    judge.write(ours, [(1, 2)])
    judge.compact(ours, full=True, options=QUIET)
    told = judge.changes(ours)
    judge.alter_options(ours, {**NOW, "changelog.num-retained.min": "9"})
    KINDS["snapshots"].ours(ours, STORAGE)
    judge.alter_options(ours, {"changelog-producer": then})
    shutil.copytree(ours, java)
    KINDS["tags"].ours(ours, STORAGE)
    KINDS["tags"].java(judge, java)
    assert not list((ours / "tag").glob("tag-*"))
    assert len(_files(ours) - _files(java)) == kept
    assert judge.changes(ours, options={"changelog-producer": first}) == told


_COMMITS = 16
_HOUR_MS = 3_600_000
_START_MS = 1_711_700_000_000  # 2024-03-29, before clocks are set in Berlin
_PERIODS: tuple[tuple[float, dict[str, str]], ...] = (
    (24, {"tag.period-formatter": "without_dashes"}),
    (24, {"tag.creation-delay": "2 h"}),
    (1, {"tag.creation-period": "hourly", "tag.creation-delay": "10 min"}),
    (1, {"tag.creation-period": "hourly", "tag.period-formatter": "without_dashes_and_spaces"}),
    (2, {"tag.creation-period": "two-hours", "tag.period-formatter": "without_dashes"}),
    (0.75, {"tag.creation-period-duration": "45 min"}),
)


def _ask(dice: random.Random, period: dict[str, str]) -> dict[str, str]:
    return {
        "tag.automatic-creation": dice.choice(("process-time", "watermark")),
        "sink.process-time-zone": "Europe/Berlin",
        "sink.watermark-time-zone": "GMT+05:30",
        "tag.automatic-completion": dice.choice(("true", "false")),
        **dice.choice(({"tag.num-retained-max": "3"}, {})),
        **dice.choice(({"tag.default-time-retained": "36 h"}, {})),
        **period,
    }


def _set_times(dice: random.Random, table: Path, hours: float) -> None:
    """Snapshots as if their writer had committed in some of the periods of so many hours."""
    moment_ms = _START_MS + dice.randrange(24 * _HOUR_MS)
    for number in range(1, _COMMITS + 1):
        moment_ms += int(dice.random() * 1.2 * hours * _HOUR_MS)
        moment_ms += int(_HOUR_MS * hours * dice.choice((0, 0, 0, 3)))
        path = table / "snapshot" / f"snapshot-{number}"
        watermark = dice.choice(({}, {"watermark": moment_ms}))
        found = json.loads(path.read_text()) | {"timeMillis": moment_ms} | watermark
        path.write_text(json.dumps(found))


def test_the_same_tags_are_made_with_the_same_fields(judge: Judge, tmp_path: Path) -> None:
    written = tmp_path / "db.db" / "written"
    columns = (("k", "BIGINT NOT NULL"), ("v", "BIGINT"))
    options = {"bucket": "1", **_OPTIONS}
    judge.create_table(written, columns, primary_key=("k",), options=options)
    for commit in range(_COMMITS):
        judge.write(written, [(commit % 5, commit)])
    for seed in range(2 * len(_PERIODS)):
        dice = random.Random(seed)
        hours, period = _PERIODS[seed % len(_PERIODS)]
        asks = _ask(dice, period)
        ours, java = tmp_path / f"ours-{seed}", tmp_path / f"java-{seed}"
        shutil.copytree(written, ours)
        _set_times(dice, ours, hours)
        shutil.copytree(ours, java)
        judge.jvm.call("Upkeep", "createTags", {"path": str(java), "options": asks})
        made = _create(ours, asks)
        assert len(made.tags) > 3
        assert made.surplus.why_not is None
        assert _files(ours) == _files(java)
        for path in (ours / "tag").glob("tag-[0-9]*"):
            pair = [json.loads((each / "tag" / path.name).read_text()) for each in (ours, java)]
            moments = [each.pop("tagCreateTime", None) for each in pair]
            assert pair[0] == pair[1]
            assert {type(each) for each in moments} == {type(moments[0])}
        # Each goes on after the other's tags.
        assert not _create(java, asks).tags
        judge.jvm.call("Upkeep", "createTags", {"path": str(ours), "options": asks})
        assert _files(ours) == _files(java)
    for name, id_ in made.tags.items():
        if (ours / "tag" / f"tag-{name}").exists():
            of_tag = judge.read(ours, options={"scan.tag-name": name})
            of_snapshot = judge.read(written, options={"scan.snapshot-id": str(id_)})
            assert canonical(of_tag) == canonical(of_snapshot)


def _create(table: Path, asks: dict[str, str]) -> CreatedTags:
    ref = TableRef(database="db", name="t", location=str(table))
    opened = open_table(table_in_folder(LOCAL, ref), asks)
    return create_tags(opened, int(time.time() * 1000))
