"""Every table option of release 2.0.0: its type and its class for a compactor.

One line per option: key, type, class, former keys that still work. Classes: a changes what
compaction picks or writes, b concerns commits and the life of snapshots, c does not concern a
compactor, d is refused if set. A * marks options that describe stored data: a single run cannot
override them. support.py refuses more than class d.
Source: CoreOptions.java of release 2.0.0.
"""
# One option per line, also where its values make the line long.
# ruff: noqa: E501

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from compactord.errors import UsageError
from compactord.paimon.options import values as option_values
from compactord.text import did_you_mean


class OptionClass(enum.Enum):
    WRITE = "a"
    COMMIT = "b"
    IRRELEVANT = "c"
    REFUSED = "d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """`type` is Paimon's name of the value's type; `former` are older keys, the newest first.

    `is_stored` marks options that describe stored data.
    """

    key: str
    type: str
    meaning: OptionClass
    former: tuple[str, ...] = ()
    is_stored: bool = False


_OPTIONS = """
type enum(table,format-table,materialized-table,object-table,lance-table,iceberg-table) d*
bucket Integer a*
bucket-key String a*
bucket-append-ordered Boolean a
bucket-function.type enum(default,mod,hive) a*
data-file.external-paths String a
data-file.external-paths.strategy enum(none,specific-fs,round-robin,entropy-inject,weight-robin) a
data-file.external-paths.specific-fs String a
data-file.external-paths.weights String a
compaction.force-rewrite-all-files Boolean a
path String a*
branch String a*
chain-table.enabled Boolean d
scan.fallback-snapshot-branch String c
scan.fallback-delta-branch String c
chain-table.chain-partition-keys String c
chain-table.streaming.merge-snapshot Boolean c
chain-table.split.key-range-enabled Boolean c
file.format String a
file.compression.per.level Map a
file.format.per.level Map a
file.compression String a
file.compression.zstd-level Integer a
data-file.prefix String a
data-file.path-directory String a*
changelog-file.prefix String a
changelog-file.format String a
changelog-file.compression String a
changelog-file.stats-mode String a
file.suffix.include.compression Boolean a
file.block-size MemorySize a
file-index.in-manifest-threshold MemorySize a
file-index.read.enabled Boolean c
variant.shreddingSchema String d parquet.variant.shreddingSchema
variant.inferShreddingSchema Boolean d
variant.shredding.inferenceMode enum(per-file,adaptive) c
variant.shredding.maxSchemaWidth Integer c
variant.shredding.maxSchemaDepth Integer c
variant.shredding.minFieldCardinalityRatio Double c
variant.shredding.maxInferBufferRow Integer c
variant.shredding.adaptive.maxInferBufferRow Integer c
variant.shredding.adaptive.retentionRatio Double c
manifest.format String d
manifest.compression String a
manifest.target-file-size MemorySize a
manifest.full-compaction-threshold-size MemorySize b
manifest.merge-min-count Integer b
manifest-sort.enabled Boolean b
manifest-sort.partition-field String b
manifest-sort.max-rewrite-size MemorySize b
upsert-key String c
partition.default-name String a*
partition.legacy-name Boolean a*
snapshot.num-retained.min Integer b
snapshot.num-retained.max Integer b
snapshot.time-retained Duration b
changelog.num-retained.min Integer b
changelog.num-retained.max Integer b
changelog.time-retained Duration b
snapshot.expire.execution-mode enum(sync,async) b
snapshot.expire.limit Integer b
snapshot.clean-empty-directories Boolean b snapshot.expire.clean-empty-directories
continuous.discovery-interval Duration a
scan.max-splits-per-task Integer c
scan.bucket Integer c
merge-engine String a*
ignore-delete Boolean a* first-row.ignore-delete deduplicate.ignore-delete partial-update.ignore-delete
ignore-update-before Boolean c
sort-engine enum(min-heap,loser-tree) a
sort-spill-threshold Integer a
sort-spill-buffer-size MemorySize a
spill-compression String a
spill-compression.zstd-level Integer a
write-only Boolean b write.compaction-skip
source.split.target-size MemorySize c
source.split.open-file-cost MemorySize a
write-buffer-size MemorySize c
write-buffer-spill.max-disk-size MemorySize c
write-buffer-spillable Boolean c
write-buffer-for-append Boolean c
write-max-writers-to-spill Integer c
local-sort.max-num-file-handles Integer c
page-size MemorySize c
cache-page-size MemorySize c
target-file-size MemorySize a
target-file-row-num Long c
compaction.small-file-ratio Double a
blob.target-file-size MemorySize c
blob.split-by-file-size Boolean c
blob.copy-buffer-size MemorySize c
num-sorted-run.compaction-trigger Integer a
num-sorted-run.stop-trigger Integer a
num-levels Integer a
commit.force-compact Boolean b
write.sequence-number-init-mode enum(scan,snapshot) b
commit.timeout Duration b
commit.max-retries Integer b
commit.min-retry-wait Duration b
commit.max-retry-wait Duration b
compaction.max-size-amplification-percent Integer a
compaction.force-up-level-0 Boolean a
compaction.size-ratio Integer a
compaction.offpeak.start.hour Integer a
compaction.offpeak.end.hour Integer a
compaction.offpeak-ratio Integer a
compaction.optimization-interval Duration a
compaction.total-size-threshold MemorySize a
compaction.incremental-size-threshold MemorySize a
compaction.min.file-num Integer a
compaction.file-num-limit Integer a
compaction.delete-ratio-threshold Double a
changelog-producer enum(none,input,full-compaction,lookup) a*
changelog-producer.row-deduplicate Boolean a
changelog-producer.row-deduplicate-ignore-fields String a
table-read.sequence-number.enabled Boolean c
key-value.sequence_number.enabled Boolean c
sequence.field String a*
sequence.field.sort-order enum(ascending,descending) a*
sequence.snapshot-ordering Boolean a*
aggregation.remove-record-on-delete Boolean a*
partial-update.remove-record-on-delete Boolean a*
partial-update.remove-record-on-sequence-group String a*
rowkind.field String c*
scan.mode enum(default,latest-full,full,latest,compacted-full,from-timestamp,from-creation-timestamp,from-file-creation-time,from-snapshot,from-snapshot-full,incremental) c log.scan
scan.timestamp String c
scan.timestamp-millis Long c log.scan.timestamp-millis
scan.watermark Long c
scan.file-creation-time-millis Long c
scan.creation-time-millis Long c
scan.snapshot-id Long c
scan.tag-name String c
scan.version String c
scan.bounded.watermark Long c
scan.manifest.parallelism Integer c
format-table.scan.list-parallelism Integer c
streaming.read.snapshot.delay Duration c
scan.ignore-corrupt-files Boolean c
scan.ignore-lost-files Boolean c
auto-create Boolean c
streaming-read-overwrite Boolean c
streaming-read-append-overwrite Boolean c
dynamic-partition-overwrite Boolean b
partition.expiration-strategy String b
partition.expiration-time Duration b
partition.expiration-check-interval Duration b
partition.expiration-max-num Integer b
partition.expiration-batch-size Integer b
compaction.skip-expired-partitions Boolean a
partition.timestamp-formatter String a
partition.timestamp-pattern String a
partition.timestamp-format.strict Boolean a
partition.end-input-to-done Boolean b
scan.plan-sort-partition Boolean c
primary-key String c*
partition String c*
lookup.hash-load-factor Float c
lookup.cache-rows Long c
lookup.continuous.discovery-interval Duration c
lookup.cache-file-retention Duration c
lookup.cache-max-disk-size MemorySize c
lookup.cache-spill-compression String c
lookup.cache-max-memory-size MemorySize c
lookup.blob-as-descriptor Boolean c
lookup.cache.high-priority-pool-ratio Double c
lookup.cache.bloom.filter.enabled Boolean c
lookup.cache.bloom.filter.fpp Double c
lookup.remote-file.enabled Boolean a
lookup.remote-file.level-threshold Integer a
read.batch-size Integer c
write.batch-size Integer c orc.write.batch-size
write.batch-memory MemorySize c
consumer-id String c
full-compaction.delta-commits Integer a
stream-scan-mode enum(none,compact-bucket-table,file-monitor) c
batch-scan-mode enum(none,compact) c
consumer.expiration-time Duration b
consumer.mode enum(exactly-once,at-least-once) c
consumer.ignore-progress Boolean c
consumer.changelog-only Boolean c
dynamic-bucket.target-row-num Long c
dynamic-bucket.initial-buckets Integer c*
dynamic-bucket.max-buckets Integer c
dynamic-bucket.assigner-parallelism Integer c
incremental-between String c
incremental-between-scan-mode enum(auto,delta,changelog,diff) c
incremental-between-timestamp String c
incremental-to-auto-tag String c
incremental-between-tag-to-snapshot Boolean c
end-input.check-partition-expire Boolean b
metadata.stats-mode String a
metadata.stats-mode.per.level Map a
metadata.stats-dense-store Boolean a
metadata.stats-keep-first-n-columns Integer a
commit.callbacks String d
tag.callbacks String b
partition.mark-done-action String b
partition.mark-done-action.custom.class String b
partition.mark-done-action.http.url String b
partition.mark-done-action.http.params String b
partition.sink-strategy enum(NONE,HASH,PARTITION_DYNAMIC) c
metastore.partitioned-table Boolean b
metastore.tag-to-partition String b
metastore.tag-to-partition.preview enum(none,process-time,watermark,batch) b
tag.automatic-creation enum(none,process-time,watermark,batch) b
tag.create-success-file Boolean b
tag.creation-period enum(daily,hourly,two-hours) b
tag.creation-delay Duration b
tag.period-formatter enum(with_dashes,without_dashes,without_dashes_and_spaces) b
tag.creation-period-duration Duration b
tag.num-retained-max Integer b
tag.default-time-retained Duration b
tag.time-expire-enabled Boolean b
tag.automatic-completion Boolean b
tag.batch.customized-name String b
scan.plan-auto-tag-for-read.time-retained Duration b
snapshot.watermark-idle-timeout Duration c
sink.watermark-time-zone String b
sink.process-time-zone String b
local-merge-buffer-size MemorySize c
cross-partition-upsert.index-ttl Duration c
cross-partition-upsert.bootstrap-parallelism Integer c
zorder.var-length-contribution Integer c
file-reader-async-threshold MemorySize c
commit.force-create-snapshot Boolean b
deletion-vectors.enabled Boolean a*
deletion-vectors.modifiable Boolean c
deletion-vector.index-file.target-size MemorySize a
deletion-vectors.merge-on-read Boolean a
deletion-vectors.bitmap64 Boolean a
delete.force-produce-changelog Boolean c
sort-compaction.range-strategy enum(SIZE,QUANTITY) c
sort-compaction.local-sample.magnification Integer c
record-level.expire-time Duration a
record-level.time-field String a
fields.default-aggregate-function String a*
commit.user-prefix String b
force-lookup Boolean a*
lookup-wait Boolean a changelog-producer.lookup-wait
lookup-compact enum(RADICAL,GENTLE) a
lookup-compact.max-interval Integer a
file-operation.thread-num Integer c delete-file.thread-num
scan.fallback-branch String c
scan.fallback-branch.read-fail-fast Boolean c
scan.primary-branch String c
async-file-write Boolean c
manifest.delete-file-drop-stats Boolean a
data-file.thin-mode Boolean a
partition.idle-time-to-report-statistic Duration b
query-auth.enabled Boolean d
materialized-table.definition-query String c
materialized-table.interval-freshness String c
materialized-table.interval-freshness.time-unit enum(SECOND,MINUTE,HOUR,DAY) c
materialized-table.logical-refresh-mode enum(CONTINUOUS,FULL,AUTOMATIC) c
materialized-table.refresh-mode enum(CONTINUOUS,FULL,AUTOMATIC) c
materialized-table.refresh-status enum(INITIALIZING,ACTIVATED,SUSPENDED) c
materialized-table.refresh-handler-description String c
materialized-table.refresh-handler-bytes String c
alter-column-null-to-not-null.disabled Boolean c
disable-explicit-type-casting Boolean c
add-column-before-partition Boolean c
commit.strict-mode.last-safe-snapshot Long b
clustering.columns String c sink.clustering.by-columns
clustering.strategy String c sink.clustering.strategy
clustering.incremental Boolean d
clustering.history-partition.limit Integer c
clustering.history-partition.idle-to-full-sort Duration c
clustering.incremental.optimize-write Boolean c
clustering.incremental.mode enum(global-sort,local-sort) c
local-kv-db.block-size MemorySize c
row-tracking.enabled Boolean d*
row-tracking.partition-group-on-commit Boolean b
data-evolution.enabled Boolean d*
data-evolution.reassign.skip-contiguous-row-count Long c
data-evolution.row-id-conflict-rewrite.max-size MemorySize c
data-evolution.row-sidecar.enabled Boolean c
data-evolution.row-sidecar.max-selected-rows Long c
data-evolution.row-sidecar.max-selection-ratio Double c
data-evolution.merge-into.file-pruning Boolean c
data-evolution.merge-into.source-persist Boolean c
data-evolution.compaction.rewrite-row-ids Boolean c
blob-compaction.enabled Boolean c
snapshot.ignore-empty-commit Boolean b
index-file-in-data-file-dir Boolean a*
global-index.external-path String c
global-index.column-update-action enum(THROW_ERROR,DROP_PARTITION_INDEX,IGNORE) c
lookup.merge-buffer-size MemorySize c
lookup.merge-records-threshold Integer c
format-table.implementation enum(paimon,engine) c
format-table.partition-path-only-value Boolean c
format-table.file.compression String c
format-table.commit-hive-sync-url String c
blob-field String d*
blob-descriptor-field String d* blob.stored-descriptor-fields
blob-view-field String d*
blob-view.resolve.enabled Boolean c
blob-as-descriptor Boolean c
blob-descriptor.source-table String c
blob-write-null-on-missing-file Boolean c
blob-write-null-on-fetch-failure Boolean c
commit.discard-duplicate-files Boolean b
postpone.batch-write-fixed-bucket Boolean a
postpone.merge-on-read Boolean d
postpone.batch-write-fixed-bucket.max-parallelism Integer a
postpone.default-bucket-num Integer a
postpone.target-row-num-per-bucket Long a
postpone.target-size-per-bucket MemorySize a
global-index.row-count-per-shard Long c
global-index.build.max-shard Integer c
global-index.build.max-parallelism Integer c
global-index.enabled Boolean c
global-index.search-mode enum(fast,full,detail) c
scalar-index.search-mode enum(fast,full,detail) c
vector-index.search-mode enum(fast,full,detail) c
full-text-index.search-mode enum(fast,full,detail) c
global-index.thread-num Integer c
overwrite-upgrade Boolean b
visibility-callback.enabled Boolean c
visibility-callback.timeout Duration c
visibility-callback.check-interval Duration c
vector.file.format String d
vector-field String d
vector.target-file-size MemorySize c
vector-search.distribute.enabled Boolean c
vector-search.lateral-join.batch-size Integer c
pk-vector.index.columns String d
pk-btree.index.columns String b
pk-bitmap.index.columns String b
pk-full-text.index.columns String d
pk-clustering-override Boolean d*
"""

# Format name -> its options -> parser of a run's value. New files follow these options.
FormatOptions: TypeAlias = Mapping[str, Mapping[str, Callable[[str], object]]]

# Keys that are built from other names; the first match counts.
_PATTERNS = (
    # Release 2.1.
    (r"changelog-producer\.ignore-(update-before|delete)", "Boolean", "a"),
    (r"fields\..+\.(aggregate-function|nested-key|nested-key-null-strategy)", "String", "a"),
    (r"fields\..+\.(nested-sequence-field|list-agg-delimiter|ts-field)", "String", "a"),
    (r"fields\..+\.(ignore-retract|distinct)", "Boolean", "a"),
    (r"fields\..+\.count-limit", "Integer", "a"),
    (r"fields\..+\.sequence-group", "String", "a"),
    (r"fields\..+\.stats-mode", "String", "a"),
    (r"fields\..+\.map\.(storage-layout|shared-shredding\..+)", "String", "d"),
    (r"file-index\..+\..+", "String", "a"),
    # Manifests are Avro files in tables of any format.
    (r"(?i:avro)\..+", "String", "a"),
    (r"metadata\.iceberg\.storage", "String", "d"),
    (r"metadata\.iceberg\..+", "String", "c"),
    (r"blob-descriptor\..+", "String", "c"),
    (r"(commit|tag)\.callback\..+\.param", "String", "c"),
    (r"case-sensitive|allow-upper-case|lock\.enabled", "Boolean", "b"),
    (r"lock\.type", "String", "b"),
    # Flink's options for partitions that are done.
    (r"partition\.(idle-time-to-done|time-interval)", "Duration", "b"),
    (r"partition\.mark-done-action\.mode", "String", "b"),
    # Written by catalogs and engines together with the options proper.
    (r"owner|provider|connector", "String", "c"),
)

# Options of columns for merging: readers merge by the table's options.
_MERGE_RULE = re.compile(r"fields\..+\.(?!stats-mode$)[^.]+")

_READERS: Mapping[str, Callable[[str], Any]] = {
    "Integer": option_values.integer,
    "Long": option_values.long,
    "Double": option_values.double,
    "Float": option_values.double,
    "Boolean": option_values.boolean,
    "MemorySize": option_values.memory_size,
    "Duration": option_values.duration_ms,
    "Map": option_values.mapping,
    "String": str,
}

# The largest `num-levels`. Java has a list with an entry for each level, in every bucket, and runs
# out of memory long before the largest number.
LEVELS_MAX = 1000

# Options that a run may set within bounds that are narrower than the type's.
_BOUNDED: Mapping[str, Callable[[str], object]] = {
    "data-file.prefix": option_values.name_part,
    "changelog-file.prefix": option_values.name_part,
    "file.compression.zstd-level": option_values.integer_within(*option_values.ZSTD_LEVELS),
    "num-levels": option_values.integer_within(2, LEVELS_MAX),
    "num-sorted-run.compaction-trigger": option_values.integer_within(1, 2**31 - 1),
}


def _read_table(text: str) -> dict[str, Option]:
    options = {}
    for line in text.strip().splitlines():
        key, type_, meaning, *former = line.split()
        options[key] = Option(
            key=key,
            type=type_,
            meaning=OptionClass(meaning.rstrip("*")),
            former=tuple(former),
            is_stored=meaning.endswith("*"),
        )
    return options


OPTIONS: Mapping[str, Option] = _read_table(_OPTIONS)
_FORMER = {former: option for option in OPTIONS.values() for former in option.former}


def find(key: str) -> Option | None:
    """The option of a key: its own, a former one, an entry of a map or a pattern. None if
    unknown.
    """
    option = OPTIONS.get(key) or _FORMER.get(key)
    if option is not None:
        return option
    for whole in OPTIONS.values():
        if whole.type == "Map" and key.startswith(whole.key + "."):
            return Option(key=key, type="String", meaning=whole.meaning)
    for pattern, type_, meaning in _PATTERNS:
        if re.fullmatch(pattern, key):
            return Option(key=key, type=type_, meaning=OptionClass(meaning))
    return None


def canonical_key(key: str) -> str:
    """The present key of a former one. Other keys are returned unchanged."""
    option = find(key)
    return key if option is None else option.key


def format_of(key: str) -> str:
    """The format whose option the key would be; a format of that name need not exist."""
    name, _, rest = key.partition(".")
    return name.lower() if rest else ""


def without_column(key: str) -> str:
    """The key of a format's option, up to `#` if the path of a column follows."""
    return key[: key.index("#") + 1] if "#" in key else key


def check_override(
    key: str, value: str, formats: FormatOptions, of_triggers: Mapping[str, Callable[[str], Any]]
) -> None:
    """Raises `UsageError` with the reason unless a run may set this option.

    `formats` are the options of all formats of data files, `of_triggers` readers of further ones.
    """
    option = find(key)
    of_format = of_triggers if key in of_triggers else formats.get(format_of(key))
    if option is None and of_format is None:
        hint = did_you_mean(key, [*OPTIONS, *_FORMER], count=3)
        raise UsageError(f"unknown option {key!r}{hint}")
    if option is not None and (option.is_stored or _MERGE_RULE.fullmatch(option.key)):
        raise UsageError(f"option {key!r} belongs to the table: it cannot be set for one run")
    try:
        if option is not None:
            reader_of(option)(value)
            _BOUNDED.get(option.key, str)(value)
        elif of_format is not None:
            of_format.get(without_column(key), str)(value)
    except ValueError as error:
        raise UsageError(f"option {key}={value!r}: expected {error}") from error


def reader_of(option: Option) -> Callable[[str], Any]:
    """A parser of the option's type. Its `ValueError` names what was expected."""
    if option.type.startswith("enum("):
        return option_values.one_of(tuple(option.type[5:-1].split(",")))
    return _READERS[option.type]
