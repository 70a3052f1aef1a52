"""What the merge functions of a table are told: plain values, made of its options."""

from __future__ import annotations

import enum
from dataclasses import dataclass

COUNT_LIMIT_MAX = 2**31 - 1


class NullKeys(enum.Enum):
    """What becomes of an element whose nested key has a null (`nested-key-null-strategy`)."""

    MERGE = "merge"
    IGNORE = "ignore"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRule:
    """How the values of one column become one value: an aggregator's name and its options.

    An option that the aggregator does not have is left at its default.
    """

    column: str
    aggregator: str
    ignore_retract: bool = False
    delimiter: str = ","
    distinct: bool = False
    count_limit: int = COUNT_LIMIT_MAX
    nested_key: tuple[str, ...] = ()
    nested_sequence: tuple[str, ...] = ()
    null_keys: NullKeys = NullKeys.MERGE
    # The field of a map's values that holds their time; None: the last one.
    time_field: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceGroup:
    """Columns of a partial update that have an order of their own.

    A record with a smaller sequence (`sequence_fields`, nulls first) does not replace `columns`.
    """

    sequence_fields: tuple[str, ...]
    columns: tuple[str, ...]
    # A delete of the newest sequence removes the whole record.
    removes_record: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRules:
    """The rules of a table's merge engine.

    `columns` has a rule for each column with an aggregator, in the order of the table's columns.
    `ignore_delete` and `remove_on_delete` as the engine's options of these names.
    """

    columns: tuple[ColumnRule, ...] = ()
    groups: tuple[SequenceGroup, ...] = ()
    ignore_delete: bool = False
    remove_on_delete: bool = False


NO_RULES = MergeRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogRule:
    """Which changes a changelog of compactions tells.

    `compared`: columns in which a row must differ from the one before to have changed; None: each
    row that was merged counts as changed. `updates_before`, `deletes`: whether rows of kind -U and
    -D are told.
    """

    compared: tuple[str, ...] | None
    updates_before: bool = True
    deletes: bool = True
