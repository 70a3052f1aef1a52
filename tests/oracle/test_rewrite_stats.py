"""A rewrite of what Java wrote, beside Java's own compaction: the records of the outputs agree."""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactord.formats.registry import FORMATS, table_formats
from compactord.ids import this_process
from compactord.model import (
    ConcatSpec,
    InputFile,
    KeyRange,
    MergeSpec,
    Subcompaction,
    WriteSpec,
)
from compactord.paimon.data_file import ColumnStats, DataFile, FileSource, stats_modes
from compactord.paimon.options.merge import NO_RULES
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.schema import latest_schema
from compactord.paimon.types import file_fields
from compactord.rewrite.subcompaction import rewrite
from compactord.storage.local import LocalStorage
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import Row, TypeName
from tests.oracle.samples import ATOMIC, EVERY_TYPE, not_null

# Facts of a file that are its writer's own.
ALLOWED_DIFFERENCES = {
    "file_name": "names are chosen by who writes",
    "file_size": "Arrow and parquet-mr encode pages in their own ways",
    "creation_time": "the two files are not written at the same moment",
}
ALL_COLUMNS: list[tuple[str, TypeName]] = [
    (f"c_{kind}", type_) for kind, (type_, _) in EVERY_TYPE.items()
]
OPTIONS: dict[str, dict[str, str]] = {
    "defaults": {},
    "thin": {"data-file.thin-mode": "true"},
    "full": {"metadata.stats-mode": "full"},
    "counts": {"metadata.stats-mode": "counts"},
    "sparse": {"metadata.stats-dense-store": "false", "metadata.stats-mode": "truncate(3)"},
    "first columns": {"metadata.stats-keep-first-n-columns": "4"},
}


def values(chance: random.Random, kinds: Sequence[str]) -> list[Any]:
    return [None if chance.random() < 0.2 else chance.choice(EVERY_TYPE[kind][1]) for kind in kinds]


def make_table(
    judge: Judge,
    path: Path,
    columns: Sequence[tuple[str, TypeName]],
    commits: Sequence[tuple[Sequence[Row], Sequence[str]]],
    *,
    key: Sequence[str],
    options: Mapping[str, str],
) -> None:
    judge.create_table(
        path, columns, primary_key=key, options={"write-only": "true", "bucket": "1", **options}
    )
    for rows, kinds in commits:
        judge.write(path, rows, kinds)


def described(file: DataFile) -> dict[str, Any]:
    """Our record in the judge's form."""

    def stats(column_stats: ColumnStats) -> dict[str, Any]:
        return {
            "min": column_stats.min_values.hex(),
            "max": column_stats.max_values.hex(),
            "null_counts": list(column_stats.null_counts),
        }

    columns = file.value_stats_columns
    assert file.file_source is not None
    return {
        "file_name": file.file_name,
        "file_size": file.file_size,
        "row_count": file.row_count,
        "min_key": file.min_key.hex(),
        "max_key": file.max_key.hex(),
        "key_stats": stats(file.key_stats),
        "value_stats": stats(file.value_stats),
        "min_sequence_number": file.min_sequence_number,
        "max_sequence_number": file.max_sequence_number,
        "schema_id": file.schema_id,
        "level": file.level,
        "extra_files": list(file.extra_files),
        "creation_time": file.creation_time_ms,
        "delete_row_count": file.delete_row_count,
        "embedded_file_index": file.embedded_file_index,
        "file_source": FileSource(file.file_source).name,
        "value_stats_cols": None if columns is None else list(columns),
        "external_path": file.external_path,
        "first_row_id": file.first_row_id,
        "write_cols": file.write_columns,
    }


def rewritten(path: Path, before: Sequence[Mapping[str, Any]], level: int) -> list[dict[str, Any]]:
    """All files of the only bucket rewritten at task level; their records."""
    storage = LocalStorage()
    schema = latest_schema(storage, str(path))
    options = parse_options(schema, {})
    key = tuple(field.name for field in schema.key_fields)
    files = tuple(
        InputFile(
            path=f"{path}/bucket-0/{file['file_name']}",
            file_format="parquet",
            size_bytes=file["file_size"],
            row_count=file["row_count"],
            min_sequence_number=file["min_sequence_number"],
            max_sequence_number=file["max_sequence_number"],
        )
        for file in before
    )
    in_file = schema.fields
    source: MergeSpec | ConcatSpec
    if key:
        in_file = file_fields(schema.fields, key, thin=options.files.thin_mode)
        source = MergeSpec(
            sections=(tuple((file,) for file in files),),
            merge_engine=options.merge_engine,
            rules=NO_RULES,
            key_columns=key,
            sequence_fields=(),
            sequence_descending=False,
            ignore_delete=False,
            drop_deletes=level == options.compaction.num_levels - 1,
            key_range=KeyRange(),
        )
    else:
        first = files[0].min_sequence_number
        source = ConcatSpec(
            files=files, first_sequence_number=first, continues_across_outputs=False
        )
    subcompaction = Subcompaction(
        table=str(path),
        compaction_id=0,
        index=0,
        fields=schema.fields,
        source=source,
        write=WriteSpec(
            folder=f"{path}/rewritten",
            file_format="parquet",
            file_prefix="data-",
            file_suffix=".parquet",
            level=level,
            schema_id=schema.id,
            target_file_size=options.compaction.target_file_size,
            encoding=table_formats(schema, options, {}, FORMATS).at(level).encoding,
            thin_mode=options.files.thin_mode,
            stats_modes=stats_modes(in_file, schema, options.files, level),
            stats_dense=options.files.stats_dense,
            creation_zone_offset_ms=0,
            keeps_encoding=False,
        ),
        storage=storage,
        owner=this_process(),
        memory_bytes=512 << 20,
    )
    return [described(file) for file in rewrite(subcompaction).after]


def assert_agrees(judge: Judge, path: Path) -> None:
    """Rewrite here what Java compacts in a copy, and compare."""
    before = judge.files(path)
    copy = path.with_name("java")
    shutil.copytree(path, copy)
    judge.compact(copy, full=True, options={"write-only": "false"})
    expected = judge.files(copy)
    assert {file["file_source"] for file in expected} == {"COMPACT"}
    ours = rewritten(path, before, expected[0]["level"])
    assert [comparable(file) for file in ours] == [comparable(file) for file in expected]


def comparable(file: Mapping[str, Any]) -> dict[str, Any]:
    entry = {"kind", "partition", "partition_hex", "bucket", "total_buckets"}
    return {k: v for k, v in file.items() if k not in ALLOWED_DIFFERENCES and k not in entry}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("with_deletes", [False, True], ids=["inserts", "deletes"])
def test_every_column_type(judge: Judge, tmp_path: Path, options: str, with_deletes: bool) -> None:
    chance = random.Random(f"{options} {with_deletes}")
    columns = [("id", "BIGINT NOT NULL"), *ALL_COLUMNS]
    commits = []
    for _ in range(4):
        ids = chance.sample(range(200), 80)
        kinds = [chance.choice(["+I", "+U", "-D"] if with_deletes else ["+I"]) for _ in ids]
        commits.append(([[id_, *values(chance, list(EVERY_TYPE))] for id_ in ids], kinds))
    path = tmp_path / "db.db" / "t"
    make_table(judge, path, columns, commits, key=["id"], options=OPTIONS[options])
    assert_agrees(judge, path)


@pytest.mark.parametrize("kind", ATOMIC)
def test_every_key_type(judge: Judge, tmp_path: Path, kind: str) -> None:
    type_, pool = ATOMIC[kind]
    columns = [("k", not_null(type_)), ("n", "INT NOT NULL"), ("v", "DOUBLE")]
    chance = random.Random(kind)
    commits = []
    for _ in range(3):
        rows = {str(key): [key, chance.randrange(3), chance.random()] for key in pool}
        commits.append((list(rows.values()), ["+I"] * len(rows)))
    path = tmp_path / "db.db" / "t"
    make_table(judge, path, columns, commits, key=["k", "n"], options={})
    assert_agrees(judge, path)


@pytest.mark.parametrize(
    "floats", [["NaN"], ["NaN", 1.5], ["-0.0", 0.0], [0.0, 3.0], ["-0.0", -3.0]]
)
@pytest.mark.parametrize("type_", ["FLOAT", "DOUBLE"])
def test_floats(judge: Judge, tmp_path: Path, type_: str, floats: list[Any]) -> None:
    path = tmp_path / "db.db" / "t"
    halves = [[[n, value]] for n, value in enumerate([*floats, None])]
    make_table(
        judge,
        path,
        [("id", "INT NOT NULL"), ("v", type_)],
        [(rows, ["+I"]) for rows in halves],
        key=["id"],
        options={},
    )
    assert_agrees(judge, path)


@pytest.mark.parametrize("options", ["defaults", "full", "sparse"])
def test_append_tables(judge: Judge, tmp_path: Path, options: str) -> None:
    chance = random.Random(options)
    path = tmp_path / "db.db" / "t"
    rows = [[values(chance, list(EVERY_TYPE)) for _ in range(30)] for _ in range(4)]
    make_table(
        judge,
        path,
        ALL_COLUMNS,
        [(commit, ["+I"] * len(commit)) for commit in rows],
        key=(),
        options={"bucket-key": "c_int", "compaction.min.file-num": "2", **OPTIONS[options]},
    )
    assert_agrees(judge, path)
