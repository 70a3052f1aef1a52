"""The options of a table's new files and of its changelogs, whatever their formats.

Source: CoreOptions.java of release 2.0.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from compactord.paimon.merge_rules import ChangelogRule
from compactord.paimon.options import values as option_values
from compactord.paimon.options.texts import OptionTexts

# With which names of data files begin.
USUAL_PREFIX = "data-"
STATS_MODE = re.compile(r"(?i:none|counts|full|truncate\((?P<length>0*[1-9][0-9]*)\))")
_FIELD_STATS_MODE = re.compile(r"fields\.(.+)\.stats-mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """What output files look like, whatever their format; `formats` reads the options of each.

    Per-level maps win over the table-wide value, and what is set for changelogs over both.
    """

    data_file_prefix: str
    suffix_includes_compression: bool
    format: str
    format_per_level: Mapping[int, str]
    compression: str
    compression_per_level: Mapping[int, str]
    thin_mode: bool
    stats_mode: str
    stats_mode_per_level: Mapping[int, str]
    stats_mode_per_field: Mapping[str, str]
    stats_dense: bool
    stats_keep_first: int
    changelog_prefix: str
    changelog_format: str | None
    changelog_compression: str | None
    changelog_stats_mode: str | None


def file_options(texts: OptionTexts) -> FileOptions:
    """What the options say of files; they cannot be read as `parse_options` says."""
    return FileOptions(
        data_file_prefix=texts.read("data-file.prefix", USUAL_PREFIX, option_values.name_part),
        suffix_includes_compression=texts.read("file.suffix.include.compression", False),
        format=texts.read("file.format", "parquet", str.lower),
        format_per_level=texts.level_map("file.format.per.level", str.lower),
        compression=texts.read("file.compression", "zstd", option_values.codec),
        compression_per_level=texts.level_map("file.compression.per.level", option_values.codec),
        thin_mode=texts.read("data-file.thin-mode", False),
        stats_mode=texts.read("metadata.stats-mode", "truncate(16)", _stats_mode),
        stats_mode_per_level=texts.level_map("metadata.stats-mode.per.level", _stats_mode),
        stats_mode_per_field={
            found[1]: mode
            for key in texts.merged
            if (found := _FIELD_STATS_MODE.fullmatch(key))
            and (mode := texts.maybe(key, _stats_mode)) is not None
        },
        stats_dense=texts.read("metadata.stats-dense-store", True),
        stats_keep_first=texts.read("metadata.stats-keep-first-n-columns", -1),
        changelog_prefix=texts.read("changelog-file.prefix", "changelog-", option_values.name_part),
        changelog_format=texts.maybe("changelog-file.format", str.lower),
        changelog_compression=texts.maybe("changelog-file.compression", option_values.codec),
        changelog_stats_mode=texts.maybe("changelog-file.stats-mode", _stats_mode),
    )


def changelog_rule(texts: OptionTexts, columns: Iterable[str]) -> ChangelogRule:
    """What the options say of changelogs of a table with these columns, as `file_options` does."""
    producer = "changelog-producer"
    ignored = texts.maybe(f"{producer}.row-deduplicate-ignore-fields") or ""
    compared = tuple(name for name in columns if name not in ignored.split(","))
    only_different = texts.read(f"{producer}.row-deduplicate", False)
    return ChangelogRule(
        compared=compared if only_different else None,
        updates_before=not texts.read(f"{producer}.ignore-update-before", False),
        deletes=not texts.read(f"{producer}.ignore-delete", False),
    )


def _stats_mode(text: str) -> str:
    if STATS_MODE.fullmatch(text) is None:
        raise ValueError("none, counts, full or truncate(n) with n > 0")
    return text
