"""Java reads the index files that a commit of ours leaves, and goes on with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from compactord.catalog.access import table_in_folder
from compactord.commit.changes import BucketChange, Committed
from compactord.commit.committer import Committer, commit_user
from compactord.commit.publish import StorePublisher
from compactord.model import DATA, Marks, Output
from compactord.paimon import paths
from compactord.paimon.data_file import DataFile
from compactord.paimon.schema import TableRef
from compactord.state.follower import Follower
from compactord.state.table_state import load_state
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.builders import FIRST, VirtualClock
from tests.deletions import bitmap_of
from tests.oracle.differential import LiveTable
from tests.oracle.judge import Judge

STORAGE = LocalStorage()


@pytest.mark.parametrize("bitmap64", ["false", "true"], ids=["32 bits", "64 bits"])
@pytest.mark.parametrize("bucket", ["-1", "1"], ids=["no buckets", "bucketed"])
def test_java_goes_on_with_index_files_of_ours(
    judge: Judge, tmp_path: Path, bucket: str, bitmap64: str
) -> None:
    """A file is replaced by its copy, which has its deleted rows again, and two rows are marked."""
    options = {"bucket": bucket, **({"bucket-key": "n"} if bucket == "1" else {})}
    table = LiveTable(
        judge=judge,
        path=tmp_path / "db.db" / "t",
        columns=(("n", "BIGINT"), ("v", "STRING")),
        options={
            **options,
            "deletion-vectors.enabled": "true",
            "deletion-vectors.bitmap64": bitmap64,
        },
    ).create()
    ref = TableRef(database="db", name="t", location=str(table.path))
    access = table_in_folder(STORAGE, ref)
    files: dict[str, DataFile] = {}
    for commit in range(4):
        table.write([[10 * commit + n, "x"] for n in range(10)])
        state = load_state(STORAGE, ref)
        (bucket_id,) = state.files.bucket_ids()
        for file in state.files.files_in(bucket_id):
            files.setdefault(file.file_name, file)
    a, b, c, d = files.values()
    judge.delete_positions(table.path, {a.file_name: [0, 1], b.file_name: [2], c.file_name: [3]})
    state = load_state(STORAGE, ref)
    opened = open_table(access, {})
    folder = opened.bucket_folder(bucket_id)
    copied = replace(a, file_name=f"data-{FIRST.unique_name()}-0.parquet")
    data = STORAGE.read(paths.join(folder, a.file_name))
    STORAGE.write_new(paths.join(folder, copied.file_name), data)
    change = BucketChange(
        bucket=bucket_id,
        total_buckets=int(bucket),
        output_level=0,
        before=(a,),
        upgraded=(),
        outputs=(Output(DATA, copied),),
        files_above=frozenset(),
        vectors={a.file_name: state.indexes.vectors(bucket_id)[a.file_name]},
        marks=tuple(Marks(file.file_name, bitmap_of([5, 7])) for file in (b, d)),
    )
    committer = Committer(
        storage=STORAGE,
        publisher=StorePublisher(STORAGE),
        follower=Follower(access, user=commit_user(FIRST, None)),
        clock=VirtualClock(),
        owner=FIRST,
    )
    outcome, _ = committer.commit(state, [change], opened.commit_settings)
    assert isinstance(outcome, Committed)
    wanted = {b.file_name: [2, 5, 7], c.file_name: [3], d.file_name: [5, 7]}
    assert judge.deletion_vectors(table.path) == wanted
    gone = {12, 15, 17, 23, 35, 37}
    assert sorted(row[0] for row in judge.read(table.path)) == sorted(set(range(40)) - gone)
    judge.delete_positions(table.path, {c.file_name: [4], copied.file_name: [9]})
    judge.compact(table.path, full=True)
    gone |= {24, 9}
    assert sorted(row[0] for row in judge.read(table.path)) == sorted(set(range(40)) - gone)
