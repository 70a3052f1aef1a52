"""Manifests are merged by what their partitions' bounds say, and no deletion may get lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compactord.catalog.access import table_in_folder
from compactord.commit.attempt import CommitSettings
from compactord.commit.changes import BucketChange, Committed
from compactord.commit.committer import Committer, commit_user
from compactord.commit.publish import StorePublisher
from compactord.paimon import paths
from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import BucketId, DataFile
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.schema import TableRef, latest_schema
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.state.follower import Follower
from compactord.state.table_state import load_state
from compactord_demo.writer import create_table
from tests.builders import FIRST, VirtualClock, data_outputs
from tests.storages import MemoryStorage
from tests.unit.paimon.table_builder import History, data_file, entry

TABLE = TableRef(database="db", name="t", location="/warehouse/db.db/t")
NUMBER = AtomicType(root=TypeRoot.BIGINT)
TEXT = AtomicType(root=TypeRoot.VARCHAR, precision=10)


def _change(partition: bytes, before: Sequence[DataFile], name: str) -> BucketChange:
    rows = sum(file.row_count for file in before)
    return BucketChange(
        bucket=BucketId(partition, 0),
        total_buckets=-1,
        output_level=0,
        before=tuple(before),
        upgraded=(),
        outputs=data_outputs(data_file(name, row_count=rows)),
        files_above=frozenset(),
    )


@pytest.mark.parametrize(
    ("type_", "values"),
    [
        (NUMBER, (None, 3)),
        (NUMBER, (3, 3)),
        (NUMBER, (2, 3)),
        (NUMBER, (3, 2)),
        (TEXT, (None, "a")),
        (TEXT, ("", "a")),
    ],
)
def test_files_stay_deleted_when_the_manifests_are_merged_in_full(
    type_: AtomicType, values: tuple[object, object]
) -> None:
    storage = MemoryStorage()
    create_table(
        storage,
        TABLE,
        [DataField(id=0, name="p", type=type_), DataField(id=1, name="v", type=NUMBER)],
        partition_keys=["p"],
        options={
            "bucket": "-1",
            "manifest.target-file-size": "1 b",
            "manifest.full-compaction-threshold-size": "1 b",
        },
    )
    first, second = (encode_row([value], [type_]) for value in values)
    files = [data_file(f"data-{number}") for number in range(5)]
    History(storage, TABLE, [type_]).commit(  # type: ignore[arg-type]
        [
            *(entry(file, partition=first, total_buckets=-1) for file in files[:4]),
            entry(files[4], partition=second, total_buckets=-1),
        ]
    )
    settings = CommitSettings(
        options=parse_options(latest_schema(storage, TABLE.location), {}).commit,
        partition_types=(type_,),
        key_of=None,
        bucket_folder=lambda bucket: paths.bucket_folder(TABLE.location, "p", bucket.bucket),
    )
    committer = Committer(
        storage=storage,
        publisher=StorePublisher(storage),
        follower=Follower(table_in_folder(storage, TABLE), user=commit_user(FIRST, None)),
        clock=VirtualClock(),
        owner=FIRST,
    )
    one, two = _change(first, files[:2], "merged-1"), _change(first, files[2:4], "merged-2")
    all_ = _change(first, [*one.after, *two.after], "merged-3")
    for change in (one, two, all_):
        [file] = change.after
        path = paths.join(settings.bucket_folder(change.bucket), file.file_name)
        storage.write_new(path, bytes(file.file_size))
        outcome, _ = committer.commit(load_state(storage, TABLE), [change], settings)
        assert isinstance(outcome, Committed)
    state = load_state(storage, TABLE)
    live = [file for bucket in state.files.bucket_ids() for file in state.files.files_in(bucket)]
    assert sorted(file.file_name for file in live) == ["data-4", "merged-3"]
    assert state.snapshot is not None
    assert state.snapshot.total_record_count == state.files.row_count
