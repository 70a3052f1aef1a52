"""The settings and options in effect for one table, each with where it came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from compactord.cli.choice import Choice, Target
from compactord.config.amounts import duration_text
from compactord.config.keys import plain
from compactord.config.reasons import shown_key
from compactord.config.source import scalar_yaml
from compactord.paimon.options.catalogue import OptionClass, canonical_key, find
from compactord.paimon.options.table_options import TableOptions
from compactord.redaction import redacted
from compactord.table.opening import OpenTable
from compactord.table.report import size_text

# What decides most often, shown although it is only Paimon's default.
_SHOWN: Mapping[str, Callable[[TableOptions], str]] = {
    "num-sorted-run.compaction-trigger": lambda o: str(o.compaction.compaction_trigger),
    "num-sorted-run.stop-trigger": lambda o: str(o.compaction.stop_trigger),
    "compaction.max-size-amplification-percent": lambda o: str(
        o.compaction.max_size_amplification_percent
    ),
    "compaction.size-ratio": lambda o: str(o.compaction.size_ratio_percent),
    "compaction.optimization-interval": lambda o: _duration(o.compaction.optimization_interval_ms),
    "full-compaction.delta-commits": lambda o: str(
        o.compaction.full_compaction_delta_commits or "not set"
    ),
    "compaction.min.file-num": lambda o: str(o.compaction.min_file_num),
    "target-file-size": lambda o: size_text(o.compaction.target_file_size),
    "snapshot.num-retained.min": lambda o: str(o.expire.num_retained_min),
    "snapshot.num-retained.max": lambda o: str(o.expire.num_retained_max),
    "snapshot.time-retained": lambda o: _duration(o.expire.time_retained_ms),
    "write-only": lambda o: str(o.write_only).lower(),
}
_KEYED_ONLY = (
    "num-sorted-run.",
    "compaction.max-size",
    "compaction.size-ratio",
    "full-compaction.",
)


def effective_settings(choice: Choice, target: Target) -> dict[str, tuple[str, str]]:
    """Each setting's value as it would be written, and which rule or default it came from."""
    values, found = plain(choice.loaded.config), {}
    for key, origin in choice.keys_of(target).items():
        if key.startswith("options."):
            continue
        value = redacted(_at(values, origin), key=key)
        shown = json.dumps(value) if isinstance(value, list | dict) else scalar_yaml(value)
        found[key] = (choice.loaded.reference(origin) or shown, shown_key(choice.loaded, origin))
    return found


def effective_options(
    choice: Choice, target: Target, table: OpenTable
) -> dict[str, tuple[str, str]]:
    """The options that concern a compactor: those that decide most, and all that are set."""
    schema, options, keys = table.schema, table.options, choice.keys_of(target)
    own = {canonical_key(key) for key in schema.options}
    texts = {
        key: shown(options)
        for key, shown in _SHOWN.items()
        if schema.primary_keys or not key.startswith(_KEYED_ONLY)
    }
    for key, text in sorted(options.raw.items()):
        name = canonical_key(key)
        option = find(name)
        if option is None or option.meaning is not OptionClass.IRRELEVANT:
            texts.setdefault(name, str(redacted(text, key=name)))
    found = {}
    for key, text in texts.items():
        origin = keys.get(f"options.{key}")
        if origin is not None:
            found[key] = (choice.loaded.reference(origin) or text, shown_key(choice.loaded, origin))
        else:
            found[key] = (text, "the table" if key in own else "Paimon's default")
    return found


def _at(values: Mapping[str, Any], dotted: str) -> object:
    """The value under `rules.0.set.priority`."""
    place: Any = values
    for part in dotted.split("."):
        place = place[int(part)] if isinstance(place, list) else place[part]
    found: object = place
    return found


def _duration(milliseconds: int | None) -> str:
    return "not set" if milliseconds is None else duration_text(milliseconds)
