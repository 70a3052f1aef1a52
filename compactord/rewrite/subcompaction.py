"""Runs one subcompaction from input files to output files, with its meter.

A failed subcompaction leaves no files: its outputs have unique names, and all of them are removed
after any error.
"""

from __future__ import annotations

import contextlib
import resource
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from compactord.clock import Clock, SystemClock
from compactord.errors import AccessDenied, ErrorAtPath, ErrorKind, StorageError, UnreadableColumn
from compactord.formats.base import Copier
from compactord.formats.layout import Layout, append_layout, keyed_layout, row_range
from compactord.formats.registry import FORMATS, Formats, format_named
from compactord.kernels.functions.base import MergeFunction, Needs
from compactord.kernels.functions.registry import (
    LAST_RECORD,
    MERGE_FUNCTIONS,
    MergeFunctions,
    function_named,
)
from compactord.model import (
    CHANGELOG,
    DATA,
    ConcatSpec,
    FailureKind,
    MergeSpec,
    RewriteStats,
    Subcompaction,
    SubcompactionFailure,
    SubcompactionOutcome,
    SubcompactionResult,
    WriteSpec,
    data_files,
)
from compactord.paimon.data_file import FileSource
from compactord.paimon.options.merge import NO_RULES
from compactord.paimon.types import VALUE_KIND
from compactord.rewrite.budget import Budget, Load, budget
from compactord.rewrite.merging import Copies, Emitted, Lookup, merged_rows
from compactord.rewrite.outputs import (
    AppendedFile,
    Describe,
    GroupSize,
    MergedFile,
    Outputs,
    OutputSeries,
    RollingWriter,
    copy_files,
    copy_limits,
    is_worthwhile,
)
from compactord.rewrite.pipeline import Decoding, Encoding, use_threads
from compactord.rewrite.reader import (
    Input,
    InputReader,
    Section,
    expiry,
    named,
    sample,
    with_others,
)
from compactord.rewrite.stretches import StoredGroup, keeps_lone_rows
from compactord.storage.base import Storage
from compactord.storage.ranges import read_twice
from compactord.storage.requests import RequestTally, reporting

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
_PEAK = "VmHWM:"


class Meter:
    """Processor time and peak memory of the process since this object was created.

    Subcompactions that run at the same time in one process are counted together.
    """

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        # A worker runs many subcompactions: reset the peak of earlier ones, if Linux allows it.
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")

    def cpu_s(self) -> float:
        """Processor seconds since the start, of all threads."""
        return time.process_time() - self._cpu_s

    def peak_rss_bytes(self) -> int:
        """Peak resident memory of the process, in bytes."""
        with contextlib.suppress(OSError):
            for line in _STATUS.read_text().splitlines():
                if line.startswith(_PEAK):
                    return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# Files of a concatenation that are fetched while one is read.
_EXPECTED_FILES = 4
# Parts of an output that an object store has in memory: one that fills, two that are sent.
_UPLOAD_BYTES = 24 << 20


def run_subcompaction(
    subcompaction: Subcompaction,
    *,
    threaded: bool | None = None,
    formats: Formats = FORMATS,
    functions: MergeFunctions = MERGE_FUNCTIONS,
    created: list[str] | None = None,
) -> SubcompactionOutcome:
    """Call `rewrite` and convert its exceptions to a `SubcompactionFailure`. The entry point of a
    worker.

    Files that appear damaged are read once more first: a bit may have flipped on its way from the
    store. Exceptions that end the process (KeyboardInterrupt, SystemExit) are raised after the
    subcompaction's files have been removed; if one comes when all is written, a caller that gave
    the list `created` finds the paths of the files there.
    """
    rewritten = partial(
        rewrite,
        subcompaction,
        threaded=threaded,
        formats=formats,
        functions=functions,
        created=created,
    )
    try:
        return read_twice(rewritten)
    except Exception as error:  # noqa: BLE001 - a worker always returns an outcome
        return SubcompactionFailure(
            compaction_id=subcompaction.compaction_id,
            index=subcompaction.index,
            kind=failure_kind(error),
            error=ErrorKind.of(error),
            message=str(error),
            path=error.path if isinstance(error, ErrorAtPath) else "",
            traceback=traceback.format_exc(),
            unreadable=named(error),
        )


def failure_kind(error: BaseException) -> FailureKind:
    """Whether another attempt may succeed.

    A missing input has expired meanwhile: a new plan will not name it. Our own errors other than a
    store's are caused by the inputs or the table, and unknown errors are defects.
    """
    if isinstance(error, AccessDenied):
        return FailureKind.POISON
    if isinstance(error, StorageError | OSError | MemoryError):
        return FailureKind.TRANSIENT
    return FailureKind.POISON


def rewrite(
    subcompaction: Subcompaction,
    *,
    clock: Clock | None = None,
    threaded: bool | None = None,
    formats: Formats = FORMATS,
    functions: MergeFunctions = MERGE_FUNCTIONS,
    created: list[str] | None = None,
) -> SubcompactionResult:
    """Merge or concatenate the subcompaction's inputs into new files; find the rows that they
    delete.

    With `threaded`, one thread decodes and one encodes; by default for large inputs. `budget`
    defines the use of memory. `formats` are the file formats that files may have, `functions` the
    merge functions that a subcompaction may name.

    Raises `FormatError` for inputs that do not match the manifests and the schema,
    `SubcompactionError` if its memory does not suffice, and `StorageError`. After an error every
    created file is removed. Paths are added to `created` before their files are created.
    """
    source = subcompaction.source
    if isinstance(source, MergeSpec) and source.keeps_inputs and source.changelog is None:
        subcompaction = _with_only_keys(subcompaction, source)
    clock = clock or SystemClock()
    meter, tally = Meter(), RequestTally()
    storage = reporting(subcompaction.storage.open(), tally.add)
    reader = _reader(subcompaction, storage, formats, clock)
    outputs = Outputs(
        storage=storage,
        unique_name=subcompaction.owner.unique_name(),
        clock=clock,
        created=created,
    )
    with contextlib.closing(reader):
        rewriting = _Rewriting(subcompaction, reader, functions)
        try:
            rewriting.write(outputs, threaded)
        except UnreadableColumn as error:
            raise with_others(error, rewriting.inputs) from error
    written = tuple(outputs.finished)
    return SubcompactionResult(
        compaction_id=subcompaction.compaction_id,
        index=subcompaction.index,
        outputs=written,
        stats=RewriteStats(
            input_records=reader.counts.rows,
            output_records=sum(file.row_count for file in data_files(written)),
            input_bytes=reader.counts.size_bytes + reader.found.size_bytes,
            output_bytes=sum(output.file.file_size for output in written),
            cpu_s=meter.cpu_s(),
            peak_rss_bytes=meter.peak_rss_bytes(),
            requests=tally.totals(),
        ),
        marks=reader.marks(),
    )


def _with_only_keys(whole: Subcompaction, source: MergeSpec) -> Subcompaction:
    """The same marks, from key columns only; the subcompaction writes no rows."""
    return replace(
        whole,
        fields=tuple(field for field in whole.fields if field.name in source.key_columns),
        source=replace(
            source,
            merge_engine=LAST_RECORD,
            rules=NO_RULES,
            sequence_fields=(),
            finds_values=False,
        ),
    )


def _kinds(
    subcompaction: Subcompaction, layout: Layout
) -> Iterator[tuple[str, WriteSpec, Describe]]:
    """The kinds of files that may be written, with their specification and description."""
    source, write = subcompaction.source, subcompaction.write
    if isinstance(source, ConcatSpec):
        yield DATA, write, AppendedFile(write, source)
        return
    if not source.keeps_inputs:
        yield DATA, write, MergedFile(write, layout, FileSource.COMPACT)
    if source.changelog is not None:
        # For readers a changelog is a file that a writer adds (io/KeyValueFileWriterFactory.java).
        write = source.changelog.write
        yield CHANGELOG, write, MergedFile(write, layout, FileSource.APPEND)


def _reader(
    subcompaction: Subcompaction, storage: Storage, formats: Formats, clock: Clock
) -> InputReader:
    fields, source = subcompaction.fields, subcompaction.source
    layout, bounds, expire = append_layout(fields, subcompaction.partition), None, None
    if isinstance(source, MergeSpec):
        layout = keyed_layout(fields, source.key_columns, thin=subcompaction.write.thin_mode)
        bounds = row_range(source.key_range, layout.key_fields)
        # Readers still see expired rows in files that stay; so the rows that they replace must be
        # marked.
        expire = None if source.keeps_inputs and source.marks else source.record_expire
    return InputReader(
        storage,
        layout,
        bounds,
        formats=formats,
        older=subcompaction.older_schemas,
        expiry=expiry(expire, clock.now_ms()),
        zone=subcompaction.zone,
    )


def _concatenated(inputs: Sequence[Input], decoding: Decoding, sizes: Budget) -> Emitted:
    def read() -> Emitted:
        for place, each in enumerate(inputs):
            for soon in inputs[place : place + _EXPECTED_FILES]:
                soon.expect()
            for batch in each.batches(sizes.batch_rows, sizes.held_bytes):
                yield DATA, batch

    with contextlib.closing(decoding.ahead(read())) as rows:
        yield from rows


class _Rewriting:
    """The opened inputs of a subcompaction, and their way to outputs."""

    def __init__(
        self, subcompaction: Subcompaction, reader: InputReader, functions: MergeFunctions
    ) -> None:
        self._subcompaction, self._reader, self._functions = subcompaction, reader, functions
        self._source, self._files = subcompaction.source, subcompaction.source.files
        self._sections = reader.opened(self._source)
        self.inputs = [each for section in self._sections for run in section for each in run]
        # The runs in which rows are looked up.
        runs = self._source.above if isinstance(self._source, MergeSpec) else ()
        self._above: Section = tuple(tuple(Input(reader, file) for file in run) for run in runs)
        self._found = [each for run in self._above for each in run]
        for each in sample(self._found):
            each.stored.expect()
        self._facts = reader.profile(self.inputs)
        reader.use(reader.layout.with_dictionaries(self._facts.dictionaries))

    def write(self, outputs: Outputs, threaded: bool | None) -> None:
        if threaded is None:
            threaded = use_threads(sum(file.size_bytes for file in self._files))
        with (
            Decoding(threaded=threaded) as decoding,
            outputs,
            Encoding(threaded=threaded) as encoding,
        ):
            layout = self._reader.layout
            series = {
                kind: outputs.series(kind, spec=spec, layout=layout, describe=describe)
                for kind, spec, describe in _kinds(self._subcompaction, layout)
            }
            copier = self._copier()
            if copier is not None and isinstance(self._source, ConcatSpec):
                copy_files(
                    self._subcompaction,
                    self.inputs,
                    self._facts,
                    copier,
                    counts=self._reader.counts,
                    outputs=series[DATA],
                    decoding=decoding,
                    encoding=encoding,
                )
                return
            budgets = self._budgets(decodes_ahead=threaded)
            writers = {
                kind: self._writer(each, budgets, encoding, copier) for kind, each in series.items()
            }
            with contextlib.closing(self._rows(decoding, budgets, copier)) as rows:
                for kind, batch in rows:
                    if isinstance(batch, StoredGroup):
                        writers[kind].copy(batch)
                    else:
                        writers[kind].write(batch)
            for writer in writers.values():
                writer.finish()

    def _copier(self) -> Copier | None:
        """The copier to use; None if rows have to be decoded and encoded again."""
        source, spec = self._source, self._subcompaction.write
        if isinstance(source, MergeSpec):
            if not (spec.keeps_encoding and keeps_lone_rows(source)):
                return None
        elif (
            not is_worthwhile(self._subcompaction, source, self._facts)
            or any(file.file_format != spec.file_format for file in self._files)
            or not all(each.is_unchanged for each in self.inputs)
        ):
            return None
        copier = format_named(spec.file_format, self._reader.formats).copier
        if copier is None:
            return None
        return copier(self._reader.layout, spec.encoding, self._dictionary_columns())

    def _rows(
        self, decoding: Decoding, budgets: Sequence[Budget], copier: Copier | None
    ) -> Emitted:
        source = self._source
        if not isinstance(source, MergeSpec):
            yield from _concatenated(self._sections[0][0], decoding, budgets[0])
            return
        function = self._function(source)
        ignores = source.ignore_delete and function.ignores_deletes
        found = Lookup(
            self._above,
            min(sizes.batch_rows for sizes in budgets),
            min(sizes.held_bytes for sizes in budgets),
            # An expired row still precedes later rows: a later one does not become the first.
            expires=function.needs is not Needs.FIRST,
            ignores_deletes=ignores,
            marks=source.marks,
            # If deletes are ignored, values are needed: keys do not show which records are deletes.
            finds_values=source.finds_values or ignores,
        )
        with contextlib.closing(found) as lookup:
            # A merge of higher levels changes no state.
            has_level_0 = any(file.level == 0 for file in source.files)
            find = lookup.find if source.looks_up and has_level_0 else None
            copies = None
            if copier is not None:
                limits = copy_limits(self._subcompaction, self._facts)
                copies = Copies(copier=copier, limits=limits)
            yield from merged_rows(
                source,
                self._sections,
                function,
                decoding,
                budgets=budgets,
                find=find,
                copies=copies,
            )

    def _function(self, source: MergeSpec) -> MergeFunction:
        return function_named(source.merge_engine, source.rules, self._functions)

    def _budgets(self, *, decodes_ahead: bool) -> tuple[Budget, ...]:
        """One per section; a concatenation is one section, with one file open at a time."""
        source, reader, found = self._source, self._reader, self._found
        inputs = [*self.inputs, *found]
        row_bytes = self._facts.row_bytes
        if found:
            row_bytes = max(row_bytes, reader.profile(found).row_bytes)
        largest_above = max((each.file.size_bytes for each in found), default=0)
        largest = max(inputs, key=lambda each: each.file.size_bytes)
        upload_bytes = 0
        if reader.storage.capabilities.behind_network:
            upload_bytes = min(_UPLOAD_BYTES, sum(file.size_bytes for file in self._files))
        all_sections = Load(
            runs=1,
            row_bytes=row_bytes,
            open_bytes=largest.stored.open_bytes(largest.layout),
            largest_file=largest_above,
            decodes_ahead=decodes_ahead,
            needs_all=isinstance(source, MergeSpec)
            and self._function(source).needs is not Needs.LAST,
            has_changelog=isinstance(source, MergeSpec) and source.changelog is not None,
            above=len(self._above),
            held_bytes=largest.stored.held_bytes(largest.layout),
            upload_bytes=upload_bytes,
            vector_rows=max(
                (each.file.row_count for each in inputs if each.file.vector is not None), default=0
            ),
        )
        memory_bytes = self._subcompaction.memory_bytes - reader.fetcher.kept_bytes
        return tuple(
            budget(
                memory_bytes,
                replace(
                    all_sections,
                    runs=len(section),
                    largest_file=max(
                        largest_above, *(each.file.size_bytes for run in section for each in run)
                    ),
                ),
            )
            for section in self._sections
        )

    def _writer(
        self,
        outputs: OutputSeries,
        budgets: Sequence[Budget],
        encoding: Encoding,
        copier: Copier | None,
    ) -> RollingWriter:
        files, layout, spec = self._files, self._reader.layout, outputs.spec
        return RollingWriter(
            outputs,
            size=GroupSize(
                rows=min(sizes.group_rows for sizes in budgets),
                size_bytes=min(sizes.group_bytes for sizes in budgets),
                bytes_per_row=sum(f.size_bytes for f in files)
                / max(1, sum(f.row_count for f in files)),
            ),
            writer=copier
            or format_named(spec.file_format, self._reader.formats).writer(
                layout, spec.encoding, self._dictionary_columns()
            ),
            encoding=encoding,
        )

    def _dictionary_columns(self) -> tuple[str, ...]:
        """Leaf columns of the output to encode with a dictionary: mostly dictionary-encoded in the
        inputs.
        """
        layout, paths = self._reader.layout, self._facts.dictionary_paths
        encoded = set(paths) | layout.dictionaries
        copies = [field.name for field, source in layout.file_columns if source in encoded]
        # Kinds have one or two values, so a dictionary is useful even if no input has one.
        kinds = [VALUE_KIND.name] if layout.key_fields else []
        return tuple(dict.fromkeys([*paths, *copies, *kinds]))
