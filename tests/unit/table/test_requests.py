"""How many requests the compaction of a small table in an object store takes, and which.

Five files of 60 KB, from the plan to the snapshot, and to the next plan; a line is at once:

| requests | of |
|---|---|
| 5 | the inputs, each as a whole |
| 1 | the output: written in one request |
| 7 | the newest snapshot: its content, the one after it, the hint; the lists of the known one; the
      output: whether it is there, as long as it was written; the hint to the earliest snapshot |
| 5 | the base list, the manifest, its list; the ids of the schemas; which snapshots there are, as
      the hint to the earliest is missing |
| 1 | whether the snapshot below is still there |
| 1 | the new snapshot, if it is absent |
| 3 | the hint; the snapshot below; the new snapshot: it is still ours |
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from compactord.commit.changes import Committed
from compactord.paimon.schema import TableRef
from tests import builders
from tests.storages import Call, MemoryStorage, RequestCounter
from tests.unit.table.compacting import ALL, compactor_of, outcome_of

LOCATION = "/w/db.db/t"
FILES, ROWS = 5, 4_200
# What is asked for between the last plan and the snapshot.
FROM_PLAN_TO_SNAPSHOT = {
    ("read", "bucket-0"): FILES,
    ("close_output", "bucket-0"): 1,
    ("status", "bucket-0"): 1,
    ("read", "snapshot"): 5,
    ("list", "snapshot"): 1,
    ("read", "manifest"): 2,
    ("write_new", "manifest"): 3,
    ("list", "schema"): 1,
    ("create_if_absent", "snapshot"): 1,
}
# From there to the end of the next plan.
FROM_SNAPSHOT_TO_PLAN = {
    ("overwrite", "snapshot"): 1,
    ("read", "snapshot"): 2,
}
# From opening the table to the first plan: schema, newest snapshot, manifests, the look back at
# what writers may have lost.
TO_THE_PLAN_MOST = 35


def small_table(storage: MemoryStorage) -> TableRef:
    """A table whose only bucket has five files of 60 KB."""
    table = builders.keyed_table(storage, LOCATION, buckets=1)
    writer = builders.writer(storage, table)
    seeded = random.Random(1)
    for _ in range(FILES):
        keys = sorted(seeded.sample(range(1 << 40), ROWS))
        writer.write(builders.rows_of([(key, seeded.randrange(1 << 60)) for key in keys]))
    sizes = [len(data) for path, data in storage.objects.items() if "/bucket-0/" in path]
    assert len(sizes) == FILES
    assert all(50_000 < size < 120_000 for size in sizes), sizes
    return table


def kinds(calls: Sequence[Call]) -> Counter[tuple[str, str]]:
    """Methods with the folder of the table that they concern."""
    return Counter(
        (call.method, call.path.removeprefix(f"{LOCATION}/").split("/")[0]) for call in calls
    )


def test_five_small_files_take_few_requests() -> None:
    memory = MemoryStorage()
    counter = RequestCounter(memory)
    compactor = compactor_of(counter, small_table(memory))
    looked = compactor.cycle([], ALL)
    assert looked.error is None
    assert looked.planned is not None
    (pending,) = looked.planned.offered
    assert len(counter.requests) <= TO_THE_PLAN_MOST
    counter.log.clear()
    dispatched = compactor.dispatch(pending.bucket, compaction_id=1, free_slots=1)
    assert dispatched is not None
    finished = outcome_of(dispatched)
    (output,) = finished.outputs
    written = next(data for path, data in memory.objects.items() if output.file.file_name in path)
    assert output.file.file_size == len(written)
    settled = compactor.cycle([finished], ALL).commit
    assert isinstance(settled, Committed)
    methods = [call.method for call in counter.requests]
    published = methods.index("create_if_absent") + 1
    assert kinds(counter.requests[:published]) == FROM_PLAN_TO_SNAPSHOT
    assert published <= 25
    assert kinds(counter.requests[published:]) == FROM_SNAPSHOT_TO_PLAN
