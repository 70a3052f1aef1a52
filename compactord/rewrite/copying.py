"""Concatenating files without decoding them: pages go into the new files as they are stored.

Most of an append table's compaction would be spent on decoding and encoding the same pages. A
column's pages are copied where that gives the chunk that encoding would: the column is not nested,
is stored in the output's types and codec, has checksums, which are verified, and no dictionary (a
chunk has one, so those of many files are encoded anew). Statistics are those of the inputs'
footers; floats are decoded for theirs.

Inputs are held whole, one row group's worth being copied and one being fetched; so only parts of
small files come here (`is_worthwhile`), and rows end up in the same order as by encoding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.layout import Layout
from compactord.formats.opening import check_rows, reading
from compactord.formats.parquet.assembly import AssembledOutput, EncodedChunk
from compactord.formats.parquet.chunks import FlatColumn, StoredFile, copied_chunk
from compactord.formats.parquet.conversion import converted
from compactord.formats.parquet.encoder import Encoder
from compactord.formats.parquet.footer import InputProfile
from compactord.formats.parquet.leaves import leaf_count
from compactord.formats.parquet.reader import NAME, InputReader, WholeFile, check_indices
from compactord.model import ConcatSpec, InputFile, Subcompaction, WriteSpec
from compactord.paimon.types import AtomicType
from compactord.rewrite.ahead import Decoding, Encoding
from compactord.rewrite.description import FileFacts
from compactord.rewrite.outputs import Outputs

# A row group's inputs, twice over (one being fetched), and what is decoded and encoded of them.
_MEMORY_SHARE = 8
_MAX_GROUP_ROWS = 1 << 20
# Smaller pages would stay small for good; that a page is this large is told by whole files.
_MIN_COLUMN_BYTES = 16 << 10
# Files end where an input ends: with larger ones they would miss their target by much.
_TARGET_SHARE = 4
_MIN_PLAIN_SHARE = 0.5
_BATCH_ROWS = 64 << 10


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


def _limits(part: Subcompaction, facts: InputProfile) -> GroupLimits:
    limits = group_limits(part.memory_bytes, facts.row_bytes)
    # The option's own limit, in bytes before compression, is kept by what is stored.
    return replace(limits, size_bytes=min(limits.size_bytes, part.write.row_group_bytes))


def is_worthwhile(part: Subcompaction, source: ConcatSpec, facts: InputProfile) -> bool:
    """Whether to copy the part: files that fit, with pages that are worth keeping."""
    files, limits = source.files, _limits(part, facts)
    largest = max(file.size_bytes for file in files)
    return (
        part.write.keeps_encoding
        and facts.plain_share >= _MIN_PLAIN_SHARE
        and min(file.row_count for file in files) > 0
        and max(file.row_count for file in files) <= limits.rows
        and largest <= limits.size_bytes
        and largest * _TARGET_SHARE <= part.write.target_file_size
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
    part: Subcompaction,
    source: ConcatSpec,
    layout: Layout,
    reader: InputReader,
    facts: InputProfile,
    *,
    encoder: Encoder,
    outputs: Outputs,
    decoding: Decoding,
    encoding: Encoding,
) -> None:
    """Concatenate the inputs of a part that `is_worthwhile`.

    Raises `FormatError` for inputs that are not what the manifests say or whose bytes changed,
    `StorageError`.
    """
    spec = part.write
    planned = packed(source.files, spec.target_file_size, _limits(part, facts))
    copier = _Copier(layout, spec, encoder)

    def fetched() -> Generator[list[WholeFile], None, None]:
        for groups in planned:
            for group in groups:
                yield [reader.whole(file) for file in group]

    with contextlib.closing(decoding.ahead(fetched())) as fetching:
        for groups in planned:
            output = outputs.open(encoder.template)
            for _ in groups:
                # Before the next ones are asked for: two groups are in memory, not three.
                encoding.wait()
                encoding.submit(partial(copier.copy, next(fetching), output, outputs.facts))
            encoding.wait()
            outputs.close()


class _Copier:
    """Makes row groups of one layout."""

    def __init__(self, layout: Layout, spec: WriteSpec, encoder: Encoder) -> None:
        self._layout = layout
        self._spec = spec
        self._encoder = encoder
        self._names = [field.name for field, _ in layout.file_columns]
        self._columns = _flat_columns(layout, encoder.schema)

    def copy(self, files: Sequence[WholeFile], output: AssembledOutput, facts: FileFacts) -> None:
        """One row group out of all rows of `files`."""
        rows = sum(file.input.row_count for file in files)
        stored = [StoredFile(file) for file in files]
        copied = {
            name: chunk
            for name, column in self._columns.items()
            if (chunk := copied_chunk(stored, column, self._spec))
        }
        fresh = [name for name in self._names if name not in copied]
        seen = [name for name in copied if self._columns[name].is_float]
        decoded = self._decoded(files, [*fresh, *seen])
        encoded = self._encoder.chunks(decoded.select(fresh))
        chunks: list[EncodedChunk] = []
        for name in self._names:
            chunks += [copied[name]] if name in copied else encoded[name]
        output.write_group(chunks, rows)
        facts.add_group(decoded, rows)

    def _decoded(self, files: Sequence[WholeFile], names: Sequence[str]) -> pa.Table:
        schema = pa.schema([self._layout.row_schema.field(name) for name in names])
        batches = [batch for file in files for batch in _batches(file, schema)] if names else []
        return pa.Table.from_batches(batches, schema).unify_dictionaries()


def _flat_columns(layout: Layout, schema: pq.ParquetSchema) -> dict[str, FlatColumn]:
    """The columns that are not nested, as our files have them."""
    found, leaf = {}, 0
    for field, _ in layout.file_columns:
        if isinstance(field.type, AtomicType):
            found[field.name] = FlatColumn(field.name, field.type, schema.column(leaf))
        leaf += leaf_count(field)
    return found


def _batches(file: WholeFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    path, rows = file.input.path, 0
    dictionaries = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    with reading(path, NAME):
        for batch in file.parquet.iter_batches(
            batch_size=_BATCH_ROWS, columns=schema.names, use_threads=False
        ):
            rows += batch.num_rows
            check_indices(batch, dictionaries, path)
            yield converted(batch, schema, path)
    check_rows(file.input, rows)
