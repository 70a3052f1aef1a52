from __future__ import annotations

from typing import Any

import pytest

from compactord.errors import FormatError
from compactord.paimon import paths
from compactord.paimon.binary_row import decode_row, encode_row
from compactord.paimon.data_file import EMPTY_ROW
from compactord.paimon.types import DataField, parse_type


def partition(
    *columns: tuple[str, str, Any], legacy: bool = True, default: str = "__DEFAULT_PARTITION__"
) -> str:
    fields = [
        DataField(id=index, name=name, type=parse_type(text))
        for index, (name, text, _) in enumerate(columns)
    ]
    row = encode_row([value for *_, value in columns], [field.type for field in fields])
    return paths.spec_path(
        paths.partition_spec(row, fields, default_name=default, legacy_name=legacy)
    )


def test_metadata_lies_where_paimon_looks_for_it() -> None:
    root = "s3://b/w/db.db/t"
    assert paths.schema_path(root, 3) == f"{root}/schema/schema-3"
    assert paths.table_of_file(paths.schema_path(root, 3)) == root
    assert paths.snapshot_path(root, 12) == f"{root}/snapshot/snapshot-12"
    assert paths.latest_hint(root) == f"{root}/snapshot/LATEST"
    assert paths.earliest_hint(root) == f"{root}/snapshot/EARLIEST"
    assert paths.tag_path(root, "a") == f"{root}/tag/tag-a"
    assert paths.manifest_path(root, "manifest-x-0") == f"{root}/manifest/manifest-x-0"
    assert paths.statistics_path(root, "stat-x-0") == f"{root}/statistics/stat-x-0"
    assert paths.changelog_folder(root) == f"{root}/changelog"
    assert paths.branch_root(root) == root
    assert paths.branch_root(root, "b") == f"{root}/branch/branch-b"
    assert paths.join(root + "/", "x") == f"{root}/x"


@pytest.mark.parametrize(
    ("name", "id_"),
    [
        ("snapshot-12", 12),
        ("snapshot-", None),
        ("snapshot-12.tmp", None),
        ("snapshot--1", None),
        ("snapshot-" + "9" * 5000, None),
        ("snapshot-٣", None),
        ("12", None),
        ("LATEST", None),
    ],
)
def test_only_names_with_a_number_are_snapshots(name: str, id_: int | None) -> None:
    assert paths.id_of(name, paths.SNAPSHOT_PREFIX) == id_


def test_partition_folders_follow_the_keys_and_are_escaped() -> None:
    assert partition() == ""
    assert partition(("a/b", "INT", 1), ("pt", "STRING", "x y/c")) == "a%2Fb=1/pt=x y%2Fc"
    assert partition(("p", "STRING", "\"#%'*/:=?\\{}[]^\x7f\t")) == (
        "p=%22%23%25%27%2A%2F%3A%3D%3F%5C%7B%7D%5B%5D%5E%7F%09"
    )
    assert partition(("p", "STRING", "é<>|~+&@ ")) == "p=é<>|~+&@ "


@pytest.mark.parametrize("text", ["", " ", "\t\u2003", None])
def test_blank_partitions_have_the_default_name(text: str | None) -> None:
    assert partition(("p", "STRING", text)) == "p=__DEFAULT_PARTITION__"
    assert partition(("p", "STRING", text), default="none") == "p=none"


@pytest.mark.parametrize("text", ["\u00a0", "\u202f", "\x00", "\x85"])
def test_what_java_does_not_call_blank_keeps_its_name(text: str) -> None:
    assert "DEFAULT" not in partition(("p", "STRING", text))


def test_dates_are_days_unless_legacy_names_are_off() -> None:
    assert partition(("d", "DATE", 19000)) == "d=19000"
    assert partition(("d", "DATE", 19000), legacy=False) == "d=2022-01-08"


def test_a_partition_that_is_no_row_is_refused() -> None:
    field = DataField(id=0, name="p", type=parse_type("INT"))
    with pytest.raises(FormatError, match="partition"):
        paths.spec_path(
            paths.partition_spec(EMPTY_ROW, [field], default_name="d", legacy_name=True)
        )


@pytest.mark.parametrize("legacy", [True, False])
def test_text_that_is_not_utf8_has_no_folder_and_is_shown_as_bytes(legacy: bool) -> None:
    with pytest.raises(FormatError, match="the bytes ff62 are not UTF-8"):
        partition(("p", "STRING", b"\xffb"), legacy=legacy)
    field = DataField(id=0, name="p", type=parse_type("STRING"))
    values = decode_row(encode_row([b"\xffb"], [field.type]), [field.type])
    assert paths.partition_text(values, [field]) == r"p=b'\xffb'"


def test_buckets_have_folders_of_their_own() -> None:
    assert paths.bucket_folder("/t", "", 0) == "/t/bucket-0"
    assert paths.bucket_folder("/t", "p=1", 12) == "/t/p=1/bucket-12"
    assert paths.bucket_folder("/t", "p=1", -2) == "/t/p=1/bucket-postpone"


@pytest.mark.parametrize(
    ("location", "text", "path"),
    [
        ("/w/t", "file:/a/b", "/a/b"),
        ("/w/t", "file:///a/b", "/a/b"),
        ("/w/t", "/a/b", "/a/b"),
        ("/w/t", "file://host/a/b", None),
        ("/w/t", "s3://bucket/a", None),
        ("/w/t", "file:/a/../b", None),
        ("/w/t", "//a", None),
        ("s3://bucket/w/t", "s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://bucket/w/t", "s3://bucket2/a", None),
        ("s3://bucket/w/t", "s3://bucket/../a", None),
        ("s3://bucket/w/t", "s3://bucket/", None),
        ("s3://bucket/w/t", "file:/a", None),
        ("s3://bucket", "s3://bucket/a", "s3://bucket/a"),
    ],
)
def test_files_elsewhere_are_in_the_store_of_the_table(
    location: str, text: str, path: str | None
) -> None:
    assert paths.external_path(location, text) == path


@pytest.mark.parametrize("name", ["data-1.parquet", "...", "..x", "a b", "ü", "a:b", "x=%2F"])
def test_names_of_files(name: str) -> None:
    assert paths.is_file_name(name)
    assert paths.checked_name(name, "/t/manifest/m") == name


@pytest.mark.parametrize("text", ["..", ".", "../..", "a/../../b", "..\\..", " ", ""])
def test_partitions_stay_in_their_table(text: str) -> None:
    """Whatever the value, the default name and the column are called."""
    path = partition((text or "p", "STRING", text), default="../x")
    assert path.count("=") == 1
    assert not {"/", "\\"} & set(path)


@pytest.mark.parametrize(
    ("compression", "suffix"),
    [
        (None, ".parquet"),
        ("none", ".parquet"),
        ("ZSTD", ".zst.parquet"),
        ("gzip", ".gz.parquet"),
        ("lz4", ".lz4.parquet"),
        ("lz4_raw", ".lz4_raw.parquet"),
    ],
)
def test_names_show_the_compression_when_asked(compression: str | None, suffix: str) -> None:
    assert paths.file_suffix("parquet", compression) == suffix


@pytest.mark.parametrize(
    ("name", "file_format"),
    [
        ("data-1-0.parquet", "parquet"),
        ("data-1-0.zst.parquet", "parquet"),
        ("data-1-0.json.gz", "json"),
        ("data.x-0.orc", "orc"),
        ("data.parquet.ZST", "parquet"),
    ],
)
def test_the_format_is_read_from_the_name(name: str, file_format: str) -> None:
    assert paths.format_of(name) == file_format


@pytest.mark.parametrize(
    ("name", "path", "offset", "size"),
    [
        ("compacted-changelog-8e04$0-39253.cc-parquet", "t/bucket-3/", 0, 39253),
        ("compacted-changelog-8e04$0-39253-39253-35699.cc-orc", "t/bucket-0/", 39253, 35699),
    ],
)
def test_changelogs_are_put_together_in_one_object(
    name: str, path: str, offset: int, size: int
) -> None:
    """utils/CompactedChangelogPathResolverTest.java."""
    suffix = name[name.index(".") :]
    found = paths.merged_changelog(f"t/bucket-3/{name}")
    first = f"{path}compacted-changelog-8e04$0-39253{suffix}"
    assert found == paths.FilePart(first, offset, size)
    assert paths.merged_format(paths.format_of(name)) in ("parquet", "orc")


@pytest.mark.parametrize(
    "name",
    ["changelog-1.parquet", "compacted-changelog-1.parquet", "compacted-changelog-1$0.cc-orc"],
)
def test_other_names_are_those_of_files(name: str) -> None:
    assert paths.merged_changelog(f"t/bucket-0/{name}") is None


@pytest.mark.parametrize("name", ["data", "data.gz"])
def test_a_name_without_format_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match="format"):
        paths.format_of(name)


def test_partitions_are_shown_to_people() -> None:
    fields = [
        DataField(id=0, name="d", type=parse_type("DATE")),
        DataField(id=1, name="p", type=parse_type("STRING")),
    ]
    assert paths.partition_text((19000, None), fields) == "d=2022-01-08, p=null"
