"""What a table's snapshots, tags, branches and changelogs lead to, and what its folder holds.

Another way than the product's: every file is read whole with fastavro, whoever wrote it.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro

# What is no part of any snapshot: schemas, and what readers say of themselves.
_NOT_OF_SNAPSHOTS = ("schema", "consumer")
_ROOT_FOLDERS = ("snapshot", "tag", "changelog")
_HINTS = ("EARLIEST", "LATEST")
_ADD = 0


@dataclass(frozen=True)
class Walked:
    """Paths below the table's folder. `damage`: what metadata says and is not so."""

    named: frozenset[str]
    there: frozenset[str]
    damage: tuple[str, ...]

    @property
    def missing(self) -> frozenset[str]:
        return self.named - self.there

    @property
    def orphans(self) -> frozenset[str]:
        return self.there - self.named


class Walker:
    """Walks one table, again and again; files that never change are read once."""

    def __init__(self, table: Path) -> None:
        self._table = table
        # Names of data files are unique in a table, but for defects.
        self._records = functools.lru_cache(maxsize=None)(self._read)

    def walk(self) -> Walked:
        there = {str(path.relative_to(self._table)) for path in _files(self._table)}
        damage: list[str] = []
        places: dict[str, str] = {}
        for path in sorted(there):
            folder, _, name = path.rpartition("/")
            if "bucket-" in folder and places.setdefault(name, path) != path:
                damage.append(f"{path} and {places[name]} have the same name")
        named: set[str] = set()
        for path in there:
            if self._is_root(path):
                named.add(path)
                named |= self._named_by(path, places, damage)
        return Walked(frozenset(named), frozenset(there), tuple(damage))

    def manifests(self, snapshot_path: str) -> list[dict[str, Any]]:
        """The manifest list rows of a snapshot, base and then delta."""
        snapshot = json.loads((self._table / snapshot_path).read_bytes())
        return [
            row
            for key in ("baseManifestList", "deltaManifestList")
            for row in self._records(f"manifest/{snapshot[key]}")
        ]

    def lost_attempt(self, lists: list[str]) -> set[str]:
        """What a commit wrote whose base and delta list these are, beside its data."""
        named = {f"manifest/{name}" for name in lists}
        for name in lists[1::2]:
            for row in self._records(f"manifest/{name}"):
                named |= _manifest_paths(row)
        return named

    def _is_root(self, path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if folder.startswith("branch/"):
            folder = folder.split("/", 2)[2] if folder.count("/") > 1 else ""
        if folder in _NOT_OF_SNAPSHOTS:
            return True
        return folder in _ROOT_FOLDERS and (name in _HINTS or name.startswith(f"{folder}-"))

    def _named_by(self, path: str, places: dict[str, str], damage: list[str]) -> set[str]:
        folder, _, name = path.rpartition("/")
        if folder.rpartition("/")[2] not in _ROOT_FOLDERS or name in _HINTS:
            return set()
        snapshot = json.loads((self._table / path).read_bytes())
        named: set[str] = set()
        try:
            live = self._live(path, snapshot, named, damage)
            if name_ := snapshot.get("changelogManifestList"):
                for row in self._list_rows(f"manifest/{name_}", named):
                    live.update(self._files_of(row))
            if name_ := snapshot.get("indexManifest"):
                named.add(f"manifest/{name_}")
                for entry in self._records(f"manifest/{name_}"):
                    named.add(f"index/{entry['_FILE_NAME']}")
        except FileNotFoundError:
            # It is named, and missing.
            live = Counter()
        if name_ := snapshot.get("statistics"):
            named.add(f"statistics/{name_}")
        named |= {places.get(file, f"bucket-?/{file}") for file in live}
        return named

    def _live(
        self, path: str, snapshot: dict[str, Any], named: set[str], damage: list[str]
    ) -> Counter[str]:
        """Names of the live files, extra files among them, each with its rows."""
        live: dict[tuple[object, ...], dict[str, Any]] = {}
        for key in ("baseManifestList", "deltaManifestList"):
            list_path = f"manifest/{snapshot[key]}"
            size = snapshot.get(f"{key}Size")
            rows = self._list_rows(list_path, named)
            if size is not None and size != (self._table / list_path).stat().st_size:
                damage.append(f"{path}: {list_path} has not {size} bytes")
            for row in rows:
                damage += _damage(row, self._records(f"manifest/{row['_FILE_NAME']}"))
                for entry in self._records(f"manifest/{row['_FILE_NAME']}"):
                    file = entry["_FILE"]
                    identity = (
                        entry["_PARTITION"],
                        entry["_BUCKET"],
                        file["_LEVEL"],
                        file["_FILE_NAME"],
                    )
                    if entry["_KIND"] != _ADD:
                        if live.pop(identity, None) is None:
                            damage.append(f"{path}: removes {identity}, which is not there")
                    elif identity in live:
                        damage.append(f"{path}: adds {identity} twice")
                    else:
                        live[identity] = file
        found: Counter[str] = Counter()
        for file in live.values():
            found[file["_FILE_NAME"]] += file["_ROW_COUNT"]
            found.update(dict.fromkeys(file["_EXTRA_FILES"], 0))
        if found.total() != snapshot["totalRecordCount"]:
            damage.append(f"{path}: {found.total()} rows, not {snapshot['totalRecordCount']}")
        return found

    def _list_rows(self, path: str, named: set[str]) -> list[dict[str, Any]]:
        named.add(path)
        rows = self._records(path)
        for row in rows:
            named |= _manifest_paths(row)
        return rows

    def _files_of(self, row: dict[str, Any]) -> Iterator[str]:
        for entry in self._records(f"manifest/{row['_FILE_NAME']}"):
            yield entry["_FILE"]["_FILE_NAME"]
            yield from entry["_FILE"]["_EXTRA_FILES"]

    def _read(self, path: str) -> list[dict[str, Any]]:
        with (self._table / path).open("rb") as stream:
            return [record for record in fastavro.reader(stream) if isinstance(record, dict)]


def _manifest_paths(row: dict[str, Any]) -> set[str]:
    """A manifest and what belongs to it."""
    names = [row["_FILE_NAME"], *(row.get("_EXTRA_FILES") or ())]
    return {f"manifest/{name}" for name in names}


def _damage(row: dict[str, Any], entries: list[dict[str, Any]]) -> Iterator[str]:
    """Where a manifest list row does not fit its manifest; pypaimon prunes by these."""
    kinds = Counter(entry["_KIND"] == _ADD for entry in entries)
    counts = row["_NUM_ADDED_FILES"], row["_NUM_DELETED_FILES"]
    if (kinds[True], kinds[False]) != counts:
        yield f"{row['_FILE_NAME']}: counts {counts}, holds {dict(kinds)}"
    for bound, key, extreme in (
        ("_MIN_BUCKET", "_BUCKET", min),
        ("_MAX_BUCKET", "_BUCKET", max),
        ("_MIN_LEVEL", "_LEVEL", min),
        ("_MAX_LEVEL", "_LEVEL", max),
    ):
        if row.get(bound) is None:
            continue
        values = [e["_FILE"][key] if key == "_LEVEL" else e[key] for e in entries]
        if extreme(values) != row[bound]:
            yield f"{row['_FILE_NAME']}: {bound} is {row[bound]}, not {extreme(values)}"
    total = row.get("_TOTAL_BUCKETS")
    if total is not None and {entry["_TOTAL_BUCKETS"] for entry in entries} != {total}:
        yield f"{row['_FILE_NAME']}: _TOTAL_BUCKETS is not {total} of all entries"


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
