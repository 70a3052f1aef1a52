"""What a commit adds is there, whole, and live afterwards; or it is not published."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compactord.commit.changes import BucketChange, CommitOutcome, Committed, NothingCommitted
from compactord.model import Conflict
from compactord.paimon.data_file import DataFile
from compactord.storage.base import Storage
from tests.builders import FIRST, data_outputs
from tests.lineage import Lineage
from tests.storages import RecordingStorage


def _commit(
    table: Lineage, *changes: BucketChange, storage: Storage | None = None
) -> CommitOutcome:
    committer = table.committer(FIRST, storage)
    return committer.commit(table.state(), changes, table.settings)[0]


def _renamed(table: Lineage, change: BucketChange, name: str) -> BucketChange:
    """Its output under another name, with the same rows."""
    [file] = change.after
    table.rows[name] = table.rows[file.file_name]
    renamed = replace(file, file_name=name)
    table.storage.overwrite(
        table.data_path(change.bucket.bucket, renamed), bytes(renamed.file_size)
    )
    return replace(change, outputs=data_outputs(renamed))


def _merged_away(table: Lineage) -> DataFile:
    """A file of the level of outputs that a later compaction replaced, and expiry removed."""
    first = table.change(table.append(2), owner=FIRST)
    assert isinstance(_commit(table, first), Committed)
    second = table.change([*first.after, *table.append(1)], owner=FIRST)
    assert isinstance(_commit(table, second), Committed)
    [gone] = first.after
    table.storage.delete(table.data_path(0, gone))
    return gone


@pytest.mark.parametrize("is_keyed", [True, False])
@pytest.mark.parametrize("options", [{}, {"manifest.merge-min-count": "2"}])
def test_a_file_whose_name_a_manifest_deletes_is_not_published(
    is_keyed: bool, options: dict[str, str]
) -> None:
    table = Lineage(is_keyed=is_keyed, options=options)
    gone = _merged_away(table)
    live = table.files()
    change = _renamed(table, table.change(live, owner=FIRST), gone.file_name)
    outcome = _commit(table, change)
    assert isinstance(outcome, NothingCommitted)
    [drop] = outcome.dropped
    assert drop.conflict is Conflict.OUTPUT_LOST
    assert gone.file_name in drop.why
    assert table.files() == live
    table.check()


@pytest.mark.parametrize("size", [None, 0, 1])
def test_a_lost_or_cut_output_drops_its_bucket_and_no_other(size: int | None) -> None:
    table = Lineage()
    first = table.change(table.append(2), owner=FIRST)
    second = table.change(table.append(2, bucket=1), owner=FIRST, bucket=1)
    path = table.data_path(0, first.after[0])
    table.storage.delete(path)
    if size is not None:
        table.storage.write_new(path, bytes(size))
    outcome = _commit(table, first, second)
    assert isinstance(outcome, Committed)
    assert outcome.published == (second,)
    [drop] = outcome.dropped
    assert (drop.change, drop.conflict) == (first, Conflict.OUTPUT_LOST)
    assert path in drop.why
    assert table.files() == first.before
    table.check()


@pytest.mark.parametrize("is_read_anew", [True, False])
def test_the_proof_costs_a_status_for_each_new_file_and_a_read_of_each_new_deletion(
    *, is_read_anew: bool
) -> None:
    table = Lineage()
    storage = RecordingStorage(table.storage)
    committer = table.committer(FIRST, storage)
    state = table.state()
    changes = [
        table.change(table.append(2, bucket=b), owner=FIRST, bucket=b) for b in range(table.buckets)
    ]
    for number, change in enumerate(changes):
        storage.log.clear()
        known = table.state() if is_read_anew else state
        _, state = committer.commit(known, [change], table.settings)
        calls = [call.path.rsplit("/", 1)[-1] for call in storage.log if call.method == "status"]
        assert calls.count(change.after[0].file_name) == 1
        reads = [
            call.path
            for call in storage.log
            if call.method == "read" and "/manifest-c0ac7d" in call.path
        ]
        # That of the commit before, unless the state was read from it.
        assert len(reads) == (0 if is_read_anew else min(number, 1))
    table.check()


def test_an_upgraded_file_needs_no_proof_of_its_own() -> None:
    table = Lineage()
    [file] = table.append(1)
    upgraded = replace(file, level=5)
    change = replace(table.change([file], owner=FIRST), upgraded=(upgraded,), outputs=())
    assert isinstance(_commit(table, change), Committed)
    assert table.files() == (upgraded,)
