"""What a rewrite costs beside its floor: decoding the inputs and encoding the outputs alone.

    python -m tests.bench.bench_rewrite --rows 500000 --files 10 --repeat 5

One JSON line per case: median wall and CPU seconds of `rewrite` on as many cores as the process
has (`taskset -c 0` for one), the floor's CPU seconds with the same files and settings, and their
ratio. Data is made in a temporary folder: keys uniform over six times a file's rows, as a write
buffer would leave them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from compactord.formats.parquet.encoder import open_writer
from compactord.formats.parquet.options import ParquetEncoding
from compactord.formats.parquet.page_runs import BUFFER_BYTES
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
from compactord.paimon.options.merge import NO_RULES
from compactord.paimon.types import DataField, file_fields, file_schema, parse_type
from compactord.rewrite.subcompaction import rewrite
from compactord.storage.local import LocalStorage

T = TypeVar("T")

VALUES = (
    ("i", "INT"),
    ("l", "BIGINT"),
    ("d", "DOUBLE"),
    ("s", "STRING"),
    ("c", "STRING"),
    ("ts", "TIMESTAMP(3)"),
)
KEYS = {
    "bigint": (("id", "BIGINT NOT NULL"),),
    "string": (("id", "STRING NOT NULL"),),
    "three": (("a", "INT NOT NULL"), ("b", "STRING NOT NULL"), ("n", "BIGINT NOT NULL")),
    "append": (("id", "BIGINT"),),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="measure rewrite against its floor")
    parser.add_argument("--rows", type=int, default=2_000, help="rows written per file")
    parser.add_argument("--files", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--memory-mb", type=int, default=1024)
    parser.add_argument("--cases", nargs="+", choices=sorted(KEYS), default=sorted(KEYS))
    options = parser.parse_args()
    for case in options.cases:
        with tempfile.TemporaryDirectory() as folder:
            sizes = (options.rows, options.files, options.memory_mb << 20)
            subcompaction = in_new_process(make_subcompaction, Path(folder), case, *sizes)
            print(
                json.dumps(in_new_process(measure, case, subcompaction, options.repeat)), flush=True
            )


def in_new_process(work: Callable[..., T], *arguments: Any) -> T:
    """So that the memory of one step does not count in another."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def measure(case: str, subcompaction: Subcompaction, repeat: int) -> dict[str, Any]:
    stats, walls, floors = [], [], []
    for _ in range(repeat):
        started = time.perf_counter()
        result = rewrite(subcompaction)
        walls.append(time.perf_counter() - started)
        stats.append(result.stats)
        floors.append(decoding_s(subcompaction) + encoding_s(subcompaction, result))
    cpu = statistics.median(s.cpu_s for s in stats)
    floor = statistics.median(floors)
    return {
        "case": case,
        "files": len(subcompaction.source.files),
        "rows_in": stats[0].input_records,
        "rows_out": stats[0].output_records,
        "mb_in": round(stats[0].input_bytes / 1e6, 1),
        "mb_out": round(stats[0].output_bytes / 1e6, 1),
        "wall_s": round(statistics.median(walls), 4),
        "cpu_s": round(cpu, 4),
        "floor_cpu_s": round(floor, 4),
        "floor_share": round(floor / cpu, 3),
        "peak_rss_mb": round(max(s.peak_rss_bytes for s in stats) / 1e6),
    }


def decoding_s(subcompaction: Subcompaction, *, is_bare: bool = False) -> float:
    """CPU seconds to decode every input once, as we do; bare without verifying checksums."""
    names = [field.name for field in subcompaction.fields]
    if isinstance(subcompaction.source, MergeSpec):
        names = ["_SEQUENCE_NUMBER", "_VALUE_KIND", *names]
    begin = time.process_time()
    for file in subcompaction.source.files:
        parquet = pq.ParquetFile(
            file.path,
            read_dictionary=["c"],
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=not is_bare,
        )
        for _ in parquet.iter_batches(batch_size=32_768, columns=names, use_threads=False):
            pass
    return time.process_time() - begin


def encoding_s(
    subcompaction: Subcompaction, result: SubcompactionResult, *, is_bare: bool = False
) -> float:
    """CPU seconds to encode every output once, as we do; bare without checksums and indexes."""
    total = 0.0
    for file in (output.file for output in result.outputs):
        path = f"{subcompaction.write.folder}/{file.file_name}"
        parquet = pq.ParquetFile(path, read_dictionary=["c"])
        group_rows = parquet.metadata.row_group(0).num_rows
        rows = parquet.read(use_threads=False).unify_dictionaries()
        begin = time.process_time()
        sink = pa.BufferOutputStream()
        if is_bare:
            pq.write_table(
                rows,
                sink,
                row_group_size=group_rows,
                compression="zstd",
                compression_level=1,
                use_dictionary=["c", "_VALUE_KIND"],
                store_schema=False,
            )
        else:
            dictionaries = ["c", "_VALUE_KIND"]
            with open_writer(sink, rows, subcompaction.write.encoding, dictionaries) as writer:
                writer.write_table(rows, row_group_size=group_rows)
        total += time.process_time() - begin
    return total


def make_subcompaction(
    folder: Path, case: str, rows: int, files: int, memory_bytes: int
) -> Subcompaction:
    random = np.random.default_rng(7)
    keys = tuple(DataField(id=n, name=k, type=parse_type(t)) for n, (k, t) in enumerate(KEYS[case]))
    values = [
        DataField(id=len(keys) + n, name=k, type=parse_type(t)) for n, (k, t) in enumerate(VALUES)
    ]
    fields = (*keys, *values)
    names = tuple(field.name for field in keys)
    merges = case != "append"
    made, sequence = [], 0
    for number in range(files):
        table = make_rows(random, case, keys, rows)
        if merges:
            table = as_level_0(table, names, fields, sequence)
        path = folder / f"in-{number}.parquet"
        write_as_java(table, path)
        made.append(
            InputFile(
                path=str(path),
                file_format="parquet",
                size_bytes=path.stat().st_size,
                row_count=table.num_rows,
                min_sequence_number=sequence,
                max_sequence_number=sequence + rows - 1,
            )
        )
        sequence += rows
    in_file = file_fields(fields, names, thin=False) if merges else fields
    mode = parse_stats_mode("truncate(16)")
    return Subcompaction(
        table="bench",
        compaction_id=0,
        index=0,
        fields=fields,
        source=MergeSpec(
            sections=(tuple((file,) for file in made),),
            merge_engine="deduplicate",
            rules=NO_RULES,
            key_columns=names,
            sequence_fields=(),
            sequence_descending=False,
            ignore_delete=False,
            drop_deletes=True,
            key_range=KeyRange(),
        )
        if merges
        else ConcatSpec(files=tuple(made), first_sequence_number=0, continues_across_outputs=False),
        write=WriteSpec(
            folder=str(folder / "out"),
            file_format="parquet",
            file_prefix="data-",
            file_suffix=".parquet",
            level=5,
            schema_id=0,
            target_file_size=128 << 20,
            encoding=ParquetEncoding(
                compression="zstd",
                compression_level=1,
                group_bytes=128 << 20,
                page_bytes=1 << 20,
                dictionary=True,
            ),
            thin_mode=False,
            stats_modes=tuple((field.name, mode) for field in in_file),
            stats_dense=True,
            creation_zone_offset_ms=0,
            keeps_encoding=False,
        ),
        storage=LocalStorage(),
        owner=this_process(),
        memory_bytes=memory_bytes,
    )


def make_rows(
    random: np.random.Generator, case: str, keys: tuple[DataField, ...], rows: int
) -> pa.Table:
    """Rows with unique, sorted keys out of six times as many; append rows as they come."""
    letters = random.integers(97, 123, rows * 20, dtype=np.uint8).tobytes().decode()
    columns: dict[str, Any] = {
        "i": pa.array(random.integers(0, 1 << 31, rows), pa.int32()),
        "l": random.integers(0, 1 << 62, rows),
        "d": random.random(rows),
        "s": [letters[n * 20 : n * 20 + 16 + n % 9] for n in range(rows)],
        "c": np.char.add("category-", random.integers(0, 50, rows).astype(str)).tolist(),
        "ts": pa.array(random.integers(0, 1 << 40, rows), pa.timestamp("ms")),
    }
    table = pa.table(columns)
    drawn = random.integers(0, 6 * rows, rows)
    if case == "append":
        return table.add_column(0, "id", pa.array(drawn))
    drawn = np.unique(drawn)
    if case == "three":
        parts = [drawn // 30_000, drawn // 100 % 300, drawn % 100]
        key_columns = [
            pa.array(parts[0], pa.int32()),
            pa.array(np.char.add("region-", np.char.zfill(parts[1].astype(str), 3)).tolist()),
            pa.array(parts[2], pa.int64()),
        ]
    elif case == "string":
        key_columns = [pa.array(np.char.add("user-", np.char.zfill(drawn.astype(str), 9)).tolist())]
    else:
        key_columns = [pa.array(drawn)]
    table = table.slice(0, len(drawn))
    for position, (key, column) in enumerate(zip(keys, key_columns, strict=True)):
        table = table.add_column(position, key.name, column)
    return table


def as_level_0(
    table: pa.Table, keys: tuple[str, ...], fields: tuple[DataField, ...], sequence: int
) -> pa.Table:
    schema = file_schema(fields, keys, thin=False)
    return pa.Table.from_arrays(
        [
            *(table.column(key) for key in keys),
            pa.chunked_array([pa.array(sequence + np.arange(table.num_rows))]),
            pa.chunked_array([pa.array(np.zeros(table.num_rows, np.int8))]),
            *(table.column(field.name) for field in fields),
        ],
        schema=schema,
    )


def write_as_java(table: pa.Table, path: Path) -> None:
    """One row group; dictionaries where parquet-mr keeps them."""
    pq.write_table(
        table,
        path,
        row_group_size=1 << 30,
        compression="zstd",
        compression_level=1,
        use_dictionary=["c", "_VALUE_KIND"],
        store_schema=False,
    )


if __name__ == "__main__":
    main()
