"""Verifies a table: its metadata, and the data files of chosen versions. Only reads.

Tables that compactord refuses to compact can be verified. `Verified.unknown` lists what could not
be verified.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

from compactord.errors import (
    CompactordError,
    FormatError,
    ObjectNotFound,
    UnsupportedTable,
    UsageError,
)
from compactord.paimon.data_file import FileKey
from compactord.paimon.deletion_vectors import INDEX_TYPE
from compactord.paimon.manifest.index_manifest import HASH_INDEX, read_index_entries
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import Snapshot, read_snapshot, read_tags, snapshot_ids
from compactord.state.metadata_reader import MetadataReader
from compactord.storage.base import Storage
from compactord.verify.chain import ChainCheck, Version, name_prefix
from compactord.verify.files import FileCheck
from compactord.verify.rules import FileCounts, FileRules, Finding, FindingKind

# Errors of a version itself, not of its store.
_UNREADABLE = (FormatError, ObjectNotFound, UnsupportedTable)


def newest_without(
    storage: Storage,
    table: TableRef,
    files: Collection[FileKey],
    index_files: Set[str] = frozenset(),
) -> str | None:
    """The newest version, `snapshot 7` or `tag x`, in which none of these files is live, or None.

    `index_files` are names of such files. Snapshots come before tags. Files that the newest
    snapshot needs have been live from some snapshot on, which a binary search finds. Only versions
    whose metadata can be read count; their other data files are not checked. Raises the errors of
    listing and of a store that fails.
    """
    reader = MetadataReader(storage, table.location)
    reader.look_for(files)
    ids = snapshot_ids(storage, table.root)

    def indexes(snapshot: Snapshot) -> frozenset[str]:
        if not index_files or snapshot.index_manifest is None:
            return frozenset()
        entries = read_index_entries(storage, table.location, snapshot.index_manifest)
        return frozenset(entry.file_name for entry in entries) & index_files

    def is_without(snapshot: Snapshot) -> bool:
        return not (indexes(snapshot) or reader.live(snapshot))

    def is_known_without(snapshot_id: int) -> bool:
        """False as well if it cannot be read."""
        with contextlib.suppress(*_UNREADABLE):
            return is_without(read_snapshot(storage, table.root, snapshot_id))
        return False

    if ids:
        with contextlib.suppress(*_UNREADABLE):
            newest = read_snapshot(storage, table.root, ids[-1])
            if is_without(newest):
                return f"snapshot {ids[-1]}"
            reader.look_for(reader.live(newest))
            index_files = indexes(newest)
    end = bisect_left(ids, True, key=lambda snapshot_id: not is_known_without(snapshot_id))
    if end:
        return f"snapshot {ids[end - 1]}"
    tags = read_tags(storage, table.root)
    for name in sorted(tags, key=lambda name: tags[name].id, reverse=True):
        with contextlib.suppress(*_UNREADABLE):
            if is_without(tags[name]):
                return f"tag {name}"
    return None


def rollback_statement(table: TableRef, version: str) -> str:
    """The statement of Flink SQL that rolls a table back to a version of `newest_without`.

    Source: RollbackToProcedure.
    """
    kind, _, name = version.partition(" ")
    place = f"snapshot_id => {name}" if kind == "snapshot" else f"tag => '{name}'"
    return f"CALL sys.rollback_to(`table` => '{table.full_name}', {place})"


def rollback_advice(table: TableRef, version: str | None, newest: str) -> str:
    """Advice about missing data files.

    `version` is the result of `newest_without`, `newest` the name of the newest snapshot.
    """
    if version == newest:
        return f"Only reads of older versions need it: {newest}, the newest, does not."
    restore = (
        "Readers fail on it as well. Restore it from a backup or from an older version of the "
        "object"
    )
    if version is None:
        return f"{restore}; no snapshot or tag is without it."
    return (
        f"{restore}; or stop the table's writers and roll the table back to {version}, which does "
        f"not need it (later commits are lost): {rollback_statement(table, version)}"
    )


# Findings that a concurrent commit or expiry, or a store's failure, may explain.
_MAY_PASS = {
    FindingKind.SNAPSHOT_MISSING,
    FindingKind.HINT_WRONG,
    FindingKind.METADATA_MISSING,
    FindingKind.DATA_FILE_MISSING,
    FindingKind.CHANGELOG_FILE_MISSING,
    FindingKind.INDEX_FILE_MISSING,
    FindingKind.CANNOT_BE_READ,
}
_OF_METADATA = {FindingKind.METADATA_MISSING, FindingKind.METADATA_DAMAGED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Versions whose data files are verified: a snapshot, a tag, all, or by default the newest."""

    snapshot_id: int | None = None
    tag: str | None = None
    is_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Findings, and texts about all that could not be verified.

    `versions` and `manifests` count those read; `files_of` names the versions whose data files were
    verified. `pages_wanted` is the requested share of pages, 0 to 1.
    """

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]
    versions: int
    manifests: int
    files_of: tuple[str, ...]
    counts: FileCounts
    pages_wanted: float

    @property
    def pages_read(self) -> float:
        """The share of the bytes of data files whose pages were read, 0 to 1.

        1 if there is nothing to read; 0 if that is not known.
        """
        if not self.pages_wanted:
            return 0.0
        if not self.counts.pages.size_bytes:
            return 0.0 if self.findings or self.unknown else 1.0
        return self.counts.pages.share

    @property
    def whole(self) -> bool | None:
        """True if everything was verified, False if there are findings, or None if unknown."""
        if self.findings:
            return False
        return True if self.pages_wanted == self.pages_read == 1 and not self.unknown else None


def verify_table(
    storage: Storage,
    table: TableRef,
    wanted: Wanted,
    rules: FileRules | str,
    *,
    progress: Callable[[str], None],
    pause: Callable[[], None],
) -> Verified:
    """Verify the metadata of a table with its branches, and the data files of wanted versions.

    The versions are of the branch that `table` names. If `rules` is a text, data files cannot be
    verified, for that reason. Missing files are checked once more after `pause`: an expiry deletes
    a snapshot's files before the snapshot. Raises `UsageError` for a snapshot or tag that does not
    exist; every other failure is a finding.
    """
    first, check = _verified_once(storage, table, wanted, rules, progress)
    suspects = {(each.kind, each.path) for each in first.findings if each.kind in _MAY_PASS}
    if not suspects:
        return _with_unread(first)
    lasting = tuple(each for each in first.findings if each.kind not in _MAY_PASS)
    pause()
    try:
        second, _ = _verified_once(
            storage,
            table,
            wanted,
            rules,
            progress,
            before=check,
            suspects=frozenset(path for _, path in suspects),
        )
    except UsageError as error:
        # The wanted version has expired, or was deleted.
        return _with_unread(replace(first, findings=lasting, unknown=(*first.unknown, str(error))))
    again = (
        each
        for each in second.findings
        if each.kind not in _MAY_PASS or (each.kind, each.path) in suspects
    )
    second.counts.add_contents(first.counts)
    return _with_unread(
        replace(
            second,
            findings=_once((*lasting, *again)),
            unknown=tuple(dict.fromkeys((*first.unknown, *second.unknown))),
        )
    )


def _verified_once(
    storage: Storage,
    table: TableRef,
    wanted: Wanted,
    rules: FileRules | str,
    progress: Callable[[str], None],
    *,
    before: FileCheck | None = None,
    suspects: Collection[str] = (),
) -> tuple[Verified, FileCheck | None]:
    chain = ChainCheck(storage, table, rules, progress)
    findings = list(chain.run())
    chosen = _chosen(chain, table, wanted)
    unknown, files_of, counts = [*chain.unknown], list[str](), FileCounts()
    check: FileCheck | None = None
    if isinstance(rules, str):
        unknown.append(f"data files: {rules}")
    else:
        check = FileCheck(
            storage,
            table.location,
            rules,
            progress,
            index_paths=chain.indexes.paths,
            before=before,
            suspects=suspects,
        )
        counts = check.counts
        for version in chosen:
            changes = check.changes(version)
            findings += (replace(each, needed_by=(version.name,)) for each in changes)
            if not version.has_rows:
                continue
            known, known_unknown = len(counts.missing), len(check.unknown)
            found = list(check.run(version.snapshot, version.root))
            advice = _advice(storage, table, chain, counts.missing[known:])
            for each in found:
                is_gone = each.kind is FindingKind.DATA_FILE_MISSING
                text = advice if is_gone and advice is not None else each.advice
                findings.append(replace(each, needed_by=(version.name,), advice=text))
            is_unknown = len(check.unknown) > known_unknown
            if is_unknown or any(each.kind in _OF_METADATA for each in found):
                unknown.append(f"data files of {version.name}: its metadata cannot be read")
            else:
                files_of.append(version.name)
        unknown += check.unknown
    counts.index_types = chain.indexes.types
    share = 0.0 if isinstance(rules, str) or rules.pages is None else rules.pages.share
    verified = Verified(
        findings=_once(findings),
        unknown=tuple(dict.fromkeys(unknown)),
        versions=len(chain.versions),
        manifests=chain.manifests,
        files_of=tuple(files_of),
        counts=counts,
        pages_wanted=share,
    )
    return verified, check


def _chosen(chain: ChainCheck, table: TableRef, wanted: Wanted) -> list[Version]:
    """The versions whose data files are verified, the table's newest snapshot first."""
    newest = chain.newest()
    if wanted.is_all:
        return sorted(chain.versions, key=lambda each: each is not newest)
    if wanted.snapshot_id is None and wanted.tag is None:
        return [] if newest is None else [newest]
    version = f"tag {wanted.tag}" if wanted.tag is not None else f"snapshot {wanted.snapshot_id}"
    name = name_prefix(table.branch) + version
    found = [each for each in chain.versions if each.name == name]
    if not found and name not in chain.unreadable:
        raise UsageError(f"{table.root} has no {version}")
    return found


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The first finding of each file and kind; metadata precedes data files."""
    found: dict[tuple[FindingKind, str], Finding] = {}
    for each in findings:
        found.setdefault((each.kind, each.path), each)
    return tuple(found.values())


def _with_unread(found: Verified) -> Verified:
    """`found` with the files that were not read among the unknown."""
    unread = _contents_not_read(found.counts) if found.pages_wanted else ()
    return replace(found, unknown=(*found.unknown, *_not_read(found.counts), *unread))


def _not_read(counts: FileCounts) -> Iterator[str]:
    if counts.external:
        yield f"{counts.external:,} data files with an external path: they are in other stores"
    for why, count in counts.unread.items():
        yield f"footers of {count:,} data files: {why}"


def _contents_not_read(counts: FileCounts) -> Iterator[str]:
    for why, count in counts.pages.unread.items():
        yield f"pages of {count:,} data files: {why}"
    if counts.extra_files:
        yield f"contents of {counts.extra_files:,} extra files of data files, such as file indexes"
    for name, count in counts.index_types.items():
        if name not in (INDEX_TYPE, HASH_INDEX):
            yield f"contents of {count:,} index files of type {name}"


def _advice(
    storage: Storage, table: TableRef, chain: ChainCheck, missing: Sequence[FileKey]
) -> str | None:
    """Advice about missing data files, or None if there are none."""
    newest = chain.newest()
    if not missing or newest is None:
        return None
    try:
        found = newest_without(storage, table, missing)
    except CompactordError:
        found = None
    return rollback_advice(table, found, newest.name.removeprefix(name_prefix(table.branch)))
