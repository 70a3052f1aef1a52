"""Halts: reasons, how they end, advice for operators. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compactord import errors
from compactord.errors import ErrorKind
from compactord.paimon.data_file import BucketId
from compactord.scheduler.compaction import Halt, HaltReason
from compactord.text import bucket_text
from compactord.verify.holds import Hold

# Error classes that prove that a live file is missing or damaged.
CERTAIN = frozenset({ErrorKind.DATA_FILE_MISSING, ErrorKind.DATA_FILE_DAMAGED})


class HaltEnd(enum.Enum):
    """The condition that ends a halt, the strongest first.

    An operator, when the table must not be changed. A cycle, when polling the table failed.
    A commit, when its compactions fail; a plan in which the failed buckets have no work ends
    that as well, since the table is still polled.
    """

    OPERATOR = "operator"
    CYCLE = "cycle"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason of a failure; `error` is the name of the error's class, empty for none."""

    message: str
    error: ErrorKind = ErrorKind.NONE

    @property
    def is_certain(self) -> bool:
        """Whether a live file is certainly missing or damaged."""
        return self.error in CERTAIN

    @classmethod
    def of(cls, error: errors.CompactordError) -> Failure:
        return cls(message=str(error), error=ErrorKind.of(error))


@dataclass(slots=True, kw_only=True)
class QuarantinedBucket:
    """A bucket quarantined until `until_ms`, or if that is 0 until its damaged files change.

    Its first failure in a row was at `since_ms`. `error` is the class of the error, empty if
    fruitless attempts are the only cause.
    """

    failures: int
    message: str
    error: ErrorKind
    since_ms: int
    until_ms: int
    partition: str
    # The halt reason shown to operators.
    halt: HaltReason | None = None

    @property
    def keeps_snapshots(self) -> bool:
        """Whether possible rollback targets must be kept."""
        is_told = self.halt is not None and self.halt is not HaltReason.REPEATED_FAILURES
        return is_told or self.error in CERTAIN

    @property
    def is_damaged(self) -> bool:
        """Whether the bucket cannot even be planned."""
        return self.until_ms == 0


@dataclass(slots=True, kw_only=True)
class FruitlessAttempts:
    """Fruitless compactions of a bucket in a row; `up_to` is the last id dispatched by then."""

    count: int = 0
    up_to: int = 0


# Halt reasons of quarantined buckets, the gravest first.
_OF_BUCKETS = (
    HaltReason.DATA_FILE_MISSING,
    HaltReason.DATA_CHECK_FAILED,
    HaltReason.REPEATED_FAILURES,
)


def halt_of_buckets(quarantined: Mapping[BucketId, QuarantinedBucket]) -> Halt | None:
    """The gravest halt of single buckets, or None if none is shown as halted."""
    for reason in _OF_BUCKETS:
        lacking = [(bucket, each) for bucket, each in quarantined.items() if each.halt is reason]
        if lacking:
            return _halt_of(reason, lacking)
    return None


def quarantine_text(quarantined: Sequence[tuple[BucketId, QuarantinedBucket]]) -> str:
    """The first bucket with its failure, and how many more there are; empty for none."""
    if not quarantined:
        return ""
    bucket, first = quarantined[0]
    place = bucket_text(first.partition, bucket.bucket)
    others = f" (and {len(quarantined) - 1:,} more)" if len(quarantined) > 1 else ""
    return f"{place}{others}: {first.message}"


def _halt_of(reason: HaltReason, lacking: Sequence[tuple[BucketId, QuarantinedBucket]]) -> Halt:
    _, first = lacking[0]
    return Halt(
        reason=reason,
        message=quarantine_text(lacking),
        action=f"{advice(first.error)} Other buckets are compacted.",
        since_ms=min(each.since_ms for _, each in lacking),
        next_try_ms=min(each.until_ms for _, each in lacking),
    )


def halt_of_hold(hold: Hold, since_ms: int) -> Halt:
    """The halt shown while no file of the table is deleted."""
    is_missing = hold.error == ErrorKind.DATA_FILE_MISSING
    return Halt(
        reason=HaltReason.DATA_FILE_MISSING if is_missing else HaltReason.DATA_CHECK_FAILED,
        message=str(hold),
        action=f"{advice(hold.error)} Compactions of other files go on.",
        since_ms=since_ms,
    )


def failure_reason(error: ErrorKind) -> HaltReason:
    """The reason of a halt for failed compactions; `error` is the name of the error's class."""
    is_damage = error in (ErrorKind.FORMAT_ERROR, ErrorKind.DATA_FILE_DAMAGED)
    return HaltReason.DATA_CHECK_FAILED if is_damage else HaltReason.REPEATED_FAILURES


def halt_for(error: errors.CompactordError) -> tuple[HaltReason, str] | None:
    """The halt reason and advice for an error that needs an operator."""
    match error:
        case errors.UnsupportedTable():
            return HaltReason.UNSUPPORTED_FEATURE, (
                "Exclude the table (discovery.excluding_tables), or change the options named."
            )
        case errors.FormatError(path=path) if "/schema/" in path:
            return HaltReason.SCHEMA_UNREADABLE, f"Restore {path} from a backup."
        case errors.FormatError(path=path):
            return HaltReason.CORRUPT_METADATA, (
                f"Check {path}; roll the table back to a snapshot that does not need it."
            )
        case errors.UsageError():
            return HaltReason.SCHEMA_UNREADABLE, (
                "Correct the option, in the table (ALTER TABLE … SET) or in the configuration."
            )
        case _:
            return None


_ADVICE = {
    ErrorKind.ACCESS_DENIED: "Give compactord's user read and write permission on the folder.",
    ErrorKind.READ_ONLY_FILE_SYSTEM: (
        "Make the file system writable (the kernel's log shows whether an error made it "
        "read-only), then send SIGHUP; or exclude the table (discovery.excluding_tables)."
    ),
    ErrorKind.FORMAT_ERROR: (
        "Check the file that the message names: restore it, or roll the table back to a snapshot "
        "that does not need it."
    ),
    ErrorKind.UNREADABLE_COLUMN: (
        "Rewrite the rows of the file that the message names with the table's column types, or "
        "overwrite the partition."
    ),
    ErrorKind.DATA_FILE_DAMAGED: (
        "Restore the file; or stop the table's writers and roll it back, by the statement if the "
        "message has one. No snapshot expires meanwhile."
    ),
    ErrorKind.TIME_LIMIT_PASSED: (
        "Look at the store and at the machine of the worker: one of them hangs. If merges are only "
        "slow, raise limits.task_timeout (compact: --task-timeout)."
    ),
    ErrorKind.DATA_FILE_MISSING: (
        "Restore the file; or stop the table's writers and roll it back, by the statement if the "
        "message has one. `compactord verify` lists all missing files, deletion vectors included. "
        "No snapshot expires meanwhile."
    ),
    ErrorKind.OBJECT_NOT_FOUND: (
        "Restore the file that the message names, or roll the table back to a snapshot that does "
        "not need it; then send SIGHUP. `compactord verify` lists what is missing."
    ),
    ErrorKind.STORE_FULL: (
        "Make room, or raise the quota, where the table lives; then send SIGHUP."
    ),
    ErrorKind.TABLE_NOT_FOUND: "Nothing, if it was dropped: the next listing removes it.",
    ErrorKind.COMMIT_GAVE_UP: (
        "Raise commit.max-retries or commit.timeout of the table; find the job that commits often."
    ),
}


def advice(kind: ErrorKind) -> str:
    """Advice for errors that may be transient; `kind` is the name of the error's class."""
    return _ADVICE.get(
        kind, "Look for compaction_failed and commit events of this table in the log."
    )
