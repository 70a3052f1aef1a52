"""Options of a table for maintenance, including automatic tags.

The name of an automatic tag encodes the local time at which its period begins. Sources:
CoreOptions.java, tag/TagPeriodHandler.java and tag/TagAutoCreation.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TypeVar

from compactord.paimon.catalog_partitions import PartitionEntries, PartitionEvents
from compactord.paimon.java_text import formatter_trouble
from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.schema import TableSchema

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS = timedelta(milliseconds=1)
LENGTH_MAX_MS = 100 * 366 * 86_400_000
# Years of four digits, with room for one more period on either side.
_YEARS = range(1200, 9800)
# Each tag has a partition in the catalog.
TAG_PARTITIONS = "metastore.tag-to-partition"
_TAG_CREATION = "tag.automatic-creation"
_DURATION, _DELAY = "tag.creation-period-duration", "tag.creation-delay"
_HOUR_MS = 3_600_000
_DAYS = {"with_dashes": "%Y-%m-%d"}
_HOURS = {"with_dashes": "%Y-%m-%d %H", "without_dashes": "%Y%m%d %H"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TagPeriod:
    """Periods of `length_ms` (`LENGTH_MAX_MS` at most), and the `form` of their names (`strftime`).

    Times are local, in ms as if they were UTC. With `ends_at_blank`, text after a blank is ignored.
    """

    length_ms: int
    form: str
    ends_at_blank: bool = False

    def name(self, time_ms: int) -> str:
        return (_EPOCH + timedelta(milliseconds=time_ms)).strftime(self.form)

    def time_ms(self, name: str) -> int | None:
        """The time that the name encodes, or None for other tags."""
        text = name.partition(" ")[0] if self.ends_at_blank else name
        try:
            moment = datetime.strptime(text, self.form).replace(tzinfo=timezone.utc)
        except ValueError:
            return None
        # Java accepts no missing digit and no extra blank.
        return (moment - _EPOCH) // _MS if moment.strftime(self.form) == text else None

    def times(self, names: Iterable[str]) -> dict[str, int]:
        """Name to time of the automatic tags among `names`."""
        found = {name: self.time_ms(name) for name in names}
        return {name: time_ms for name, time_ms in found.items() if time_ms is not None}

    def last_before(self, time_ms: int) -> int:
        """Start of the last period that has ended by `time_ms`."""
        return time_ms // self.length_ms * self.length_ms - self.length_ms


def has_name(time_ms: int) -> bool:
    """Whether tags of all periods can be named for this moment, in any time zone."""
    try:
        return (_EPOCH + timedelta(milliseconds=time_ms)).year in _YEARS
    except OverflowError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCreationOptions:
    """When tags are created and how long they are kept. Durations in milliseconds.

    Time is the snapshots' time, or with `by_watermark` their watermark, in `zone`, by default the
    machine's. A tag is created `delay_ms` after its period has ended. With `completes`, missed
    periods get tags from later snapshots. At most `retained_max` tags are kept; their files record
    a retention of `retained_ms`.
    """

    period: TagPeriod
    by_watermark: bool = False
    zone: tzinfo | None = None
    delay_ms: int = 0
    completes: bool = False
    retained_max: int | None = None
    retained_ms: int | None = None


def tag_creation_options(texts: OptionTexts) -> TagCreationOptions | None:
    """The options, or None if no tags are requested or if ending jobs create them.

    Raises `ValueError` with the name of an option that is wrong or unsupported.
    """
    mode = texts.strictly(_TAG_CREATION, "none")
    if mode in ("none", "batch"):
        return None
    if texts.merged.get(TAG_PARTITIONS):
        raise ValueError(f"option {TAG_PARTITIONS}={texts.merged[TAG_PARTITIONS]}")
    period, by_watermark = _period(texts), mode == "watermark"
    delay_ms = texts.strictly(_DELAY, 0)
    if delay_ms >= period.length_ms:
        raise ValueError(f"option {_DELAY}={texts.merged[_DELAY]}: as long as the period or longer")
    zone_key = "sink.watermark-time-zone" if by_watermark else "sink.process-time-zone"
    zone = texts.strictly(zone_key, None, option_values.zone)
    at_least_one = option_values.positive(option_values.integer)
    return TagCreationOptions(
        period=period,
        by_watermark=by_watermark,
        zone=zone or (timezone.utc if by_watermark else None),
        delay_ms=delay_ms,
        completes=texts.strictly("tag.automatic-completion", False),
        retained_max=texts.strictly("tag.num-retained-max", None, at_least_one),
        retained_ms=texts.strictly("tag.default-time-retained", None),
    )


def _period(texts: OptionTexts) -> TagPeriod:
    length_ms = texts.strictly(_DURATION, None, _length_ms)
    if length_ms is not None:
        return TagPeriod(length_ms=length_ms, form="%Y%m%d%H%M")
    name = texts.strictly("tag.creation-period", "daily")
    if name == "two-hours":
        return TagPeriod(length_ms=2 * _HOUR_MS, form=_HOURS["with_dashes"])
    formatter = texts.strictly("tag.period-formatter", "with_dashes")
    if name == "hourly":
        return TagPeriod(length_ms=_HOUR_MS, form=_HOURS.get(formatter, "%Y%m%d%H"))
    form = _DAYS.get(formatter, "%Y%m%d")
    return TagPeriod(length_ms=24 * _HOUR_MS, form=form, ends_at_blank=True)


def _length_ms(text: str) -> int:
    length_ms = option_values.duration_ms(text)
    if not 0 < length_ms <= LENGTH_MAX_MS:
        raise ValueError("a duration from 1 ms to 36600 d")
    return length_ms


_T = TypeVar("_T")
_INT_MAX = 2**31 - 1
# Ways to mark a partition as done: a file, an entry in its catalog, an event in its catalog.
SUCCESS_FILE, DONE_PARTITION, MARK_EVENT = "success-file", "done-partition", "mark-event"
_IN_CATALOG = frozenset({DONE_PARTITION, MARK_EVENT})
_IDLE, _INTERVAL = "partition.idle-time-to-done", "partition.time-interval"
_ACTION, _MODE = "partition.mark-done-action", "partition.mark-done-action.mode"
_PATTERN, _FORMATTER = "partition.timestamp-pattern", "partition.timestamp-formatter"
# Partitions have entries in a catalog that supports them.
CATALOG_PARTITIONS = "metastore.partitioned-table"
NONE_EXPIRES, NONE_MARKED = "partitions are not expired", "partitions are not marked done"
EXPIRATION_TIME = "partition.expiration-time"
_STRATEGY, _MAX_NUM = "partition.expiration-strategy", "partition.expiration-max-num"
_BATCH_SIZE = "partition.expiration-batch-size"
_VALUES_TIME, _UPDATE_TIME = "values-time", "update-time"
_CHECK_INTERVAL_MS, _MOST = 3_600_000, 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogRetention:
    """How long changelogs are kept that outlive their snapshots. Durations in milliseconds.

    `from_deltas`: readers take changes from the files that writers add, because the table has no
    changelog producer. `from_overwrites`: they also read the rows that an overwrite removed.
    `holds_changelogs_only`: consumers hold changelogs only, not snapshots.
    """

    num_retained_min: int
    num_retained_max: int
    time_retained_ms: int
    from_deltas: bool = False
    from_overwrites: bool = False
    holds_changelogs_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOptions:
    """How long snapshots are kept. Durations in milliseconds.

    At most `limit` expire at a time. If `changelogs` is None, changelogs expire with their
    snapshots.
    """

    num_retained_min: int
    num_retained_max: int
    time_retained_ms: int
    limit: int
    clean_empty_directories: bool
    changelogs: ChangelogRetention | None = None


def expire_options(texts: OptionTexts, *, has_producer: bool) -> ExpireOptions:
    """The options. An invalid value is in `texts.unreadable`, or raises `UsageError`
    (`OptionTexts`).
    """
    fewest = texts.read("snapshot.num-retained.min", 10)
    most = texts.read("snapshot.num-retained.max", _INT_MAX)
    time_ms = texts.read("snapshot.time-retained", 3_600_000)
    changelogs = ChangelogRetention(
        num_retained_min=texts.read("changelog.num-retained.min", fewest),
        num_retained_max=texts.read("changelog.num-retained.max", most),
        time_retained_ms=texts.read("changelog.time-retained", time_ms),
        from_deltas=not has_producer,
        from_overwrites=texts.read("streaming-read-overwrite", False),
        holds_changelogs_only=texts.read("consumer.changelog-only", False),
    )
    outlive = (
        changelogs.num_retained_min > fewest
        or changelogs.num_retained_max > most
        or changelogs.time_retained_ms > time_ms
    )
    return ExpireOptions(
        num_retained_min=fewest,
        num_retained_max=most,
        time_retained_ms=time_ms,
        limit=texts.read("snapshot.expire.limit", 50),
        clean_empty_directories=texts.read("snapshot.clean-empty-directories", False),
        changelogs=changelogs if outlive else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDoneOptions:
    """When a partition is done: `idle_ms` after its last file, and after its own time.

    Its time lasts `interval_ms` from a start given by `pattern` and `formatter`
    (`partition_time_ms`). `actions` are the ways to mark it.
    """

    idle_ms: int
    interval_ms: int
    actions: frozenset[str] = frozenset({SUCCESS_FILE})
    pattern: str | None = None
    formatter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExpiryOptions:
    """Partitions expire `time_ms` after the time that their values encode (`partition_time_ms`).

    With `by_update` the age of their newest file counts instead. A check every `interval_ms`
    removes up to `most` partitions, `at_once` in a snapshot.
    """

    time_ms: int
    by_update: bool = False
    interval_ms: int = _CHECK_INTERVAL_MS
    most: int = _MOST
    at_once: int = _MOST
    pattern: str | None = None
    formatter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOptions:
    """Consumers that have not moved for `consumer_time_ms` expire; never if it is None.

    `mark_done` and `expire_partitions` are None if not requested or refused; the refusals name the
    unsupported option. `in_catalog`: writers register partitions in a catalog that supports them,
    or tags with `tag_partitions`. `expires_tags`: tags expire at the time in their files.
    `tags_succeed`: each tag has a success file. `keeps_changelogs`: changelogs outlive their
    snapshots. Without `tag_creation` no automatic tags are created; its refusal works like the one
    of marks.
    """

    consumer_time_ms: int | None = None
    mark_done: MarkDoneOptions | None = None
    mark_done_refusal: str | None = None
    expire_partitions: PartitionExpiryOptions | None = None
    expiry_refusal: str | None = None
    in_catalog: bool = False
    tag_partitions: bool = False
    expires_tags: bool = False
    tags_succeed: bool = False
    keeps_changelogs: bool = False
    tag_creation: TagCreationOptions | None = None
    tag_creation_refusal: str | None = None

    @property
    def requested(self) -> Mapping[str, int]:
        """The kinds of maintenance that run only if options request them.

        By name, with the requested time between two rounds in ms, or 0 without one.
        """
        expiry = self.expire_partitions
        found = {
            "create_tags": None if self.tag_creation is None else 0,
            "tags": 0 if self.expires_tags else None,
            "consumers": None if self.consumer_time_ms is None else 0,
            "done": None if self.mark_done is None else 0,
            "partitions": None if expiry is None else expiry.interval_ms,
            "changelogs": 0 if self.keeps_changelogs else None,
        }
        return {name: interval_ms for name, interval_ms in found.items() if interval_ms is not None}

    def why_none_expires(self, entries: PartitionEntries | None) -> str | None:
        """Why partitions do not expire although options request it, or None.

        `entries` is the catalog's list of partitions.
        """
        is_of_tags = self.in_catalog and entries is not None and self.tag_partitions
        if self.expire_partitions is not None and is_of_tags:
            return f"option {TAG_PARTITIONS}: the entries in the catalog belong to tags"
        return self.expiry_refusal

    def why_none_marked(
        self, entries: PartitionEntries | None, events: PartitionEvents | None
    ) -> str | None:
        """Why partitions are not marked done although options request it, or None.

        `entries` and `events` are the catalog's interfaces for partitions.
        """
        asked = frozenset[str]() if self.mark_done is None else self.mark_done.actions
        lacks = {DONE_PARTITION: entries is None, MARK_EVENT: events is None}
        lacking = [name for name in sorted(asked & _IN_CATALOG) if lacks[name]]
        if not lacking:
            return self.mark_done_refusal
        return (
            f"option {_ACTION}={','.join(lacking)}: the table's catalog cannot; set "
            f"{SUCCESS_FILE}, or open the table in a catalog that can"
        )


def maintenance_options(
    texts: OptionTexts, schema: TableSchema, expire: ExpireOptions
) -> MaintenanceOptions:
    """The options. An invalid value is in `texts.unreadable`, or raises `UsageError`
    (`OptionTexts`).

    Invalid options of marks and new tags disable only these: Flink reads the options of marks, and
    write-only jobs read neither.
    """
    mark_done, mark_done_refusal, expiry, expiry_refusal = None, None, None, None
    if schema.partition_keys:
        mark_done, mark_done_refusal = _unless_refused(_mark_done, texts)
        expiry, expiry_refusal = _unless_refused(_partition_expiry, texts)
    tag_creation, tag_creation_refusal = _unless_refused(tag_creation_options, texts)
    return MaintenanceOptions(
        consumer_time_ms=texts.maybe("consumer.expiration-time"),
        expires_tags=texts.read("tag.time-expire-enabled", True)
        and not texts.merged.get(TAG_PARTITIONS),
        tags_succeed=texts.read("tag.create-success-file", False),
        keeps_changelogs=expire.changelogs is not None,
        tag_creation=tag_creation,
        tag_creation_refusal=tag_creation_refusal,
        mark_done=mark_done,
        mark_done_refusal=mark_done_refusal,
        expire_partitions=expiry,
        expiry_refusal=expiry_refusal,
        in_catalog=texts.read(CATALOG_PARTITIONS, False),
        tag_partitions=bool(texts.merged.get(TAG_PARTITIONS)),
    )


def _unless_refused(
    read: Callable[[OptionTexts], _T | None], texts: OptionTexts
) -> tuple[_T | None, str | None]:
    """The requested options, or the text of the `ValueError` that refuses them."""
    try:
        return read(texts), None
    except ValueError as error:
        return None, str(error)


def _mark_done(texts: OptionTexts) -> MarkDoneOptions | None:
    if _IDLE not in texts.merged:
        return None
    if _INTERVAL not in texts.merged:
        raise ValueError(f"option {_IDLE}={texts.merged[_IDLE]} without {_INTERVAL}")
    idle_ms, interval_ms = texts.strictly(_IDLE, 0), texts.strictly(_INTERVAL, 0)
    names = texts.merged.get(_ACTION, SUCCESS_FILE).split(",")
    actions = frozenset(name.replace("_", "-").lower() for name in names)
    foreign = sorted(actions - {SUCCESS_FILE, *_IN_CATALOG})
    if foreign:
        served = f"{SUCCESS_FILE}, {DONE_PARTITION} and {MARK_EVENT}"
        raise ValueError(f"option {_ACTION}={','.join(foreign)}: only {served} are served")
    in_catalog = ",".join(sorted(actions & _IN_CATALOG))
    if in_catalog and texts.merged.get(CATALOG_PARTITIONS, "").lower() != "true":
        raise ValueError(f"option {_ACTION}={in_catalog} without {CATALOG_PARTITIONS}=true")
    mode = texts.merged.get(_MODE, "process-time")
    if mode.strip().lower() != "process-time":
        raise ValueError(f"option {_MODE}={mode}: only process-time is served")
    _check_formatter(texts)
    return MarkDoneOptions(
        idle_ms=idle_ms,
        interval_ms=interval_ms,
        actions=actions,
        pattern=texts.merged.get(_PATTERN),
        formatter=texts.merged.get(_FORMATTER),
    )


def _partition_expiry(texts: OptionTexts) -> PartitionExpiryOptions | None:
    """Follows operation/NormalPartitionExpire.java. Without a batch size a batch is everything."""
    time_ms = texts.maybe(EXPIRATION_TIME)
    if time_ms is None:
        return None
    most = texts.read(_MAX_NUM, _MOST)
    at_once = texts.read(_BATCH_SIZE, most)
    interval_ms = texts.read("partition.expiration-check-interval", _CHECK_INTERVAL_MS)
    strategy = texts.merged.get(_STRATEGY, _VALUES_TIME)
    if strategy == _VALUES_TIME:
        _check_formatter(texts)
    elif strategy != _UPDATE_TIME:
        served = f"{_VALUES_TIME} and {_UPDATE_TIME}"
        raise ValueError(f"option {_STRATEGY}={strategy}: only {served} are served")
    if most < 1:
        raise ValueError(f"option {_MAX_NUM}={most}: no partition could expire")
    return PartitionExpiryOptions(
        time_ms=time_ms,
        by_update=strategy == _UPDATE_TIME,
        interval_ms=interval_ms,
        most=most,
        at_once=at_once if at_once > 0 else most,
        pattern=texts.merged.get(_PATTERN),
        formatter=texts.merged.get(_FORMATTER),
    )


def _check_formatter(texts: OptionTexts) -> None:
    formatter = texts.merged.get(_FORMATTER)
    trouble = None if formatter is None else formatter_trouble(formatter)
    if trouble is not None:
        raise ValueError(f"option {_FORMATTER}={formatter}: {trouble} is not understood")
