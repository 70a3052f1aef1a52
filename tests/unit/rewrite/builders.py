"""Tables in Paimon's layout, and the subcompactions that rewrite them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.parquet import thrift
from compactord.formats.parquet.conversion import leaf_types
from compactord.formats.parquet.copying import footer_of
from compactord.formats.parquet.footer import restored, restored_meta, with_tail
from compactord.formats.parquet.int96 import convert, stored_field
from compactord.formats.parquet.options import ParquetEncoding, encoding_of
from compactord.formats.parquet.thrift import Chunk, File, Group, Kind
from compactord.ids import this_process
from compactord.model import (
    ConcatSpec,
    InputFile,
    KeyRange,
    MergeSpec,
    Subcompaction,
    SubcompactionResult,
    WriteSpec,
)
from compactord.paimon.data_file import parse_stats_mode
from compactord.paimon.deletion_vectors import (
    VERSION,
    VectorKind,
    VectorRef,
    encode_vector,
)
from compactord.paimon.options.merge import NO_RULES, MergeRules
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.types import (
    WIDE_TIMESTAMP,
    DataField,
    file_fields,
    file_schema,
    is_system_column,
    parse_type,
    value_schema,
)
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests.deletions import rows_deleted

# As a table without options has it.
USUAL = ParquetEncoding(
    compression="zstd",
    compression_level=1,
    group_bytes=128 << 20,
    page_bytes=1 << 20,
    dictionary=True,
)
Row = dict[str, Any]
SEQUENCE = "_SEQUENCE_NUMBER"
KIND = "_VALUE_KIND"


def fields(**types: Any) -> tuple[DataField, ...]:
    """Columns in their order with ids from 0; types as in Paimon's JSON."""
    return tuple(
        DataField(id=number, name=name, type=parse_type(type_))
        for number, (name, type_) in enumerate(types.items())
    )


def write_run(
    path: Path,
    columns: Sequence[DataField],
    key: Sequence[str],
    rows: Sequence[Row],
    *,
    thin: bool = False,
    **options: Any,
) -> InputFile:
    """A file of a primary-key table. Rows are sorted already; kind 0 and their place by default."""
    schema = file_schema(columns, key, thin=thin)
    filled = [
        {SEQUENCE: place, KIND: 0} | {f"_KEY_{name}": row[name] for name in key} | row
        for place, row in enumerate(rows)
    ]
    write_parquet(path, pa.Table.from_pylist(filled, schema=schema), **options)
    sequences = [row[SEQUENCE] for row in filled]
    return input_file(path, len(rows), min(sequences, default=0), max(sequences, default=0))


def write_append(path: Path, columns: Sequence[DataField], rows: Sequence[Row]) -> InputFile:
    write_parquet(path, pa.Table.from_pylist(list(rows), schema=value_schema(columns)))
    return input_file(path, len(rows), 0, len(rows) - 1)


def write_parquet(path: Path, table: pa.Table, **options: Any) -> None:
    settings = {
        "compression": "zstd",
        "store_schema": False,
        "store_decimal_as_integer": True,
        "write_time_adjusted_to_utc": True,
    }
    schema = pa.schema([stored_field(field) for field in table.schema])
    if schema == table.schema:
        pq.write_table(table, path, **settings | options)
        return
    columns = [
        pa.chunked_array([convert(c, f.type).cast(f.type) for c in column.chunks], f.type)
        for column, f in zip(table.columns, schema, strict=True)
    ]
    pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, **settings | options)
    _declare_int96(path, table.schema)


def _declare_int96(path: Path, schema: pa.Schema) -> None:
    """In the footer, as we do: Arrow has written the timestamps as 12 bytes."""
    content = path.read_bytes()
    footer = restored(footer_of(content))
    leaves = [leaf for type_ in schema.types for leaf in leaf_types(type_)]
    groups = []
    for group in footer[File.GROUPS].value.values:
        chunks = [
            {**chunk, Chunk.META: thrift.struct(restored_meta(chunk[Chunk.META].value))}
            if leaf == WIDE_TIMESTAMP
            else chunk
            for chunk, leaf in zip(group[Group.COLUMNS].value.values, leaves, strict=True)
        ]
        groups.append({**group, Group.COLUMNS: thrift.items(Kind.STRUCT, chunks)})
    encoded = thrift.encode({**footer, File.GROUPS: thrift.items(Kind.STRUCT, groups)})
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    path.write_bytes(content[:start] + with_tail(encoded))


def without_rows(
    file: InputFile, deleted: Collection[int], kind: VectorKind = VectorKind.BITS_32
) -> InputFile:
    """The file with a vector that deletes these rows, in an index file beside it."""
    data, length = encode_vector(kind, rows_deleted(deleted))
    path = f"{file.path}.index"
    Path(path).write_bytes(VERSION + data)
    ref = VectorRef(path=path, offset=len(VERSION), length=length, cardinality=len(deleted))
    return dataclasses.replace(file, vector=ref)


def input_file(path: Path, rows: int, low: int = 0, high: int = 0) -> InputFile:
    return InputFile(
        path=str(path),
        file_format="parquet",
        size_bytes=path.stat().st_size,
        row_count=rows,
        min_sequence_number=low,
        max_sequence_number=high,
    )


def merge_subcompaction(
    folder: Path,
    columns: Sequence[DataField],
    key: Sequence[str],
    *sections: Sequence[Sequence[InputFile]],
    merge_engine: str = "deduplicate",
    rules: MergeRules = NO_RULES,
    sequence_fields: Sequence[str] = (),
    sequence_descending: bool = False,
    ignore_delete: bool = False,
    drop_deletes: bool = False,
    key_range: KeyRange | None = None,
    storage: Storage | None = None,
    memory_bytes: int = 256 << 20,
    **write: Any,
) -> Subcompaction:
    """Merges `sections` of runs of files into `folder`/out."""
    thin = write.get("thin_mode", False)
    in_file = file_fields(columns, key, thin=thin)
    return _subcompaction(
        folder,
        columns,
        MergeSpec(
            sections=tuple(tuple(tuple(run) for run in section) for section in sections),
            merge_engine=merge_engine,
            rules=rules,
            key_columns=tuple(key),
            sequence_fields=tuple(sequence_fields),
            sequence_descending=sequence_descending,
            ignore_delete=ignore_delete,
            drop_deletes=drop_deletes,
            key_range=key_range or KeyRange(),
        ),
        in_file,
        storage=storage,
        memory_bytes=memory_bytes,
        write=write,
    )


def concat_subcompaction(
    folder: Path,
    columns: Sequence[DataField],
    files: Sequence[InputFile],
    *,
    first_sequence_number: int = 0,
    continues: bool = False,
    storage: Storage | None = None,
    memory_bytes: int = 256 << 20,
    **write: Any,
) -> Subcompaction:
    source = ConcatSpec(
        files=tuple(files),
        first_sequence_number=first_sequence_number,
        continues_across_outputs=continues,
    )
    write = {"level": 0} | write
    return _subcompaction(
        folder, columns, source, columns, storage=storage, memory_bytes=memory_bytes, write=write
    )


def _subcompaction(
    folder: Path,
    columns: Sequence[DataField],
    source: MergeSpec | ConcatSpec,
    in_file: Sequence[DataField],
    *,
    storage: Storage | None,
    memory_bytes: int,
    write: Mapping[str, Any],
) -> Subcompaction:
    system, own = parse_stats_mode("truncate(128)"), parse_stats_mode("truncate(16)")
    names = {each.name for each in dataclasses.fields(ParquetEncoding)}
    encoding = {name: value for name, value in write.items() if name in names}
    if (codec := encoding.get("compression", "zstd")) != "zstd":
        encoding["compression_level"] = encoding_of(OptionTexts({}, {}), codec).compression_level
    settings: dict[str, Any] = {
        "folder": str(folder / "out"),
        "file_format": "parquet",
        "file_prefix": "data-",
        "file_suffix": ".parquet",
        "level": 5,
        "schema_id": 3,
        "target_file_size": 128 << 20,
        "encoding": dataclasses.replace(USUAL, **encoding),
        "thin_mode": False,
        "stats_modes": tuple(
            (f.name, system if is_system_column(f.name) else own) for f in in_file
        ),
        "stats_dense": True,
        "creation_zone_offset_ms": 0,
        "keeps_encoding": False,
    }
    return Subcompaction(
        table="db.t",
        compaction_id=7,
        index=2,
        fields=tuple(columns),
        source=source,
        write=WriteSpec(**settings | {n: value for n, value in write.items() if n not in names}),
        storage=storage or LocalStorage(),
        owner=this_process(),
        memory_bytes=memory_bytes,
    )


def with_groups_of(subcompaction: Subcompaction, group_bytes: int) -> Subcompaction:
    """The same with row groups of at most so many bytes."""
    encoding = dataclasses.replace(USUAL, group_bytes=group_bytes)
    write = dataclasses.replace(subcompaction.write, encoding=encoding)
    return dataclasses.replace(subcompaction, write=write)


def output_paths(subcompaction: Subcompaction, result: SubcompactionResult) -> list[Path]:
    return [Path(subcompaction.write.folder) / file.file_name for file in result.after]


def output_rows(subcompaction: Subcompaction, result: SubcompactionResult) -> list[Row]:
    """All rows of the output files, in their order."""
    return [
        row
        for path in output_paths(subcompaction, result)
        for row in pq.ParquetFile(path).read().to_pylist()
    ]


def files_left(subcompaction: Subcompaction) -> list[str]:
    folder = Path(subcompaction.write.folder)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


KEY_VALUE = fields(k="BIGINT NOT NULL", v="STRING")


def row(k: int, v: str | None, sequence: int, kind: int = 0) -> Row:
    """A row of a table of `KEY_VALUE` columns."""
    return {"k": k, "v": v, SEQUENCE: sequence, KIND: kind}


def two_runs(folder: Path) -> list[list[InputFile]]:
    """Runs of `KEY_VALUE` rows that share the keys 1 and 3; the newer one deletes 3."""
    old = [row(1, "a", 0), row(3, "c", 1)]
    new = [row(1, "A", 2, 2), row(2, "b", 3), row(3, None, 4, 3)]
    return [
        [write_run(folder / "a.parquet", KEY_VALUE, ["k"], old)],
        [write_run(folder / "b.parquet", KEY_VALUE, ["k"], new)],
    ]
