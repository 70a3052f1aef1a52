"""The rules of commit: full and minor merges, by the sizes and counts of manifests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from compactord.commit.manifest_merge import ManifestMerge, merge_manifests
from compactord.paimon.data_file import EMPTY_STATS, EntryKind, ManifestEntry
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.paimon.options.table_options import ManifestRules
from tests.unit.paimon.table_builder import data_file, deleted, entry

MB = 1 << 20
RULES = ManifestRules(target_size=8 * MB, full_threshold=16 * MB, min_count=30)


@dataclass
class Manifests:
    """Manifests in memory; new ones roll after `entries_per_file` entries of `entry_size` bytes."""

    entry_size: int = 1000
    entries_per_file: int = 1 << 30
    contents: dict[str, tuple[ManifestEntry, ...]] = field(default_factory=dict)
    reads: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def add(self, entries: Iterable[ManifestEntry], *, size: int | None = None) -> ManifestFile:
        held = tuple(entries)
        name = f"manifest-{next(self.numbers)}"
        self.contents[name] = held
        dead = sum(one.kind is EntryKind.DELETE for one in held)
        return ManifestFile(
            file_name=name,
            file_size=self.entry_size * len(held) if size is None else size,
            num_added_files=len(held) - dead,
            num_deleted_files=dead,
            partition_stats=EMPTY_STATS,
            schema_id=0,
        )

    def read(self, manifest: ManifestFile) -> Sequence[ManifestEntry]:
        self.reads.append(manifest.file_name)
        return self.contents[manifest.file_name]

    def write(self, entries: Iterable[ManifestEntry]) -> Sequence[ManifestFile]:
        rest, made = list(entries), []
        while rest:
            made.append(self.add(rest[: self.entries_per_file]))
            rest = rest[self.entries_per_file :]
        return made

    def merge(
        self,
        manifests: Sequence[ManifestFile],
        rules: ManifestRules = RULES,
        *,
        all_may: bool = True,
    ) -> ManifestMerge:
        return merge_manifests(
            manifests,
            rules,
            read=self.read,
            write=self.write,
            may_contain=lambda manifest, partitions: all_may,
        )

    def names(self, manifests: Iterable[ManifestFile]) -> list[list[str]]:
        return [[one.file.file_name for one in self.contents[m.file_name]] for m in manifests]


def _add(name: str) -> ManifestEntry:
    return entry(data_file(name))


def _small(store: Manifests, count: int) -> list[ManifestFile]:
    return [store.add([_add(f"f{number}")]) for number in range(count)]


def test_29_small_manifests_stay_and_30_become_one() -> None:
    store = Manifests()
    manifests = _small(store, 30)
    assert store.merge(manifests[:29]).written == ()
    assert store.merge(manifests[:29]).after == tuple(manifests[:29])
    merged = store.merge(manifests)
    assert len(merged.after) == len(merged.written) == 1
    assert store.names(merged.after) == [[f"f{number}" for number in range(30)]]


def test_neighbours_are_merged_when_they_reach_the_target_size() -> None:
    store = Manifests()
    sizes = [5 * MB, 4 * MB, 1 * MB]
    manifests = [store.add([_add(str(n))], size=size) for n, size in enumerate(sizes)]
    merged = store.merge(manifests)
    assert store.names(merged.after) == [["0", "1"], ["2"]]
    assert merged.after[1] is manifests[2]
    assert store.reads == [manifests[0].file_name, manifests[1].file_name]


def test_a_manifest_of_the_target_size_by_itself_is_kept_as_it_is() -> None:
    store = Manifests()
    manifests = [store.add([_add("a")], size=8 * MB), store.add([_add("b")], size=MB)]
    assert store.merge(manifests).after == tuple(manifests)
    assert store.reads == []


def test_a_minor_merge_cancels_pairs_and_keeps_a_delete_without_its_add() -> None:
    store = Manifests()
    manifests = [
        store.add([_add("a"), _add("b")]),
        store.add([deleted(_add("a")), deleted(_add("elsewhere"))]),
    ]
    merged = store.merge(manifests, replace(RULES, min_count=2))
    assert store.names(merged.after) == [["b", "elsewhere"]]
    kinds = [one.kind for one in store.contents[merged.after[0].file_name]]
    assert kinds == [EntryKind.ADD, EntryKind.DELETE]


def test_a_minor_merge_that_leaves_nothing_makes_no_file() -> None:
    store = Manifests()
    manifests = [store.add([_add("a")]), store.add([deleted(_add("a"))])]
    merged = store.merge(manifests, replace(RULES, min_count=2))
    assert (merged.after, merged.written) == ((), ())


def test_a_full_merge_begins_at_the_threshold_and_leaves_no_delete() -> None:
    store = Manifests()
    big = store.add([_add("a"), _add("b")], size=9 * MB)
    change = store.add([deleted(_add("a"))], size=7 * MB)
    below = store.merge([big, change], all_may=True)
    assert below.written == ()
    larger = replace(change, file_size=16 * MB)
    merged = store.merge([big, larger])
    assert store.names(merged.after) == [["b"]]


def test_a_full_merge_keeps_large_manifests_that_no_delete_concerns() -> None:
    store = Manifests()
    untouched = store.add([_add("a")], size=9 * MB)
    other = [store.add([_add(f"o{n}")], size=7 * MB) for n in range(3)]
    gone = store.add([deleted(_add("o0"))], size=MB)
    merged = store.merge([other[0], untouched, *other[1:], gone], all_may=False)
    assert merged.after[0] is untouched
    assert store.names(merged.after[1:]) == [["o1", "o2"]]
    assert untouched.file_name not in store.reads


def test_a_full_merge_keeps_a_large_manifest_that_was_read_in_vain() -> None:
    store = Manifests()
    suspect = store.add([_add("a")], size=9 * MB)
    other = [store.add([_add(f"o{n}")], size=7 * MB) for n in range(3)]
    gone = store.add([deleted(_add("o0"))], size=MB)
    merged = store.merge([suspect, *other, gone], all_may=True)
    assert suspect in merged.after
    assert suspect not in merged.written
    assert suspect.file_name in store.reads
    assert sorted(itertools.chain(*store.names(merged.after))) == ["a", "o1", "o2"]


def test_statistics_that_hide_a_deleted_file_do_not_bring_it_back() -> None:
    store = Manifests()
    hiding = store.add([_add("a"), _add("b")], size=9 * MB)
    other = [store.add([_add(f"o{n}")], size=7 * MB) for n in range(3)]
    gone = store.add([deleted(_add("o0")), deleted(_add("a"))], size=MB)
    merged = store.merge([hiding, *other, gone], all_may=False)
    assert store.names(merged.after) == [["o1", "o2", "b"]]


def test_one_manifest_left_to_merge_is_not_merged_fully() -> None:
    store = Manifests()
    kept = store.add([_add("a")], size=9 * MB)
    alone = store.add([_add("b"), deleted(_add("x"))], size=17 * MB)
    merged = store.merge([kept, alone], all_may=False)
    assert merged.after == (kept, alone)


def test_a_merge_fits_while_its_inputs_are_neighbours_in_their_order() -> None:
    store = Manifests()
    first, second, third, later = _small(store, 4)
    merged = ManifestMerge(before=(first, second), after=(third,), written=(third,))
    assert merged.applied_to([first, second, later]) == (third, later)
    assert merged.applied_to([later, first, second]) == (later, third)
    assert merged.applied_to([second, first]) is None
    assert merged.applied_to([first, later, second]) is None
    assert merged.applied_to([first]) is None


def test_a_merge_of_nothing_fits_everywhere_and_changes_nothing() -> None:
    nothing = ManifestMerge(before=(), after=(), written=())
    manifests = tuple(_small(Manifests(), 2))
    assert nothing.applied_to(manifests) == manifests


def test_neighbours_are_merged_each_time_they_add_up() -> None:
    store = Manifests()
    manifests = [store.add([_add(f"f{number}")], size=5 * MB) for number in range(5)]
    merged = store.merge(manifests, replace(RULES, full_threshold=100 * MB))
    assert store.names(merged.after) == [["f0", "f1"], ["f2", "f3"], ["f4"]]
