from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from compactord.errors import UsageError
from compactord.formats.registry import file_suffix
from compactord.paimon.deletion_vectors import VectorKind
from compactord.paimon.options.table_options import (
    ChangelogProducer,
    CompactionOptions,
    ManifestRules,
    SequenceInit,
    SortOrder,
    TableOptions,
    VectorOptions,
    parse_options,
)
from compactord.paimon.schema import TableSchema
from compactord.paimon.types import parse_field

MIB = 1 << 20
SCHEMA = TableSchema(
    id=3,
    version=3,
    fields=tuple(
        parse_field({"id": index, "name": name, "type": "INT NOT NULL"})
        for index, name in enumerate(("p", "k", "v"))
    ),
    highest_field_id=2,
    partition_keys=("p",),
    primary_keys=("p", "k"),
    options={},
    comment=None,
    time_ms=0,
)


def options(
    table: Mapping[str, str] | None = None, run: Mapping[str, str] | None = None
) -> TableOptions:
    return parse_options(replace(SCHEMA, options=table or {}), run)


def test_defaults_are_paimons() -> None:
    found = options()
    assert (found.bucket, found.bucket_key) == (-1, ("k",))
    assert found.merge_engine == "deduplicate"
    assert found.changelog_producer is ChangelogProducer.NONE
    assert (found.sequence_fields, found.sequence_order) == ((), SortOrder.ASCENDING)
    assert (found.ignore_delete, found.write_only) == (False, False)
    assert (found.partition_default_name, found.partition_legacy_name) == (
        "__DEFAULT_PARTITION__",
        True,
    )
    assert found.discovery_interval_ms == 10_000
    plan = found.compaction
    assert (plan.num_levels, plan.compaction_trigger, plan.stop_trigger) == (6, 5, 8)
    assert (plan.max_size_amplification_percent, plan.size_ratio_percent) == (200, 1)
    assert (plan.offpeak_start_hour, plan.offpeak_end_hour, plan.offpeak_ratio_percent) == (
        -1,
        -1,
        0,
    )
    assert (plan.min_file_num, plan.file_num_limit, plan.open_file_cost) == (5, 100_000, 4 * MIB)
    assert (plan.optimization_interval_ms, plan.total_size_threshold) == (None, None)
    assert (plan.incremental_size_threshold, plan.full_compaction_delta_commits) == (None, None)
    assert (plan.force_up_level_0, plan.force_rewrite_all_files) == (False, False)
    commit = found.commit
    assert (commit.timeout_ms, commit.max_retries) == (None, 10)
    assert (commit.min_retry_wait_ms, commit.max_retry_wait_ms) == (10, 10_000)
    rules = ManifestRules(target_size=8 * MIB, full_threshold=16 * MIB, min_count=30)
    assert (commit.manifests, commit.manifest_compression) == (rules, "zstd")
    assert commit.sequence_init is SequenceInit.SCAN
    files = found.files
    assert (files.data_file_prefix, files.compression, files.format) == ("data-", "zstd", "parquet")
    assert (files.stats_mode, files.stats_dense, files.stats_keep_first) == (
        "truncate(16)",
        True,
        -1,
    )
    assert file_suffix(found, "orc") == ".orc"


def test_target_file_size_depends_on_the_primary_key() -> None:
    assert options().compaction.target_file_size == 128 * MIB
    append = replace(SCHEMA, primary_keys=())
    assert parse_options(append).compaction.target_file_size == 256 * MIB
    assert options({"target-file-size": "1 gb"}).compaction.target_file_size == 1024 * MIB


def test_small_files_are_below_the_truncated_product() -> None:
    assert options({"target-file-size": "999 b"}).compaction.small_file_size == 699


@pytest.mark.parametrize(
    ("ratio", "size"),
    [("NaN", 0), ("Infinity", 2**63 - 1), ("1e300", 2**63 - 1), ("-Infinity", -(2**63))],
)
def test_small_files_of_a_ratio_beyond_all_numbers_are_as_javas_cast_has_them(
    ratio: str, size: int
) -> None:
    found = options({"compaction.small-file-ratio": ratio})
    assert found.compaction.small_file_size == size


@pytest.mark.parametrize(
    ("table", "levels", "stop"),
    [
        ({"num-sorted-run.compaction-trigger": "3"}, 4, 6),
        ({"num-sorted-run.stop-trigger": "2"}, 6, 5),
        ({"num-sorted-run.stop-trigger": "20", "num-levels": "9"}, 9, 20),
        ({"num-sorted-run.compaction-trigger": "998"}, 999, 1001),
        ({"num-sorted-run.compaction-trigger": "2147483647"}, 1000, 2147483647),
        ({"num-sorted-run.compaction-trigger": "2147483645"}, 1000, 2147483647),
    ],
)
def test_levels_and_stop_trigger_follow_the_trigger(
    table: Mapping[str, str], levels: int, stop: int
) -> None:
    plan = options(table).compaction
    assert (plan.num_levels, plan.stop_trigger) == (levels, stop)


def test_the_run_wins_over_the_table_and_both_are_in_raw() -> None:
    found = options({"num-levels": "3", "bucket": "4"}, {"num-levels": "7"})
    assert found.compaction.num_levels == 7
    assert found.raw == {"num-levels": "7", "bucket": "4"}


def test_former_keys_count_where_the_present_key_is_absent() -> None:
    assert options({"partial-update.ignore-delete": "true"}).ignore_delete
    assert options({"write.compaction-skip": "true"}).write_only
    former = {"first-row.ignore-delete": "true", "deduplicate.ignore-delete": "false"}
    assert options(former).ignore_delete
    assert not options({**former, "ignore-delete": "false"}).ignore_delete


def test_a_former_key_of_the_run_wins_over_the_present_key_of_the_table() -> None:
    assert options({"write-only": "false"}, {"write.compaction-skip": "true"}).write_only


def test_per_level_maps_are_one_text_or_a_key_per_level() -> None:
    assert options({"file.compression.per.level": "0:LZ4,5:zstd"}).files.compression_per_level == {
        0: "lz4",
        5: "zstd",
    }
    formats = {"file.format": "ORC", "file.format.per.level": "0:Avro"}
    assert options(formats).files.format_per_level == {0: "avro"}
    assert options(formats).files.format == "orc"
    keys = {"file.compression.per.level.0": "gzip", "metadata.stats-mode.per.level.5": "NONE"}
    files = options(keys).files
    assert files.compression_per_level == {0: "gzip"}
    assert files.stats_mode_per_level == {5: "NONE"}


def test_statistics_modes_of_columns_are_found_by_their_keys() -> None:
    table = {"fields.v.stats-mode": "full", "fields.a.b.stats-mode": "truncate(3)"}
    assert options(table).files.stats_mode_per_field == {"v": "full", "a.b": "truncate(3)"}


def test_names_show_the_codec_of_the_table_and_not_the_one_in_force() -> None:
    table = {"file.suffix.include.compression": "true", "parquet.compression": "gzip"}
    assert file_suffix(options(table), "avro") == ".zst.avro"
    assert file_suffix(options({**table, "file.compression": "none"}), "avro") == ".avro"


def test_manifests_take_the_codec_of_every_avro_file() -> None:
    table = {"manifest.compression": "deflate", "file.compression.zstd-level": "4"}
    assert options(table).commit.manifest_compression == "deflate"
    assert options(table).commit.manifest_compression_level == 4
    assert options({**table, "avro.codec": "xz"}).commit.manifest_compression == "xz"


def test_lists_are_split_as_java_splits_them() -> None:
    assert options({"sequence.field": " v , k"}).sequence_fields == ("v", "k")
    assert options({"bucket-key": "k,v"}).bucket_key == ("k", "v")
    assert options({"bucket-key": " "}).bucket_key == ("k",)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("num-levels", "six"),
        ("target-file-size", "1.5 gb"),
        ("target-file-size", "0"),
        ("file.format.per.level", "zero:avro"),
        ("commit.timeout", "soon"),
        ("write-only", "yes"),
        ("compaction.small-file-ratio", "half"),
        ("metadata.stats-mode", "truncate(0)"),
        ("fields.v.stats-mode", "some"),
        ("metadata.stats-mode.per.level", "0:some"),
        ("file.compression.per.level", "zero:lz4"),
        ("bucket-key", "k, v"),
        ("sequence.field", "w"),
        ("file.compression.per.level.zero", "lz4"),
        ("metadata.stats-mode.per.level.0", "some"),
        ("data-file.prefix", "x/y"),
        ("file.compression.zstd-level", "high"),
    ],
)
def test_a_bad_value_is_an_error_of_the_run_and_noted_of_the_table(key: str, text: str) -> None:
    with pytest.raises(UsageError, match=rf"option {key}='.*' of this run: expected "):
        options({}, {key: text})
    with pytest.raises(UsageError, match=rf"option {key}='.*' of this run: expected "):
        options({key: text}, {key: text})
    found = options({key: text})
    [(noted, reason)] = found.unreadable.items()
    assert noted == key
    assert re.match(rf"option {re.escape(key)}='.*': expected ", reason)
    # All else is as if the table had not said it.
    assert replace(found, unreadable={}, raw={}) == replace(options(), raw={})


def test_a_good_value_of_the_run_heals_a_bad_one_of_the_table() -> None:
    found = options({"num-levels": "six"}, {"num-levels": "7"})
    assert (found.compaction.num_levels, found.unreadable) == (7, {})


@pytest.mark.parametrize(
    ("level", "used"),
    [("-2147483648", -131072), ("-131073", -131072), ("22", 22), ("23", 22), ("2147483647", 22)],
)
def test_levels_that_zstd_lacks_are_moved_to_the_nearest_one(level: str, used: int) -> None:
    found = options({"file.compression.zstd-level": level})
    assert found.commit.manifest_compression_level == used


@pytest.mark.parametrize(
    ("text", "planned", "divisor"), [("3", 3, 3), ("0", 1, None), ("-1", None, 1), ("-3", None, 3)]
)
def test_full_compactions_are_due_as_javas_sink_has_them_due(
    text: str, planned: int | None, divisor: int | None
) -> None:
    found = options({"full-compaction.delta-commits": text})
    assert found.compaction.full_compaction_delta_commits == planned
    assert found.commit.full_compaction_delta_commits == divisor


VECTORS = {"deletion-vectors.enabled": "true"}


@pytest.mark.parametrize(
    ("set_", "expected"),
    [
        ({"deletion-vectors.bitmap64": "true"}, None),
        (VECTORS, VectorOptions(kind=VectorKind.BITS_32, target_size=2 << 20)),
        ({**VECTORS, "bucket": "2"}, VectorOptions(kind=VectorKind.BITS_32, target_size=None)),
        (
            {
                **VECTORS,
                "deletion-vectors.bitmap64": "true",
                "deletion-vector.index-file.target-size": "1 kb",
            },
            VectorOptions(kind=VectorKind.BITS_64, target_size=1024),
        ),
    ],
)
def test_new_vectors_are_of_the_kind_of_the_table(
    set_: dict[str, str], expected: VectorOptions | None
) -> None:
    keyless = replace(SCHEMA, primary_keys=(), options=set_)
    assert parse_options(keyless).commit.vectors == expected
    # Dynamic buckets have no number, and one index file each.
    with_keys = options(set_).commit.vectors
    assert with_keys == (expected and replace(expected, target_size=None))


@pytest.mark.parametrize(
    ("set_", "upgrades", "finds_values", "level"),
    [
        ({}, True, False, 1),
        ({"deletion-vectors.merge-on-read": "true"}, True, False, None),
        ({"changelog-producer": "input"}, True, False, 1),
        ({"changelog-producer": "lookup"}, True, True, 1),
        # Streaming readers are told of changes only then.
        ({"changelog-producer": "lookup", "deletion-vectors.merge-on-read": "true"}, True, True, 1),
        ({"sequence.field": "v"}, False, True, 1),
        ({"merge-engine": "partial-update"}, False, True, 1),
        # A delete that is ignored leaves the row that it finds as it is.
        ({"ignore-delete": "true"}, True, True, 1),
    ],
)
def test_tables_with_vectors_look_up_what_they_mark(
    set_: dict[str, str], upgrades: bool, finds_values: bool, level: int | None
) -> None:
    found = options({**VECTORS, **set_}).compaction
    assert found.lookup is not None
    assert (found.lookup.marks, found.lookup.upgrades) == (True, upgrades)
    assert (found.lookup.finds_values, found.waiting_level) == (finds_values, level)
    assert found.force_up_level_0


_GENTLE = {"lookup-compact": "Gentle", "num-sorted-run.compaction-trigger": "4"}


@pytest.mark.parametrize(
    ("set_", "wait_ms"),
    [
        ({"lookup-compact.max-interval": "7"}, None),
        ({**_GENTLE, "lookup-compact": "radical"}, None),
        # Twice the trigger, each as long as a poll is from the next.
        (_GENTLE, 80_000),
        ({**_GENTLE, "continuous.discovery-interval": "1 min"}, 480_000),
        ({**_GENTLE, "lookup-compact.max-interval": "7"}, 70_000),
        # Not less than the trigger.
        ({**_GENTLE, "lookup-compact.max-interval": "3"}, 40_000),
    ],
)
def test_how_long_level_0_waits_where_it_is_looked_up_gently(
    set_: dict[str, str], wait_ms: int | None
) -> None:
    found = options({"changelog-producer": "lookup", **set_}).compaction
    assert found.lookup is not None
    assert found.lookup.wait_ms == wait_ms
    assert found.force_up_level_0 is (wait_ms is None)


def _append_options(found: dict[str, str]) -> CompactionOptions:
    return parse_options(replace(SCHEMA, primary_keys=(), options=found)).compaction


def test_without_keys_nothing_is_looked_up() -> None:
    found = _append_options(VECTORS)
    assert (found.lookup, found.waiting_level, found.force_up_level_0) == (None, None, False)
    ratio = {"compaction.delete-ratio-threshold": "0.5"}
    assert _append_options(ratio).delete_ratio == 0.5
