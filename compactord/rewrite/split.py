"""Cuts the keys of a large merge into ranges, so that several subcompactions share it evenly.

A key that is one number is cut by the bounds of row groups, if files have them: rows are assumed to
be distributed evenly between the bounds. Every other key is cut at quantiles of the keys, which are
read from the largest run of each section. Keys are unique in a run, so this also works if the first
key column has few distinct values.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactord.formats.layout import Layout, cell, nanos_per_unit
from compactord.formats.registry import FORMATS, Formats
from compactord.model import KeyRange, MergeSpec
from compactord.paimon.binary_row import encode_row
from compactord.paimon.types import INTEGERS, MOMENTS, AtomicType, DataField, TypeRoot, value_schema
from compactord.rewrite.reader import Input, InputReader, Sections
from compactord.storage.base import Storage

_NUMBERS = INTEGERS | MOMENTS | {TypeRoot.DATE, TypeRoot.TIME}
# The approximate number of keys that are sampled from a run.
_SAMPLE_ROWS = 1 << 16
_BATCH_ROWS = 1 << 16
# Files whose footers are fetched at once.
_EXPECTED_FILES = 16


def cut_ranges(
    source: MergeSpec,
    count: int,
    fields: Sequence[DataField],
    storage: Storage,
    *,
    older: Sequence[tuple[DataField, ...]] = (),
    formats: Formats = FORMATS,
) -> tuple[KeyRange, ...]:
    """At most `count` ranges that cover all keys without overlap, in key order.

    `fields` are the table's columns, `older` the columns of older schemas (as in `Subcompaction`).
    Returns fewer ranges if there are too few keys. Reads the footers of all inputs, or the key
    columns of one run per section; reads no file if `count` is 1.
    """
    if count <= 1:
        return (KeyRange(),)
    by_name = {field.name: field for field in fields}
    keys = tuple(by_name[name] for name in source.key_columns)
    layout = Layout(row_fields=keys, key_fields=keys)
    # Keys keep their type: no time zone is needed to read them.
    reader = InputReader(storage, layout, formats=formats, older=older)
    with contextlib.closing(reader):
        sections = reader.opened(_with_deleted_rows(source))
        groups = _number_groups(sections, keys[0]) if _is_number(keys) else None
        bounds = groups.cut(count) if groups is not None else _cut_by_keys(sections, keys, count)
    edges = [None, *bounds, None]
    return tuple(KeyRange(lower=lower, upper=upper) for lower, upper in itertools.pairwise(edges))


def _with_deleted_rows(source: MergeSpec) -> MergeSpec:
    """The files without their vectors: the workers will read deleted rows as well."""
    sections = tuple(
        tuple(tuple(replace(file, vector=None) for file in run) for run in section)
        for section in source.sections
    )
    return replace(source, sections=sections)


def _is_number(keys: tuple[DataField, ...]) -> bool:
    return len(keys) == 1 and isinstance(keys[0].type, AtomicType) and keys[0].type.root in _NUMBERS


class _NumberGroups:
    """Bounds and rows of all row groups, for a key that is one number."""

    def __init__(self, groups: Sequence[tuple[int, int, int]], type_: AtomicType) -> None:
        self._low, self._high, self._rows = (
            np.array(column, np.float64) for column in zip(*groups, strict=True)
        )
        self._first = min(group[0] for group in groups)
        self._last = max(group[1] for group in groups)
        self._type = type_

    def cut(self, count: int) -> list[bytes]:
        total = float(self._rows.sum())
        cuts = [self._quantile(part / count * total) for part in range(1, count)]
        # A cut at the first key would make an empty range.
        distinct = sorted(set(cuts) - {self._first})
        unit = nanos_per_unit(self._type) if self._type.root in MOMENTS else 1
        return [encode_row([cut * unit], [self._type]) for cut in distinct]

    def _quantile(self, rows: float) -> int:
        """The smallest key with at least `rows` rows below it."""
        low, high = self._first, self._last
        while low < high:
            middle = (low + high) // 2
            if self._rows_below(middle) >= rows:
                high = middle
            else:
                low = middle + 1
        return low

    def _rows_below(self, key: int) -> float:
        width = self._high - self._low + 1
        return float((self._rows * np.clip((key - self._low) / width, 0, 1)).sum())


def _number_groups(sections: Sections, key: DataField) -> _NumberGroups | None:
    """Bounds and rows of all row groups, or None if one has no bounds."""
    assert isinstance(key.type, AtomicType), "numbers are atomic"
    groups: list[tuple[int, int, int]] = []
    inputs = [each for section in sections for run in section for each in run]
    for place, each in enumerate(inputs):
        _expect(inputs[place : place + _EXPECTED_FILES])
        for group in each.row_groups(key):
            if group.bounds is None:
                return None
            groups.append((*group.bounds, group.rows))
    if not groups:
        return None
    return _NumberGroups(groups, key.type)


def _expect(inputs: Sequence[Input]) -> None:
    for each in inputs:
        each.stored.expect()


def _cut_by_keys(sections: Sections, fields: Sequence[DataField], count: int) -> list[bytes]:
    samples: list[pa.RecordBatch] = []
    weights: list[npt.NDArray[np.float64]] = []
    for section in sections:
        run = max(section, key=_row_count)
        _expect(run[:_EXPECTED_FILES])
        sample = _sample(run)
        samples += sample
        sampled = sum(batch.num_rows for batch in sample)
        rows = sum(_row_count(other) for other in section)
        weights.append(np.full(sampled, rows / max(1, sampled)))
    keys = pa.Table.from_batches(samples, schema=value_schema(fields))
    below = np.cumsum(np.concatenate(weights))
    shares = np.arange(1, count) / count
    rows_at = np.searchsorted(below, shares * below[-1], side="right")
    distinct = sorted(set(np.minimum(rows_at, keys.num_rows - 1).tolist()) - {0})
    return [
        encode_row(
            [cell(keys.column(field.name), row, field.type) for field in fields],
            [field.type for field in fields],
        )
        for row in distinct
    ]


def _row_count(run: Sequence[Input]) -> int:
    return sum(each.file.row_count for each in run)


def _sample(run: Sequence[Input]) -> list[pa.RecordBatch]:
    """Keys of a run at even distances, about `_SAMPLE_ROWS` of them."""
    step = max(1, _row_count(run) // _SAMPLE_ROWS)
    kept = []
    passed = 0
    for each in run:
        for batch in each.batches(_BATCH_ROWS):
            rows = np.arange(-passed % step, batch.num_rows, step)
            kept.append(batch.take(pa.array(rows, pa.int64())))
            passed += batch.num_rows
    return kept
