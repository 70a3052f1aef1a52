"""Verifies a table: its metadata, and the data files of chosen versions. Only reads.

It needs none of what a compaction needs, so that tables which compactord refuses are verified, too;
what cannot be is said (`Verified.unknown`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from compactord.errors import CompactordError, UsageError
from compactord.maintenance.expire_reader import FileKey
from compactord.maintenance.finding import Finding, FindingKind
from compactord.maintenance.rollback import newest_without, rollback_advice
from compactord.maintenance.verify_chain import ChainCheck, Version, name_prefix
from compactord.maintenance.verify_files import FileCheck, FileCounts, FileRules
from compactord.paimon.table import TableRef
from compactord.storage.base import Storage

# What a commit, an expiry or a store under way may explain.
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
    """Of which versions data files are verified: a snapshot, a tag, all; else the newest."""

    snapshot_id: int | None = None
    tag: str | None = None
    is_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What is wrong, and for people what could not be verified.

    `versions` and `manifests` are how many were read; `files_of` the versions whose data files were
    verified.
    """

    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]
    versions: int
    manifests: int
    files_of: tuple[str, ...]
    counts: FileCounts


def verify_table(
    storage: Storage,
    table: TableRef,
    wanted: Wanted,
    rules: FileRules | str,
    *,
    progress: Callable[[str], None],
    pause: Callable[[], None],
) -> Verified:
    """Verify a table's metadata, that of its branches included, and data files.

    Those of chosen versions of the branch that `table` is; `rules` is a text where they cannot be
    verified: why.

    What is not there is looked for once more after `pause`: while a snapshot expires, its files go
    before it does. Raises `UsageError` for a snapshot or tag that does not exist; all else that
    fails is a finding.
    """
    first = _verified_once(storage, table, wanted, rules, progress)
    suspects = {(each.kind, each.path) for each in first.findings if each.kind in _MAY_PASS}
    if not suspects:
        return first
    lasting = tuple(each for each in first.findings if each.kind not in _MAY_PASS)
    pause()
    try:
        second = _verified_once(storage, table, wanted, rules, progress)
    except UsageError as error:
        # The version that was wanted has expired, or was deleted.
        return replace(first, findings=lasting, unknown=(*first.unknown, str(error)))
    again = (
        each
        for each in second.findings
        if each.kind not in _MAY_PASS or (each.kind, each.path) in suspects
    )
    return replace(second, findings=_once((*lasting, *again)))


def _verified_once(
    storage: Storage,
    table: TableRef,
    wanted: Wanted,
    rules: FileRules | str,
    progress: Callable[[str], None],
) -> Verified:
    chain = ChainCheck(storage, table, progress)
    findings = list(chain.run())
    chosen = _chosen(chain, table, wanted)
    unknown, files_of, counts = [*chain.unknown], list[str](), FileCounts()
    if isinstance(rules, str):
        unknown.append(f"data files: {rules}")
    else:
        check = FileCheck(storage, table.location, rules, progress)
        counts = check.counts
        for version in chosen:
            changes = check.changes(version)
            findings += (replace(each, needed_by=(version.name,)) for each in changes)
            if not version.has_rows:
                continue
            known = len(counts.missing)
            found = list(check.run(version.snapshot))
            advice = _advice(storage, table, chain, counts.missing[known:])
            for each in found:
                is_gone = each.kind is FindingKind.DATA_FILE_MISSING
                text = advice if is_gone and advice is not None else each.advice
                findings.append(replace(each, needed_by=(version.name,), advice=text))
            if any(each.kind in _OF_METADATA for each in found):
                unknown.append(f"data files of {version.name}: its metadata cannot be read")
            else:
                files_of.append(version.name)
    unknown += _not_read(counts)
    return Verified(
        findings=_once(findings),
        unknown=tuple(unknown),
        versions=len(chain.versions),
        manifests=chain.manifests,
        files_of=tuple(files_of),
        counts=counts,
    )


def _chosen(chain: ChainCheck, table: TableRef, wanted: Wanted) -> list[Version]:
    """The versions whose data files are wanted, the newest of the table itself first."""
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
    """Each file's first finding of a kind: that of the metadata, then that of data files."""
    found: dict[tuple[FindingKind, str], Finding] = {}
    for each in findings:
        found.setdefault((each.kind, each.path), each)
    return tuple(found.values())


def _not_read(counts: FileCounts) -> Iterator[str]:
    if counts.external:
        yield f"{counts.external:,} data files with an external path: they may be in other stores"
    if counts.without_reader:
        yield f"footers of {counts.without_reader:,} data files: of formats that are not read here"


def _advice(
    storage: Storage, table: TableRef, chain: ChainCheck, missing: Sequence[FileKey]
) -> str | None:
    """What to do about data files that are gone; None: none is."""
    newest = chain.newest()
    if not missing or newest is None:
        return None
    try:
        found = newest_without(storage, table, missing)
    except CompactordError:
        found = None
    return rollback_advice(found, newest.name.removeprefix(name_prefix(table.branch)))
