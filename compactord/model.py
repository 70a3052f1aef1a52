"""The values of the work: decisions, subcompactions, outcomes.

All are frozen values that pickle and compare by value. A `Compaction` is one decision on one
bucket; a `Subcompaction` is one worker's share of it.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from compactord.errors import ErrorKind, FormatError

# Slow to import, and the clients of a service need only names and reasons.
if TYPE_CHECKING:
    from compactord.ids import Owner
    from compactord.paimon.data_file import BucketId, ColumnStatsMode, DataFile
    from compactord.paimon.deletion_vectors import VectorRef
    from compactord.paimon.options.merge import ChangelogRule, MergeRules
    from compactord.paimon.options.table_options import RecordExpire
    from compactord.paimon.types import DataField
    from compactord.storage.base import StorageSpec
    from compactord.storage.requests import RequestTotal


class CompactReason(enum.Enum):
    """Why a compaction was picked, with its meaning: one list for plans, logs and metrics.

    Each member has its value and the meaning shown to operators.
    """

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> CompactReason:
        reason = object.__new__(cls)
        reason._value_ = value
        reason.meaning = meaning
        return reason

    EARLY_FULL_INTERVAL = "full_interval", "the last full compaction is older than the table allows"
    EARLY_FULL_TOTAL_SIZE = "total_size", "the bucket is small enough to be kept in one run"
    EARLY_FULL_INCREMENTAL_SIZE = (
        "incremental_size",
        "enough data arrived since the last full compaction",
    )
    SIZE_AMPLIFICATION = "size_amp", "newer runs are large compared with the oldest one"
    SIZE_RATIO = "size_ratio", "neighbouring runs are of similar size"
    RUN_COUNT = "file_num", "more sorted runs than the compaction trigger allows"
    FORCED_LEVEL_0 = "force_l0", "the table's options, or readers, require an empty level 0"
    DELTA_COMMITS = (
        "delta_commits",
        "the table allows no more commits since the last full compaction",
    )
    FRESHNESS_LAG = (
        "freshness_lag",
        "readers have waited for its rows for half of max_freshness_lag",
    )
    LOOKUP_BEGINS = (
        "lookup_begins",
        "levels above 0 are from before the table looked keys up, or marked rows as deleted",
    )
    FULL = "full", "a full compaction was requested"
    FORCED_REWRITE = "force_rewrite", "every file must be rewritten"
    EXPIRED_RECORDS = "expired_records", "files on the highest level have records that have expired"
    DELETED_ROWS = "deleted_rows", "files have rows that were deleted since"
    APPEND_SMALL_FILES = "append_pack", "enough small files to make a larger one"
    APPEND_WAITED = "append_wait", "small files have waited long enough"
    APPEND_FULL = "append_full", "every file below the target size"

    @classmethod
    def added(cls, value: str, meaning: str) -> CompactReason:
        """The reason of a trigger that the list lacks; made once, as reasons are identities."""
        reason = object.__new__(cls)
        reason._name_ = reason._value_ = value
        reason.meaning = meaning
        return reason

    @property
    def is_full(self) -> bool:
        """Whether the compaction is a full one, for compaction.optimization-interval."""
        return self in (
            CompactReason.EARLY_FULL_INTERVAL,
            CompactReason.EARLY_FULL_TOTAL_SIZE,
            CompactReason.EARLY_FULL_INCREMENTAL_SIZE,
            CompactReason.SIZE_AMPLIFICATION,
            CompactReason.DELTA_COMMITS,
            CompactReason.FRESHNESS_LAG,
            CompactReason.FULL,
        )


class TableName(NamedTuple):
    """Identifies a table within the service."""

    catalog: str
    database: str
    table: str

    def __str__(self) -> str:
        return ".".join(self)

    @property
    def log_fields(self) -> dict[str, str]:
        """Log fields with the table's name; without the catalog in a run over one table."""
        return {key: value for key, value in self._asdict().items() if value}


class TableKind(enum.Enum):
    PRIMARY_KEY = "primary-key"
    APPEND_UNAWARE = "append-unaware"
    APPEND_BUCKETED = "append-bucketed"


class WorkKind(enum.Enum):
    """The kinds of work that windows distinguish."""

    MINOR = "minor"
    FULL = "full"
    APPEND = "append"
    EXPIRE = "expire"


class PickRule(enum.Enum):
    """Release whose universal picks are used.

    With 2.0 a large level 1 joins each pick; with 2.1 it counts, and moves on.
    """

    RELEASE_2_0 = "2.0"
    RELEASE_2_1 = "2.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedRun:
    """Files with disjoint key ranges in key order; a level-0 run is a single file."""

    level: int
    files: tuple[DataFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.file_size for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Runs whose key ranges touch no other section's, in the order of IntervalPartition.java.

    A section's run may mix files of several levels; its `level` is its first file's.
    """

    runs: tuple[SortedRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One step of a compaction.

    `changelog`: changes are written as well. `looks_up`, `marks` and `finds_values`: see
    `MergeSpec`; `above` are runs on levels above the output, lowest first.
    """

    changelog: bool = False
    looks_up: bool = False
    above: tuple[SortedRun, ...] = ()
    marks: bool = False
    finds_values: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite(Action):
    """One rewrite call: sections in key order, written by one rolling writer.

    `drop_deletes`: retracts are not written.
    """

    sections: tuple[Section, ...]
    drop_deletes: bool = False

    @property
    def files(self) -> tuple[DataFile, ...]:
        return tuple(f for section in self.sections for run in section.runs for f in run.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade(Action):
    """The same file on a higher level."""

    file: DataFile

    @property
    def files(self) -> tuple[DataFile, ...]:
        return (self.file,)

    @property
    def reads_rows(self) -> bool:
        """Whether it reads rows: for a changelog, or to mark rows that they replace."""
        return self.changelog or (self.marks and bool(self.above))


@dataclass(frozen=True, slots=True, kw_only=True)
class Concat(Action):
    """Append files rewritten in this order."""

    files: tuple[DataFile, ...]
    ordered: bool  # sequence ranges of several outputs are disjoint and ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A decision on one bucket: `actions` in key order; a single `Concat` of an append table.

    Files of the picked unit that stay unchanged are not listed.
    """

    bucket: BucketId
    total_buckets: int
    reason: CompactReason
    actions: tuple[Rewrite | Upgrade | Concat, ...]
    output_level: int = 0

    @property
    def kind(self) -> WorkKind:
        """The kind of work that windows and counters distinguish."""
        if isinstance(self.actions[0], Concat):
            return WorkKind.APPEND
        return WorkKind.FULL if self.reason.is_full else WorkKind.MINOR

    @property
    def inputs(self) -> tuple[DataFile, ...]:
        """All files that the commit deletes from their level."""
        return tuple(file for action in self.actions for file in action.files)

    @property
    def input_bytes(self) -> int:
        return sum(file.file_size for file in self.inputs)

    @property
    def reads_files(self) -> bool:
        """Whether a worker has to read some of the files."""
        return any(not isinstance(each, Upgrade) or each.reads_rows for each in self.actions)

    @property
    def looks_up(self) -> bool:
        return any(action.looks_up for action in self.actions)

    @property
    def drop_deletes(self) -> bool:
        """Whether a rewrite drops retracts."""
        return any(isinstance(each, Rewrite) and each.drop_deletes for each in self.actions)

    @property
    def upgraded(self) -> tuple[DataFile, ...]:
        """Files that only change their level, as they are before."""
        return tuple(action.file for action in self.actions if isinstance(action, Upgrade))

    @property
    def looked_up(self) -> frozenset[DataFile]:
        """The files in which rows are looked up."""
        return frozenset(f for action in self.actions for run in action.above for f in run.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A file to read, with all that a worker needs; `path` is whole, `file_format` as in `formats`.

    `older_schema` is the index of its columns in `Subcompaction.older_schemas`, or None for the
    latest schema. `vector`: rows it deletes are skipped.
    """

    path: str
    file_format: str
    size_bytes: int
    row_count: int
    min_sequence_number: int
    max_sequence_number: int
    level: int = 0
    older_schema: int | None = None
    # Sequence number of all its records, or None if each record has its own.
    sequence_number: int | None = None
    vector: VectorRef | None = None

    def check_rows(self, rows: int) -> None:
        """Raises `FormatError` unless `rows`, the number read, is the manifest's."""
        if rows != self.row_count:
            raise FormatError(self.path, f"{rows} rows were read instead of {self.row_count}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """Serialised keys (BinaryRow), lower inclusive, upper exclusive; None leaves an end open."""

    lower: bytes | None = None
    upper: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogSpec:
    """The changelog of merged rows: changes since the records of `before_level`.

    If `before_level` is None, it covers keys with records of level 0, compared with the valid
    record above. `write` describes the changelog files.
    """

    before_level: int | None
    write: WriteSpec
    rule: ChangelogRule


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSpec:
    """The merge of the rows of each key: sections of runs of files, in key order.

    Records of a key are ordered by the sequence fields (nulls first in both directions), then by
    sequence number, then as Java's loser tree meets them; expired records are dropped before.
    `merge_engine`: see `kernels.functions`; `rules` are its function's arguments.
    `keeps_inputs`: the files stay, so only the rows of the `changelog` are written.
    `looks_up`: of a key's records on levels above 0 only the one on the lowest level counts; if the
    sections have files of level 0 and no such record, it is looked up in the runs `above`.
    `marks`: records found there are deleted in place, and the result has their positions.
    `finds_values`: they are also merged, not only marked.
    """

    sections: tuple[tuple[tuple[InputFile, ...], ...], ...]
    merge_engine: str
    rules: MergeRules
    key_columns: tuple[str, ...]
    sequence_fields: tuple[str, ...]
    sequence_descending: bool
    ignore_delete: bool
    drop_deletes: bool
    key_range: KeyRange
    record_expire: RecordExpire | None = None
    changelog: ChangelogSpec | None = None
    keeps_inputs: bool = False
    looks_up: bool = False
    above: tuple[tuple[InputFile, ...], ...] = ()
    marks: bool = False
    finds_values: bool = True

    @property
    def files(self) -> tuple[InputFile, ...]:
        return tuple(file for section in self.sections for run in section for file in run)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatSpec:
    """Rows of append files, one file after the other, in their order."""

    files: tuple[InputFile, ...]
    first_sequence_number: int
    # True continues the counter across output files; False restarts it in each (as Java).
    continues_across_outputs: bool


class Encoding(Protocol):
    """The encoding of new files. A value; only the writer of its format uses the rest of it."""

    @property
    def compressions(self) -> Sequence[str]:
        """The codecs in use, by Paimon's names."""

    @property
    def group_bytes(self) -> int:
        """Maximum bytes of rows, before compression, that the writer gets at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSpec:
    """How output files are written.

    `folder` is the bucket's whole path. `stats_modes` are by column of the file (system columns
    included). `keeps_encoding`: the run keeps the format's `encoding`, so pages may be copied.
    """

    folder: str
    file_format: str
    file_prefix: str
    file_suffix: str
    level: int
    schema_id: int
    target_file_size: int
    encoding: Encoding
    thin_mode: bool
    stats_modes: tuple[tuple[str, ColumnStatsMode], ...]
    stats_dense: bool
    creation_zone_offset_ms: int
    keeps_encoding: bool


# Subcompactions with less input are small: a worker runs several, one after the other, in one task.
SMALL_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcompaction:
    """One worker's share of a compaction, with everything that running it needs.

    `fields` are the columns of the latest schema, `older_schemas` the columns of files with other
    schemas; `zone` is for casts between local times and instants. `partition`: names and values of
    the partition's columns, for append files that lack them. `compaction_id` and `index`, the place
    of this share in the compaction from 0, are returned with the outcome.
    """

    table: str
    compaction_id: int
    index: int
    fields: tuple[DataField, ...]
    source: MergeSpec | ConcatSpec
    write: WriteSpec
    storage: StorageSpec
    owner: Owner
    memory_bytes: int
    older_schemas: tuple[tuple[DataField, ...], ...] = ()
    zone: datetime.tzinfo = datetime.timezone.utc
    partition: tuple[tuple[str, Any], ...] = ()

    @property
    def is_small(self) -> bool:
        """Whether starting a task takes longer than the subcompaction."""
        return sum(file.size_bytes for file in self.source.files) < SMALL_BYTES


# Rows of the table, and how they have changed.
DATA = "data"
CHANGELOG = "changelog"


class Output(NamedTuple):
    """A new file in the bucket's folder. Its kind decides which of a snapshot's lists names it."""

    kind: str
    file: DataFile

    @property
    def companions(self) -> tuple[str, ...]:
        """Names of files that are kept and deleted with it, such as an index."""
        return self.file.extra_files


def data_files(outputs: Iterable[Output]) -> tuple[DataFile, ...]:
    """The files with rows of the table, in their order."""
    return tuple(output.file for output in outputs if output.kind == DATA)


class Marks(NamedTuple):
    """Rows that a compaction deletes in a file that stays: their positions, as a 32-bit bitmap."""

    file_name: str
    positions: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteStats:
    input_records: int
    output_records: int
    input_bytes: int
    output_bytes: int
    cpu_s: float
    peak_rss_bytes: int
    requests: tuple[RequestTotal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcompactionResult:
    """New files, each kind in key (or arrival) order; none if no row was left.

    `marks`: at most one per file, in any order.
    """

    compaction_id: int
    index: int
    outputs: tuple[Output, ...]
    stats: RewriteStats
    marks: tuple[Marks, ...] = ()

    @property
    def after(self) -> tuple[DataFile, ...]:
        """The new files with rows of the table."""
        return data_files(self.outputs)


class Conflict(enum.Enum):
    """A conflict of a commit. `snapshot_race` is harmless and retried; the rest discard work.

    `bucket_damaged`: a live file's entry cannot be read, so comparison is impossible.
    """

    SNAPSHOT_RACE = "snapshot_race"
    FILE_REMOVED = "file_removed"
    PARTITION_EXPIRED = "partition_expired"
    BUCKET_COUNT_CHANGED = "bucket_count_changed"
    DV_CHANGED = "dv_changed"
    OUTPUT_LOST = "output_lost"
    BUCKET_DAMAGED = "bucket_damaged"
    OTHER = "other"


class FailureKind(enum.Enum):
    """POISON fails again with the same inputs; TRANSIENT and LOST may be tried again."""

    POISON = "poison"
    TRANSIENT = "transient"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubcompactionFailure:
    """A failed subcompaction. It left no file behind unless its worker died.

    `error` is the name of the error's class, `path` the object concerned, if any.
    """

    compaction_id: int
    index: int
    kind: FailureKind
    error: ErrorKind
    message: str
    path: str = ""
    traceback: str = ""
    # Path and reason of inputs with columns that cannot be read as the table's.
    unreadable: tuple[tuple[str, str], ...] = ()


SubcompactionOutcome = SubcompactionResult | SubcompactionFailure
