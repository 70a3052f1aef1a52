"""A random table that needs maintenance: what its options ask for, and what happens to it.

Everything comes from one seed. Snapshots are dated back, so that retentions by time have something
to do; no commit of Java's maintains anything by itself.
"""

from __future__ import annotations

import json
import os
import random
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path

from compactord.paimon import paths
from compactord.paimon.snapshot import snapshot_ids
from tests.oracle.differential import compact
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError, Row
from tests.oracle.maintaining import (
    DAY_MS,
    HOUR_MS,
    STORAGE,
    branches,
    modify,
    now_ms,
    partition_folder,
)
from tests.oracle.maintenance_options import RandomOptions

# Java's compactions would maintain the table, too.
QUIET = {
    "snapshot.expire.limit": "0",
    "tag.automatic-creation": "none",
    "tag.time-expire-enabled": "false",
    "partition.expiration-time": "36500 d",
    "consumer.expiration-time": "36500 d",
}
EVENTS = {
    "write": 10,
    "java minor": 2,
    "java full": 2,
    "our compaction": 2,
    "tag": 3,
    "delete tag": 1,
    "consumer": 2,
    "branch": 2,
    "branch write": 3,
    "branch compaction": 1,
    "overwrite": 1,
    "truncate": 1,
    "rollback": 1,
    "delete": 2,
    "fast forward": 0.3,
    "left file": 2,
    "alter": 1,
    "age tags": 1,
}
# How long ago the days of partitions were.
DAYS = (1, 3, 12, 40, -5)


class MaintainedTable:
    """`steps` are what has happened, for whoever looks for a defect."""

    def __init__(self, judge: Judge, path: Path, seed: int) -> None:
        self.chance = random.Random(f"maintenance {seed}")
        # What else happens is the same with and without what comes from it.
        self.aside = random.Random(f"aside {seed}")
        self.judge, self.path = judge, path
        self.steps: list[str] = []
        self.has_key = self.chance.random() < 0.6
        self.has_days = self.chance.random() < 0.6
        self.drawn = RandomOptions(self.chance, has_key=self.has_key, has_days=self.has_days)
        self.options = self.drawn.options()
        self.partition_by = self.chance.choice((["dt"], ["dt", "h"])) if self.has_days else []
        days = [(name, "STRING NOT NULL") for name in self.partition_by]
        judge.create_table(
            path,
            (*days, ("k", "BIGINT NOT NULL"), ("v", "BIGINT")),
            primary_key=[*self.partition_by, "k"] if self.has_key else (),
            partition_by=self.partition_by,
            options=self.options,
        )
        self._last_ms = now_ms() - 30 * DAY_MS
        # Snapshots that are as old as they say.
        self._dated: set[str] = set()
        # The tags of which branches were made, with their snapshots.
        self._roots: dict[str, int] = {}
        self._count = 0
        self.event("write")

    @property
    def asked(self) -> list[str]:
        """The kinds of maintenance that have something to do."""
        options = self.options
        kinds = ["snapshots", "snapshots", "tags", "orphans"]
        keeps = any((self.path / "changelog").glob("changelog-*"))
        kinds += ["changelogs"] * (3 if keeps else 1)
        kinds += ["consumers"] if "consumer.expiration-time" in options else []
        kinds += ["partitions"] if "partition.expiration-time" in options else []
        kinds += ["done"] if "partition.idle-time-to-done" in options else []
        if branches(self.path):
            kinds += ["branches", "branches", "changelogs of branches"]
            kinds += ["consumers of branches"] if "consumer.expiration-time" in options else []
        return kinds

    def events(self, count: int) -> None:
        for _ in range(count):
            self.event(self.chance.choices(list(EVENTS), list(EVENTS.values()))[0])

    def event(self, name: str) -> None:
        done = getattr(self, f"_{name.replace(' ', '_')}")()
        self.steps.append(name if done is None else f"{name} {done}")
        self._date_back()

    def _rows(self) -> list[Row]:
        self._count += 1
        days = self.chance.sample(self._days(), self.chance.choice((1, 2)))
        keys = self.chance.sample(range(6), self.chance.choice((1, 3)))
        return [(*day, key, self._count) for day in days for key in keys]

    def _days(self) -> list[tuple[str, ...]]:
        if not self.has_days:
            return [(), ()]
        today = datetime.now(timezone.utc)
        found = [(f"{today - timedelta(days=days):%Y-%m-%d}",) for days in DAYS]
        found.append(("never",))
        if len(self.partition_by) == 2:
            # Java's lookups fail with a slash: they make local files of such names.
            return [(*day, hour) for day in found for hour in ("0", "a b:c")]
        return found

    def _write(self) -> None:
        rows = {str(row[:-1]): row for row in self._rows()}
        kinds = None
        if self.has_key and self.chance.random() < 0.3:
            kinds = [self.chance.choice(("+I", "-D")) for _ in rows]
        self.judge.write(self.path, list(rows.values()), kinds)

    def _java_minor(self) -> None:
        self._compact_by_java(full=False)

    def _java_full(self) -> None:
        self._compact_by_java(full=True)

    def _compact_by_java(self, *, full: bool, **branch: str) -> None:
        try:
            self.judge.compact(self.path, full=full, options={**QUIET, **branch})
        except JudgeError as error:
            # It refuses its own commit where it has compacted a bucket of an append table twice.
            if self.has_key or "conflicts" not in str(error):
                raise

    def _our_compaction(self) -> None:
        compact(self.path)

    def _tag(self) -> str:
        self._count += 1
        name = f"t{self._count}"
        id_ = self.chance.choice(self.judge.snapshots(self.path))
        if self.chance.random() < 0.5:
            self.judge.create_tag(self.path, name, id_)
        else:
            arguments = {"path": str(self.path), "name": name, "id": id_}
            hours = self.chance.choice((10, 100)) * HOUR_MS
            self.judge.jvm.call("Upkeep", "createTag", {**arguments, "retained_ms": hours})
        return f"{name} of {id_}"

    def _tags_by_name(self) -> list[str]:
        return sorted(f.name[4:] for f in (self.path / "tag").glob("tag-*") if f.is_file())

    def _delete_tag(self) -> str | None:
        # Java loses files of a branch whose tag is gone (apache/paimon#10883): its expiry of a copy
        # may, but not this deletion, after which there is nothing to compare.
        ids = self.judge.snapshots(self.path)
        names = [each for each in self._tags_by_name() if self._roots.get(each, ids[0]) in ids]
        if not names:
            return None
        name = self.chance.choice(names)
        self.judge.delete_tag(self.path, name)
        return name

    def _age_tags(self) -> None:
        """They were made up to four days ago."""
        for file in (self.path / "tag").glob("tag-*"):
            found = json.loads(file.read_text()) if file.is_file() else {}
            if "tagCreateTime" in found:
                moment = datetime.now(timezone.utc) - timedelta(hours=self.chance.choice((1, 96)))
                found["tagCreateTime"] = [*moment.timetuple()[:6], 7_000_000]
                _replace(file, found)

    def _consumer(self) -> str:
        return self._move_consumer("main", self.judge.snapshots(self.path), self.chance)

    def _move_consumer(self, branch: str, ids: Sequence[int], chance: random.Random) -> str:
        name, next_ = chance.choice("abc"), chance.randint(ids[0], ids[-1] + 1)
        arguments = {"path": str(self.path), "branch": branch, "name": name, "next": next_}
        self.judge.jvm.call("Upkeep", "moveConsumer", arguments)
        days, root = chance.choice((0, 2, 10)), paths.branch_root(str(self.path), branch)
        modify(Path(root, "consumer", f"consumer-{name}"), days * DAY_MS)
        return f"{name} of {branch} at {next_}, {days} days ago"

    def _branch(self) -> str | None:
        if len(branches(self.path)) == 2:
            return None
        self._count += 1
        name = f"b{self._count}"
        id_ = self.judge.snapshots(self.path)[-1]
        self.judge.create_tag(self.path, f"root-{name}", id_)
        self._roots[f"root-{name}"] = id_
        self.judge.create_branch(self.path, name, f"root-{name}")
        # No sweep of ours begins while a new branch may be one that is being restored.
        for file in (self.path / "branch" / f"branch-{name}").rglob("*"):
            modify(file, 2 * DAY_MS)
        return f"{name} of {id_}"

    def _branch_write(self) -> str | None:
        moved = []
        for name in branches(self.path):
            self.judge.write(self.path, self._rows()[:1], options={"branch": name})
            if self.aside.random() < 0.3:
                ids = snapshot_ids(STORAGE, paths.branch_root(str(self.path), name))
                moved.append(self._move_consumer(name, ids, self.aside))
        return ", ".join(moved) or None

    def _branch_compaction(self) -> None:
        for name in branches(self.path):
            self._compact_by_java(full=True, branch=name)

    def _overwrite(self) -> None:
        rows = self._rows()[:1]
        partition = dict(zip(self.partition_by, rows[0], strict=False))
        self.judge.overwrite(self.path, rows, partition)

    def _truncate(self) -> None:
        day = self.chance.choice(self._days())
        spec = dict(zip(self.partition_by, day, strict=True))
        self.judge.truncate(self.path, [spec] if day else None)

    def _alter(self) -> str:
        """Other retentions of snapshots, which may turn long-lived changelogs on or off."""
        anew = self.drawn.of_snapshots()
        old = [key for key in self.options if key.startswith(("snapshot.", "changelog.n", "chang"))]
        unset = [key for key in old if key not in anew and key != "changelog-producer"]
        self.judge.alter_options(self.path, anew, unset)
        self.options = {k: v for k, v in self.options.items() if k not in unset} | anew
        return str(anew)

    def _rollback(self) -> str | None:
        first = max(self._roots.values(), default=0)
        ids = [id_ for id_ in self.judge.snapshots(self.path)[-3:] if id_ >= first]
        if not ids:
            return None
        id_ = self.chance.choice(ids)
        self.judge.rollback(self.path, id_)
        return f"to {id_}"

    def _delete(self) -> str | None:
        """Rows of an append table, by a vector."""
        if self.has_key or "deletion-vectors.enabled" not in self.options:
            return None
        files = self.judge.files(self.path)
        if not files:
            return None
        name = self.chance.choice(sorted(each["file_name"] for each in files))
        self.judge.delete_positions(self.path, {name: [0]})
        return name

    def _fast_forward(self) -> str | None:
        # Without commits of its own a branch has no hint LATEST, nor has main then: ours expires
        # nothing before main's next commit.
        hints = self.path.glob("branch/branch-*/snapshot/LATEST")
        names = [each.parent.parent.name[7:] for each in hints]
        # Java takes the folder of tags' success files for a tag, and fails.
        if not names or (self.path / "tag" / "tag-success-file").exists():
            return None
        self.judge.fast_forward(self.path, names[0])
        # Java would go by main's old hint, and never see the branch's snapshots before it.
        (self.path / "snapshot" / "EARLIEST").unlink(missing_ok=True)
        return names[0]

    def _left_file(self) -> str:
        unique = uuid.UUID(int=self.chance.getrandbits(128))
        day = self.chance.choice(self._days())
        bucket = f"{partition_folder(self.partition_by, day)}bucket-{self.chance.randrange(3)}"
        name = self.chance.choice(
            (
                f"{bucket}/data-{unique}-0.parquet",
                f"{bucket}/changelog-{unique}-0.parquet",
                f"manifest/manifest-{unique}-0",
                f"manifest/manifest-list-{unique}-0",
                f"index/index-{unique}-0",
                f"statistics/stat-{unique}-0",
                f"snapshot/.snapshot-9.{unique}.tmp",
                f"tag/notes-{unique}",
            )
        )
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left")
        days = self.chance.choice((0, 2))
        modify(path, days * DAY_MS)
        return f"{name}, {days} days ago"

    def _date_back(self) -> None:
        """New snapshots were made some time after the last one, and before now."""
        for folder in (self.path, *(self.path / "branch").glob("branch-*")):
            for file in sorted(
                (folder / "snapshot").glob("snapshot-*"), key=lambda file: int(file.name[9:])
            ):
                found = json.loads(file.read_text())
                if found["deltaManifestList"] in self._dated:
                    continue
                self._dated.add(found["deltaManifestList"])
                left_ms = now_ms() - self._last_ms
                self._last_ms += int(left_ms * self.chance.choice((0.01, 0.05, 0.2)))
                found["timeMillis"] = self._last_ms
                if self.options.get("tag.automatic-creation") == "watermark":
                    found["watermark"] = self._last_ms - self.chance.choice((0, HOUR_MS))
                _replace(file, found)
                modify(file, now_ms() - self._last_ms)


def _replace(file: Path, content: dict[str, object]) -> None:
    """As it was modified last."""
    modified = file.stat().st_mtime
    file.write_text(json.dumps(content, indent=2))
    os.utime(file, (modified, modified))
