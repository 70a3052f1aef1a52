"""Concatenates files by copying their stored bytes, where the format supports it.

Without copying, the compaction of an append table would spend most of its time on decoding and
encoding the same values. The format decides what is copied and what is decoded nevertheless
(`formats.base.Copier`).

Whole inputs are in memory: those of the row group that is copied, and those of the next one. So
only subcompactions of small files are copied (`is_worthwhile`). The order of rows is the same as
with encoding.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from compactord.formats.base import Copier, InputProfile
from compactord.model import ConcatSpec, InputFile, Subcompaction
from compactord.rewrite.outputs import OutputSeries
from compactord.rewrite.pipeline import Decoding, Encoding
from compactord.rewrite.reader import Input, ReadCounts

# Inputs of two row groups (one is being fetched), and their decoded and encoded columns.
_MEMORY_SHARE = 8
_MAX_GROUP_ROWS = 1 << 20
# Bytes per column of a file on average. Pages of smaller files would stay small if copied.
_MIN_COLUMN_BYTES = 16 << 10
# An output ends where an input ends: large inputs would make its size miss the target.
_TARGET_SHARE = 4
_MIN_PLAIN_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """The most rows and stored bytes of the inputs of one row group."""

    rows: int
    size_bytes: int


def group_limits(memory_bytes: int, row_bytes: float) -> GroupLimits:
    """The limits that the memory allows; `row_bytes`: bytes of a decoded row."""
    share = memory_bytes // _MEMORY_SHARE
    return GroupLimits(
        rows=max(1, min(_MAX_GROUP_ROWS, int(share / max(1.0, row_bytes)))), size_bytes=share
    )


def _limits(subcompaction: Subcompaction, facts: InputProfile) -> GroupLimits:
    limits = group_limits(subcompaction.memory_bytes, facts.row_bytes)
    # Stored bytes are at most the bytes before compression, to which the option's limit applies.
    most = subcompaction.write.encoding.group_bytes
    return replace(limits, size_bytes=min(limits.size_bytes, most))


def is_worthwhile(subcompaction: Subcompaction, source: ConcatSpec, facts: InputProfile) -> bool:
    """Whether to copy: the files fit into the memory, and much of their bytes can be copied."""
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
    """The row groups of each output, and the inputs of each row group, in order.

    An output ends after the input at which its size is nearest to `target` bytes.
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
    inputs: Sequence[Input],
    facts: InputProfile,
    copier: Copier,
    *,
    counts: ReadCounts,
    outputs: OutputSeries,
    decoding: Decoding,
    encoding: Encoding,
) -> None:
    """Concatenate the inputs, those of a subcompaction that `is_worthwhile`.

    Raises `FormatError` for inputs that are damaged or do not match their manifests, and
    `StorageError`.
    """
    planned = packed(
        subcompaction.source.files,
        subcompaction.write.target_file_size,
        _limits(subcompaction, facts),
    )

    def fetched() -> Generator[list[Any], None, None]:
        in_order = iter(inputs)
        for group in itertools.chain.from_iterable(planned):
            files = copier.fetch([each.stored for each in itertools.islice(in_order, len(group))])
            for file in group:
                counts.add(file)
            yield files

    with contextlib.closing(decoding.ahead(fetched())) as fetching:
        for groups in planned:
            output = outputs.open(copier.open)
            for _ in groups:
                # Release it before the next group is fetched: two are in memory, not three.
                encoding.wait()
                encoding.submit(partial(output.copy, next(fetching)))
            encoding.wait()
            outputs.close()
