from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compactord.commit.manifest_merge import merge_manifests
from compactord.paimon.data_file import EntryKind, ManifestEntry
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.paimon.options.table_options import ManifestRules
from tests.unit.commit.test_manifest_merge import Manifests
from tests.unit.paimon.table_builder import data_file, deleted, entry

PARTITIONS = (b"p", b"q")


@st.composite
def histories(draw: st.DrawFn) -> tuple[Manifests, list[ManifestFile]]:
    """Commits that add files and delete live ones, one manifest each."""
    store = Manifests(entry_size=draw(st.integers(1, 3)), entries_per_file=draw(st.integers(1, 9)))
    live: list[ManifestEntry] = []
    manifests = []
    names = 0
    for adds in draw(st.lists(st.integers(0, 4), min_size=1, max_size=12)):
        delta = [
            deleted(live.pop(draw(st.integers(0, len(live) - 1))))
            for _ in range(draw(st.integers(0, min(3, len(live)))))
        ]
        for _ in range(adds):
            names += 1
            added = entry(data_file(f"f{names}"), partition=draw(st.sampled_from(PARTITIONS)))
            live.append(added)
            delta.append(added)
        if delta:
            manifests.append(store.add(delta))
    return store, manifests


rules = st.builds(
    ManifestRules,
    target_size=st.integers(1, 40),
    full_threshold=st.integers(0, 60),
    min_count=st.integers(1, 12),
)


def _live(store: Manifests, manifests: tuple[ManifestFile, ...] | list[ManifestFile]) -> set[str]:
    """As readers see it: added by any manifest and deleted by none."""
    entries = [one for manifest in manifests for one in store.contents[manifest.file_name]]
    dead = {one.identity for one in entries if one.kind is EntryKind.DELETE}
    added = [one for one in entries if one.kind is EntryKind.ADD]
    assert len({one.identity for one in added}) == len(added), "a file is added twice"
    return {one.file.file_name for one in added if one.identity not in dead}


@given(histories(), rules)
def test_merging_changes_what_is_written_and_never_what_is_live(
    history: tuple[Manifests, list[ManifestFile]], merge_rules: ManifestRules
) -> None:
    store, manifests = history

    def may_contain(manifest: ManifestFile, partitions: frozenset[bytes]) -> bool:
        return any(one.partition in partitions for one in store.contents[manifest.file_name])

    before = _live(store, manifests)
    merged = merge_manifests(
        manifests, merge_rules, read=store.read, write=store.write, may_contain=may_contain
    )
    assert _live(store, merged.after) == before
    assert merged.before == tuple(manifests)
    known = {manifest.file_name for manifest in manifests}
    assert {m.file_name for m in merged.written} == {
        m.file_name for m in merged.after if m.file_name not in known
    }


@given(histories(), rules, st.frozensets(st.integers(0, 12)))
def test_what_is_live_does_not_rest_on_statistics(
    history: tuple[Manifests, list[ManifestFile]],
    merge_rules: ManifestRules,
    ruled_out: frozenset[int],
) -> None:
    store, manifests = history
    names = {manifest.file_name: number for number, manifest in enumerate(manifests)}
    before = _live(store, manifests)
    merged = merge_manifests(
        manifests,
        merge_rules,
        read=store.read,
        write=store.write,
        may_contain=lambda manifest, _: names[manifest.file_name] not in ruled_out,
    )
    assert _live(store, merged.after) == before


@given(histories(), rules, st.integers(0, 3), st.integers(0, 3))
def test_a_merge_applied_to_a_later_list_says_the_same(
    history: tuple[Manifests, list[ManifestFile]],
    merge_rules: ManifestRules,
    ahead: int,
    behind: int,
) -> None:
    store, manifests = history
    more = [store.add([entry(data_file(f"more-{n}"))]) for n in range(ahead + behind)]
    merged = store.merge(manifests, merge_rules)
    later = [*more[:ahead], *manifests, *more[ahead:]]
    applied = merged.applied_to(later)
    assert applied is not None
    assert _live(store, applied) == _live(store, later)
