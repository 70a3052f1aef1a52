"""What a table's options ask for besides compaction and the expiry of snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compactord.paimon.options import values as option_values
from compactord.paimon.options.tag_options import (
    TAG_PARTITIONS,
    TagCreationOptions,
    tag_creation_options,
)
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.partition_time import formatter_trouble

_IDLE, _INTERVAL = "partition.idle-time-to-done", "partition.time-interval"
_ACTION, _MODE = "partition.mark-done-action", "partition.mark-done-action.mode"
_PATTERN, _FORMATTER = "partition.timestamp-pattern", "partition.timestamp-formatter"


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkDoneOptions:
    """When a partition is done: `idle_ms` after its last file, and after its own time.

    Its time lasts `interval_ms`; `pattern` and `formatter` say when it begins (`partition_time`).
    """

    idle_ms: int
    interval_ms: int
    pattern: str | None = None
    formatter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceOptions:
    """`consumer_time_ms`: consumers that have not moved for longer expire; None: never.

    `mark_done` None: no partition is marked done. `mark_done_refusal` names the option that asks
    for it in a way that is not served; None: there is none. `expires_tags`: tags expire whose files
    say when. `tags_succeed`: each has a file beside it that says that it was made. Without
    `tag_creation` no tags are made by themselves; its refusal is as that of marks.
    """

    consumer_time_ms: int | None = None
    mark_done: MarkDoneOptions | None = None
    mark_done_refusal: str | None = None
    expires_tags: bool = False
    tags_succeed: bool = False
    tag_creation: TagCreationOptions | None = None
    tag_creation_refusal: str | None = None

    @property
    def asked(self) -> tuple[str, ...]:
        """The kinds of maintenance that run only where options ask for them."""
        found = {
            "create_tags": self.tag_creation is not None,
            "tags": self.expires_tags,
            "consumers": self.consumer_time_ms is not None,
            "done": self.mark_done is not None,
        }
        return tuple(name for name, is_asked in found.items() if is_asked)


def maintenance_options(texts: OptionTexts, *, has_partitions: bool) -> MaintenanceOptions:
    """What cannot be parsed is in `texts.unreadable`, or raises `UsageError` (`OptionTexts`).

    Not so of marks and new tags, which are refused alone: Flink reads the options of marks, and
    jobs that only write read those of neither.
    """
    mark_done: MarkDoneOptions | None = None
    refusal = None
    if has_partitions and texts.text(_IDLE) is not None:
        refusal = next(_refusals(texts), None)
        if refusal is None:
            mark_done = MarkDoneOptions(
                idle_ms=option_values.duration_ms(_text(texts, _IDLE)),
                interval_ms=option_values.duration_ms(_text(texts, _INTERVAL)),
                pattern=texts.merged.get(_PATTERN),
                formatter=texts.merged.get(_FORMATTER),
            )
    tag_creation: TagCreationOptions | None = None
    tag_creation_refusal = None
    try:
        tag_creation = tag_creation_options(texts)
    except ValueError as error:
        tag_creation_refusal = str(error)
    return MaintenanceOptions(
        consumer_time_ms=texts.maybe("consumer.expiration-time", option_values.duration_ms),
        expires_tags=texts.read("tag.time-expire-enabled", option_values.boolean, True)
        and not texts.merged.get(TAG_PARTITIONS),
        tags_succeed=texts.read("tag.create-success-file", option_values.boolean, False),
        tag_creation=tag_creation,
        tag_creation_refusal=tag_creation_refusal,
        mark_done=mark_done,
        mark_done_refusal=refusal,
    )


def _refusals(texts: OptionTexts) -> Iterator[str]:
    if texts.text(_INTERVAL) is None:
        yield f"option {_IDLE}={_text(texts, _IDLE)} without {_INTERVAL}"
        return
    for key in (_IDLE, _INTERVAL):
        try:
            option_values.duration_ms(_text(texts, key))
        except ValueError as error:
            yield f"option {key}={_text(texts, key)!r}: expected {error}"
    actions = texts.merged.get(_ACTION, "success-file")
    names = {name.replace("_", "-").lower() for name in actions.split(",")}
    if names != {"success-file"}:
        yield f"option {_ACTION}={actions}: only success-file is served"
    mode = texts.merged.get(_MODE, "process-time")
    if mode.strip().lower() != "process-time":
        yield f"option {_MODE}={mode}: only process-time is served"
    formatter = texts.merged.get(_FORMATTER)
    trouble = None if formatter is None else formatter_trouble(formatter)
    if trouble is not None:
        yield f"option {_FORMATTER}={formatter}: {trouble} is not understood"


def _text(texts: OptionTexts, key: str) -> str:
    return texts.merged[key]
