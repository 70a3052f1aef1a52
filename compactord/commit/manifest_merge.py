"""Merging of manifests in a commit, by the rules of operation/ManifestFileMerger.java.

Merging never changes the live files; it limits the number of manifests and of cancelled entries.
Reading and writing are functions passed by the caller, so the rules can be tested in isolation. The
entries of one input manifest and the identities of all deleted files are in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from compactord.paimon.data_file import EntryKind, FileIdentity, ManifestEntry
from compactord.paimon.manifest.manifest_files import ManifestFile
from compactord.paimon.options.table_options import ManifestRules

Read = Callable[[ManifestFile], Sequence[ManifestEntry]]
Write = Callable[[Iterable[ManifestEntry]], Sequence[ManifestFile]]
MayContain = Callable[[ManifestFile, frozenset[bytes]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestMerge:
    """A merge: `after` has the same live files as `before`; `written` are its new manifests."""

    before: tuple[ManifestFile, ...]
    after: tuple[ManifestFile, ...]
    written: tuple[ManifestFile, ...]

    def applied_to(self, manifests: Sequence[ManifestFile]) -> tuple[ManifestFile, ...] | None:
        """`manifests` with `before` replaced by `after`, or None unless it is a contiguous part."""
        names = [manifest.file_name for manifest in manifests]
        wanted = [manifest.file_name for manifest in self.before]
        for start in range(len(names) - len(wanted) + 1):
            if names[start : start + len(wanted)] == wanted:
                end = start + len(wanted)
                return (*manifests[:start], *self.after, *manifests[end:])
        return None


def merge_manifests(
    manifests: Sequence[ManifestFile],
    rules: ManifestRules,
    *,
    read: Read,
    write: Write,
    may_contain: MayContain,
) -> ManifestMerge:
    """Merge fully if enough bytes would change, otherwise neighbours up to the target size.

    `may_contain` decides from a manifest's statistics whether it may hold an entry of one of these
    partitions. Excluded manifests are read nevertheless if a deleted file was not found in the
    rest. Errors of `read` and `write` are raised; the caller deletes the files written.
    """
    after = _merge_fully(manifests, rules, read=read, write=write, may_contain=may_contain)
    if after is None:
        after = _merge_neighbours(manifests, rules, read=read, write=write)
    known = {manifest.file_name for manifest in manifests}
    return ManifestMerge(
        before=tuple(manifests),
        after=tuple(after),
        written=tuple(manifest for manifest in after if manifest.file_name not in known),
    )


def is_merge_due(manifests: Sequence[ManifestFile], rules: ManifestRules) -> bool:
    """Whether at least two of these manifests would be merged."""
    changing = [manifest for manifest in manifests if _must_change(manifest, rules)]
    if len(changing) > 1 and _total_size(changing) >= rules.full_threshold:
        return True
    return any(len(group) > 1 for group in _neighbours(manifests, rules))


def _must_change(manifest: ManifestFile, rules: ManifestRules) -> bool:
    return manifest.num_deleted_files > 0 or manifest.file_size < rules.target_size


def _total_size(manifests: Iterable[ManifestFile]) -> int:
    return sum(manifest.file_size for manifest in manifests)


def _merge_fully(
    manifests: Sequence[ManifestFile],
    rules: ManifestRules,
    *,
    read: Read,
    write: Write,
    may_contain: MayContain,
) -> list[ManifestFile] | None:
    """The merged list without any DELETE entry, or None if too few bytes would change."""
    changing = [manifest for manifest in manifests if _must_change(manifest, rules)]
    if _total_size(changing) < rules.full_threshold:
        return None
    deleted: set[FileIdentity] = set()
    for manifest in manifests:
        if manifest.num_deleted_files > 0:
            deleted.update(e.identity for e in read(manifest) if e.kind is EntryKind.DELETE)
    partitions = frozenset(identity.partition for identity in deleted)
    spared: list[ManifestFile] = []
    merging: list[ManifestFile] = []
    for manifest in manifests:
        concerned = _must_change(manifest, rules) or (
            bool(deleted) and may_contain(manifest, partitions)
        )
        (merging if concerned else spared).append(manifest)
    if len(merging) <= 1:
        return None
    kept: list[ManifestFile] = []

    def surviving() -> Iterator[ManifestEntry]:
        waiting, unmet = deque(merging), len(deleted)
        while waiting:
            manifest = waiting.popleft()
            added = [entry for entry in read(manifest) if entry.kind is EntryKind.ADD]
            alive = [entry for entry in added if entry.identity not in deleted]
            unmet -= len(added) - len(alive)
            if not _must_change(manifest, rules) and len(alive) == len(added):
                kept.append(manifest)
            else:
                yield from alive
            if unmet and not waiting:
                # Damaged statistics may hide its ADD; without the DELETE the file would be live.
                waiting.extend(spared)
                spared.clear()

    rewritten = write(surviving())
    return [*spared, *kept, *rewritten]


def _merge_neighbours(
    manifests: Sequence[ManifestFile], rules: ManifestRules, *, read: Read, write: Write
) -> list[ManifestFile]:
    """Merge neighbours that add up to the target size, and the rest if there are enough."""
    after: list[ManifestFile] = []
    for group in _neighbours(manifests, rules):
        if len(group) == 1:
            after += group
        else:
            after += write(_cancelled(entry for m in group for entry in read(m)))
    return after


def _neighbours(
    manifests: Sequence[ManifestFile], rules: ManifestRules
) -> Iterator[list[ManifestFile]]:
    """All manifests in order, in groups to be merged; a manifest that is kept is a group of one."""
    waiting: list[ManifestFile] = []
    waiting_size = 0
    for manifest in manifests:
        waiting.append(manifest)
        waiting_size += manifest.file_size
        if waiting_size >= rules.target_size:
            yield waiting
            waiting, waiting_size = [], 0
    if len(waiting) >= rules.min_count:
        yield waiting
    else:
        yield from ([manifest] for manifest in waiting)


def _cancelled(entries: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
    """Entries without pairs of an ADD and its later DELETE; an unpaired DELETE stays."""
    open_entries: dict[FileIdentity, ManifestEntry] = {}
    for entry in entries:
        identity = entry.identity
        if entry.kind is EntryKind.DELETE and identity in open_entries:
            del open_entries[identity]
        else:
            open_entries[identity] = entry
    yield from open_entries.values()
