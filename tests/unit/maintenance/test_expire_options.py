"""What a table says about expiry: its options, its consumers, and the duties nobody does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from compactord.errors import FormatError, UsageError
from compactord.paimon.options.maintenance import (
    ChangelogRetention,
    ExpireOptions,
    PartitionExpiryOptions,
)
from compactord.paimon.options.table_options import TableOptions, parse_options
from compactord.paimon.schema import latest_schema
from compactord.paimon.snapshot import read_consumers
from compactord.paimon.support import unserved_maintenance, warnings
from tests.builders import consumer_path
from tests.lineage import TABLE, Lineage

HOME = TABLE.location


def _options(texts: Mapping[str, str]) -> TableOptions:
    return parse_options(latest_schema(Lineage().storage, HOME), texts)


def test_defaults_are_javas() -> None:
    assert _options({}).expire == ExpireOptions(
        num_retained_min=10,
        num_retained_max=2**31 - 1,
        time_retained_ms=3_600_000,
        limit=50,
        clean_empty_directories=False,
    )


def test_every_option_is_read_the_former_key_too() -> None:
    texts = {
        "snapshot.num-retained.min": "2",
        "snapshot.num-retained.max": "3",
        "snapshot.time-retained": "4 d",
        "snapshot.expire.limit": "5",
        "snapshot.expire.clean-empty-directories": "true",
    }
    assert _options(texts).expire == ExpireOptions(
        num_retained_min=2,
        num_retained_max=3,
        time_retained_ms=4 * 86_400_000,
        limit=5,
        clean_empty_directories=True,
    )


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"changelog.num-retained.min": "10"}, False),
        ({"changelog.num-retained.min": "11"}, True),
        ({"changelog.num-retained.max": "2147483647"}, False),
        ({"snapshot.num-retained.max": "20", "changelog.num-retained.max": "21"}, True),
        ({"changelog.time-retained": "1 h"}, False),
        ({"changelog.time-retained": "61 min"}, True),
        ({"snapshot.time-retained": "1 d", "changelog.time-retained": "61 min"}, False),
    ],
)
def test_changelogs_are_on_their_own_when_anything_keeps_them_longer(
    texts: Mapping[str, str], expected: bool
) -> None:
    options = _options(texts)
    assert (options.expire.changelogs is not None) is expected
    assert ("changelogs" in options.maintenance.requested) is expected
    assert unserved_maintenance(options) == ()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (
            {"changelog.num-retained.max": "2147483647"},
            ChangelogRetention(
                num_retained_min=10,
                num_retained_max=2**31 - 1,
                time_retained_ms=7_200_000,
                from_deltas=True,
            ),
        ),
        (
            {
                "changelog.num-retained.min": "11",
                "changelog.num-retained.max": "50",
                "consumer.changelog-only": "true",
                "streaming-read-overwrite": "true",
                "changelog-producer": "input",
            },
            ChangelogRetention(
                num_retained_min=11,
                num_retained_max=50,
                time_retained_ms=7_200_000,
                from_overwrites=True,
                holds_changelogs_only=True,
            ),
        ),
    ],
)
def test_changelogs_are_kept_as_their_options_and_the_producer_say(
    texts: Mapping[str, str], expected: ChangelogRetention
) -> None:
    options = _options({"changelog.time-retained": "2 h", **texts})
    assert options.expire.changelogs == expected


def test_a_text_that_is_no_number_is_named() -> None:
    with pytest.raises(UsageError, match=r"snapshot\.expire\.limit='many'"):
        _options({"snapshot.expire.limit": "many"})


@pytest.mark.parametrize(
    ("key", "text", "what"),
    [
        (
            "partition.end-input-to-done",
            "true",
            "partitions are not marked done at the end of an input",
        ),
    ],
)
def test_a_duty_that_is_asked_for_and_not_done_is_named(key: str, text: str, what: str) -> None:
    options = _options({key: text})
    assert unserved_maintenance(options) == (f"option {key}={text}: {what}",)
    assert f"option {key}={text}: {what}" in warnings(
        latest_schema(Lineage().storage, HOME), options, ()
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"partition.mark-done-action": "SUCCESS_FILE"}, None),
        ({"partition.time-interval": None}, "1 h without partition.time-interval;"),
        ({"partition.time-interval": "soon"}, "partition.time-interval='soon': expected"),
        ({"partition.mark-done-action": "success-file,http-report"}, "=http-report: only success-"),
        ({"partition.mark-done-action": "custom,mark-event"}, "=custom: only success-file, done-"),
        ({"partition.mark-done-action": "MARK_EVENT"}, "=mark-event without metastore.partitioned"),
        ({"partition.mark-done-action.mode": "watermark"}, "only process-time is served"),
        ({"partition.timestamp-formatter": "dd MMM yyyy"}, "MMM is not understood"),
        ({"partition.idle-time-to-done": None}, None),
    ],
)
def test_marks_that_are_not_served_are_named_and_the_table_is_not_refused(
    changed: Mapping[str, str | None], said: str | None
) -> None:
    given = {"partition.idle-time-to-done": "1 h", "partition.time-interval": "1 d", **changed}
    texts = {key: text for key, text in given.items() if text is not None}
    schema = replace(latest_schema(Lineage().storage, HOME), options=texts, partition_keys=("k",))
    options = parse_options(schema)
    assert not options.unreadable
    found = unserved_maintenance(options)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
    is_asked = said is None and "partition.idle-time-to-done" in texts
    assert ("done" in options.maintenance.requested) is is_asked
    assert not any("unknown" in warning for warning in warnings(schema, options, ()))
    without = replace(schema, partition_keys=())
    assert "done" not in parse_options(without).maintenance.requested


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        ({"partition.expiration-strategy": "update-time"}, None),
        ({"partition.expiration-strategy": "mine"}, "only values-time and update-time are served"),
        ({"partition.timestamp-formatter": "dd MMM yyyy"}, "MMM is not understood"),
        (
            {
                "partition.timestamp-formatter": "dd MMM yyyy",
                "partition.expiration-strategy": "update-time",
            },
            None,
        ),
        ({"partition.expiration-max-num": "0"}, "no partition could expire"),
    ],
)
def test_an_expiry_of_partitions_that_is_not_served_is_named(
    changed: Mapping[str, str], said: str | None
) -> None:
    texts = {"partition.expiration-time": "7 d", **changed}
    schema = replace(latest_schema(Lineage().storage, HOME), options=texts, partition_keys=("k",))
    options = parse_options(schema)
    assert not options.unreadable
    found = unserved_maintenance(options)
    assert [said in each for each in found] == ([] if said is None else [True])
    assert ("partitions" in options.maintenance.requested) is (said is None)
    without = parse_options(replace(schema, partition_keys=())).maintenance
    assert "partitions" not in without.requested
    assert without.expiry_refusal is None


def test_what_the_options_say_of_an_expiry_of_partitions() -> None:
    schema = replace(latest_schema(Lineage().storage, HOME), partition_keys=("k",))
    given = {
        "expiration-time": "7 d",
        "expiration-check-interval": "5 min",
        "expiration-max-num": "10",
        "expiration-batch-size": "3",
        "timestamp-pattern": "$k",
    }
    expected = PartitionExpiryOptions(
        time_ms=7 * 86_400_000, interval_ms=300_000, most=10, at_once=3, pattern="$k"
    )
    for dropped, changed in (
        (None, {}),
        ("expiration-check-interval", {"interval_ms": 3_600_000}),
        ("expiration-max-num", {"most": 100}),
        ("expiration-batch-size", {"at_once": 10}),
    ):
        texts = {f"partition.{key}": text for key, text in given.items() if key != dropped}
        options = parse_options(replace(schema, options=texts)).maintenance
        assert options.expire_partitions == replace(expected, **changed)
    assert options.requested["partitions"] == 300_000
    broken = {f"partition.{key}": "soon" for key in given if key.startswith("expiration")}
    assert len(parse_options(replace(schema, options=broken)).unreadable) == 1
    broken["partition.expiration-time"] = "7 d"
    assert len(parse_options(replace(schema, options=broken)).unreadable) == 3


def test_tags_that_are_partitions_of_a_catalog_do_not_expire() -> None:
    texts = {"metastore.tag-to-partition": "tag"}
    assert not unserved_maintenance(_options(texts))
    options = _options({**texts, "tag.default-time-retained": "1 d"})
    assert "tags" not in options.maintenance.requested
    assert unserved_maintenance(options) == (
        "option metastore.tag-to-partition=tag: tags are not expired",
    )


def test_a_table_that_asks_for_nothing_is_served() -> None:
    quiet = {"tag.automatic-creation": "none", "partition.end-input-to-done": "false"}
    assert unserved_maintenance(_options(quiet)) == ()


def test_consumers_are_read_by_name() -> None:
    table = Lineage()
    assert read_consumers(table.storage, HOME) == {}
    for name, number in (("a", 7), ("b-c", 3)):
        data = f'{{"nextSnapshot": {number}}}'.encode()
        table.storage.overwrite(consumer_path(HOME, name), data)
    table.storage.overwrite(f"{HOME}/consumer/.consumer-d.tmp", b"half")
    assert read_consumers(table.storage, HOME) == {"a": 7, "b-c": 3}


@pytest.mark.parametrize("data", [b"", b"[]", b'{"nextSnapshot": "3"}', b'{"nextSnapshot": true}'])
def test_a_consumer_that_cannot_be_understood_is_an_error_with_its_path(data: bytes) -> None:
    table = Lineage()
    path = consumer_path(HOME, "a")
    table.storage.overwrite(path, data)
    with pytest.raises(FormatError) as raised:
        read_consumers(table.storage, HOME)
    assert raised.value.path == path
