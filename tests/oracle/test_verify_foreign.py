"""`verify --pages all` finds nothing wrong with tables of all shapes that Java writes."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import TypeName
from tests.oracle.samples import EVERY_TYPE
from tests.oracle.test_sorted_indexes import java_compacts, new_table, write
from tests.unit.cli.warehouses import answered

HERE = Path(__file__).parent
COLUMNS: tuple[tuple[str, TypeName], ...] = (
    ("k", "BIGINT NOT NULL"),
    ("n", "INT"),
    ("v", "STRING"),
)
# {"a": 1}
_VARIANT = ["x:02010000020c01", "x:0101000161"]
VECTORS = {"deletion-vectors.enabled": "true"}
# Java merges at each commit.
EAGER = {"num-sorted-run.compaction-trigger": "2"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table of Java's. `unknown`: what `--pages all` cannot verify, one text in each line."""

    options: Mapping[str, str] = field(default_factory=dict)
    keyed: bool = True
    # One more column, with the value of all rows.
    more: tuple[str, TypeName, Any] | None = None
    partition_by: Sequence[str] = ()
    write_only: bool = False
    then: Callable[[Judge, Path], None] | None = None
    unknown: Sequence[str] = ()
    unknown_without_pages: Sequence[str] = ()


def _rows(case: Case, start: int, count: int = 20) -> list[list[Any]]:
    more = [] if case.more is None else [case.more[2]]
    rows = [[k, start * 100 + k, None if k % 5 == 0 else f"v{k}-{start}"] for k in range(count)]
    return [[*row, *more, *("ab"[row[0] % 2] for _ in case.partition_by)] for row in rows]


def _fill(
    judge: Judge, path: Path, case: Case, *, options: Mapping[str, str] | None = None
) -> None:
    """Commits with overlapping keys and deletes; merges unless Java cannot be made to."""
    for start in range(3):
        judge.write(path, _rows(case, start), options=options)
    if case.keyed and not case.options.get("merge-engine"):
        judge.write(path, _rows(case, 9)[:4], ["-D"] * 4, options=options)
    if not case.write_only:
        judge.compact(path, full=True, options=options)
    judge.write(path, _rows(case, 5, 30), options=options)


def _make(judge: Judge, path: Path, case: Case) -> None:
    options = {"write-only": "true", "file.format": "parquet", "bucket": "2", **case.options}
    external = str(path.parent.parent / "external")
    options = {key: value.replace("EXTERNAL", external) for key, value in options.items()}
    if not case.keyed:
        options = {"bucket-key": "k", **options}
        if options["bucket"] == "-1":
            del options["bucket-key"]
    key = [*case.partition_by, "k"] if case.keyed else []
    partitions = [(name, "STRING NOT NULL") for name in case.partition_by]
    judge.create_table(
        path,
        [*COLUMNS, *([] if case.more is None else [case.more[:2]]), *partitions],
        primary_key=key,
        partition_by=case.partition_by,
        options=options,
    )
    _fill(judge, path, case)
    if case.then is not None:
        case.then(judge, path)


def _verified(
    capsys: pytest.CaptureFixture[str], path: Path, *arguments: str, table: str = "", code: int = 0
) -> dict[str, Any]:
    where = ("--warehouse", str(path.parent.parent), "--table", table or f"db.{path.name}")
    return answered(capsys, "verify", *where, "--all-snapshots", *arguments, code=code)


def _delete_rows(judge: Judge, path: Path) -> None:
    """Deletion vectors of an append table."""
    for each in judge.files(path)[:2]:
        judge.delete_positions(path, {each["file_name"]: [1, 3]})


def _evolve(judge: Judge, path: Path) -> None:
    judge.add_column(path, "later", "INT")
    judge.rename_column(path, "v", "w")
    judge.write(path, [[k, k, f"w{k}", k] for k in range(5)])
    judge.change_column_type(path, "n", "BIGINT")
    judge.drop_column(path, "w")
    judge.write(path, [[k, k << 40, 1] for k in range(5)])


def _branch_of_its_own(judge: Judge, path: Path) -> None:
    """A branch whose schema 1 is another one than the table's."""
    judge.create_branch(path, "own")
    judge.alter(path, {"change": "add", "column": ["b"], "type": "STRING"}, branch="own")
    judge.add_column(path, "m", "INT")
    judge.write(path, [[k, k, "v", "text"] for k in range(9)], options={"branch": "own"})
    judge.write(path, [[k, k, "v", 7] for k in range(9)])


def _fast_forward(judge: Judge, path: Path) -> None:
    """Main becomes what a branch is, which was made of a tag."""
    judge.create_tag(path, "start", judge.snapshots(path)[2])
    judge.create_branch(path, "ahead", "start")
    for number in range(3):
        judge.write(path, [[k, number, "b"] for k in range(9)], options={"branch": "ahead"})
    judge.fast_forward(path, "ahead")
    judge.write(path, [[k, 0, "c"] for k in range(9)])


def _overwrite(judge: Judge, path: Path) -> None:
    """Rows are replaced, all go, and a rollback brings some back."""
    judge.overwrite(path, [[k, 0, "o"] for k in range(9)])
    kept = judge.snapshots(path)[-1]
    judge.truncate(path)
    judge.write(path, [[k, 0, "c"] for k in range(9)])
    judge.rollback(path, kept)
    judge.write(path, [[k, 0, "d"] for k in range(9)])


def _precommit(judge: Judge, path: Path) -> None:
    """Commits whose changelog files Flink's own task puts into one object."""
    judge.jvm.load(HERE / "Precommit.java")
    for identifier in range(1, 4):
        rows = [[k, identifier, f"v{k}"] for k in range(40)]
        text = "\n".join(json.dumps(["+I", row]) for row in rows)
        arguments = {"path": str(path), "identifier": identifier, "options": {}}
        judge.jvm.call("Precommit", "write", arguments, text)
    assert any(path.parent.parent.rglob("bucket-?/compacted-changelog-*.cc-parquet"))


def _told(expired: int) -> None:
    assert expired > 0


def _every_type(judge: Judge, path: Path) -> None:
    """Columns of all types, with extreme values, in files of their own."""
    names = [f"c-{kind}" for kind in EVERY_TYPE]
    for name, (type_, _) in zip(names, EVERY_TYPE.values(), strict=True):
        judge.add_column(path, name, type_)
    pools = [pool for _, pool in EVERY_TYPE.values()]
    judge.write(path, [[k, k, "v", *(pool[k % len(pool)] for pool in pools)] for k in range(30)])


def _external(folder: str, strategy: str = "round-robin") -> dict[str, str]:
    paths = ",".join(f"file://EXTERNAL/{folder}{number}" for number in range(2))
    return {"data-file.external-paths": paths, "data-file.external-paths.strategy": strategy}


_INPUT = {"changelog-producer": "input"}
_ORC_MANIFESTS = ("has format ORC: manifests are read as Avro",)
CASES: dict[str, Case] = {
    "primary key": Case(),
    "eager": Case(options={**EAGER, "write-only": "false"}),
    "partitions": Case(partition_by=("p",)),
    "dynamic buckets": Case(options={"bucket": "-1"}),
    "append": Case(keyed=False, options={"bucket": "-1"}),
    "append in buckets": Case(keyed=False),
    "thin": Case(options={"data-file.thin-mode": "true"}),
    "no statistics": Case(options={"metadata.stats-mode": "none"}),
    "dense statistics": Case(
        options={"metadata.stats-dense-store": "true", "fields.n.stats-mode": "none"}
    ),
    "input": Case(options=_INPUT),
    "lookup": Case(options={"changelog-producer": "lookup", "write-only": "false"}),
    "full compaction": Case(
        options={
            "changelog-producer": "full-compaction",
            "write-only": "false",
            "full-compaction.delta-commits": "1",
        }
    ),
    "partial update": Case(options={"merge-engine": "partial-update"}),
    "aggregation": Case(
        options={"merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}
    ),
    "first row": Case(
        options={
            "merge-engine": "first-row",
            "changelog-producer": "lookup",
            "write-only": "false",
        }
    ),
    "snapshot ordering": Case(options={"sequence.snapshot-ordering": "true"}),
    "precommit": Case(options=_INPUT, then=_precommit),
    "precommit with external paths": Case(
        options={**_INPUT, **_external("precommit")}, then=_precommit
    ),
    "precommit of what a merge tells": Case(
        options={"changelog-producer": "lookup", "write-only": "false"}, then=_precommit
    ),
    "vectors": Case(keyed=False, options={"bucket": "-1", **VECTORS}, then=_delete_rows),
    "vectors of 64 bits": Case(
        keyed=False,
        options={"bucket": "-1", "deletion-vectors.bitmap64": "true", **VECTORS},
        then=_delete_rows,
    ),
    "vectors of a key": Case(options={**VECTORS, "write-only": "false"}),
    "vectors beside data": Case(
        keyed=False,
        options={"bucket": "-1", "index-file-in-data-file-dir": "true", **VECTORS},
        then=_delete_rows,
    ),
    "vectors beside data of partitions": Case(
        partition_by=("p",),
        options={"index-file-in-data-file-dir": "true", "write-only": "false", **VECTORS},
    ),
    "hash indexes beside data": Case(
        options={"bucket": "-1", "index-file-in-data-file-dir": "true"}
    ),
    "vectors beside external data": Case(
        keyed=False,
        options={
            "bucket": "-1",
            "index-file-in-data-file-dir": "true",
            **VECTORS,
            **_external("indexes"),
        },
        then=_delete_rows,
    ),
    "external paths": Case(options=_external("data"), partition_by=("p",)),
    "data folder": Case(options={"data-file.path-directory": "data/of"}, partition_by=("p",)),
    "orc manifests": Case(
        options={"manifest.format": "orc"},
        unknown=_ORC_MANIFESTS,
        unknown_without_pages=_ORC_MANIFESTS,
    ),
    "orc files": Case(options={"file.format": "orc"}),
    "avro files": Case(options={"file.format": "avro"}),
    "file indexes": Case(
        options={"file-index.bloom-filter.columns": "v", "file-index.in-manifest-threshold": "1 B"},
        unknown=("extra files of data files, such as file indexes",),
    ),
    "file indexes in manifests": Case(
        options={
            "file-index.bloom-filter.columns": "n",
            "file-index.bloom-filter.n.items": "10",
            "file-index.in-manifest-threshold": "100 kb",
        }
    ),
    "suffixes": Case(options={"file.suffix.include.compression": "true"}),
    "postponed": Case(
        options={"bucket": "-2"},
        write_only=True,
    ),
    "row tracking": Case(keyed=False, options={"bucket": "-1", "row-tracking.enabled": "true"}),
    "data evolution": Case(
        keyed=False,
        options={
            "bucket": "-1",
            "row-tracking.enabled": "true",
            "data-evolution.enabled": "true",
        },
        write_only=True,
    ),
    "clustered": Case(
        options={
            **VECTORS,
            "pk-clustering-override": "true",
            "clustering.columns": "v",
            "write-only": "false",
        },
        write_only=True,
    ),
    "snappy manifests": Case(options={"manifest.compression": "snappy"}),
    "plain manifests": Case(options={"manifest.compression": "null"}),
    "lz4 pages": Case(options={"file.compression": "lz4"}),
    "gzip pages": Case(options={"file.compression": "gzip"}),
    "shredded variants": Case(
        options={"variant.inferShreddingSchema": "true"},
        more=("x", "VARIANT", _VARIANT),
        unknown=("columns x: of another schema or type",),
    ),
    "blobs": Case(
        keyed=False,
        options={
            "bucket": "-1",
            "row-tracking.enabled": "true",
            "data-evolution.enabled": "true",
        },
        more=("x", "BLOB", "x:0102"),
        write_only=True,
        unknown=("there is no reader for format blob",),
        unknown_without_pages=("there is no reader for format blob",),
    ),
    "all types": Case(then=_every_type),
    "all types without a key": Case(keyed=False, options={"bucket": "-1"}, then=_every_type),
    "other schemas": Case(then=_evolve),
    "other schemas of files without a key": Case(
        keyed=False, options={"bucket": "-1"}, then=_evolve
    ),
    "fast forward": Case(then=_fast_forward),
    "overwritten": Case(options=_INPUT, then=_overwrite),
    "branch of its own": Case(then=_branch_of_its_own),
    "long-lived changelogs": Case(
        options={**_INPUT, "changelog.num-retained.max": "100"},
        then=lambda judge, path: _told(judge.expire_snapshots(path, 2)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_wrong_with_what_java_writes(
    judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    case, path = CASES[name], tmp_path / "db.db" / "t"
    _make(judge, path, case)
    first = min(judge.snapshots(path))
    judge.create_tag(path, "kept", first)
    judge.create_branch(path, "side", "kept")
    for table in ("", "db.t$branch_side"):
        plain = _verified(capsys, path, "--footers", "all", table=table)
        assert plain["findings"] == []
        _same_texts(plain["not_verified"], case.unknown_without_pages)
        assert (plain["whole"], plain["pages_read"]) == (None, 0)
        found = _verified(capsys, path, "--pages", "all", table=table)
        assert found["findings"] == []
        _same_texts(found["not_verified"], case.unknown)
        assert found["whole"] is (None if case.unknown else True)
        # Of data files, none is known there.
        assert found["pages_read"] == 1 or case.unknown
        assert found["pages_read"] == 0 or case.unknown != _ORC_MANIFESTS


def _same_texts(found: Sequence[str], expected: Sequence[str]) -> None:
    """Each text is one that is expected, and each of these is there."""
    metadata = "its metadata cannot be read"
    assert all(any(each in text for each in (*expected, metadata)) for text in found), found
    assert all(any(each in text for text in found) for each in expected), found


@pytest.mark.parametrize("elsewhere", [False, True])
def test_sorted_indexes_are_not_verified_inside(
    judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str], *, elsewhere: bool
) -> None:
    folder = tmp_path / "elsewhere"
    options = {"global-index.external-path": f"file:{folder}"} if elsewhere else {}
    table = new_table(judge, tmp_path / "db.db" / "t", **options)
    for _ in range(2):
        write(table, random.Random(1), 60)
        java_compacts(table, full=True)
    found = _verified(capsys, table.path, "--pages", "all")
    assert found["findings"] == []
    _same_texts(found["not_verified"], ["index files of type btree", "index files of type bitmap"])
    assert (found["whole"], found["pages_read"]) == (None, 1)


def _flipped(file: Path) -> None:
    """A bit of the last page of the first column; of the first part of merged changelogs."""
    data = bytearray(file.read_bytes())
    _, _, first_size = file.name.partition(".")[0].partition("$0-")
    whole = io.BytesIO(data[: int(first_size)] if first_size else data)
    column = pq.ParquetFile(whole).metadata.row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    data[start + column.total_compressed_size - 1] ^= 4
    file.write_bytes(data)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def _flipped_at_the_end(file: Path) -> None:
    """In the last vector, or its checksum."""
    data = bytearray(file.read_bytes())
    data[-1] ^= 4
    file.write_bytes(data)


NO_CHECKSUMS = {"parquet.page.write-checksum.enabled": "false"}
# A table, which of its files is damaged, how, and as what that is found.
DAMAGE: dict[str, tuple[Case, str, Callable[[Path], None], str]] = {
    "page": (CASES["primary key"], "data-*", _flipped, "data_file_damaged"),
    "page without a checksum": (
        Case(options=NO_CHECKSUMS),
        "data-*",
        _flipped,
        "data_file_damaged",
    ),
    "page of an append table": (CASES["append"], "data-*", _flipped, "data_file_damaged"),
    "page elsewhere": (CASES["external paths"], "data-*", _flipped, "data_file_damaged"),
    "end elsewhere": (CASES["external paths"], "data-*", _cut, "data_file_size"),
    "file elsewhere": (CASES["external paths"], "data-*", Path.unlink, "data_file_missing"),
    "page in the data folder": (CASES["data folder"], "data-*", _flipped, "data_file_damaged"),
    "page of a changelog": (CASES["input"], "changelog-*", _flipped, "data_file_damaged"),
    "page of merged changelogs": (
        CASES["precommit"],
        "compacted-changelog-*",
        _flipped,
        "data_file_damaged",
    ),
    "end of merged changelogs": (
        CASES["precommit"],
        "compacted-changelog-*",
        _cut,
        "data_file_size",
    ),
    "merged changelogs": (
        CASES["precommit"],
        "compacted-changelog-*",
        Path.unlink,
        "changelog_file_missing",
    ),
    "vector beside data": (
        CASES["vectors beside data"],
        "bucket-*/index-*",
        _flipped_at_the_end,
        "index_file_damaged",
    ),
    "end of vectors beside data": (
        CASES["vectors beside data"],
        "bucket-*/index-*",
        _cut,
        "index_file_size",
    ),
    "vectors beside data": (
        CASES["vectors beside data"],
        "bucket-*/index-*",
        Path.unlink,
        "index_file_missing",
    ),
    "hash index beside data": (
        CASES["hash indexes beside data"],
        "bucket-*/index-*",
        Path.unlink,
        "index_file_missing",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_of_such_tables_is_found(
    judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    case, pattern, damage, kind = DAMAGE[name]
    path = tmp_path / "db.db" / "t"
    _make(judge, path, case)
    needed = {file["file_name"] for file in judge.files(path)}
    needed |= {file["file_name"] for file in judge.index_files(path)}
    files = [
        each
        for each in sorted(tmp_path.rglob(pattern))
        if each.name in needed or "changelog" in each.name
    ]
    damage(files[0])
    found = _verified(capsys, path, "--pages", "all", code=3)
    assert found["whole"] is False
    assert {each["kind"] for each in found["findings"]} == {kind}
    # What is wrong with a part of an object may be said of the part.
    names = {Path(each["path"]).name.split("$")[0] for each in found["findings"]}
    assert names == {files[0].name.split("$")[0]}
