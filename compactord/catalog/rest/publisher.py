"""Commits through the server of a REST catalog (catalog/CatalogSnapshotCommit.java)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import tzinfo
from typing import Any

from compactord.catalog.rest.access import TableOnServer
from compactord.clock import epoch_ms
from compactord.commit.changes import BucketChange
from compactord.commit.publish import Delta
from compactord.errors import CompactordError, TransientStorageError
from compactord.ids import Owner
from compactord.paimon.catalog_partitions import PartitionSpec
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, snapshot_json, snapshot_unless_absent
from compactord.storage.base import Creation, Storage

# Maps a partition to the text of each partition column's value.
SpecOf = Callable[[bytes], PartitionSpec]


class RestPublisher:
    """Publishes through the server, which compares the base with its newest snapshot.

    A request whose answer is lost may take effect later. It is repeated only while the newest
    snapshot is still the base: the server accepts one of the two requests and refuses the other.
    """

    excludes_writers = True
    settle_ms = 0

    def __init__(self, server: TableOnServer, storage: Storage, spec: SpecOf, zone: tzinfo) -> None:
        self._server = server
        self._storage = storage
        self._spec = spec
        self._zone = zone
        # The uuid of a snapshot that may have been sent.
        self._sent_last: str | None = None

    def publish(
        self, table: TableRef, snapshot: Snapshot, delta: Delta, *, owner: Owner
    ) -> Creation:
        found = self._outcome(table, snapshot, delta) if self._sent_last == snapshot.uuid else None
        self._sent_last = snapshot.uuid
        return found or self._sent(table, snapshot, delta)

    def _sent(self, table: TableRef, snapshot: Snapshot, delta: Delta) -> Creation:
        body = {
            "tableId": table.identity,
            "baseSnapshotUuid": delta.base.uuid if delta.base else None,
            "snapshot": json.loads(snapshot_json(snapshot)),
            "statistics": list(statistics(delta.changes, self._spec, self._zone)),
        }
        try:
            success = self._server.commit(body).get("success")
            if not isinstance(success, bool):
                raise TransientStorageError(self._named(table), f"success is {success!r}")
        except TransientStorageError as error:
            # The newest snapshot may be a later one, built on ours.
            if self._outcome(table, snapshot, delta, doubt=error) is Creation.CREATED:
                return Creation.CREATED
            raise
        # A gateway may have sent it twice, or an old server may not compare the base.
        found = Creation.CREATED if success else self._outcome(table, snapshot, delta)
        if found is None:
            why = "the server refused a snapshot built upon its newest one; it may appear yet"
            raise TransientStorageError(self._named(table), why)
        return found

    def _outcome(
        self,
        table: TableRef,
        snapshot: Snapshot,
        delta: Delta,
        *,
        doubt: TransientStorageError | None = None,
    ) -> Creation | None:
        """The outcome, or None while the newest snapshot is still the base.

        Raises `doubt`, or `TransientStorageError`, if the outcome cannot be determined.
        """
        try:
            newest = self._server.newest_snapshot()
            if newest is None or newest.id < snapshot.id:
                is_base = (newest and newest.identity) == (delta.base and delta.base.identity)
                return None if is_base else Creation.EXISTS
            found: Snapshot | None = newest
            if newest.id > snapshot.id:
                found = snapshot_unless_absent(self._storage, table.root, snapshot.id)
        except CompactordError as error:
            why = f"the outcome is unknown ({error})"
            raise doubt or TransientStorageError(self._named(table), why) from error
        if found is None:
            why = f"the outcome is unknown (snapshot {snapshot.id} is gone, newest is {newest.id})"
            raise doubt or TransientStorageError(self._named(table), why)
        return Creation.CREATED if _is_same(found, snapshot) else Creation.EXISTS

    def _named(self, table: TableRef) -> str:
        return f"{self._server.client.uri}: {table.full_name}"


def _is_same(found: Snapshot, ours: Snapshot) -> bool:
    """Whether both are the same snapshot; servers before 2.0 drop the uuid."""
    return found.identity in (ours.identity, replace(ours, uuid=None).identity)


@dataclass(slots=True)
class _Sums:
    rows: int = 0
    size: int = 0
    files: int = 0
    newest_ms: int = 0
    buckets: int = 0


def statistics(
    changes: Iterable[BucketChange], spec: SpecOf, zone: tzinfo
) -> Iterable[Mapping[str, Any]]:
    """The changes of each partition (manifest/PartitionEntry.java); `zone` is the writers'."""
    sums: dict[bytes, _Sums] = {}
    for change in changes:
        found = sums.setdefault(change.bucket.partition, _Sums())
        found.buckets = change.total_buckets
        for sign, files in ((-1, change.before), (1, change.after)):
            for file in files:
                found.rows += sign * file.row_count
                found.size += sign * file.file_size
                found.files += sign
                # Deleted files count as well.
                found.newest_ms = max(found.newest_ms, epoch_ms(file.creation_time_ms or 0, zone))
    for partition, found in sums.items():
        yield {
            "spec": spec(partition),
            "recordCount": found.rows,
            "fileSizeInBytes": found.size,
            "fileCount": found.files,
            "lastFileCreationTime": found.newest_ms,
            "totalBuckets": found.buckets,
        }
