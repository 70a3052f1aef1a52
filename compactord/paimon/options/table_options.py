"""The options of a table that planning, merging and committing need.

Source: CoreOptions.java of release 2.0.0; values are parsed as in options/OptionsUtils.java.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compactord.paimon.deletion_vectors import VectorKind
from compactord.paimon.options import values as option_values
from compactord.paimon.options.catalogue import LEVELS_MAX
from compactord.paimon.options.maintenance import (
    ExpireOptions,
    MaintenanceOptions,
    expire_options,
    maintenance_options,
)
from compactord.paimon.options.merge import (
    ChangelogRule,
    FileOptions,
    MergeRules,
    changelog_rule,
    file_options,
    merge_rules,
)
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.schema import TableSchema

# The default polling interval of a table.
DISCOVERY_INTERVAL_MS = 10_000


class LookupCompact(enum.Enum):
    """When level 0 is compacted without another trigger: at once, or after some rounds."""

    RADICAL = "radical"
    GENTLE = "gentle"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupOptions:
    """How records of level 0 are merged with records of their keys on higher levels.

    `changelog`: changes are written. `upgrades`: a file of level 0 may move to a middle level
    unchanged, since its records replace those on higher levels; with `ignores_deletes` only a file
    without deletes. `is_one_record`: the state of a key is one of its records, so that merging it
    again with its sources makes no difference. `marks` and `finds_values`: as in `Rewrite`.
    `wait_ms`: how long files may stay on level 0 without another trigger, None for no time.
    `readers_wait`: readers ignore level 0.
    """

    changelog: bool
    upgrades: bool
    is_one_record: bool
    marks: bool
    finds_values: bool
    ignores_deletes: bool
    wait_ms: int | None
    readers_wait: bool


def discovery_interval_ms(texts: OptionTexts) -> int:
    return texts.read("continuous.discovery-interval", DISCOVERY_INTERVAL_MS)


def lookup_options(
    texts: OptionTexts,
    *,
    trigger: int,
    tells: bool,
    is_first_row: bool,
    is_newest: bool,
    orders: bool,
    has_vectors: bool,
) -> LookupOptions | None:
    """The options, or None if compactions look up no records.

    `tells`: changes are written. `is_newest`: a key's state is its newest record, by sequence
    fields if it `orders` records by these. `has_vectors`: replaced records on higher levels are
    marked.
    """
    forced = texts.read("force-lookup", False)
    mode = texts.read("lookup-compact", LookupCompact.RADICAL)
    longest = texts.read("lookup-compact.max-interval", 2 * trigger)
    merges_on_read = texts.read("deletion-vectors.merge-on-read", False)
    ignores_deletes = texts.read("ignore-delete", False)
    if not (tells or forced or is_first_row or has_vectors):
        return None
    upgrades = is_newest and not orders
    # Java counts calls of the planner, which a table without new rows does not get.
    wait_ms = max(trigger, longest) * discovery_interval_ms(texts)
    return LookupOptions(
        changelog=tells,
        upgrades=upgrades,
        is_one_record=is_newest or is_first_row,
        marks=has_vectors,
        # If a delete is ignored, the row that it would have deleted is marked and written again.
        finds_values=not has_vectors or tells or not upgrades or ignores_deletes,
        ignores_deletes=ignores_deletes,
        wait_ms=wait_ms if mode is LookupCompact.GENTLE else None,
        readers_wait=tells or is_first_row or (has_vectors and not merges_on_read),
    )


# Merge engines that other options depend on. The registry of merge functions lists all engines.
FIRST_ROW, DEDUPLICATE = "first-row", "deduplicate"
# The default merge engine.
USUAL_MERGE_ENGINE = DEDUPLICATE


class SortOrder(enum.Enum):
    ASCENDING = "ascending"
    DESCENDING = "descending"


class ChangelogProducer(enum.Enum):
    NONE = "none"
    INPUT = "input"
    FULL_COMPACTION = "full-compaction"
    LOOKUP = "lookup"


class SequenceInit(enum.Enum):
    """Where writers find the largest sequence number (`write.sequence-number-init-mode`)."""

    SCAN = "scan"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordExpire:
    """Records expire `seconds` after the time in column `field` (io/RecordLevelExpire.java)."""

    field: str
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """Options for planning. Sizes in bytes, durations in milliseconds, None if not set."""

    num_levels: int
    compaction_trigger: int
    stop_trigger: int
    max_size_amplification_percent: int
    size_ratio_percent: int
    offpeak_start_hour: int
    offpeak_end_hour: int
    offpeak_ratio_percent: int
    force_up_level_0: bool
    optimization_interval_ms: int | None
    total_size_threshold: int | None
    incremental_size_threshold: int | None
    full_compaction_delta_commits: int | None
    force_rewrite_all_files: bool
    target_file_size: int
    small_file_ratio: float
    min_file_num: int
    file_num_limit: int
    open_file_cost: int
    # Files without keys are rewritten from this share of deleted rows on.
    delete_ratio: float = 0.2
    record_expire: RecordExpire | None = None
    # A compaction into the highest level writes a changelog of its changes above that level.
    full_changelog: bool = False
    # Without it, records are merged without levels above the output.
    lookup: LookupOptions | None = None
    # Options of triggers that are not Paimon's, where they are set.
    of_triggers: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def tells(self) -> bool:
        """Whether compactions write changelogs."""
        return self.full_changelog or (self.lookup is not None and self.lookup.changelog)

    @property
    def waiting_level(self) -> int | None:
        """Readers do not see rows on levels below this one, or None if they see all rows."""
        if self.full_changelog:
            return self.num_levels - 1
        return 1 if self.lookup is not None and self.lookup.readers_wait else None

    @property
    def small_file_size(self) -> int:
        """Files below this size are small: (long) (target × ratio), as Java multiplies and
        truncates.
        """
        size = self.target_file_size * self.small_file_ratio
        if size != size:
            return 0
        return int(min(max(size, -_LONG_MAX - 1), _LONG_MAX))


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorOptions:
    """Options of a table with deletion vectors.

    `kind` is the kind of new vectors. In a table without buckets, an index file ends with the
    vector that exceeds `target_size`, in bytes. If it is None, one index file has all vectors of a
    bucket.
    """

    kind: VectorKind
    target_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRules:
    """When manifests are merged: sizes in bytes, the least number of small manifests to merge."""

    target_size: int
    full_threshold: int
    min_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """Commit loop and manifests. Sizes in bytes, durations in milliseconds."""

    timeout_ms: int | None
    max_retries: int
    min_retry_wait_ms: int
    max_retry_wait_ms: int
    user_prefix: str | None
    manifests: ManifestRules
    manifest_compression: str
    manifest_compression_level: int
    delete_file_drop_stats: bool
    sequence_init: SequenceInit
    # Readers assume that a COMPACT commit is full if its identifier is a multiple of this.
    full_compaction_delta_commits: int | None
    # None for a table without deletion vectors.
    vectors: VectorOptions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """All options; `raw` is the merged text form (the run's options override the schema's).

    `unreadable` has the table's invalid options by key, each with the expected form. Their values
    here are the defaults; such a table must be refused.
    """

    bucket: int
    bucket_key: tuple[str, ...]
    merge_engine: str
    merge_rules: MergeRules
    changelog_producer: ChangelogProducer
    sequence_fields: tuple[str, ...]
    sequence_order: SortOrder
    # Records of writers' files take their snapshot's number instead of the one in the file.
    snapshot_ordering: bool
    ignore_delete: bool
    write_only: bool
    partition_default_name: str
    partition_legacy_name: bool
    discovery_interval_ms: int
    compaction: CompactionOptions
    commit: CommitOptions
    expire: ExpireOptions
    maintenance: MaintenanceOptions
    files: FileOptions
    changelog: ChangelogRule
    # Streaming readers see the changes of an overwrite as well.
    streams_overwrites: bool
    raw: Mapping[str, str]
    unreadable: Mapping[str, str]


_MIB = 1024 * 1024
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_POSITIVE_SIZE = option_values.positive(option_values.memory_size)


def parse_options(
    schema: TableSchema,
    overrides: Mapping[str, str] | None = None,
    of_triggers: Mapping[str, Callable[[str], Any]] | None = None,
) -> TableOptions:
    """The options of a table, overridden by the run's; `of_triggers` has readers of further ones.

    Former keys count where the present key is absent. For an invalid option of the run, raises
    `UsageError` with key, value and the expected form; invalid options of the table are in
    `unreadable`.
    """
    texts = OptionTexts(schema.options, overrides or {})
    trigger = texts.read("num-sorted-run.compaction-trigger", 5)
    bucket = texts.read("bucket", -1)
    engine = texts.read("merge-engine", USUAL_MERGE_ENGINE).lower()
    sequence_fields = texts.maybe("sequence.field", _sequence_fields(schema)) or ()
    producer = texts.read("changelog-producer", ChangelogProducer.NONE)
    expire = expire_options(texts, has_producer=producer is not ChangelogProducer.NONE)
    has_key = bool(schema.primary_keys)
    # Files of dynamic buckets have bucket number -1 as well.
    vectors = _vectors(texts, has_buckets=has_key or bucket != -1)
    return TableOptions(
        bucket=bucket,
        bucket_key=_bucket_key(texts, schema),
        merge_engine=engine,
        merge_rules=merge_rules(schema, texts, engine, sequence_fields),
        changelog_producer=producer,
        sequence_fields=sequence_fields,
        sequence_order=texts.read("sequence.field.sort-order", SortOrder.ASCENDING),
        snapshot_ordering=texts.read("sequence.snapshot-ordering", False),
        ignore_delete=texts.read("ignore-delete", False),
        write_only=texts.read("write-only", False),
        partition_default_name=texts.read("partition.default-name", "__DEFAULT_PARTITION__"),
        partition_legacy_name=texts.read("partition.legacy-name", True),
        discovery_interval_ms=discovery_interval_ms(texts),
        compaction=_compaction(
            texts,
            trigger,
            producer,
            has_key=has_key,
            of_triggers=of_triggers or {},
            lookup=lookup_options(
                texts,
                trigger=trigger,
                tells=producer is ChangelogProducer.LOOKUP,
                is_first_row=engine == FIRST_ROW,
                is_newest=engine == DEDUPLICATE,
                orders=bool(sequence_fields),
                has_vectors=has_key and vectors is not None,
            ),
        ),
        commit=_commit(texts, vectors),
        expire=expire,
        maintenance=maintenance_options(texts, schema, expire),
        files=file_options(texts),
        changelog=changelog_rule(texts, [field.name for field in schema.fields]),
        streams_overwrites=texts.read("streaming-read-overwrite", False),
        raw=texts.merged,
        unreadable=texts.unreadable,
    )


def _compaction(
    texts: OptionTexts,
    trigger: int,
    producer: ChangelogProducer,
    *,
    has_key: bool,
    lookup: LookupOptions | None,
    of_triggers: Mapping[str, Callable[[str], Any]],
) -> CompactionOptions:
    full_changelog = producer is ChangelogProducer.FULL_COMPACTION
    stop = texts.read("num-sorted-run.stop-trigger", min(trigger + 3, _INT_MAX))
    return CompactionOptions(
        # Java has no limit, and no memory for a bucket with that many levels.
        num_levels=texts.read("num-levels", min(trigger + 1, LEVELS_MAX)),
        compaction_trigger=trigger,
        stop_trigger=max(trigger, stop),
        max_size_amplification_percent=texts.read("compaction.max-size-amplification-percent", 200),
        size_ratio_percent=texts.read("compaction.size-ratio", 1),
        offpeak_start_hour=texts.read("compaction.offpeak.start.hour", -1),
        offpeak_end_hour=texts.read("compaction.offpeak.end.hour", -1),
        offpeak_ratio_percent=texts.read("compaction.offpeak-ratio", 0),
        force_up_level_0=texts.read("compaction.force-up-level-0", False)
        or (lookup is not None and lookup.wait_ms is None),
        optimization_interval_ms=texts.maybe("compaction.optimization-interval"),
        total_size_threshold=texts.maybe("compaction.total-size-threshold"),
        incremental_size_threshold=texts.maybe("compaction.incremental-size-threshold"),
        full_compaction_delta_commits=_delta_commits(texts, 1 if full_changelog else -1),
        force_rewrite_all_files=texts.read("compaction.force-rewrite-all-files", False),
        target_file_size=texts.read(
            "target-file-size", (128 if has_key else 256) * _MIB, _POSITIVE_SIZE
        ),
        small_file_ratio=texts.read("compaction.small-file-ratio", 0.7),
        min_file_num=texts.read("compaction.min.file-num", 5),
        file_num_limit=texts.read("compaction.file-num-limit", 100_000),
        open_file_cost=texts.read("source.split.open-file-cost", 4 * _MIB),
        delete_ratio=texts.read("compaction.delete-ratio-threshold", 0.2),
        record_expire=_record_expire(texts) if has_key else None,
        full_changelog=full_changelog,
        # Full compaction's rewriter wins: lower levels then hold no whole state.
        lookup=None if full_changelog else lookup,
        of_triggers={
            key: value
            for key, parse in of_triggers.items()
            if (value := texts.maybe(key, parse)) is not None
        },
    )


def _record_expire(texts: OptionTexts) -> RecordExpire | None:
    """None also without a time field, for which the table is refused."""
    expire_ms = texts.maybe("record-level.expire-time")
    field = texts.maybe("record-level.time-field")
    if expire_ms is None or field is None:
        return None
    return RecordExpire(field=field, seconds=expire_ms // 1000)


def _delta_commits(texts: OptionTexts, default: int) -> int | None:
    """As in StoreSinkWrite.java: below 0 is never, and 0 counts as 1."""
    found = texts.read("full-compaction.delta-commits", default)
    return None if found < 0 else max(found, 1)


def _commit(texts: OptionTexts, vectors: VectorOptions | None) -> CommitOptions:
    return CommitOptions(
        timeout_ms=texts.maybe("commit.timeout"),
        max_retries=texts.read("commit.max-retries", 10),
        min_retry_wait_ms=texts.read("commit.min-retry-wait", 10),
        max_retry_wait_ms=texts.read("commit.max-retry-wait", 10_000),
        user_prefix=texts.maybe("commit.user-prefix"),
        manifests=ManifestRules(
            target_size=texts.read("manifest.target-file-size", 8 * _MIB, _POSITIVE_SIZE),
            full_threshold=texts.read("manifest.full-compaction-threshold-size", 16 * _MIB),
            min_count=texts.read("manifest.merge-min-count", 30),
        ),
        # `avro.codec` applies to every Avro file of a table, including manifests.
        manifest_compression=texts.read("avro.codec", texts.read("manifest.compression", "zstd")),
        manifest_compression_level=texts.read(
            "file.compression.zstd-level", 1, option_values.zstd_level
        ),
        delete_file_drop_stats=texts.read("manifest.delete-file-drop-stats", False),
        sequence_init=texts.read("write.sequence-number-init-mode", SequenceInit.SCAN),
        # Readers divide by it and ignore its sign.
        full_compaction_delta_commits=abs(texts.read("full-compaction.delta-commits", 0)) or None,
        vectors=vectors,
    )


def _sequence_fields(schema: TableSchema) -> Callable[[str], tuple[str, ...]]:
    def columns(text: str) -> tuple[str, ...]:
        names = tuple(part.strip() for part in text.split(","))
        if not {field.name for field in schema.fields}.issuperset(names):
            raise ValueError("names of columns, separated by commas")
        return names

    return columns


def _bucket_key(texts: OptionTexts, schema: TableSchema) -> tuple[str, ...]:
    """The columns whose hash chooses the bucket: the option, split exactly, or the key."""

    def columns(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if not {field.name for field in schema.fields}.issuperset(names):
            raise ValueError("names of columns, separated by commas without blanks")
        return names

    key = tuple(field.name for field in schema.key_fields)
    found = texts.text("bucket-key")
    if found is None or not found[1].strip():
        return key
    return texts.read("bucket-key", key, columns)


def _vectors(texts: OptionTexts, *, has_buckets: bool) -> VectorOptions | None:
    """The options, or None without deletion vectors. `has_buckets` includes dynamic buckets."""
    enabled = texts.read("deletion-vectors.enabled", False)
    is_64 = texts.read("deletion-vectors.bitmap64", False)
    target_size = texts.read("deletion-vector.index-file.target-size", 2 * _MIB)
    if not enabled:
        return None
    kind = VectorKind.BITS_64 if is_64 else VectorKind.BITS_32
    return VectorOptions(kind=kind, target_size=None if has_buckets else target_size)
