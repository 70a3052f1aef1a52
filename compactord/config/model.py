"""The configuration: keys, descriptions and defaults. Frozen, and valid once it exists.

Attributes have their unit in the name, keys do not: key `max_backlog_age`, attribute
`max_backlog_age_ms`. The JSON Schema is generated from keys, descriptions and defaults; the text
below an attribute is its description, for users.
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
    PrivateAttr,
    StrictInt,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import InitErrorDetails

from compactord.catalog.kinds import CatalogKind
from compactord.catalog.registry import CATALOGS
from compactord.config.choices import LogFormat, LogLevel, MaintenanceRule, Mode, UnlockedWriters
from compactord.config.registries import OWN, ConfigRegistries, registries_of
from compactord.config.section import Section, wrong_value
from compactord.config.values import (
    LEAST_TASK_MEMORY_BYTES,
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
    duration_ms,
    duration_text,
    no_entries_if_null,
    scalar_text,
    size_bytes,
    table_pattern,
    zone_named,
)
from compactord.config.windows import Window
from compactord.errors import UsageError
from compactord.model import PickRule
from compactord.paimon.options.catalogue import canonical_key
from compactord.paimon.paths import MAIN_BRANCH

_SECOND = at_least(1000, "1 s")


def _table_options(options: dict[str, str], info: ValidationInfo) -> dict[str, str]:
    """Options under the keys as written. Every invalid one is reported at its own place."""
    wrong: list[InitErrorDetails] = []
    names: dict[str, str] = {}
    registries = registries_of(info)
    for key, value in options.items():
        try:
            registries.check_option(key, value)
            first = names.setdefault(canonical_key(key), key)
            if first != key:
                raise UsageError(f"{first} is another name of the same option")
        except UsageError as error:
            # The text before this quotes the value, which may be a secret.
            _, separator, expected = str(error).rpartition(": expected ")
            if separator:
                wrong.append(wrong_value(key, value, expected))
            else:
                wrong.append(wrong_value(key, value, "an option that may be set here", expected))
    if wrong:
        raise ValidationError.from_exception_data("options", wrong)
    return options


_TableOptions = Annotated[
    dict[str, ScalarText], BeforeValidator(no_entries_if_null), AfterValidator(_table_options)
]


class TableSettings(Section):
    """Settings for all tables, which rules can override for some of them."""

    mode: Mode = Mode.AUTO
    """auto: compact when due; paused: only poll"""
    only_write_only: Flag = True
    """exclude a table unless its options have write-only: its writers compact it themselves; false:
    its writers set write-only at run time, or compact concurrently
    """
    branches: Several[TablePattern] = (table_pattern(MAIN_BRANCH),)
    """branches that are compacted: names, or regular expressions for whole ones; main is the table
    itself
    """
    priority: Annotated[StrictInt, Field(ge=0, le=100), Digits] = 50
    """weight relative to other tables, 0 to 100"""
    windows: Several[Window] = ()
    """when which kinds of work may start"""
    windows_strict: Flag = False
    """keep to the windows even when writers are about to stall"""
    max_backlog_age_ms: Annotated[DurationMs, _SECOND] = duration_ms("30 min")
    """how long work may wait before it gets priority"""
    max_freshness_lag_ms: Annotated[DurationMs, _SECOND] | None = None
    """how long rows may wait for the compaction that makes them visible to readers; from half of it
    on the compaction is due, regardless of full-compaction.delta-commits, and the table is served
    first; null: not bounded
    """
    max_concurrent_tasks: Annotated[StrictInt, Field(ge=1), Digits] = 4
    """task slots that one table may hold"""
    discovery_interval_ms: Annotated[DurationMs, _SECOND] | None = None
    """how often a table is polled; null: its own continuous.discovery-interval"""
    max_quiet_interval_ms: Annotated[DurationMs, _SECOND] | None = None
    """while a table does not change, the time between its polls doubles up to this; null: it stays
    the same
    """
    append_wait_ms: DurationMs | None = duration_ms("30 min")
    """small append files that waited longer are merged even if they are few; null: they wait for
    more
    """
    quiet_for_ms: DurationMs = 0
    """how long partitions of append tables are skipped after a command rewrote them (DELETE,
    UPDATE, MERGE); 0 s: not at all
    """
    # YAML takes 2.1 without quotes for a number.
    pick: Annotated[PickRule, BeforeValidator(scalar_text)] = PickRule.RELEASE_2_1
    """pick from sorted runs as this release of Paimon does; with 2.0 level 1 may grow without bound
    """
    expire_snapshots: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: expire snapshots by the table's options; off: never"""
    expire_consumers: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: expire consumers if the table sets consumer.expiration-time; off: never"""
    create_tags: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: create tags if the table sets tag.automatic-creation, and delete those beyond its
    tag.num-retained-max; off: never
    """
    expire_tags: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: expire tags with an expiry time in their files, unless the table sets
    tag.time-expire-enabled: false; off: never
    """
    expire_partitions: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: expire partitions if the table sets partition.expiration-time; off: never"""
    expire_changelogs: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: expire changelogs that outlive their snapshots by the table's options; off: never
    """
    mark_done: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: mark partitions done if the table sets partition.idle-time-to-done; off: never"""
    remove_foreign_files: Flag = False
    """remove files of any program that no metadata references, like orphans --foreign; run that
    with --dry-run first
    """
    foreign_files_older_than_ms: Annotated[DurationMs, at_least(3_600_000, "1 h")] = duration_ms(
        "1 d"
    )
    """how long such files have not changed; longer than any writer takes from its first file to its
    commit, 1 h or more
    """
    foreign_files_interval_ms: Annotated[DurationMs, _SECOND] = duration_ms("1 d")
    """how often such files are searched for"""
    foreign_files_trash: Text | None = None
    """folder of the table's store to which such files are moved; null: they are deleted"""
    options: _TableOptions = Field(default={})
    """table options that override the table's own"""

    @property
    def asks_for_branches(self) -> bool:
        return any(pattern.pattern != MAIN_BRANCH for pattern in self.branches)

    def takes(self, branch: str) -> bool:
        return any(pattern.fullmatch(branch) for pattern in self.branches)


def _without_defaults(schema: dict[str, Any]) -> None:
    for key in schema["properties"].values():
        key.pop("default", None)


class RuleSettings(TableSettings):
    """Only fields that are set count (`model_fields_set`); other defaults are unused."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)


class Match(Section):
    catalog: Text | None = None
    """a catalog's exact name; absent: any"""
    table: TablePattern | None = None
    """regular expression for the whole of database.table, which includes its branches, or of
    database.table$branch_name; absent: any
    """


class Rule(Section):
    match: Match
    """which tables the rule concerns"""
    settings: RuleSettings = Field(alias="set")
    """settings of these tables"""


_EVERYTHING = re.compile(".*", re.ASCII)
_CATALOG_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_SHOWN_OPTIONS = ", ".join(option for kind in CATALOGS.values() for option in kind.shown_options)


def _spark_key(key: str) -> str:
    if not key.startswith("spark."):
        raise ValueError("a Spark setting, which begins with spark.")
    return key


def _wrong(attribute: str, value: int, expected: str) -> ValidationError:
    """An error of a value that conflicts with another value of its section."""
    return ValidationError.from_exception_data("section", [wrong_value(attribute, value, expected)])


Settings = Annotated[
    dict[Annotated[str, AfterValidator(_spark_key)], ScalarText],
    BeforeValidator(no_entries_if_null),
]


class Http(Section):
    bind: Text = "0.0.0.0"
    """address to listen on"""
    port: Annotated[StrictInt, Field(ge=0, le=65535), Digits] = 9464
    """port of metrics, health and the page; with 0, any free one"""


class Service(Section):
    instance_name: Text = "auto"
    """this daemon's name in logs and metrics; auto: the host's name"""
    timezone: ZoneNameOrLocal = "local"
    """zone of windows, off-peak hours and creation times: the writers' zone; local: the machine's
    """
    http: Http = Http()

    @property
    def zone(self) -> tzinfo | None:
        """The configured zone, or None for the machine's."""
        return None if self.timezone == "local" else zone_named(self.timezone)


class Spark(Section):
    master: Text | None = None
    """Spark master, sc://… for Spark Connect; null: a Spark inside this process, one task per core
    """
    app_name: Text = "compactord"
    """the application's name in Spark's pages"""
    conf: Settings = Field(default={})
    """Spark settings, verbatim"""
    task_memory_bytes: Annotated[SizeBytes, at_least(LEAST_TASK_MEMORY_BYTES, "32 mb")] = (
        size_bytes("512 mb")
    )
    """memory of one merge, in addition to its idle worker's"""

    @property
    def settings(self) -> dict[str, str]:
        """All Spark settings, including the application's name."""
        return {"spark.app.name": self.app_name, **self.conf}


def _metastore(value: object, info: ValidationInfo) -> str:
    known = registries_of(info).kinds
    if value not in known:
        names = " or ".join(known)
        raise ValueError(f"{names}, the metastores that are supported so far")
    return str(value)


def _catalog_name(name: str) -> str:
    if _CATALOG_NAME.fullmatch(name) is None:
        raise ValueError("a catalog's name of letters, digits, _ and -")
    return name


def _scheme(name: str) -> str:
    if _SCHEME.fullmatch(name) is None:
        raise ValueError("a scheme without a colon, such as file")
    return name.lower()


CatalogName = Annotated[str, AfterValidator(_catalog_name)]
_Scheme = Annotated[Text, AfterValidator(_scheme)]
# The valid options depend on the metastore; they are checked when catalogs are opened.
_Options = Annotated[dict[str, ScalarText], BeforeValidator(no_entries_if_null)]


class CatalogSection(Section):
    metastore: Annotated[str, BeforeValidator(_metastore)] = "filesystem"
    """kind of the catalog"""
    warehouse: Text
    """root folder of the warehouse: a path, or a URL such as s3://bucket/wh, gs://,
    abfss://container@account.dfs.core.windows.net/wh, oss://, hdfs://; the name of a warehouse that
    the catalog's server knows
    """
    options: _Options = Field(
        default={},
        description="the catalog's options under Paimon's names, the same as the writers': "
        f"{_SHOWN_OPTIONS}, s3.endpoint, s3.access-key, fs.azure.*, fs.gs.*, "
        "fs.oss.* and others; secrets as ${env:NAME} or ${file:/path}",
    )
    unlocked_writers: UnlockedWriters = UnlockedWriters.REFUSE
    """for a catalog without a lock on S3, GCS or Azure, where a Java writer can replace another
    writer's snapshot: refuse: do not serve it; guarded: serve it, and let each snapshot of
    compactord settle before building on it
    """
    settle_ms: Annotated[DurationMs, at_least(1000, "1 s")] = duration_ms("10 s")
    """with guarded, how long a snapshot settles: longer than a writer takes from its last check to
    the end of its copy
    """
    create: Flag = False
    """make the warehouse's folder when serve starts if it does not exist, for a lake that has no
    table yet; an object store needs no folder
    """
    allow_http: Flag = False
    """contact a REST catalog's server on another machine without TLS: anyone on the network path
    can read its token and act as the server
    """
    allow_schemes: Several[_Scheme] = ()
    """schemes of locations that the catalog's server may name, in addition to object stores, HDFS
    and the warehouse's: file, or a scheme of fsspec
    """

    _kind: CatalogKind = PrivateAttr()

    def model_post_init(self, context: ConfigRegistries | None) -> None:
        """`context` is the validation's."""
        self._kind = (context or OWN).kinds[self.metastore]

    @property
    def kind(self) -> CatalogKind:
        return self._kind


class Discovery(Section):
    catalog_list_interval_ms: Annotated[DurationMs, _SECOND] = duration_ms("60 s")
    """how often databases and tables are listed"""
    including_databases: TablePattern = _EVERYTHING
    """regular expression that a database's whole name must match"""
    including_tables: TablePattern = _EVERYTHING
    """regular expression that the whole of database.table must match"""
    excluding_tables: TablePattern | None = None
    """tables to exclude, by database.table; overrides including"""


class Limits(Section):
    task_slots: Annotated[StrictInt, Field(ge=1), Digits] | None = None
    """merges at once; null: as many as the engine can run"""
    memory_bytes: Annotated[SizeBytes, at_least(LEAST_TASK_MEMORY_BYTES, "32 mb")] | None = None
    """memory of all merges at once; null: 3/4 of the machine's, or the cgroup's; on a cluster what
    its cores hold
    """
    max_commit_delay_ms: DurationMs = duration_ms("5 s")
    """how long a compaction waits for other compactions of its table that are under way, to be
    published in one snapshot with them; 0 s: never
    """
    task_timeout_ms: Annotated[DurationMs, _SECOND] = duration_ms("10 min")
    """time limit of a merge, in addition to the time to read its files at task_min_rate; then it is
    cancelled and its bucket is quarantined
    """
    task_min_bytes_per_s: Annotated[SizeBytes, at_least(1 << 10, "1 kb")] = Field(
        default=size_bytes("1 mb"), alias="task_min_rate"
    )
    """minimum rate, in bytes per second, at which a merge must read to not be cancelled"""
    max_deletes_per_second: Annotated[StrictInt, Field(ge=1), Digits] | None = None
    """files that all kinds of maintenance together delete each second; null: not limited"""


class Backoff(Section):
    min_ms: Annotated[DurationMs, at_least(1, "1 ms")] = duration_ms("5 s")
    """pause after the first failure"""
    max_ms: DurationMs = duration_ms("10 min")
    """longest pause"""

    @model_validator(mode="after")
    def _is_a_range(self) -> Backoff:
        if self.max_ms < self.min_ms:
            raise _wrong("max_ms", self.max_ms, f"min ({duration_text(self.min_ms)}) or more")
        return self


class Retry(Section):
    task_attempts: Annotated[StrictInt, Field(ge=1), Digits] = 3
    """attempts of one merge before its bucket is quarantined"""
    halt_after_consecutive_failures: Annotated[StrictInt, Field(ge=1), Digits] = 10
    """consecutive failures after which a table is halted"""
    halt_after_lost_snapshots: Annotated[StrictInt, Field(ge=1), Digits] = 1
    """snapshots replaced by another writer after which a table is halted"""
    backoff: Backoff = Backoff()


class Recovery(Section):
    orphan_grace_ms: OrphanGraceMs = duration_ms("1 d")
    """age at which left-over files are deleted whose process cannot be proved dead; longer than any
    merge, 1 h or more
    """
    interval_ms: Annotated[DurationMs, _SECOND] = duration_ms("1 h")
    """how often orphan files are searched for"""
    writer_delay_ms: Annotated[DurationMs, _SECOND] = duration_ms("10 min")
    """how long a writer may pause within a commit: snapshots this recent are rechecked where a
    writer's rename can replace them
    """


class Metrics(Section):
    max_tables: Annotated[StrictInt, Field(ge=1), Digits] = 2000
    """tables with metrics of their own; further tables are only counted"""
    top_n: Annotated[StrictInt, Field(ge=0), Digits] = 20
    """length of the lists of the worst buckets"""


class Alerts(Section):
    stop_trigger_fallback: Annotated[StrictInt, Field(ge=1), Digits] = 3
    """runs above the compaction trigger at which a table without a stop trigger counts as stalled
    """


class Startup(Section):
    timeout_ms: Annotated[DurationMs, _SECOND] = duration_ms("5 min")
    """how long to wait for Spark"""


class Shutdown(Section):
    grace_ms: Annotated[DurationMs, _SECOND] = duration_ms("300 s")
    """time from the signal to the end"""
    commit_reserve_ms: DurationMs = duration_ms("30 s")
    """part of the grace reserved for commits; merges are cancelled before it"""

    @model_validator(mode="after")
    def _is_a_part(self) -> Shutdown:
        if self.commit_reserve_ms >= self.grace_ms:
            expected = f"less than grace ({duration_text(self.grace_ms)})"
            raise _wrong("commit_reserve_ms", self.commit_reserve_ms, expected)
        return self


class Reload(Section):
    interval_ms: Annotated[DurationMs, _SECOND] = duration_ms("30 s")
    """how often the file is checked"""


class Log(Section):
    level: LogLevel = LogLevel.INFO
    """lowest level that is logged"""
    format: LogFormat = LogFormat.AUTO
    """auto: readable on a terminal, JSON elsewhere"""


def _some_catalog(catalogs: dict[str, CatalogSection]) -> dict[str, CatalogSection]:
    if not catalogs:
        raise ValueError("one catalog or more, each under its name")
    return catalogs


class ServiceConfig(Section):
    """The whole configuration."""

    service: Service = Service()
    spark: Spark = Spark()
    catalogs: Annotated[dict[CatalogName, CatalogSection], AfterValidator(_some_catalog)]
    """catalogs by name"""
    discovery: Discovery = Discovery()
    defaults: TableSettings = TableSettings()
    """settings of all tables"""
    rules: Several[Rule] = ()
    """top to bottom, later keys win, merged per key; options merged per option"""
    limits: Limits = Limits()
    retry: Retry = Retry()
    recovery: Recovery = Recovery()
    metrics: Metrics = Metrics()
    alerts: Alerts = Alerts()
    startup: Startup = Startup()
    shutdown: Shutdown = Shutdown()
    reload: Reload = Reload()
    log: Log = Log()
