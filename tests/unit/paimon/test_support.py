from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from compactord.catalog.access import table_in_folder
from compactord.paimon.options.catalogue import OPTIONS, OptionClass, find
from compactord.paimon.schema import TableRef, TableSchema
from compactord.paimon.support import REFUSED_OPTIONS, SERVED_KEY_INDEXES
from compactord.paimon.types import parse_field
from compactord.rewrite.evolution import reasons_in_files
from compactord.table.opening import OpenTable, describe_table
from tests.storages import MemoryStorage

SCALARS = (
    "BOOLEAN",
    "TINYINT",
    "SMALLINT",
    "INT",
    "BIGINT",
    "FLOAT",
    "DOUBLE",
    "DECIMAL(38, 10)",
    "CHAR(3)",
    "STRING",
    "BINARY(3)",
    "BYTES",
    "DATE",
    "TIME(3)",
    "TIMESTAMP(9)",
    "TIMESTAMP_LTZ(6)",
)


def table(
    options: Mapping[str, str] | None = None,
    *,
    columns: Sequence[Any] = ("INT NOT NULL", "STRING"),
    primary_keys: Sequence[str] = ("c0",),
    partition_keys: Sequence[str] = (),
    version: int = 3,
) -> TableSchema:
    """Columns c0, c1, …; a primary-key table of two buckets unless told otherwise."""
    return TableSchema(
        id=1,
        version=version,
        fields=tuple(
            parse_field({"id": index, "name": f"c{index}", "type": text})
            for index, text in enumerate(columns)
        ),
        highest_field_id=len(columns),
        partition_keys=tuple(partition_keys),
        primary_keys=tuple(primary_keys),
        options={"bucket": "2", **(options or {})},
        comment=None,
        time_ms=0,
    )


VECTORS = {"deletion-vectors.enabled": "true"}


def judged(schema: TableSchema) -> OpenTable:
    ref = TableRef(database="db", name="t", location="/w/db.db/t")
    return describe_table(table_in_folder(MemoryStorage(), ref), schema, {})


def reasons(*args: Any, **kwargs: Any) -> tuple[str, ...]:
    return judged(table(*args, **kwargs)).refusals


@pytest.mark.parametrize(
    "schema",
    [
        table(),
        table({"changelog-producer": "input", "merge-engine": "deduplicate"}),
        table(primary_keys=("c0", "c1"), partition_keys=("c1",)),
        table({"bucket": "-1"}, primary_keys=()),
        table({"bucket": "3", "bucket-key": "c0"}, primary_keys=()),
        table(columns=("INT NOT NULL", *SCALARS)),
        table(columns=("INT NOT NULL", {"type": "MAP", "key": "INT", "value": "INT ARRAY"})),
        table(columns=("INT NOT NULL", "STRING MULTISET")),
        table({"file.format": "PARQUET", "file.format.per.level": "0:parquet,5:Parquet"}),
        table({"file.compression.per.level": "0:lz4,1:snappy,2:gzip,3:lz4_raw,4:none,5:zstd"}),
        table({"write.sequence-number-init-mode": "snapshot", "data-file.thin-mode": "true"}),
        table({"data-file.external-paths": "oss://a", "data-file.external-paths.strategy": "none"}),
        table({"row-tracking.enabled": "false", "clustering.columns": " ", "type": "table"}),
        table({"fields.c1.map.storage-layout": "default"}),
        table({"parquet.bloom.filter.enabled": "false", "parquet.compression#c1": "gzip"}),
        table({"deletion-vectors.enabled": "FALSE", "fields.c1.stats-mode": "full"}),
        table({"deletion-vectors.enabled": "FALSE", "merge-engine": "first-row"}),
        table({**VECTORS, "deletion-vectors.merge-on-read": "true"}),
        table({**VECTORS, "changelog-producer": "input", "bucket": "-1"}),
        table({**VECTORS, "changelog-producer": "lookup", "merge-engine": "partial-update"}),
        table({**VECTORS, "bucket": "-1"}, primary_keys=()),
        table({**VECTORS, "bucket": "2", "bucket-key": "c0"}, primary_keys=()),
        table({"fields.c0,c1.sequence-group": "c1", "fields.default-aggregate-function": "sum"}),
        table({"num-levels": "2", "data-file.prefix": "a b.ü%#?", "changelog-file.prefix": "."}),
        table({"num-levels": "1", "num-sorted-run.compaction-trigger": "0"}, primary_keys=()),
        table({"num-levels": "1000", "num-sorted-run.compaction-trigger": "2147483647"}),
        table({"num-sorted-run.compaction-trigger": "2147483647"}),
        table({"file.suffix.include.compression": "true", "file.compression": "gzip"}),
        # Java takes them all.
        table({"compaction.offpeak.start.hour": "25", "compaction.offpeak.end.hour": "-2"}),
        table({"compaction.max-size-amplification-percent": "-1", "compaction.size-ratio": "-9"}),
        table({"full-compaction.delta-commits": "-1", "file.compression.zstd-level": "23"}),
        table({"sequence.field": "c1", "ignore-delete": "true", "write-only": "true"}),
        table({"merge-engine": "partial-update"}),
        # What is registered of a compaction's partitions is there already; of tags nothing changes.
        table({"metastore.partitioned-table": "true", "metastore.tag-to-partition": "c1"}),
        table({"bucket": "-1"}, partition_keys=("c1",)),
        table({"bucket": "-1", "merge-engine": "aggregation"}, partition_keys=("c1",)),
        table(partition_keys=("c1",)),
        table({"merge-engine": "aggregation", "fields.c1.aggregate-function": "listagg"}),
    ],
)
def test_supported_tables_have_no_reason(schema: TableSchema) -> None:
    assert judged(schema).refusals == ()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"merge-engine": "first-row", "changelog-producer": "input"},
            "changelog-producer=input with merge-engine=first-row",
        ),
        (
            {"merge-engine": "first-row", "sequence.field": "c1"},
            "option sequence.field with merge-engine=first-row",
        ),
        (
            {"changelog-producer": "lookup", "full-compaction.delta-commits": "3"},
            "changelog-producer=lookup with full-compaction.delta-commits",
        ),
        (
            {
                "changelog-producer": "full-compaction",
                "force-lookup": "true",
                "merge-engine": "aggregation",
            },
            "changelog-producer=full-compaction with force-lookup=true",
        ),
        (
            {"changelog-producer": "lookup", "streaming-read-overwrite": "true"},
            "changelog-producer=lookup with streaming-read-overwrite=true",
        ),
        (
            {"changelog-producer": "full-compaction", "streaming-read-overwrite": "true"},
            "changelog-producer=full-compaction with streaming-read-overwrite=true",
        ),
        ({"bucket": "-2"}, "bucket=-2"),
        ({"bucket": "0"}, "bucket=0"),
        ({"file.format": "lance"}, "option file.format=lance"),
        ({"file.format.per.level": "0:csv,5:parquet"}, "file.format.per.level=0:csv"),
        ({"file.format.per.level.0": "csv"}, "file.format.per.level=0:csv"),
        ({"file.compression": "brotli"}, "compression brotli"),
        ({"file.compression.per.level": "0:lzo"}, "compression lzo"),
        ({"manifest.compression": "lz4"}, "manifests of compression lz4"),
        ({"avro.codec": "lz4"}, "manifests of compression lz4"),
        ({"file-index.bloom-filter.columns": "c1"}, "file-index.bloom-filter.columns=c1"),
        ({"fields.c1.map.storage-layout": "shared-shredding"}, "map.storage-layout"),
        ({"parquet.compression#c1": "brotli"}, "compression brotli"),
        ({"parquet.bloom.filter.fpp#c1": "1"}, "expected a number above 0 and below 1"),
        ({"parquet.bloom.filter.expected.ndv#c1": "0"}, "expected a number above 0"),
        ({"parquet.bloom.filter.enabled": "on"}, "expected true or false"),
        ({"parquet.crypto.factory.class": "x"}, "encrypted"),
        ({"encryption.mechanism": "x"}, "encrypted"),
        (
            {
                "data-file.external-paths": "oss://a",
                "data-file.external-paths.strategy": "round-robin",
            },
            "data-file.external-paths=oss://a",
        ),
        ({"sink.clustering.by-columns": "c1"}, "clustering.columns=c1"),
        ({"blob.stored-descriptor-fields": "c1"}, "blob-descriptor-field=c1"),
        ({"primary-key.nullable": "TRUE"}, "primary-key.nullable=TRUE"),
        ({"row-tracking.enabled": "yes"}, "row-tracking.enabled=yes"),
        ({"row-tracking.enabled": "1"}, "row-tracking.enabled=1"),
        ({"deletion-vectors.enabled": "yes"}, "deletion-vectors.enabled='yes': expected true or"),
        (
            {**VECTORS, "changelog-producer": "full-compaction"},
            "changelog-producer=full-compaction with deletion-vectors.enabled=true, which can have",
        ),
        (
            {**VECTORS, "merge-engine": "first-row"},
            "merge-engine=first-row with deletion-vectors.enabled=true, which it cannot have",
        ),
        ({**VECTORS, "index-file-in-data-file-dir": "true"}, "index-file-in-data-file-dir=true"),
        ({"row-tracking.enabled": " false "}, "row-tracking.enabled= false "),
        ({"query-auth.enabled": ""}, "query-auth.enabled="),
        ({"branch": "MAIN"}, "branch=MAIN"),
        ({"merge-engine": "foo"}, "merge-engine=foo: expected one of deduplicate"),
        ({"changelog-producer": "foo"}, "changelog-producer='foo': expected one of none"),
        ({"bucket": "abc"}, "bucket='abc': expected a whole number"),
        ({"num-levels": "six"}, "num-levels='six': expected a whole number"),
        ({"num-levels": "1"}, "num-levels=1: expected 2 to 1000 levels"),
        ({"num-levels": "1001"}, "num-levels=1001: expected 2 to 1000 levels"),
        ({"num-levels": "2147483647"}, "num-levels=2147483647: expected 2 to 1000 levels"),
        ({"num-sorted-run.compaction-trigger": "0"}, "compaction-trigger=0: expected 1 or more"),
        ({"data-file.prefix": "x/y"}, "data-file.prefix='x/y': expected part of a file's name"),
        ({"data-file.prefix": "../"}, "data-file.prefix='../'"),
        ({"changelog-file.prefix": "x/y"}, "changelog-file.prefix='x/y'"),
        (
            {
                "file.suffix.include.compression": "true",
                "file.compression": "x/y",
                "parquet.compression": "zstd",
            },
            "file.compression='x/y': expected part of a file's name",
        ),
        (
            {"fields.nope.stats-mode": "full"},
            "fields.nope.stats-mode: the table has no column nope",
        ),
        ({"fields.c1,nope.sequence-group": "c0"}, "the table has no column nope"),
    ],
)
def test_each_unsupported_option_is_named_with_its_value(
    options: Mapping[str, str], reason: str
) -> None:
    [found] = reasons(options)
    assert reason in found


@pytest.mark.parametrize("rule", REFUSED_OPTIONS, ids=lambda rule: rule.key)
def test_each_refused_option_is_refused_alone(rule: Any) -> None:
    value = "true" if rule.allowed == "false" else "something"
    assert reasons({rule.key: value}) == (f"option {rule.key}={value}: {rule.why}",)


def test_every_option_of_the_refused_class_is_refused() -> None:
    # They matter to VARIANT columns only, and these are refused as columns.
    of_columns = {"variant.shreddingSchema", "variant.inferShreddingSchema"}
    refused = {o.key for o in OPTIONS.values() if o.meaning is OptionClass.REFUSED}
    by_pattern = refused - of_columns - {rule.key for rule in REFUSED_OPTIONS}
    assert all(reasons({key: "c1"}) for key in by_pattern), by_pattern
    # Keys of newer releases are the only rules about keys that release 2.0.0 does not know.
    newer = {rule.key for rule in REFUSED_OPTIONS if find(rule.key) is None}
    assert newer == {"primary-key.nullable"}


@pytest.mark.parametrize(
    "key",
    [
        *(
            f"pk-{kind}.index.columns"
            for kind in ("vector", "full-text", "multivalue", "fm", "not-yet")
        ),
        "PK-btree.index.columns",
        "pk-btree.block-size",
        "PK-FM.index.columns",
        "pk-multivalue.index.x",
        "pk-fm.block-size",
    ],
)
def test_indexes_of_primary_keys_are_refused_whatever_their_kind(key: str) -> None:
    [found] = reasons({key: "c1"})
    assert found.startswith(f"option {key}=c1: its index files ")
    assert reasons({key: " "}) == ()


@pytest.mark.parametrize(
    "key", ["pk-fm", "pkfm.index.columns", "fields.c1.pk-fm.index.options", *SERVED_KEY_INDEXES]
)
def test_options_of_no_index_that_matters_are_not_refused(key: str) -> None:
    assert reasons({key: "c1"}) == ()


def test_options_of_fields_inside_a_row_are_refused() -> None:
    columns = ("INT NOT NULL", {"type": "ROW", "fields": [{"id": 9, "name": "x", "type": "INT"}]})
    assert reasons({"fields.c1.stats-mode": "full"}, columns=columns) == ()
    [found] = reasons({"fields.c1.x.distinct": "true"}, columns=columns)
    assert "options of fields inside a ROW" in found


def test_all_reasons_are_given_at_once() -> None:
    assert len(reasons({"query-auth.enabled": "true", "row-tracking.enabled": "true"})) == 2


@pytest.mark.parametrize(
    ("column", "inside"),
    [
        ("VARIANT", "VARIANT"),
        ("BLOB", "BLOB"),
        ("VECTOR<FLOAT, 3>", "VECTOR"),
        ("VARIANT MULTISET", "VARIANT"),
        ({"type": "ARRAY", "element": "VARIANT"}, "VARIANT"),
        ({"type": "MAP", "key": "INT", "value": "BLOB"}, "BLOB"),
        ({"type": "ROW", "fields": [{"id": 9, "name": "x", "type": "BLOB"}]}, "BLOB"),
    ],
)
def test_unsupported_types_are_named_wherever_they_hide(column: Any, inside: str) -> None:
    [found] = reasons(columns=("INT NOT NULL", column))
    assert found.startswith("column c1 has type ")
    assert found.endswith(f"({inside})")


def test_keys_must_be_able_to_name_a_bucket() -> None:
    [found] = reasons(columns=("INT ARRAY", "INT"))
    assert "key column c0 has the nested type ARRAY<INT>" in found
    [found] = reasons(primary_keys=("c0",), partition_keys=("c0",))
    assert found == "all columns of its primary key are partition columns"


@pytest.mark.parametrize(
    "options",
    [
        {"sequence.field": "c2"},
        {"cross-partition-upsert.index-ttl": "7 d"},
        {"record-level.expire-time": "7 d", "record-level.time-field": "c2"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_where_a_key_can_move_what_could_bring_it_back_is_refused(options: dict[str, str]) -> None:
    """Elsewhere these options are as good as any others, or have no effect."""
    columns, moving = ("INT NOT NULL", "STRING", "INT"), {"bucket": "-1"}
    key, text = next(iter(options.items()))
    for partition_keys in (("c1",), ("c0", "c1")):
        of_table = {"columns": columns, "partition_keys": partition_keys}
        primary_keys = ("c0", "c2")
        assert reasons(moving, primary_keys=primary_keys, **of_table) == ()
        [found] = reasons({**options, **moving}, primary_keys=primary_keys, **of_table)
        assert found.startswith(f"option {key}={text} with a primary key without c1: ")
        assert reasons(options, primary_keys=primary_keys, **of_table) == ()
    whole = {"columns": columns, "primary_keys": ("c0", "c1"), "partition_keys": ("c1",)}
    assert reasons({**options, **moving}, **whole) == ()


def test_partitions_without_a_sure_folder_are_refused() -> None:
    keys = {"primary_keys": ("c0", "c1"), "partition_keys": ("c1",)}
    new_names = {"partition.legacy-name": "false"}
    [found] = reasons(columns=("INT NOT NULL", "BYTES NOT NULL"), **keys)
    assert "partition column c1 is binary" in found
    assert reasons(new_names, columns=("INT NOT NULL", "BYTES NOT NULL"), **keys) == ()
    [found] = reasons(new_names, columns=("INT NOT NULL", "TIMESTAMP_LTZ(3) NOT NULL"), **keys)
    assert "time zone" in found
    assert reasons(columns=("INT NOT NULL", "TIMESTAMP_LTZ(3) NOT NULL"), **keys) == ()


@pytest.mark.parametrize(
    ("column", "field", "why"),
    [
        ("INT", None, "record-level.expire-time=1 h without record-level.time-field"),
        ("INT", "w", "record-level.time-field=w is not a column"),
        ("STRING", "c1", "of type STRING, not INT, BIGINT or TIMESTAMP"),
        ("SMALLINT", "c1", "of type SMALLINT, not INT, BIGINT or TIMESTAMP"),
    ],
)
def test_records_expire_by_a_time_field_only(column: str, field: str | None, why: str) -> None:
    options = {"record-level.expire-time": "1 h"}
    if field is not None:
        options["record-level.time-field"] = field
    found = reasons(options, columns=("INT NOT NULL", column))
    assert len(found) == 1
    assert why in found[0]
    assert reasons(options, columns=("INT NOT NULL", column), primary_keys=()) == ()


@pytest.mark.parametrize("column", ["INT", "BIGINT", "TIMESTAMP(3)", "TIMESTAMP_LTZ(6)"])
def test_records_may_expire_by_these_types(column: str) -> None:
    options = {"record-level.expire-time": "1 h", "record-level.time-field": "c1"}
    assert reasons(options, columns=("INT NOT NULL", column)) == ()


def test_newer_schemas_are_refused_for_that_reason_alone() -> None:
    assert reasons({"merge-engine": "first-row"}, version=4) == (
        "its schema has version 4, newer than 3",
    )


def test_tables_of_paimon_0_8_without_a_format_hold_orc_files() -> None:
    schema = replace(table(version=2), options={"bucket": "2", "file.format": "orc"})
    assert judged(schema).refusals == ()


def test_live_files_may_have_other_columns() -> None:
    latest = replace(table(), id=3)
    commented = replace(table({"bucket": "9"}), id=2)
    narrower = replace(table(columns=("INT NOT NULL",)), id=0)
    assert reasons_in_files(latest, [latest, commented, narrower]) == ()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("INT", "DATE", "there is no cast from INT to DATE"),
        ("TIME(0)", "TIME(3)", "there is no cast from TIME(0) to TIME(3)"),
        ("DATE", "VARCHAR(10)", "there is no cast from DATE to VARCHAR(10)"),
        ("TIMESTAMP(3)", "STRING NOT NULL", "no cast from TIMESTAMP(3) to STRING NOT NULL"),
    ],
)
def test_columns_of_live_files_must_be_castable(old: str, new: str, why: str) -> None:
    latest = replace(table(columns=("INT NOT NULL", new)), id=3)
    older = replace(table(columns=("INT NOT NULL", old)), id=1)
    [reason] = reasons_in_files(latest, [older])
    assert reason.startswith("files of schema 1 have another type of column c1: ")
    assert why in reason


def test_live_files_must_have_the_same_primary_key() -> None:
    latest = replace(table(columns=("INT NOT NULL", "INT NOT NULL")), id=3)
    older = replace(latest, id=1, primary_keys=("c1",))
    assert reasons_in_files(latest, [older]) == (
        "files of schema 1 have another primary key than schema 3",
    )


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (
            {"tag.automatic-creation": "process-time", "tag.creation-delay": "2 d"},
            "as long as the period or longer; no tags are created",
        ),
        ({"commit.strict-mode.last-safe-snapshot": "3"}, "fail after a compaction"),
        ({"compaction.skip-expired-partitions": "true"}, "compacted like others"),
        ({"pk-btree.index.columns": "c1"}, "queries are slower until Java"),
        ({"parquet.page.row.count.limit": "100"}, "not applied"),
        ({"parquet.page.size#c1": "100"}, "not applied"),
        (
            {"compaction.max.file-num": "50", "zz": "1"},
            "unknown options in schema 1: compaction.max.file-num, zz",
        ),
    ],
)
def test_operators_are_warned(options: Mapping[str, str], warning: str) -> None:
    schema = table(options)
    assert judged(schema).refusals == ()
    [found] = judged(schema).warnings
    assert warning in found


def test_usual_tables_need_no_warning() -> None:
    schema = table({"tag.automatic-creation": "watermark", "write-only": "true", "owner": "me"})
    assert judged(schema).warnings == ()
