"""Options of tags that are made by themselves. As CoreOptions.java and tag/TagAutoCreation.java."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timezone, tzinfo
from typing import TypeVar

from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts
from compactord.paimon.tag_periods import LENGTH_MAX_MS, TagPeriod

_T = TypeVar("_T")
# Each tag has a partition in the catalog.
TAG_PARTITIONS = "metastore.tag-to-partition"
_MODE = "tag.automatic-creation"
_DURATION, _DELAY = "tag.creation-period-duration", "tag.creation-delay"
_HOUR_MS = 3_600_000
_DAYS = {"with_dashes": "%Y-%m-%d"}
_HOURS = {"with_dashes": "%Y-%m-%d %H", "without_dashes": "%Y%m%d %H"}
_FORMATTERS = ("with_dashes", "without_dashes", "without_dashes_and_spaces")


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCreationOptions:
    """When tags are made, and what becomes of them. Durations in milliseconds.

    Time is that of snapshots, or with `by_watermark` their watermark, in `zone` (None: the
    machine's). A tag is made `delay_ms` after its period has ended. `completes`: periods that were
    missed get tags from later snapshots. More than `retained_max` do not stay; the files of tags
    say that they are retained for `retained_ms`.
    """

    period: TagPeriod
    by_watermark: bool = False
    zone: tzinfo | None = None
    delay_ms: int = 0
    completes: bool = False
    retained_max: int | None = None
    retained_ms: int | None = None


def tag_creation_options(texts: OptionTexts) -> TagCreationOptions | None:
    """None: no tags are asked for, or the jobs that end make them.

    Raises `ValueError` that names the option that is wrong, or that is not served.
    """
    modes = ("none", "process-time", "watermark", "batch")
    mode = _read(texts, _MODE, option_values.one_of(modes), "none")
    if mode in ("none", "batch"):
        return None
    if texts.merged.get(TAG_PARTITIONS):
        raise ValueError(f"option {TAG_PARTITIONS}={texts.merged[TAG_PARTITIONS]}")
    period, by_watermark = _period(texts), mode == "watermark"
    delay_ms = _read(texts, _DELAY, option_values.duration_ms, 0)
    if delay_ms >= period.length_ms:
        raise ValueError(f"option {_DELAY}={texts.merged[_DELAY]}: as long as the period or longer")
    zone_key = "sink.watermark-time-zone" if by_watermark else "sink.process-time-zone"
    zone = _read(texts, zone_key, option_values.zone, None)
    at_least_one = option_values.positive(option_values.integer)
    duration = option_values.duration_ms
    return TagCreationOptions(
        period=period,
        by_watermark=by_watermark,
        zone=zone or (timezone.utc if by_watermark else None),
        delay_ms=delay_ms,
        completes=_read(texts, "tag.automatic-completion", option_values.boolean, False),
        retained_max=_read(texts, "tag.num-retained-max", at_least_one, None),
        retained_ms=_read(texts, "tag.default-time-retained", duration, None),
    )


def _period(texts: OptionTexts) -> TagPeriod:
    length_ms = _read(texts, _DURATION, _length_ms, None)
    if length_ms is not None:
        return TagPeriod(length_ms=length_ms, form="%Y%m%d%H%M")
    names = option_values.one_of(("daily", "hourly", "two-hours"))
    name = _read(texts, "tag.creation-period", names, "daily")
    if name == "two-hours":
        return TagPeriod(length_ms=2 * _HOUR_MS, form=_HOURS["with_dashes"])
    formatters = option_values.one_of(_FORMATTERS)
    formatter = _read(texts, "tag.period-formatter", formatters, "with_dashes")
    if name == "hourly":
        return TagPeriod(length_ms=_HOUR_MS, form=_HOURS.get(formatter, "%Y%m%d%H"))
    form = _DAYS.get(formatter, "%Y%m%d")
    return TagPeriod(length_ms=24 * _HOUR_MS, form=form, ends_at_blank=True)


def _length_ms(text: str) -> int:
    length_ms = option_values.duration_ms(text)
    if not 0 < length_ms <= LENGTH_MAX_MS:
        raise ValueError("a duration from 1 ms to 36600 d")
    return length_ms


def _read(texts: OptionTexts, key: str, parse: Callable[[str], _T], default: _T) -> _T:
    text = texts.merged.get(key)
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"option {key}={text!r}: expected {error}") from None
