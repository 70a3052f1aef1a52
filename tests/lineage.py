"""Tables of metadata alone, whose files stand for sets of rows: for tests of commits.

No data file exists. `rows` says which rows each file name holds, so that after any history the
rows of the table can be counted: none may be lost, none may be there twice.
"""

from __future__ import annotations

import copy
import itertools
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypedDict

from compactord.catalog.access import table_in_folder
from compactord.clock import Clock
from compactord.commit.attempt import CommitSettings
from compactord.commit.changes import BucketChange
from compactord.commit.committer import Committer, commit_user
from compactord.commit.publish import StorePublisher
from compactord.ids import Owner
from compactord.model import DATA, Output
from compactord.paimon import paths
from compactord.paimon.avro.types import codec_of
from compactord.paimon.binary_row import comparable_key, encode_row
from compactord.paimon.data_file import BucketId, DataFile, EntryKind, ManifestEntry
from compactord.paimon.manifest.schemas import INDEX_MANIFEST
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.schema import TableRef, latest_schema
from compactord.paimon.snapshot import (
    CommitKind,
    Snapshot,
    latest_snapshot_id,
    read_snapshot,
    snapshot_ids,
    snapshot_json,
)
from compactord.state.follower import Follower
from compactord.state.table_state import TableState, load_state
from compactord.storage.base import Storage
from compactord_demo.writer import create_table
from tests import builders
from tests.containers import encode_container
from tests.storages import MemoryStorage
from tests.unit.paimon.table_builder import UNPARTITIONED, History, data_file, deleted

TABLE = TableRef(database="db", name="t", location="/warehouse/db.db/t")
KEY_TYPES = (builders.FIELDS[0].type,)
ROWS_PER_FILE = 10


class Kind(TypedDict, total=False):
    """Which table a `Lineage` is."""

    is_keyed: bool
    buckets: int


KEYED, DYNAMIC, APPENDED = Kind(), Kind(buckets=-1), Kind(is_keyed=False)


def bucket_id(bucket: int) -> BucketId:
    return BucketId(UNPARTITIONED, bucket)


def merged_file(file: DataFile, before: Sequence[DataFile]) -> DataFile:
    """The file with the sequence numbers of those that were merged into it."""
    return replace(
        file,
        min_sequence_number=min(each.min_sequence_number for each in before),
        max_sequence_number=max(each.max_sequence_number for each in before),
    )


class Lineage:
    """One table, its store, and a foreign writer: `append`, `overwrite`, `roll_back` and more."""

    def __init__(
        self, *, is_keyed: bool = True, buckets: int = 4, options: Mapping[str, str] | None = None
    ) -> None:
        self.storage = MemoryStorage()
        self.is_keyed = is_keyed
        self.buckets = buckets if is_keyed else -1
        create_table(
            self.storage,
            TABLE,
            builders.FIELDS,
            primary_keys=["k"] if is_keyed else [],
            options={"bucket": str(self.buckets), **(options or {})},
        )
        # The builder was made for its own store, which has the same methods.
        self.history = History(self.storage, TABLE)  # type: ignore[arg-type]
        self.rows: dict[str, frozenset[int]] = {}
        self.expected: Counter[int] = Counter()
        self._numbers = itertools.count()
        self._row_numbers = itertools.count()

    def fork(self) -> Lineage:
        """The same table once more, from now on apart from this one."""
        other = copy.copy(self)
        other.storage = self.storage.copy()
        other.history = History(other.storage, TABLE, written=1000)  # type: ignore[arg-type]
        other.rows, other.expected = dict(self.rows), Counter(self.expected)
        return other

    @property
    def settings(self) -> CommitSettings:
        schema = latest_schema(self.storage, TABLE.location)
        key_of: Callable[[bytes], Any] = partial(comparable_key, types=KEY_TYPES)
        return CommitSettings(
            options=parse_options(schema, {}).commit,
            partition_types=(),
            key_of=key_of if self.is_keyed else None,
            bucket_folder=lambda bucket: paths.bucket_folder(TABLE.location, "", bucket.bucket),
        )

    def committer(
        self, owner: Owner, storage: Storage | None = None, clock: Clock | None = None
    ) -> Committer:
        storage = storage or self.storage
        return Committer(
            storage=storage,
            publisher=StorePublisher(storage),
            follower=Follower(table_in_folder(storage, TABLE), user=commit_user(owner, None)),
            clock=clock or builders.VirtualClock(),
            owner=owner,
        )

    def state(self) -> TableState:
        return load_state(self.storage, TABLE)

    def new_file(
        self, *, keys: tuple[int, int] = (0, 9), level: int = 0, rows: frozenset[int] | None = None
    ) -> DataFile:
        """A file of `ROWS_PER_FILE` new rows, or of these."""
        number = next(self._numbers)
        if rows is None:
            rows = frozenset(next(self._row_numbers) for _ in range(ROWS_PER_FILE))
        name = f"data-{number}.parquet"
        self.rows[name] = rows
        bounds: dict[str, object] = {}
        if self.is_keyed:
            bounds = {
                "min_key": encode_row([keys[0]], KEY_TYPES),
                "max_key": encode_row([keys[1]], KEY_TYPES),
            }
        bounds["min_sequence_number"] = number * ROWS_PER_FILE
        bounds["max_sequence_number"] = number * ROWS_PER_FILE + len(rows) - 1
        return data_file(name, level=level, row_count=len(rows), **bounds)

    def change(
        self,
        before: Sequence[DataFile],
        *,
        owner: Owner,
        bucket: int = 0,
        level: int | None = None,
        live: Sequence[DataFile] | None = None,
    ) -> BucketChange:
        """What merging `before` into one file brings; `live` are the bucket's files now."""
        level = level if level is not None else 5 if self.is_keyed else 0
        rows = frozenset().union(*(self.rows[file.file_name] for file in before))
        output = merged_file(self.new_file(level=level, rows=rows), before)
        name = f"data-{owner.unique_name()}-0.parquet"
        self.rows[name] = rows
        output = replace(output, file_name=name)
        self.storage.write_new(self.data_path(bucket, output), bytes(output.file_size))
        known = live if live is not None else self.files(bucket)
        return BucketChange(
            bucket=bucket_id(bucket),
            total_buckets=self.buckets,
            output_level=level,
            before=tuple(before),
            upgraded=(),
            outputs=(Output(DATA, output),),
            files_above=frozenset(f.file_name for f in known if f.level >= level),
        )

    def data_path(self, bucket: int, file: DataFile) -> str:
        return paths.join(paths.bucket_folder(TABLE.location, "", bucket), file.file_name)

    def files(self, bucket: int = 0) -> tuple[DataFile, ...]:
        return self.state().files.files_in(bucket_id(bucket))

    def append(self, count: int = 1, *, bucket: int = 0, commits: int = 1) -> list[DataFile]:
        """A foreign writer commits `count` new files in each of some APPEND snapshots."""
        added = []
        for _ in range(commits):
            files = [self.new_file() for _ in range(count)]
            self._foreign([self._entry(file, bucket) for file in files], CommitKind.APPEND)
            for file in files:
                self.expected.update(self.rows[file.file_name])
            added += files
        return added

    def commit_as(
        self, user: str, identifier: int, *, bucket: int = 0, files: Sequence[DataFile] = ()
    ) -> Snapshot:
        """An APPEND of a certain job: one new file, or these."""
        added = list(files) or [self.new_file()]
        for file in added:
            self.expected.update(self.rows[file.file_name])
        self.history.snapshot = self._newest()
        return self.history.commit(
            [self._entry(file, bucket) for file in added],
            commit_user=user,
            commit_identifier=identifier,
        )

    def write_index_manifest(
        self,
        name: str,
        files: Sequence[str],
        kind: str = "HASH",
        *,
        level: int | None = None,
        folder: str | None = None,
        there: str | None = None,
    ) -> None:
        """One that names these index files of bucket 0; no snapshot has it yet.

        With `level`, each covers a file of that level; with `folder` they are there, with `there`
        under this name.
        """
        covering = (
            None
            if level is None
            else {
                "_ROW_RANGE_START": 0,
                "_ROW_RANGE_END": 0,
                "_INDEX_FIELD_ID": 1,
                "_EXTRA_FIELD_IDS": None,
                "_INDEX_META": None,
                "_SOURCE_META": struct.pack(">iiih1sq", 1, level, 1, 1, b"f", 1),
            }
        )
        records = [
            {
                "_VERSION": 1,
                "_KIND": 0,
                "_PARTITION": bucket_id(0).partition,
                "_BUCKET": 0,
                "_INDEX_TYPE": kind,
                "_FILE_NAME": file,
                "_FILE_SIZE": 1,
                "_ROW_COUNT": 1,
                "_DELETIONS_VECTORS_RANGES": None,
                "_EXTERNAL_PATH": None if folder is None else f"{folder}/{there or file}",
                "_GLOBAL_INDEX": covering,
            }
            for file in files
        ]
        data = encode_container(INDEX_MANIFEST, records, codec_of("zstd", 1))
        self.storage.write_new(paths.manifest_path(TABLE.location, name), data)

    def overwrite(self, bucket: int = 0) -> None:
        """A foreign INSERT OVERWRITE: whatever the bucket holds gives way to one new file."""
        entries = [deleted(self._entry(file, bucket)) for file in self.files(bucket)]
        for file in self.files(bucket):
            self.expected.subtract(self.rows[file.file_name])
        new = self.new_file()
        self.expected.update(self.rows[new.file_name])
        self._foreign([*entries, self._entry(new, bucket)], CommitKind.OVERWRITE)

    def delete(self, file: DataFile, *, bucket: int = 0) -> None:
        """A foreign DELETE of a whole file, in an APPEND as releases before 2.0 commit it."""
        self.expected.subtract(self.rows[file.file_name])
        self._foreign([deleted(self._entry(file, bucket))], CommitKind.APPEND)

    def compacted_by_others(self, before: Sequence[DataFile], *, bucket: int = 0) -> DataFile:
        """A foreign compactor publishes the same files merged."""
        rows = frozenset().union(*(self.rows[file.file_name] for file in before))
        new = merged_file(self.new_file(level=5 if self.is_keyed else 0, rows=rows), before)
        entries = [deleted(self._entry(file, bucket)) for file in before]
        self._foreign([*entries, self._entry(new, bucket)], CommitKind.COMPACT)
        return new

    def prepare_replacement(
        self,
        *,
        bucket: int = 0,
        kind: CommitKind = CommitKind.APPEND,
        before: Sequence[DataFile] = (),
        file: DataFile | None = None,
        also: Sequence[DataFile] = (),
        **fields: object,
    ) -> Callable[[], Snapshot]:
        """A Java writer on a plain file system: it has looked, and will rename over what is there.

        What it brings is one new file (or this one) and those that it has `also`, in the place of
        `before`, on top of the newest snapshot as it is now. `fields` are those of its snapshot
        that are to be others.
        """
        base = self._newest()
        file = file or self.new_file()
        for each in (file, *also):
            self.storage.write_new(self.data_path(bucket, each), bytes(each.file_size))
        objects = dict(self.storage.objects)
        self.history.snapshot = base
        fields = {"index_manifest": base and base.index_manifest, **fields}
        entries = [deleted(self._entry(each, bucket)) for each in before]
        entries += [self._entry(each, bucket) for each in (file, *also)]
        self.history.commit(entries, kind, **fields)
        replacement = self.history.snapshot
        assert replacement is not None
        path = paths.snapshot_path(TABLE.location, replacement.id)
        self.storage.delete(path)
        hint = paths.latest_hint(TABLE.location)
        self.storage.overwrite(hint, objects[hint])

        def rename() -> Snapshot:
            self.storage.now_ms += 1
            self.storage.overwrite(path, snapshot_json(replacement))
            self.storage.overwrite(hint, str(replacement.id).encode())
            return replacement

        self.replacement_file = file
        return rename

    def roll_back(self, snapshot_id: int) -> None:
        """As Java does: the hint, then snapshots from the newest down; nothing else is removed."""
        hint = paths.latest_hint(TABLE.location)
        self.storage.overwrite(hint, str(snapshot_id).encode())
        for later in reversed(snapshot_ids(self.storage, TABLE.location)):
            if later > snapshot_id:
                self.storage.delete(paths.snapshot_path(TABLE.location, later))

    def rows_now(self) -> Counter[int]:
        """Every live row, as often as it is there."""
        newest = self._newest()
        if newest is None:
            return Counter()
        found: Counter[int] = Counter()
        for _, file in builders.live_files(self.storage, TABLE, newest.id):
            found.update(self.rows[file.file_name])
        return found

    def check(self) -> None:
        """All rows, each once; the chain whole; record counts right."""
        ids = snapshot_ids(self.storage, TABLE.location)
        assert ids == tuple(range(1, len(ids) + 1))
        total = 0
        for snapshot_id in ids:
            snapshot = read_snapshot(self.storage, TABLE.location, snapshot_id)
            total += snapshot.delta_record_count
            assert snapshot.total_record_count == total
        assert +self.rows_now() == +self.expected
        assert sum(self.expected.values()) == total

    def leftovers(self, *owners: Owner) -> set[str]:
        return builders.leftovers(self.storage, TABLE, owners)

    def _entry(self, file: DataFile, bucket: int) -> ManifestEntry:
        return ManifestEntry(
            kind=EntryKind.ADD,
            partition=UNPARTITIONED,
            bucket=bucket,
            total_buckets=self.buckets,
            file=file,
        )

    def _foreign(
        self, entries: Sequence[ManifestEntry], kind: CommitKind, **fields: object
    ) -> Snapshot:
        """`fields` are those of the snapshot that are to be others."""
        newest = self.history.snapshot = self._newest()
        index = newest and newest.index_manifest
        return self.history.commit(entries, kind, **{"index_manifest": index, **fields})

    def _newest(self) -> Snapshot | None:
        newest = latest_snapshot_id(self.storage, TABLE.location)
        return None if newest is None else read_snapshot(self.storage, TABLE.location, newest)
