"""Concatenating files without decoding them, where their format can: bytes stay as they are stored.

Most of an append table's compaction would be spent on decoding and encoding the same values. What
can be copied, and what is decoded all the same, is the format's matter (`formats.base.Copier`).

Inputs are held whole, one row group's worth being copied and one being fetched; so only
subcompactions of small files come here (`is_worthwhile`), and rows end up in the same order as by
encoding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compactord.formats.base import Copier, InputProfile
from compactord.model import ConcatSpec, InputFile, Subcompaction
from compactord.rewrite.ahead import Decoding, Encoding
from compactord.rewrite.outputs import OutputSeries
from compactord.rewrite.reader import ReadCounts

# A row group's inputs, twice over (one being fetched), and what is decoded and encoded of them.
_MEMORY_SHARE = 8
_MAX_GROUP_ROWS = 1 << 20
# Smaller pages would stay small for good; that a page is this large is told by whole files.
_MIN_COLUMN_BYTES = 16 << 10
# Files end where an input ends: with larger ones they would miss their target by much.
_TARGET_SHARE = 4
_MIN_PLAIN_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Rows and stored bytes of the inputs of one row group."""

    rows: int
    size_bytes: int


def group_limits(memory_bytes: int, row_bytes: float) -> GroupLimits:
    """What may be held at once; `row_bytes` is a decoded row."""
    share = memory_bytes // _MEMORY_SHARE
    return GroupLimits(
        rows=max(1, min(_MAX_GROUP_ROWS, int(share / max(1.0, row_bytes)))), size_bytes=share
    )


def _limits(subcompaction: Subcompaction, facts: InputProfile) -> GroupLimits:
    limits = group_limits(subcompaction.memory_bytes, facts.row_bytes)
    # The option's own limit, in bytes before compression, is kept by what is stored.
    return replace(limits, size_bytes=min(limits.size_bytes, subcompaction.write.row_group_bytes))


def is_worthwhile(subcompaction: Subcompaction, source: ConcatSpec, facts: InputProfile) -> bool:
    """Whether to copy the subcompaction: files that fit, with bytes that are worth keeping."""
    files, limits = source.files, _limits(subcompaction, facts)
    largest = max(file.size_bytes for file in files)
    return (
        subcompaction.write.keeps_encoding
        and facts.plain_share >= _MIN_PLAIN_SHARE
        and min(file.row_count for file in files) > 0
        and max(file.row_count for file in files) <= limits.rows
        and largest <= limits.size_bytes
        and largest * _TARGET_SHARE <= subcompaction.write.target_file_size
        and sum(f.size_bytes for f in files) >= len(files) * facts.columns * _MIN_COLUMN_BYTES
    )


Group = list[InputFile]


def packed(files: Sequence[InputFile], target: int, limits: GroupLimits) -> list[list[Group]]:
    """For each output its row groups, for each of these its inputs, in order.

    An output ends where it is nearest to its target.
    """
    outputs: list[list[Group]] = []
    written = group_bytes = group_rows = 0
    for file in files:
        if not outputs or 2 * (target - written) < file.size_bytes:
            outputs.append([])
            written = 0
        groups = outputs[-1]
        if (
            not groups
            or group_bytes + file.size_bytes > limits.size_bytes
            or group_rows + file.row_count > limits.rows
        ):
            groups.append([])
            group_bytes = group_rows = 0
        groups[-1].append(file)
        written += file.size_bytes
        group_bytes += file.size_bytes
        group_rows += file.row_count
    return outputs


def copy_files(
    subcompaction: Subcompaction,
    facts: InputProfile,
    copier: Copier,
    *,
    counts: ReadCounts,
    outputs: OutputSeries,
    decoding: Decoding,
    encoding: Encoding,
) -> None:
    """Concatenate the inputs of a subcompaction that `is_worthwhile`.

    Raises `FormatError` for inputs that are not what the manifests say or whose bytes changed,
    `StorageError`.
    """
    planned = packed(
        subcompaction.source.files,
        subcompaction.write.target_file_size,
        _limits(subcompaction, facts),
    )

    def fetched() -> Generator[list[Any], None, None]:
        for groups in planned:
            for group in groups:
                files = []
                for file in group:
                    files.append(copier.fetch(file))
                    counts.add(file)
                yield files

    with contextlib.closing(decoding.ahead(fetched())) as fetching:
        for groups in planned:
            output = outputs.open(copier.open)
            for _ in groups:
                # Before the next ones are asked for: two groups are in memory, not three.
                encoding.wait()
                encoding.submit(partial(output.copy, next(fetching)))
            encoding.wait()
            outputs.close()
