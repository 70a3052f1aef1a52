"""Histories of random commits: following them must equal reading everything, and a plain dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from compactord.paimon.binary_row import encode_row
from compactord.paimon.data_file import BucketId, DataFile, FileIdentity, ManifestEntry
from compactord.paimon.snapshot import CommitKind
from compactord.paimon.types import AtomicType, TypeRoot
from compactord.state.base_files import BucketSummaries
from compactord.state.files_by_size import FilesBySize, SizeColumns
from compactord.state.live_files import LiveFiles
from compactord.state.loading import load_live_files, no_files
from compactord.state.table_state import data_manifests, load_state, refresh_state
from tests.sampling import examples
from tests.unit.paimon.table_builder import History, data_file, deleted, entry

INT = AtomicType(root=TypeRoot.INT)
PARTITIONS = tuple(encode_row([day], [INT]) for day in (1, 2, 700))
Model = dict[FileIdentity, ManifestEntry]


new_files = st.builds(
    lambda bucket, partition, level, size, schema, sequences, created, extra, index, source: (
        bucket,
        partition,
        {
            "level": level,
            "file_size": size,
            "row_count": size // 7,
            "schema_id": schema,
            "min_sequence_number": min(sequences),
            "max_sequence_number": max(sequences),
            "creation_time_ms": created,
            "extra_files": extra,
            "file_source": source,
            "embedded_file_index": index,
        },
    ),
    st.integers(-2, 3),
    st.sampled_from(PARTITIONS),
    st.sampled_from([0, 0, 0, 1, 4, 5]),
    st.integers(0, 1 << 40),
    st.integers(0, 2),
    # So few that files are of one age, but for the rest of what tells ages apart.
    st.tuples(st.integers(-1, 2), st.integers(-1, 2)),
    st.sampled_from([None, 0, 1, 1 << 41]),
    st.sampled_from([(), (), ("a.index",)]),
    st.sampled_from([None, None, b"", b"\x01\x02"]),
    st.sampled_from([None, 0, 1]),
)
commits = st.lists(
    st.tuples(
        st.lists(new_files, max_size=6),
        # Which live files to delete, to upgrade to another level; by position among the live.
        st.lists(st.integers(0, 1 << 30), max_size=4),
        st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 5)), max_size=2),
        st.sampled_from([CommitKind.APPEND, CommitKind.COMPACT, CommitKind.OVERWRITE]),
        # Whether manifests are merged, and live files consolidated.
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=examples(80))
@given(commits, st.sampled_from([(4, 4, 4), (-1, -1, -1), (-1, 4, -1)]))
def test_following_equals_loading_equals_a_dict(
    steps: list,  # type: ignore[type-arg]
    total_buckets: tuple[int, ...],
) -> None:
    history, model = History(partition_types=[INT]), {}
    state = load_state(history.storage, history.table)
    kept = state.files.summaries()
    for number, (additions, deletions, upgrades, kind, merges, consolidates) in enumerate(steps):
        delta = _delta(
            number,
            model,
            additions=additions,
            deletions=deletions,
            upgrades=upgrades,
            total_buckets=total_buckets,
        )
        before = state.files
        seen_before = _contents(before)
        history.commit(delta, kind)
        if merges:
            history.merge_manifests()
        refreshed = refresh_state(history.storage, state)
        state = refreshed.state
        _require_equal(state.files, model)
        if consolidates:
            state = replace(state, files=state.files.consolidated())
            _require_equal(state.files, model)
        for min_cursors in (-1, 25):
            _require_equal(_loaded(history, min_cursors), model)
        assert _contents(before) == seen_before, "a state that is held does not change"
        if refreshed.changed is not None:
            assert refreshed.changed == {one.bucket_id for one in delta}
        before_update = _columns(kept)
        changed = refreshed.changed
        if changed is None:
            changed = {*kept.index.bucket_ids(), *state.files.bucket_ids()}
        updated = kept.updated({bucket: state.files.summary(bucket) for bucket in changed})
        assert _columns(kept) == before_update, "summaries that someone holds do not change"
        kept = updated
        assert _columns(kept) == _columns(state.files.summaries())


def _loaded(history: History, min_cursors: int) -> LiveFiles:
    """Decoded as vectors (-1) or as objects."""
    assert history.snapshot is not None
    location = history.table.location
    manifests = data_manifests(history.storage, location, history.snapshot)
    return load_live_files(history.storage, location, manifests, min_cursors=min_cursors)


def _columns(summaries: BucketSummaries) -> dict[str, list[object]]:
    facts = [field.name for field in dataclasses.fields(summaries) if field.name != "index"]
    columns = {name: getattr(summaries, name).tolist() for name in facts}
    return {"buckets": summaries.index.bucket_ids(), **columns}


def _delta(number, model, *, additions, deletions, upgrades, total_buckets) -> list[ManifestEntry]:  # type: ignore[no-untyped-def]
    """Entries of one commit, applied to `model` as well."""
    delta: list[ManifestEntry] = []
    for position in deletions:
        if model:
            identity = list(model)[position % len(model)]
            delta.append(deleted(model.pop(identity)))
    for position, level in upgrades:
        if model:
            identity = list(model)[position % len(model)]
            if level <= identity.level:
                continue
            old = model.pop(identity)
            new = replace(old, file=replace(old.file, level=level))
            delta += [deleted(old), new]
            model[new.identity] = new
    for index, (bucket, partition, fields) in enumerate(additions):
        new = entry(
            data_file(f"data-{number}-{index}", **fields),
            bucket=bucket,
            partition=partition,
            total_buckets=total_buckets[PARTITIONS.index(partition)],
        )
        delta.append(new)
        model[new.identity] = new
    return delta


def _contents(files: LiveFiles) -> dict[FileIdentity, ManifestEntry]:
    return {one.identity: one for bucket in files.bucket_ids() for one in files.entries(bucket)}


def _require_equal(files: LiveFiles, model: Model) -> None:
    assert _contents(files) == model
    assert (files.file_count, files.size_bytes, files.row_count) == (
        len(model),
        sum(one.file.file_size for one in model.values()),
        sum(one.file.row_count for one in model.values()),
    )
    assert files.schema_ids == {one.file.schema_id for one in model.values()}
    buckets: dict[BucketId, list[ManifestEntry]] = {}
    for one in model.values():
        buckets.setdefault(one.bucket_id, []).append(one)
    summaries = files.summaries()
    assert summaries.index.bucket_ids() == sorted(buckets)
    for index, bucket in enumerate(summaries.index.bucket_ids()):
        expected = [one.file for one in buckets[bucket]]
        levels = [file.level for file in expected]
        facts = {
            "file_count": len(expected),
            "size_bytes": sum(file.file_size for file in expected),
            "row_count": sum(file.row_count for file in expected),
            "level0_count": levels.count(0),
            "run_count": levels.count(0) + len(set(levels) - {0}),
            "max_level": max(levels),
            "oldest_run_bytes": _oldest_run_bytes(expected),
            "top_created_ms": max(_created(f) for f in expected if f.level == max(levels)),
            "total_buckets": buckets[bucket][0].total_buckets,
        }
        assert {name: getattr(summaries, name)[index] for name in facts} == facts
        summary = files.summary(bucket)
        assert {name: getattr(summary, name) for name in facts} == facts
        state = files.bucket(bucket)
        assert (state.total_buckets, len(state.files)) == (facts["total_buckets"], len(expected))
        named = {file.file_name: file for file in expected[::2]}
        assert files.named(bucket, {*named, "elsewhere"}) == named
        assert files.named(bucket, set()) == {}
        small = files.bucket(bucket, smaller_than=1000).files
        assert set(small) == {file for file in expected if file.file_size < 1000}
        largest = max(expected, key=lambda file: file.file_size).file_name
        for limit, besides in ((1000, set()), (1 << 41, set()), (1000, {largest, "other"})):
            chosen = [f for f in expected if f.file_size < limit or f.file_name in besides]
            found = files.by_size(bucket, smaller_than=limit, besides=besides)
            _require_same_columns(found, chosen)
    for identity in list(model)[:3]:
        assert files.contains(identity)
        assert not files.contains(identity._replace(level=9))
        assert not files.contains(identity._replace(external_path="s3://elsewhere/x"))


def _require_same_columns(found: FilesBySize, expected: Sequence[DataFile]) -> None:
    ordered = sorted(
        expected, key=lambda file: (file.file_size, file.min_sequence_number, file.file_name)
    )
    assert found.read(0, len(found)) == tuple(ordered)
    assert found.read(1, 3) == tuple(ordered[1:3])
    columns = SizeColumns.of(ordered)
    for name in ("file_size", "min_sequence_number", "level", "creation_time_ms", "file_source"):
        assert getattr(found.columns, name).tolist() == getattr(columns, name).tolist()
    for name in {file.file_name for file in ordered[:3]}:
        others = tuple(file for file in ordered if file.file_name != name)
        assert found.without({name}).read(0, len(found)) == others
        named = found.only({name, "other"})
        both = found.without({name}).followed_by(named)
        assert both.read(0, len(both)) == (*others, *(f for f in ordered if f.file_name == name))
        assert both.columns.file_size.tolist()[len(others) :] == named.columns.file_size.tolist()
    assert not len(found.without({file.file_name for file in expected}))


def _created(file: DataFile) -> int:
    return -1 if file.creation_time_ms is None else file.creation_time_ms


def _oldest_run_bytes(files: Sequence[DataFile]) -> int:
    """The last of the bucket's runs, as Levels.java has them in order."""
    top = max(file.level for file in files)
    if top > 0:
        return sum(file.file_size for file in files if file.level == top)

    def place(file: DataFile) -> tuple[int, int, int]:
        return -file.max_sequence_number, file.min_sequence_number, _created(file)

    last = max(map(place, files))
    return min(file.file_size for file in files if place(file) == last)


def test_a_base_lasts_for_a_share_of_its_files_before_it_is_made_anew() -> None:
    files, bases = no_files("/t"), []
    for number in range(32):
        files = files.applied(
            [entry(data_file(f"f{number}-{i}"), bucket=number) for i in range(500)]
        )
        if not bases or bases[-1] is not files.base:
            bases.append(files.base)
    # At first every 2000 changes, from 8000 files on every fourth of them.
    assert [len(base) for base in bases] == [0, 2000, 4000, 6000, 8000, 10_000, 12_500, 16_000]
