"""What a process remembers of its own compactions of a table, for its next plans."""

from __future__ import annotations

import posixpath
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence, Set

from compactord.commit.changes import BucketChange
from compactord.model import AppendCompaction, Compaction, CompactReason
from compactord.paimon.data_file import BucketId, DataFile

# Live files that we made and that are not to be picked again; the oldest are forgotten beyond this.
_FINAL_MAX = 100_000


class OwnWork:
    """Its mappings change with each `published`; a plan is made of them as they are then."""

    def __init__(self) -> None:
        self._final: OrderedDict[str, BucketId] = OrderedDict()
        self._last_full_ms: OrderedDict[BucketId, int] = OrderedDict()
        self._unreadable: OrderedDict[BucketId, dict[str, str]] = OrderedDict()

    @property
    def unreadable(self) -> Mapping[BucketId, Mapping[str, str]]:
        """Files whose columns cannot be read as the table's: of each bucket names, and why."""
        return self._unreadable

    def cannot_read(self, bucket: BucketId, found: Iterable[tuple[str, str]]) -> None:
        """A compaction failed for these files, given by path, each with the reason."""
        for path, why in found:
            self._unreadable.setdefault(bucket, {})[posixpath.basename(path)] = why
        while sum(map(len, self._unreadable.values())) > _FINAL_MAX:
            # They will be tried, and named, again.
            self._unreadable.popitem(last=False)

    def read_again(self) -> Set[BucketId]:
        """Forget the files that cannot be read, as after a change of the schema; their buckets."""
        buckets = frozenset(self._unreadable)
        self._unreadable.clear()
        return buckets

    @property
    def final(self) -> Set[str]:
        """Names of live files of ours that are not rewritten again for their own sake."""
        return self._final.keys()

    @property
    def last_full_ms(self) -> Mapping[BucketId, int]:
        """Full compactions, in steady time, the oldest first."""
        return self._last_full_ms

    def published(
        self,
        compaction: Compaction,
        change: BucketChange,
        *,
        now_ms: int,
        interval_ms: int | None,
    ) -> None:
        """A compaction was published at `now_ms`.

        `interval_ms` is `compaction.optimization-interval`: a full compaction longer ago says no
        more than none.
        """
        for name in change.removed:
            self._final.pop(name, None)
            self._unreadable.get(compaction.bucket, {}).pop(name, None)
        for name in final_files(compaction, change.after):
            self._final[name] = compaction.bucket
        while len(self._final) > _FINAL_MAX:
            self._final.popitem(last=False)
        if not compaction.reason.is_full:
            return
        known = self._last_full_ms
        known[compaction.bucket] = now_ms
        known.move_to_end(compaction.bucket)
        while known and (interval_ms is None or now_ms - next(iter(known.values())) > interval_ms):
            known.popitem(last=False)

    def forget(self, gone: Set[BucketId]) -> None:
        """Buckets that have no files any more."""
        for bucket in gone:
            self._last_full_ms.pop(bucket, None)
            self._unreadable.pop(bucket, None)
        for name in [name for name, bucket in self._final.items() if bucket in gone]:
            del self._final[name]


def final_files(compaction: Compaction, after: Sequence[DataFile]) -> frozenset[str]:
    """Names of the new files that later plans get as `PlanRequest.final`.

    `after` are the published files of the compaction in their order. The last file of an append
    task may be small and is packed with others later; all others are final, whatever their size.
    """
    before = {file.file_name for file in compaction.inputs}
    names = [file.file_name for file in after if file.file_name not in before]
    if isinstance(compaction, AppendCompaction) and (
        not compaction.ordered or compaction.reason is CompactReason.APPEND_SMALL_FILES
    ):
        names = names[:-1]
    return frozenset(names)
