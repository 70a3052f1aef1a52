"""The configuration: its keys, descriptions and defaults. Frozen, and valid once it exists.

Attributes have their unit in the name, keys do not: key `max_backlog_age`, attribute
`max_backlog_age_ms`. The JSON Schema is made from these keys, descriptions and defaults.
"""

from __future__ import annotations

import re
from datetime import tzinfo
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from compactord.config.amounts import duration_ms, duration_text, size_bytes
from compactord.config.choices import (
    METASTORES,
    LogFormat,
    LogLevel,
    Mode,
    SnapshotExpiry,
    UnlockedWriters,
)
from compactord.config.section import Section
from compactord.config.values import (
    Digits,
    DurationMs,
    Flag,
    OrphanGraceMs,
    ScalarText,
    Several,
    SizeBytes,
    TablePattern,
    Text,
    ZoneNameOrLocal,
    at_least,
    zone_named,
)
from compactord.config.windows import Window
from compactord.errors import UsageError
from compactord.paimon.options.catalogue import canonical_key, check_override

# With less memory a merge cannot hold its own buffers.
LEAST_TASK_MEMORY_BYTES = 32 << 20

_SECOND = at_least(1000, "1 s")
_CATALOG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_EVERYTHING = re.compile(".*", re.ASCII)


def _metastore(value: object) -> str:
    if value not in METASTORES:
        raise ValueError("filesystem or jdbc, the metastores that are supported so far")
    return str(value)


def _catalog_name(name: str) -> str:
    if _CATALOG_NAME.fullmatch(name) is None:
        raise ValueError("a catalog's name of letters, digits, _ and -")
    return name


def _spark_key(key: str) -> str:
    if not key.startswith("spark."):
        raise ValueError("a Spark setting, which begins with spark.")
    return key


def _table_options(options: dict[str, str]) -> dict[str, str]:
    """Options under the keys as written; every wrong one is reported at its own place."""
    wrong: list[InitErrorDetails] = []
    names: dict[str, str] = {}
    for key, value in options.items():
        try:
            check_override(key, value)
            first = names.setdefault(canonical_key(key), key)
            if first != key:
                raise UsageError(f"{first} is another name of the same option")
        except UsageError as error:
            # The text before this quotes the value, which may be a secret.
            _, separator, expected = str(error).rpartition(": expected ")
            context = {"expected": expected, "hint": ""}
            if not separator:
                context = {"expected": "an option that may be set here", "hint": expected}
            wrong.append(
                InitErrorDetails(
                    type=PydanticCustomError("option", "{expected}", context),
                    loc=(key,),
                    input=value,
                )
            )
    if wrong:
        raise ValidationError.from_exception_data("options", wrong)
    return options


def _wrong(attribute: str, value: int, expected: str) -> ValidationError:
    """An error of a value that does not fit another one of its section, at its own place."""
    kind = PydanticCustomError("option", "{expected}", {"expected": expected, "hint": ""})
    details = InitErrorDetails(type=kind, loc=(attribute,), input=value)
    return ValidationError.from_exception_data("section", [details])


def _no_entries_if_null(value: object) -> object:
    return {} if value is None else value


TableOptions = Annotated[
    dict[str, ScalarText], BeforeValidator(_no_entries_if_null), AfterValidator(_table_options)
]
Settings = Annotated[
    dict[Annotated[str, AfterValidator(_spark_key)], ScalarText],
    BeforeValidator(_no_entries_if_null),
]
# Which there are depends on the metastore: they are checked where catalogs are opened.
CatalogOptions = Annotated[dict[str, ScalarText], BeforeValidator(_no_entries_if_null)]
CatalogName = Annotated[str, AfterValidator(_catalog_name)]


class Http(Section):
    bind: Text = Field(default="0.0.0.0", description="address to listen on")
    port: Annotated[StrictInt, Field(ge=0, le=65535), Digits] = Field(
        default=9464, description="port of metrics, health and the page; 0: any free one"
    )


class Service(Section):
    instance_name: Text = Field(
        default="auto", description="this daemon's name in logs and metrics; auto: the host's name"
    )
    timezone: ZoneNameOrLocal = Field(
        default="local",
        description="zone of windows, off-peak hours and creation times: that of the writers; "
        "local: the machine's",
    )
    http: Http = Http()

    @property
    def zone(self) -> tzinfo | None:
        """The configured zone; None: the machine's."""
        return None if self.timezone == "local" else zone_named(self.timezone)


class Spark(Section):
    master: Text | None = Field(
        default=None,
        description="Spark master, sc://… for Spark Connect; null: a Spark inside this process, "
        "one task per core",
    )
    app_name: Text = Field(
        default="compactord", description="the application's name in Spark's pages"
    )
    conf: Settings = Field(default={}, description="Spark settings, verbatim")
    task_memory_bytes: Annotated[SizeBytes, at_least(LEAST_TASK_MEMORY_BYTES, "32 mb")] = Field(
        default=size_bytes("512 mb"),
        alias="task_memory",
        description="memory of one merge, in addition to its idle worker's",
    )


class Catalog(Section):
    metastore: Annotated[str, BeforeValidator(_metastore)] = Field(
        default="filesystem",
        description="kind of the catalog",
        json_schema_extra={"enum": list(METASTORES)},
    )
    warehouse: Text = Field(
        description="root folder of the warehouse: a path, or a URL such as s3://bucket/wh, gs://, "
        "abfss://container@account.dfs.core.windows.net/wh, oss://"
    )
    options: CatalogOptions = Field(
        default={},
        description="the catalog's options under Paimon's names, those of the writers: uri, "
        "jdbc.user, jdbc.password, lock.enabled, s3.endpoint, s3.access-key, fs.azure.*, fs.gs.*, "
        "fs.oss.* and others; secrets as ${env:NAME} or ${file:/path}",
    )
    unlocked_writers: UnlockedWriters = Field(
        default=UnlockedWriters.REFUSE,
        description="for a catalog without a lock on S3, GCS or Azure, where a writer of Java can "
        "replace a snapshot of another: refuse: do not serve it; guarded: serve it, and let each "
        "snapshot of compactord stand for settle before building on it",
    )
    settle_ms: Annotated[DurationMs, _SECOND] = Field(
        default=duration_ms("10 s"),
        alias="settle",
        description="with guarded, how long a snapshot has to stand: longer than a writer takes "
        "from its last look to the end of its copy",
    )


class Discovery(Section):
    catalog_list_interval_ms: Annotated[DurationMs, _SECOND] = Field(
        default=duration_ms("60 s"),
        alias="catalog_list_interval",
        description="how often databases and tables are listed",
    )
    including_databases: TablePattern = Field(
        default=_EVERYTHING,
        description="regular expression that a database's whole name must match",
    )
    including_tables: TablePattern = Field(
        default=_EVERYTHING,
        description="regular expression that the whole of database.table must match",
    )
    excluding_tables: TablePattern | None = Field(
        default=None, description="tables to exclude, by database.table; overrides including"
    )


class TableSettings(Section):
    """Settings for all tables, which rules can override for some of them."""

    mode: Mode = Field(default=Mode.AUTO, description="auto: compact when due; paused: only poll")
    only_write_only: Flag = Field(
        default=True,
        description="exclude a table unless its options have write-only: its writers compact it "
        "themselves; false: its writers set write-only as they run, or compact beside us",
    )
    priority: Annotated[StrictInt, Field(ge=0, le=100), Digits] = Field(
        default=50, description="weight relative to other tables, 0 to 100"
    )
    windows: Several[Window] = Field(default=(), description="when which kinds of work may start")
    windows_strict: Flag = Field(
        default=False, description="keep to the windows even when writers are about to stall"
    )
    max_backlog_age_ms: Annotated[DurationMs, _SECOND] = Field(
        default=duration_ms("30 min"),
        alias="max_backlog_age",
        description="how long work may wait before it gets priority",
    )
    max_concurrent_tasks: Annotated[StrictInt, Field(ge=1), Digits] = Field(
        default=4, description="task slots that one table may hold"
    )
    discovery_interval_ms: Annotated[DurationMs, _SECOND] | None = Field(
        default=None,
        alias="discovery_interval",
        description="how often a table is polled; null: its own continuous.discovery-interval",
    )
    append_wait_ms: DurationMs | None = Field(
        default=duration_ms("30 min"),
        alias="append_wait",
        description="small append files that waited longer are merged even if they are few; "
        "null: they wait for more",
    )
    quiet_for_ms: DurationMs = Field(
        default=0,
        alias="quiet_for",
        description="how long partitions of append tables are skipped after a command rewrote "
        "them (DELETE, UPDATE, MERGE); 0 s: not at all",
    )
    expire_snapshots: SnapshotExpiry = Field(
        default=SnapshotExpiry.FROM_TABLE,
        description="from_table: expire snapshots as the table's options say; off: never",
    )
    options: TableOptions = Field(
        default={}, description="table options that override the table's own"
    )


def _without_defaults(schema: dict[str, Any]) -> None:
    for key in schema["properties"].values():
        key.pop("default", None)


class RuleSettings(TableSettings):
    """Only fields that are set count (`model_fields_set`); defaults of the others are unused."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)


class Match(Section):
    catalog: Text | None = Field(default=None, description="a catalog's exact name; absent: any")
    table: TablePattern | None = Field(
        default=None, description="regular expression for the whole of database.table; absent: any"
    )


class Rule(Section):
    match: Match = Field(description="which tables the rule concerns")
    settings: RuleSettings = Field(alias="set", description="settings of these tables")


class Limits(Section):
    task_slots: Annotated[StrictInt, Field(ge=1), Digits] | None = Field(
        default=None, description="merges at once; null: as many as the engine can run"
    )
    memory_bytes: Annotated[SizeBytes, at_least(LEAST_TASK_MEMORY_BYTES, "32 mb")] | None = Field(
        default=None,
        alias="memory",
        description="memory of all merges at once; null: 3/4 of the machine's, or the cgroup's; "
        "on a cluster what its cores hold",
    )
    max_commit_delay_ms: DurationMs = Field(
        default=duration_ms("5 s"),
        alias="max_commit_delay",
        description="how long a compaction waits for others of its table that are under way, to be "
        "published in one snapshot with them; 0 s: never",
    )
    task_timeout_ms: Annotated[DurationMs, _SECOND] = Field(
        default=duration_ms("10 min"),
        alias="task_timeout",
        description="a merge may take so long, and as long as it takes to read its files at "
        "task_min_rate; then it is cancelled and its bucket is quarantined",
    )
    task_min_bytes_per_s: Annotated[SizeBytes, at_least(1 << 10, "1 kb")] = Field(
        default=size_bytes("1 mb"),
        alias="task_min_rate",
        description="bytes that a merge reads each second if it is not to be cancelled",
    )


class Backoff(Section):
    min_ms: Annotated[DurationMs, at_least(1, "1 ms")] = Field(
        default=duration_ms("5 s"), alias="min", description="pause after the first failure"
    )
    max_ms: DurationMs = Field(
        default=duration_ms("10 min"),
        alias="max",
        description="longest pause",
    )

    @model_validator(mode="after")
    def _is_a_range(self) -> Backoff:
        if self.max_ms < self.min_ms:
            raise _wrong("max_ms", self.max_ms, f"min ({duration_text(self.min_ms)}) or more")
        return self


class Retry(Section):
    task_attempts: Annotated[StrictInt, Field(ge=1), Digits] = Field(
        default=3, description="attempts of one merge before its bucket is quarantined"
    )
    halt_after_consecutive_failures: Annotated[StrictInt, Field(ge=1), Digits] = Field(
        default=10, description="consecutive failures after which a table is halted"
    )
    halt_after_lost_snapshots: Annotated[StrictInt, Field(ge=1), Digits] = Field(
        default=1,
        description="snapshots replaced by another writer after which a table is halted",
    )
    backoff: Backoff = Backoff()


class Recovery(Section):
    orphan_grace_ms: OrphanGraceMs = Field(
        default=duration_ms("1 d"),
        alias="orphan_grace",
        description="age at which left-over files are deleted whose process cannot be proved "
        "dead; longer than any merge, 1 h or more",
    )
    interval_ms: Annotated[DurationMs, _SECOND] = Field(
        default=duration_ms("1 h"),
        alias="interval",
        description="how often orphan files are searched for",
    )
    writer_delay_ms: Annotated[DurationMs, _SECOND] = Field(
        default=duration_ms("10 min"),
        alias="writer_delay",
        description="how long a writer may pause within a commit: for so long snapshots are looked "
        "back at where a writer's rename can replace them",
    )


class Metrics(Section):
    max_tables: Annotated[StrictInt, Field(ge=1), Digits] = Field(
        default=2000, description="tables with metrics of their own; the others are counted"
    )
    top_n: Annotated[StrictInt, Field(ge=0), Digits] = Field(
        default=20, description="length of the lists of the worst buckets"
    )


class Alerts(Section):
    stop_trigger_fallback: Annotated[StrictInt, Field(ge=1), Digits] = Field(
        default=3,
        description="runs above the compaction trigger at which a table without a stop trigger "
        "counts as stalled",
    )


class Startup(Section):
    timeout_ms: Annotated[DurationMs, _SECOND] = Field(
        default=duration_ms("5 min"),
        alias="timeout",
        description="how long to wait for Spark",
    )


class Shutdown(Section):
    grace_ms: Annotated[DurationMs, _SECOND] = Field(
        default=duration_ms("300 s"), alias="grace", description="time from the signal to the end"
    )
    commit_reserve_ms: DurationMs = Field(
        default=duration_ms("30 s"),
        alias="commit_reserve",
        description="part of the grace reserved for commits; merges are cancelled before it",
    )

    @model_validator(mode="after")
    def _is_a_part(self) -> Shutdown:
        if self.commit_reserve_ms >= self.grace_ms:
            expected = f"less than grace ({duration_text(self.grace_ms)})"
            raise _wrong("commit_reserve_ms", self.commit_reserve_ms, expected)
        return self


class Reload(Section):
    interval_ms: Annotated[DurationMs, _SECOND] = Field(
        default=duration_ms("30 s"), alias="interval", description="how often the file is checked"
    )


class Log(Section):
    level: LogLevel = Field(default=LogLevel.INFO, description="lowest level that is logged")
    format: LogFormat = Field(
        default=LogFormat.AUTO, description="auto: readable on a terminal, JSON elsewhere"
    )


def _some_catalog(catalogs: dict[str, Catalog]) -> dict[str, Catalog]:
    if not catalogs:
        raise ValueError("one catalog or more, each under its name")
    return catalogs


class ServiceConfig(Section):
    """The whole configuration."""

    service: Service = Service()
    spark: Spark = Spark()
    catalogs: Annotated[dict[CatalogName, Catalog], AfterValidator(_some_catalog)] = Field(
        description="catalogs by name"
    )
    discovery: Discovery = Discovery()
    defaults: TableSettings = Field(default=TableSettings(), description="settings of all tables")
    rules: Several[Rule] = Field(
        default=(),
        description="top to bottom, later keys win, merged per key; options merged per option",
    )
    limits: Limits = Limits()
    retry: Retry = Retry()
    recovery: Recovery = Recovery()
    metrics: Metrics = Metrics()
    alerts: Alerts = Alerts()
    startup: Startup = Startup()
    shutdown: Shutdown = Shutdown()
    reload: Reload = Reload()
    log: Log = Log()
