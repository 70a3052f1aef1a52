"""Reads pages of data files, all of them or a random share, and counts what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import TypeAlias

import numpy as np

from compactord.errors import CompactordError, FileNotSupported, UnsupportedTable
from compactord.maintenance.finding import Finding, FindingKind, attempted, read_finding
from compactord.maintenance.verify_rules import PageCounts, PageRules, PagesRead, PlacedFile
from compactord.paimon.avro.columns import Ints
from compactord.storage.base import Storage
from compactord.storage.calls import results_of

# Files that are in memory as objects at once.
AT_ONCE = 4096


FilesAt: TypeAlias = Callable[[Ints], Iterable[PlacedFile]]


class PageCheck:
    """Reads pages of the files of one table, so many that the share is reached over all calls."""

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
        # Of files that were read, or could not be.
        self._tried_bytes = 0

    def run(self, sizes: Ints, files_at: FilesAt) -> Iterator[Finding]:
        """What is wrong with pages of more files, of these sizes in bytes.

        `files_at` returns those at some places, without the ones that cannot be there.
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
        """What is wrong with pages of these files, of each of which some are read."""
        found_files = list(files)
        results = results_of(self._storage, attempted(self._read), found_files, on_disks=True)
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
