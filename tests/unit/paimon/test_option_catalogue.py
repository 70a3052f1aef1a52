from __future__ import annotations

from functools import partial

import pytest

from compactord.errors import UsageError
from compactord.formats.registry import FORMATS, options_of
from compactord.paimon.options.catalogue import (
    OPTIONS,
    OptionClass,
    canonical_key,
    check_override,
    find,
    reader_of,
)

_check = partial(check_override, formats=options_of(FORMATS), of_triggers={})


def test_every_option_of_the_release_is_listed_once() -> None:
    # 332 constants; those of commit.callback.#.param and tag.callback.#.param are patterns here,
    # and that of Parquet's dictionaries is the format's.
    assert len(OPTIONS) == 329


def test_every_type_can_be_read() -> None:
    samples = {
        "Boolean": "true",
        "Integer": "1",
        "Long": "1",
        "Double": "0.5",
        "Float": "0.5",
        "MemorySize": "1 mb",
        "Duration": "1 s",
        "Map": "a:b",
        "String": "x",
    }
    for option in OPTIONS.values():
        text = samples.get(option.type) or option.type[5:-1].split(",")[0]
        reader_of(option)(text)


def test_former_keys_lead_to_the_present_one() -> None:
    assert canonical_key("write.compaction-skip") == "write-only"
    assert canonical_key("write-only") == "write-only"
    assert canonical_key("unknown") == "unknown"


@pytest.mark.parametrize(
    ("key", "meaning"),
    [
        ("file.compression.per.level.3", OptionClass.WRITE),
        ("fields.a.b.stats-mode", OptionClass.WRITE),
        ("fields.a,b.sequence-group", OptionClass.WRITE),
        ("fields.m.map.storage-layout", OptionClass.REFUSED),
        ("file-index.bloom-filter.columns", OptionClass.WRITE),
        ("avro.codec", OptionClass.WRITE),
        ("metadata.iceberg.storage", OptionClass.REFUSED),
        ("metadata.iceberg.manifest-compression", OptionClass.IRRELEVANT),
        ("commit.callback.com.acme.Callback.param", OptionClass.IRRELEVANT),
        ("lock.enabled", OptionClass.COMMIT),
    ],
)
def test_keys_that_are_built_from_names_are_known(key: str, meaning: OptionClass) -> None:
    option = find(key)
    assert option is not None
    assert option.meaning is meaning


def test_an_unknown_key_gets_a_hint() -> None:
    with pytest.raises(UsageError, match=r"num-sorted-run\.compaction-trigger"):
        _check("num-sorted-runs.compaction-trigger", "3")
    with pytest.raises(UsageError, match=r"unknown option 'zzz'$"):
        _check("zzz", "3")
    # Of no format that is registered.
    with pytest.raises(UsageError, match=r"unknown option 'lance\.compress'"):
        _check("lance.compress", "zstd")


@pytest.mark.parametrize(
    "key",
    [
        "bucket",
        "merge-engine",
        "primary-key",
        "deduplicate.ignore-delete",
        "fields.default-aggregate-function",
        "fields.v.aggregate-function",
        "fields.stats-mode.distinct",
        "fields.a,b.sequence-group",
    ],
)
def test_what_belongs_to_the_table_cannot_be_set_for_a_run(key: str) -> None:
    with pytest.raises(UsageError, match="belongs to the table"):
        _check(key, "1")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num-levels", "six"),
        ("target-file-size", "big"),
        ("commit.timeout", "1 h 30 min"),
        ("write-only", "yes"),
        ("scan.mode", "never"),
        ("parquet.enable.dictionary", "1"),
        ("file.compression.per.level", "zstd"),
        ("data-file.prefix", "x/y"),
        ("data-file.prefix", "../"),
        ("changelog-file.prefix", "x/y"),
        ("num-levels", "1"),
        ("num-levels", "1001"),
        ("num-sorted-run.compaction-trigger", "0"),
        ("file.compression.zstd-level", "23"),
        ("file.compression.zstd-level", "-131073"),
        ("parquet.compression.codec.zstd.level", "23"),
    ],
)
def test_a_value_of_the_wrong_type_says_what_was_expected(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=rf"option {key}='{value}': expected "):
        _check(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num-levels", "6"),
        ("write.compaction-skip", "TRUE"),
        ("target-file-size", "64 mb"),
        ("file.compression.per.level", "0:lz4,5:zstd"),
        ("fields.v.stats-mode", "none"),
        ("parquet.block.size", "1000"),
        ("data-file.prefix", "part-"),
        ("num-levels", "1000"),
        ("num-sorted-run.compaction-trigger", "2147483647"),
        ("file.compression.zstd-level", "22"),
    ],
)
def test_good_overrides_pass(key: str, value: str) -> None:
    _check(key, value)
