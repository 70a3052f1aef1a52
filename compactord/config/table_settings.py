"""Settings of tables, and the rules that override them for some."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import InitErrorDetails

from compactord.config.choices import MaintenanceRule, Mode
from compactord.config.registries import registries_of
from compactord.config.section import Section, wrong_value
from compactord.config.values import (
    Digits,
    DurationMs,
    Flag,
    ScalarText,
    Several,
    TablePattern,
    Text,
    at_least,
    duration_ms,
    no_entries_if_null,
    scalar_text,
    table_pattern,
)
from compactord.config.windows import Window
from compactord.errors import UsageError
from compactord.formats.registry import options_of
from compactord.model import PickRule
from compactord.paimon.options.catalogue import canonical_key, check_override
from compactord.paimon.paths import MAIN_BRANCH

_SECOND = at_least(1000, "1 s")


def _table_options(options: dict[str, str], info: ValidationInfo) -> dict[str, str]:
    """Options under the keys as written; every wrong one is reported at its own place."""
    wrong: list[InitErrorDetails] = []
    names: dict[str, str] = {}
    formats = options_of(registries_of(info).formats)
    for key, value in options.items():
        try:
            check_override(key, value, formats)
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
    its writers set write-only as they run, or compact beside us
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
    """how long rows may wait for the compaction before which readers do not see them; from half of
    it on that is due, whatever full-compaction.delta-commits says, and the table is served first;
    null: not bounded
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
    """from_table: expire snapshots as the table's options say; off: never"""
    expire_consumers: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: expire consumers if the table sets consumer.expiration-time; off: never"""
    create_tags: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: create tags if the table sets tag.automatic-creation, and delete those beyond its
    tag.num-retained-max; off: never
    """
    expire_tags: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: expire tags whose files say when, unless the table sets tag.time-expire-enabled:
    false; off: never
    """
    expire_partitions: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: expire partitions if the table sets partition.expiration-time; off: never"""
    expire_changelogs: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: expire changelogs that outlive their snapshots as the table's options say; off:
    never
    """
    mark_done: MaintenanceRule = MaintenanceRule.FROM_TABLE
    """from_table: mark partitions done if the table sets partition.idle-time-to-done; off: never"""
    remove_foreign_files: Flag = False
    """remove files of any program that nothing names, as orphans --foreign does; run that with
    --dry-run first
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
        """Whether others than main may be compacted."""
        return any(pattern.pattern != MAIN_BRANCH for pattern in self.branches)

    def takes(self, branch: str) -> bool:
        """Whether the branch is compacted, by its name."""
        return any(pattern.fullmatch(branch) for pattern in self.branches)


def _without_defaults(schema: dict[str, Any]) -> None:
    for key in schema["properties"].values():
        key.pop("default", None)


class RuleSettings(TableSettings):
    """Only fields that are set count (`model_fields_set`); defaults of the others are unused."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)


class Match(Section):
    catalog: Text | None = None
    """a catalog's exact name; absent: any"""
    table: TablePattern | None = None
    """regular expression for the whole of database.table, for its branches, too, or of
    database.table$branch_name; absent: any
    """


class Rule(Section):
    match: Match
    """which tables the rule concerns"""
    settings: RuleSettings = Field(alias="set")
    """settings of these tables"""
