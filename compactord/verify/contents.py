"""Verifies the contents of files: footers, pages, deletion vectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import TypeAlias

import numpy as np

from compactord.errors import CompactordError, FileNotSupported, FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.columns import Ints
from compactord.paimon.data_file import DataFile, ManifestEntry
from compactord.paimon.deletion_vectors import VectorRef, read_deleted_rows
from compactord.state.base_files import BaseFiles
from compactord.storage.base import Storage
from compactord.storage.calls import map_concurrently
from compactord.verify.rules import (
    FileCounts,
    FileRules,
    Finding,
    FindingKind,
    PageCounts,
    PageRules,
    PagesRead,
    PlacedFile,
    attempted,
    read_finding,
)

# Files held in memory as objects at a time.
AT_ONCE = 4096


FilesAt: TypeAlias = Callable[[Ints], Iterable[PlacedFile]]


class PageCheck:
    """Reads pages of one table's files until the share is reached over all calls."""

    def __init__(
        self,
        storage: Storage,
        rules: PageRules,
        random: Random,
        counts: PageCounts,
        progress: Callable[[str], None],
    ) -> None:
        self._counts = counts
        self._storage = storage
        self._rules = rules
        self._random = random
        self._progress = progress
        # Bytes of the files that were read or could not be read.
        self._tried_bytes = 0

    def run(self, sizes: Ints, files_at: FilesAt) -> Iterator[Finding]:
        """Findings about pages of more files, of these sizes in bytes.

        `files_at` returns the files at some places, without files that are known to be missing.
        """
        self._counts.size_bytes += int(sizes.sum())
        order = np.arange(len(sizes))
        if self._rules.share < 1:
            order = np.array(self._random.sample(range(len(sizes)), len(sizes)), np.int64)
        while len(order):
            wanted = self._rules.share * self._counts.size_bytes - self._tried_bytes
            if wanted <= 0:
                return
            count = int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1
            count = min(count, AT_ONCE)
            chunk, order = np.sort(order[:count]), order[count:]
            yield from self.read(files_at(chunk))

    def read(self, files: Iterable[PlacedFile]) -> Iterator[Finding]:
        """Findings about pages of these files; at least one row group of each is read."""
        found_files = list(files)
        results = map_concurrently(self._storage, attempted(self._read), found_files, on_disks=True)
        for each, found in zip(found_files, results, strict=True):
            size = each.file.file_size
            match found:
                case PagesRead(groups, part, left_out):
                    read_bytes = size if part == 1 else int(size * part)
                    self._tried_bytes += read_bytes
                    self._counts.read_bytes += read_bytes
                    self._counts.groups += groups
                    self._counts.files += 1
                    if left_out:
                        why = f"columns {', '.join(left_out)}: of another schema or type"
                        self._counts.unread[why] += 1
                case str():
                    self._counts.unread[found] += 1
                case UnsupportedTable(reasons=reasons):
                    self._counts.unread["; ".join(reasons)] += 1
                case FileNotSupported(message=message):
                    self._counts.unread[message] += 1
                case CompactordError():
                    self._tried_bytes += size
                    missing, damaged = FindingKind.DATA_FILE_MISSING, FindingKind.DATA_FILE_DAMAGED
                    yield read_finding(each.path, found, missing=missing, damaged=damaged)
            self._progress(
                f"pages of {self._counts.files:,} files, {self._counts.share:.1%} of the bytes"
            )

    def _read(self, file: PlacedFile) -> PagesRead | str:
        return self._rules.read(file, self._rules.share, self._random)


Place: TypeAlias = Callable[[Iterable[ManifestEntry]], Iterable[PlacedFile]]


class ContentCheck:
    """Reads the contents of one table's files, each once.

    `index_paths` has the paths of index files by their names. Files of the earlier check `before`
    are not read again, except those at `suspects`.
    """

    def __init__(
        self,
        storage: Storage,
        rules: FileRules,
        counts: FileCounts,
        progress: Callable[[str], None],
        *,
        index_paths: Mapping[str, str] = MappingProxyType({}),
        before: ContentCheck | None = None,
        suspects: Collection[str] = (),
    ) -> None:
        self._storage = storage
        self._rules = rules
        self._counts = counts
        self._progress = progress
        self._index_paths = index_paths
        self._suspects = suspects
        # Hashes of live files; `_read_parts` has paths of changelog files and places of vectors.
        self._read = np.zeros(0, np.uint64)
        self._before = self._read if before is None else before._read
        self._read_parts: set[object] = set() if before is None else set(before._read_parts)
        self._pages: PageCheck | None = None
        if rules.pages is not None:
            self._pages = PageCheck(storage, rules.pages, rules.random, counts.pages, progress)

    def changes(self, files: Sequence[PlacedFile]) -> Iterator[Finding]:
        """Findings about pages of files that streaming readers need."""
        if self._pages is None:
            return
        new = [each for each in files if each.path not in self._read_parts]
        again = [each for each in files if each.path in self._read_parts & set(self._suspects)]
        self._read_parts.update(each.path for each in new)
        sizes = np.fromiter((each.file.file_size for each in new), np.int64, len(new))
        yield from self._pages.run(sizes, lambda places: [new[place] for place in places.tolist()])
        yield from self._pages.read(again)

    def vectors(self, of_live: Sequence[tuple[VectorRef, int]]) -> Iterator[Finding]:
        """Findings about deletion vectors. Reads the same share as of pages."""
        if self._rules.pages is None:
            return
        picked: list[tuple[VectorRef, int]] = []
        share = self._rules.pages.share
        for ref, rows in of_live:
            path = self._index_paths.get(ref.path.rpartition("/")[2])
            part = path, ref.offset
            is_new = part not in self._read_parts or path in self._suspects
            self._read_parts.add(part)
            if path is not None and is_new and self._rules.random.random() < share:
                picked.append((replace(ref, path=path), rows))

        def read(each: tuple[VectorRef, int]) -> None:
            read_deleted_rows(self._storage, *each)

        results = map_concurrently(self._storage, attempted(read), picked)
        for (ref, _), found in zip(picked, results, strict=True):
            self._counts.pages.vectors += found is None
            if found is not None:
                missing, damaged = FindingKind.INDEX_FILE_MISSING, FindingKind.INDEX_FILE_DAMAGED
                yield read_finding(ref.path, found, missing=missing, damaged=damaged)

    def files(self, base: BaseFiles, rows: Ints, place: Place) -> Iterator[Finding]:
        """Findings about the contents of files that were not read before, and of suspects."""
        hashes = base.columns.identity_hash[rows]
        self._read = np.union1d(self._read, hashes)
        was_read = np.isin(hashes, self._before)
        known = rows[was_read] if self._suspects else rows[:0]
        again = [
            each
            for entries in entries_of(base, known)
            for each in place(entries)
            if each.path in self._suspects
        ]
        rows = rows[~was_read]
        yield from self._footers(base, rows, place, again)
        if self._pages is not None:

            def files_at(places: Ints) -> Iterator[PlacedFile]:
                for entries in entries_of(base, rows[places]):
                    yield from place(entries)

            yield from self._pages.run(base.columns.file_size[rows], files_at)
            yield from self._pages.read(again)

    def _footers(
        self, base: BaseFiles, rows: Ints, place: Place, again: Sequence[PlacedFile]
    ) -> Iterator[Finding]:
        sample = self._rules.sample
        if sample is not None and sample < len(rows):
            rows = np.array(sorted(self._rules.random.sample(rows.tolist(), sample)), np.int64)
        for part in (*map(place, entries_of(base, rows)), again if sample != 0 else ()):
            files = list(part)
            results = map_concurrently(self._storage, attempted(self._read_footer), files)
            for each, found in zip(files, results, strict=True):
                if isinstance(found, FileNotSupported):
                    self._counts.unread[found.message] += 1
                elif isinstance(found, CompactordError):
                    missing, damaged = FindingKind.DATA_FILE_MISSING, FindingKind.DATA_FILE_DAMAGED
                    yield read_finding(each.path, found, missing=missing, damaged=damaged)
                elif not found:
                    why = f"there is no reader for format {_format_of(each.file)}"
                    self._counts.unread[why] += 1
                else:
                    self._counts.footers += 1
                self._progress(f"footers of {self._counts.footers:,} of {len(rows):,} files")

    def _read_footer(self, each: PlacedFile) -> bool:
        return self._rules.read_footer(each.path, each.file)


def _format_of(file: DataFile) -> str:
    try:
        return paths.format_of(file.file_name)
    except FormatError:
        return "unknown"


def entries_of(base: BaseFiles, rows: Ints) -> Iterator[list[ManifestEntry]]:
    """The files of these rows as objects, in parts that fit into memory."""
    for start in range(0, len(rows), AT_ONCE):
        yield base.entries(rows[start : start + AT_ONCE])
