"""The table of docs/support.md is generated from the allow-list."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from compactord.formats.base import FileFormat
from compactord.formats.registry import FORMATS
from compactord.kernels.aggregators.registry import AGGREGATORS
from compactord.kernels.functions.registry import MERGE_FUNCTIONS
from compactord.paimon.options.catalogue import LEVELS_MAX
from compactord.paimon.options.table_options import ChangelogProducer
from compactord.paimon.support import (
    MANIFEST_CODECS,
    REFUSED_OPTIONS,
    REFUSED_TYPES,
    REFUSED_WHERE_KEYS_MOVE,
    SERVED_KEY_INDEXES,
    RefusedOption,
)

_PAGE = Path(__file__).parents[2] / "docs" / "support.md"
_START = "<!-- compatibility table: generated, see tests/unit/test_support_page.py -->\n"
_END = "<!-- end of compatibility table -->"


def test_the_page_has_the_compatibility_table_of_the_allow_list() -> None:
    """`REWRITE=1 pytest tests/unit/test_support_page.py` writes it again."""
    text = _PAGE.read_text()
    head, rest = text.split(_START)
    found, tail = rest.split(_END)
    expected = compatibility_table().strip() + "\n"
    if os.environ.get("REWRITE"):
        _PAGE.write_text(head + _START + expected + _END + tail)
        found = expected
    assert found == expected


def test_the_compatibility_table_has_a_row_for_every_rule() -> None:
    lines = compatibility_table().splitlines()
    assert all(line.count("|") == 4 for line in lines)
    features = [line.split(" | ")[0].removeprefix("| ").split(", ") for line in lines]
    for rule in REFUSED_OPTIONS:
        assert sum(f"`{rule.key}`" in names for names in features) == 1


def compatibility_table() -> str:
    """Supported and refused features, as Markdown for the page."""
    rows = [
        (
            "Primary-key tables",
            "fixed (`bucket` > 0) and dynamic (`bucket` = -1) buckets",
            "postponed (`bucket` = -2) buckets",
        ),
        (
            "Primary keys without all partition columns",
            "yes, though Java's own job refuses them with dynamic buckets",
            f"with dynamic buckets and {_code(rule.key for rule in REFUSED_WHERE_KEYS_MOVE)}: a "
            "key could come back in its former partition",
        ),
        ("Append tables", "with (`bucket` > 0) and without (`bucket` = -1) buckets", ""),
        ("`merge-engine`", _code(MERGE_FUNCTIONS), "any other; `first-row` with `sequence.field`"),
        ("Aggregate functions", _code(AGGREGATORS), "any other"),
        (
            "`changelog-producer`",
            _code(kind.value for kind in ChangelogProducer),
            "`lookup` with `full-compaction.delta-commits`; `lookup` and `full-compaction` with "
            "`streaming-read-overwrite`; with `first-row` all but `none` and `lookup`",
        ),
        (
            "`force-lookup`",
            "as Java",
            "`true` with `full-compaction`, except for `deduplicate` without `sequence.field`",
        ),
        (
            "Deletion vectors",
            "`deletion-vectors.enabled`, with and without primary keys, of 32 and 64 bits",
            "with `first-row` or `full-compaction`; vectors that exist while the option is off",
        ),
        ("File formats", _code(FORMATS), "any other, also per level"),
        *(
            (f"Compression of `{each.name}` files", _code(each.codecs), "any other")
            for each in FORMATS.values()
        ),
        ("Compression of manifests", _code(MANIFEST_CODECS), "any other"),
        ("Column types", "any other", _code(REFUSED_TYPES)),
        (
            "Column types in `orc` files",
            "any other",
            "`TIMESTAMP WITH LOCAL TIME ZONE`, `TIMESTAMP` of more than 6 digits",
        ),
        (
            "Column types in `avro` files",
            "any other",
            "`TIME` of more than 3 digits, `TIMESTAMP` of more than 6 digits",
        ),
        (
            "Schema evolution",
            "columns added, dropped, renamed, moved, of other types, at any depth",
            "types that Java has no cast for",
        ),
        (
            "Record-level expire",
            "`record-level.time-field` of type INT, BIGINT or TIMESTAMP",
            "time fields of other types, or no time field",
        ),
        ("File indexes", "", "`file-index.<type>.columns`"),
        (
            "Primary-key indexes",
            f"{_code(SERVED_KEY_INDEXES)}: dropped where a level changes, built again by Java",
            "other `pk-<index>.*`",
        ),
        ("Shredded maps", "", "`fields.<column>.map.storage-layout`"),
        *((f"`{each.name}.*`", *_options(each)) for each in FORMATS.values()),
        ("External paths", "", "`data-file.external-paths` with a strategy"),
        (
            "Names of data files",
            "any `data-file.prefix` that is part of a name",
            "names with `/`, `\\`, `:` or control characters, blank or very long ones",
        ),
        ("`num-levels`", f"2 to {LEVELS_MAX}", "fewer and more"),
        (
            "Values of options",
            "all that Java accepts",
            "any other; options of columns that do not exist",
        ),
    ]
    alike: dict[tuple[str, str], list[str]] = {}
    for rule in REFUSED_OPTIONS:
        alike.setdefault((_supported(rule), _refused(rule)), []).append(rule.key)
    rows += [(_code(keys), yes, no) for (yes, no), keys in alike.items()]
    lines = ["| feature | supported | refused |", "|---|---|---|"]
    lines += [f"| {feature} | {yes or '–'} | {no or '–'} |" for feature, yes, no in rows]
    return "\n".join(lines) + "\n"


def _options(file_format: FileFormat) -> tuple[str, str]:
    refused = _code(f"{key}*" for key, _ in file_format.refused)
    options = (f"{key}…" if key.endswith("#") else key for key in file_format.options)
    others = "other options have no effect, with a warning"
    return _code(options), f"{refused}; {others}" if refused else others


def _supported(rule: RefusedOption) -> str:
    return "not set" if rule.allowed is None else f"`{rule.allowed}`"


def _refused(rule: RefusedOption) -> str:
    what = {None: "set", "false": "`true`"}.get(rule.allowed, "other values")
    return f"{what}: {rule.why}"


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
