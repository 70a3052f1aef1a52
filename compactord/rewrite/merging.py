"""Merges the inputs of a subcompaction, with rows looked up in higher levels.

A section with more runs than can be open at once is merged in several passes: neighbouring runs are
merged into temporary local files, which are the runs of the next pass. These files hold every
record if the merge function cannot merge its own results again. Only neighbours are merged, because
the order of runs decides between equal sequence numbers. That order also decides full ties between
records of different passes (Java's result there depends on the whole set of runs).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from compactord.errors import FormatError, SubcompactionError
from compactord.formats.base import Copier
from compactord.kernels.columns import (
    VALUE_KIND,
    Int64s,
    drop_retracts,
    gather,
    is_retract,
    key_text,
)
from compactord.kernels.functions.base import EVERY_RECORD, MergeFunction
from compactord.kernels.keys import BatchKeys, Found
from compactord.kernels.lookup import Find, MergedKeys, changelog_rows
from compactord.kernels.merge import LEVEL, Levels, merge_runs
from compactord.kernels.order import MergeOrder
from compactord.model import CHANGELOG, DATA, MergeSpec
from compactord.paimon.types import FLOATS, AtomicType
from compactord.rewrite.budget import Budget
from compactord.rewrite.pipeline import Decoding
from compactord.rewrite.reader import Input, InputFinder, Section, Sections
from compactord.rewrite.stretches import CopyLimits, Groups, StoredGroup, Stretch, stretches
from compactord.storage.local import named_errors

Rows: TypeAlias = Generator[pa.RecordBatch, None, None]
# Rows to write, decoded or to be copied, with the kind of their files.
Emitted: TypeAlias = Generator[tuple[str, pa.RecordBatch | StoredGroup], None, None]
Run: TypeAlias = Callable[[], Rows]
_NAMED_FILES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """How row groups are copied, and which."""

    copier: Copier
    limits: CopyLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """How runs are merged. `keys_repeat`: runs may have several records of a key."""

    order: MergeOrder
    function: MergeFunction
    keys_repeat: bool = False


def merged_rows(
    source: MergeSpec,
    sections: Sections,
    function: MergeFunction,
    decoding: Decoding,
    *,
    budgets: Sequence[Budget],
    find: Find | None = None,
    copies: Copies | None = None,
) -> Emitted:
    """Yield the rows to write, section by section; `budgets` has one item per section.

    `find` looks up rows of higher levels for records of level 0. With `copies`, row groups are
    copied where possible.

    Raises `SubcompactionError` with the merged files for values that the table's rules forbid, or
    that a column cannot hold.
    """
    for section, sizes in zip(sections, budgets, strict=True):
        try:
            parts: Sequence[Stretch] = [section]
            if copies is not None:
                may_tie = not _are_disjoint(_by_sequence(section))
                parts = stretches(section, copies.limits, may_tie=may_tie)
            for part in parts:
                if isinstance(part, Groups):
                    assert copies is not None, "only a copier gives groups"
                    yield from _stored(part, copies.copier, decoding)
                else:
                    yield from _section_rows(
                        source, part, function, decoding, sizes=sizes, find=find
                    )
        except SubcompactionError as error:
            names = [posixpath.basename(each.file.path) for run in section for each in run]
            others = f" and {len(names) - _NAMED_FILES} more" if len(names) > _NAMED_FILES else ""
            named = f"{', '.join(names[:_NAMED_FILES])}{others}"
            raise SubcompactionError(f"{error} (merging {named})") from error


def _stored(groups: Groups, copier: Copier, decoding: Decoding) -> Emitted:
    fetched = (group.fetched(copier) for group in groups)
    with contextlib.closing(decoding.ahead(fetched)) as found:
        for each in found:
            yield DATA, each


def _section_rows(
    source: MergeSpec,
    section: Section,
    function: MergeFunction,
    decoding: Decoding,
    *,
    sizes: Budget,
    find: Find | None,
) -> Emitted:
    ignore_delete = source.ignore_delete and function.ignores_deletes
    ordered, order = _ordered(section, source, ignore_delete=ignore_delete)
    levels = _levels(source, find)
    keeps_levels = levels is not None
    runs = [_file_run(run, decoding, sizes, keeps_levels=keeps_levels) for run in ordered]
    # More would not be in memory at once.
    for run in ordered[: sizes.fan_in]:
        run[0].expect()
    last = _Pass(order=order, function=function)
    # A result of some records does not contain the earlier state of its key.
    merges_again = function.merges_again and not keeps_levels
    with contextlib.ExitStack() as stack:
        if len(runs) > sizes.fan_in:
            if ignore_delete and not source.drop_deletes and merges_again:
                # A key's only retract is kept, two are dropped: equal after a partial merge.
                raise SubcompactionError(
                    f"{len(runs)} runs with ignore-delete cannot be merged {sizes.fan_in} at"
                    " a time: raise --memory (spark.task_memory)"
                )
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="compactord-"))
            if merges_again:
                runs = _fewer_runs(runs, last, sizes, folder)
            else:
                runs = _fewer_runs(runs, _every_record(order), sizes, folder)
                last = replace(last, keys_repeat=True)
        with contextlib.closing(_merge(runs, last, sizes, levels=levels)) as merged:
            for keys in merged:
                kept = _kept(keys.rows, source)
                if not source.keeps_inputs:
                    yield DATA, kept
                if source.changelog is not None:
                    for batch in changelog_rows(keys, source.changelog.rule):
                        yield CHANGELOG, batch


def _levels(source: MergeSpec, find: Find | None) -> Levels | None:
    if source.looks_up:
        return Levels(looks_up=True, find=find)
    return Levels(before=source.changelog.before_level) if source.changelog else None


def _kept(batch: pa.RecordBatch, source: MergeSpec) -> pa.RecordBatch:
    """The rows to write of the results of a merge. Raises as `_refuse_nulls`."""
    rows = drop_retracts(batch) if source.drop_deletes else batch
    _refuse_nulls(rows, source.key_columns)
    return rows


def _refuse_nulls(rows: pa.RecordBatch, key_columns: Sequence[str]) -> None:
    """Raises `SubcompactionError` for a null in a NOT NULL column.

    A rule may have put it there, or a file that was written before the column was NOT NULL.
    """
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not field.nullable and column.null_count:
            place = column.is_null().index(True).as_py()
            key = key_text({name: rows.column(name)[place] for name in key_columns})
            raise SubcompactionError(
                f"key {key}, column {field.name}: the merged row has null in a NOT NULL column"
            )


def _every_record(order: MergeOrder) -> _Pass:
    """A pass that keeps every record; only the last pass ignores deletes."""
    kept = replace(order, ignore_delete=False)
    return _Pass(order=kept, function=EVERY_RECORD, keys_repeat=True)


def _ordered(
    section: Section, source: MergeSpec, *, ignore_delete: bool
) -> tuple[Section, MergeOrder]:
    """The runs in the order to merge, and the cheapest merge order with the same result.

    If the ranges of sequence numbers of all runs are disjoint, the runs are sorted by them: then
    the later run wins and no sequence number is compared.
    """

    by_sequence = _by_sequence(section)
    disjoint = not source.sequence_fields and _are_disjoint(by_sequence)
    order = MergeOrder(
        key_columns=source.key_columns,
        sequence_fields=source.sequence_fields,
        sequence_descending=source.sequence_descending,
        disjoint_sequences=disjoint,
        ignore_delete=ignore_delete,
    )
    return (by_sequence if disjoint else section), order


def _by_sequence(section: Section) -> Section:
    return tuple(sorted(section, key=_first_sequence))


def _first_sequence(run: tuple[Input, ...]) -> int:
    return min(each.file.min_sequence_number for each in run)


def _are_disjoint(by_sequence: Section) -> bool:
    """Whether all sequence numbers of each run are below the next run's."""
    return all(
        max(each.file.max_sequence_number for each in lower) < _first_sequence(upper)
        for lower, upper in itertools.pairwise(by_sequence)
    )


def _file_run(
    inputs: tuple[Input, ...], decoding: Decoding, sizes: Budget, *, keeps_levels: bool
) -> Run:
    def read() -> Rows:
        for place, each in enumerate(inputs):
            for following in inputs[place + 1 : place + 2]:
                following.expect()
            for batch in each.batches(sizes.batch_rows, sizes.held_bytes):
                yield _with_level(batch, each.file.level) if keeps_levels else batch

    def run() -> Rows:
        # The first row of any run is read after this has run for all runs of the section.
        inputs[0].start(sizes.held_bytes)
        return decoding.ahead(read())

    return run


def _with_level(batch: pa.RecordBatch, level: int) -> pa.RecordBatch:
    levels = pa.array(np.full(batch.num_rows, level, np.int16))
    return batch.append_column(pa.field(LEVEL, pa.int16(), nullable=False), levels)


def _merge(
    runs: Sequence[Run], how: _Pass, sizes: Budget, *, levels: Levels | None = None
) -> Generator[MergedKeys, None, None]:
    opened = [run() for run in runs]
    try:
        yield from merge_runs(
            opened,
            how.order,
            how.function,
            window_rows=sizes.window_rows,
            window_bytes=sizes.window_bytes,
            keys_repeat=how.keys_repeat,
            levels=levels,
        )
    finally:
        for rows in opened:
            rows.close()


def _fewer_runs(runs: list[Run], how: _Pass, sizes: Budget, folder: str) -> list[Run]:
    """At most `fan_in` runs; some of them are temporary files in `folder`."""
    passes = 0
    while len(runs) > sizes.fan_in:
        groups = [runs[i : i + sizes.fan_in] for i in range(0, len(runs), sizes.fan_in)]
        runs = [
            _spilled(_merge(group, how, sizes), f"{folder}/{passes}-{number}")
            if len(group) > 1
            else group[0]
            for number, group in enumerate(groups)
        ]
        passes += 1
    return runs


def _spilled(merged: Iterator[MergedKeys], path: str) -> Run:
    """Write rows to a temporary file and return a run that reads them."""
    try:
        _write((keys.rows for keys in merged), path)
    except OSError:
        # Errors of the inputs have our types already; this converts errors of the temporary file.
        with named_errors(path, "writing temporary rows (in the folder of TMPDIR)"):
            raise
    return lambda: _unspilled(path)


def _write(rows: Iterator[pa.RecordBatch], path: str) -> None:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with contextlib.ExitStack() as stack:
        writer: pa.RecordBatchStreamWriter | None = None
        for batch in rows:
            if writer is None:
                sink = stack.enter_context(pa.OSFile(path, "wb"))
                writer = stack.enter_context(pa.ipc.new_stream(sink, batch.schema, options=options))
            writer.write_batch(batch)


def _unspilled(path: str) -> Rows:
    if not os.path.exists(path):
        return  # the merge of its runs had no rows
    with pa.OSFile(path, "rb") as stream, pa.ipc.open_stream(stream) as batches:
        yield from batches


class Lookup:
    """Finds rows in runs of files, which are sorted by level, lowest first.

    Java builds a sorted local file of each file above that it probes (mergetree/LookupLevels.java).
    Here whole windows of ascending keys are compared with the files, which are sorted by key as
    well.
    """

    def __init__(
        self,
        runs: Sequence[Sequence[Input]],
        batch_rows: int,
        held_bytes: int,
        *,
        expires: bool,
        ignores_deletes: bool,
        marks: bool = False,
        finds_values: bool = True,
    ) -> None:
        """With `expires`, expired rows are not found; with `ignores_deletes`, retracts neither.

        `marks` and `finds_values` as in `Input.finder`. Raises as `Input.batches`.
        """
        self._ignores_deletes = ignores_deletes
        self._finds_values = finds_values
        for each in (file for run in runs for file in run):
            each.stored.expect()
        opened = partial(
            Input.finder,
            batch_rows=batch_rows,
            held_bytes=held_bytes,
            expires=expires,
            marks=marks,
            finds_values=finds_values,
        )
        self._files: list[_File] = []
        for run in runs:
            files = [_File(each, opened) for each in run]
            _check_order(files)
            self._files += files

    def find(self, keys: pa.RecordBatch) -> Found:
        """The rows of these keys; each key's row comes from the lowest level that has one.

        Without `finds_values` there are no rows: files are only marked. Keys are distinct and
        ascending, above the keys of earlier calls. Raises as `InputFinder.find`.
        """
        left, wanted = np.arange(keys.num_rows), keys
        places: list[Int64s] = [left[:0]]
        parts: list[pa.RecordBatch] = []
        for file in self._files:
            if not len(left):
                break
            found = file.find(wanted)
            if self._ignores_deletes and found.rows:
                found = _without_retracts(found)
            if len(found.places):
                places.append(left[found.places])
                parts += found.rows
                left = np.delete(left, found.places)
                wanted = keys.take(pa.array(left))
        if not self._finds_values:
            return Found(places[0], [])
        of_files = np.concatenate(places)
        if not (np.diff(of_files) < 0).any():
            return Found(of_files, parts)
        order = np.argsort(of_files)
        return Found(of_files[order], list(gather(parts, order)))

    def close(self) -> None:
        """Close all files. Raises `FormatError` if the data already read turns out to be
        damaged.
        """
        with contextlib.ExitStack() as closing:
            for file in self._files:
                closing.callback(file.close)


def _without_retracts(found: Found) -> Found:
    kinds = [is_retract(batch.column(VALUE_KIND)) for batch in found.rows]
    return found.filtered(~np.concatenate(kinds))


class _File:
    """A file above, which is open while keys in its range are looked up.

    `first` and `last` are bounds of its first key column, or None if the file has no bounds.
    """

    def __init__(self, source: Input, opened: Callable[[Input], InputFinder]) -> None:
        self.source = source
        self.first: Any = None
        self.last: Any = None
        self._opened = opened
        self._finder: InputFinder | None = None
        column = source.first_key
        # Bounds of floats may exclude NaN.
        if not (isinstance(column.type, AtomicType) and column.type.root in FLOATS):
            bounds = [group.bounds for group in source.row_groups(column)]
            if bounds and bounds[0] is not None and bounds[-1] is not None:
                self.first, self.last = bounds[0][0], bounds[-1][1]

    def find(self, keys: pa.RecordBatch) -> Found:
        """As `InputFinder.find`, also without keys."""
        start, end = 0, keys.num_rows
        if self.last is not None:
            firsts = BatchKeys(keys, keys.schema.names[:1])
            start = firsts.count_below((self.first,))
            end = firsts.count_up_to((self.last,), start)
        found = Found(np.empty(0, np.int64), [])
        if start < end:
            self._finder = self._finder or self._opened(self.source)
            inside = self._finder.find(keys.slice(start, end - start))
            found = Found(inside.places + start, inside.rows)
        if end < keys.num_rows:
            # All keys to come are above it.
            self.close()
        return found

    def close(self) -> None:
        """End reading. Raises as `InputFinder.close`."""
        finder, self._finder = self._finder, None
        if finder is not None:
            finder.close()


def _check_order(run: Sequence[_File]) -> None:
    """Raise `FormatError` for a file whose keys, by its statistics, do not follow the file before.

    Files are selected by the key ranges in manifests, which assume this order.
    """
    for before, after in itertools.pairwise(run):
        if before.last is not None and after.last is not None and before.last > after.first:
            name = posixpath.basename(before.source.file.path)
            why = f"its first key is below the last key of {name}, the file before it on its level"
            raise FormatError(after.source.file.path, why)
