"""Which snapshots get tags, of which names; `tests/oracle/test_tags.py` asks Java."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from compactord.maintenance.new_tags import (
    TagProgress,
    may_be_due,
    new_tags,
    surplus_tags,
)
from compactord.paimon.options.maintenance import TagCreationOptions
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.schema import latest_schema
from compactord.paimon.snapshot import Snapshot
from compactord.paimon.support import unserved_maintenance
from tests.lineage import TABLE, Lineage
from tests.unit.maintenance.expiring import snapshots_of

UTC = timezone.utc
_MODE = "tag.automatic-creation"
HOURLY = {_MODE: "process-time", "tag.creation-period": "hourly"}
BERLIN = {**HOURLY, "sink.process-time-zone": "Europe/Berlin"}
_LATE_MS = 4_000_000_000_000


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def _template() -> Snapshot:
    table = Lineage()
    table.append(1)
    return snapshots_of(table)[0]


def _snapshots(*texts: str | None, watermarks: bool = False) -> list[Snapshot]:
    """Snapshots from 1 on at these times of UTC."""
    first = _template()
    times = [None if text is None else _ms(text) for text in texts]
    if watermarks:
        return [replace(first, id=i, watermark=ms) for i, ms in enumerate(times, 1)]
    return [replace(first, id=i, time_ms=ms or 0) for i, ms in enumerate(times, 1)]


def _options(texts: Mapping[str, str]) -> TagCreationOptions:
    schema = replace(latest_schema(Lineage().storage, TABLE.location), options=dict(texts))
    found = parse_options(schema).maintenance.tag_creation
    assert found is not None
    return found


def _made(
    snapshots: Sequence[Snapshot],
    texts: Mapping[str, str],
    *,
    progress: TagProgress | None = None,
    now_ms: int = _LATE_MS,
) -> dict[str, int]:
    progress = TagProgress() if progress is None else progress
    due = new_tags(snapshots, progress, _options(texts), now_ms=now_ms, zone=UTC)
    return {each.name: each.snapshot.id for each in due}


@pytest.mark.parametrize(
    ("texts", "name", "start"),
    [
        ({}, "2024-03-01", "2024-03-01"),
        ({"tag.period-formatter": "WITHOUT_DASHES"}, "20240301", "2024-03-01"),
        ({"tag.period-formatter": "without_dashes_and_spaces"}, "20240301", "2024-03-01"),
        ({"tag.creation-period": "hourly"}, "2024-03-02 04", "2024-03-02T04"),
        (
            {"tag.creation-period": "hourly", "tag.period-formatter": "without_dashes"},
            "20240302 04",
            "2024-03-02T04",
        ),
        (
            {"tag.creation-period": "Hourly", "tag.period-formatter": "without_dashes_and_spaces"},
            "2024030204",
            "2024-03-02T04",
        ),
        (
            {"tag.creation-period": "two-hours", "tag.period-formatter": "without_dashes"},
            "2024-03-02 02",
            "2024-03-02T02",
        ),
        (
            {"tag.creation-period": "hourly", "tag.creation-period-duration": "45 min"},
            "202403020430",
            "2024-03-02T04:30",
        ),
        # Counted from 1970: the last one began at noon of March 1.
        ({"tag.creation-period-duration": "36 h"}, "202402290000", "2024-02-29T00:00"),
    ],
)
def test_a_first_tag_has_the_name_of_the_last_period_that_has_ended(
    texts: Mapping[str, str], name: str, start: str
) -> None:
    asked = {_MODE: "process-time", **texts}
    assert _made(_snapshots("2024-03-02T05:20:30.123"), asked) == {name: 1}
    assert _options(asked).period.time_ms(name) == _ms(start)


_NAMES = {
    *("2024-03-01", "2024-03-01 05", "2024-03-01 later", "20240301", "2024030105", "202403010500"),
    *("2024-3-1", "2024-02-30", "0999-01-01", "20240301x", "2024-03-01 5", "2024-03-01 24"),
    *("v1", "", "12024-03-01", "\u0662024-03-01", "2024-03-01 05 "),
}


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # What follows a blank does not count.
        ({}, {name for name in _NAMES if name.startswith("2024-03-01")}),
        ({"tag.period-formatter": "without_dashes"}, {"20240301"}),
        ({"tag.creation-period": "hourly"}, {"2024-03-01 05"}),
        ({"tag.creation-period-duration": "1 d"}, {"202403010500"}),
    ],
)
def test_only_names_that_a_period_may_have_count(
    texts: Mapping[str, str], expected: set[str]
) -> None:
    period = _options({_MODE: "process-time", **texts}).period
    assert period.times(_NAMES).keys() == expected


@pytest.mark.parametrize(
    ("texts", "times", "expected"),
    [
        # The second tag is due a whole period after that of the first one has ended.
        (HOURLY, ("2024-03-02T05:20", "2024-03-02T05:59:59.999"), {"2024-03-02 04": 1}),
        (
            HOURLY,
            ("2024-03-02T05:20", "2024-03-02T05:50", "2024-03-02T06:00", "2024-03-02T06:10"),
            {"2024-03-02 04": 1, "2024-03-02 05": 3},
        ),
        (
            {**HOURLY, "tag.creation-delay": "5 min"},
            ("2024-03-02T05:20", "2024-03-02T06:04:59.999", "2024-03-02T06:05"),
            {"2024-03-02 04": 1, "2024-03-02 05": 3},
        ),
        # Periods that were missed have no tag, or get one of each later snapshot.
        (
            HOURLY,
            ("2024-03-02T05:20", "2024-03-02T09:00", "2024-03-02T09:01"),
            {"2024-03-02 04": 1, "2024-03-02 08": 2},
        ),
        (
            {**HOURLY, "tag.automatic-completion": "true"},
            ("2024-03-02T05:20", "2024-03-02T07:00", "2024-03-02T07:01", "2024-03-02T07:02"),
            {"2024-03-02 04": 1, "2024-03-02 05": 2, "2024-03-02 06": 3},
        ),
        # Clocks are set ahead at 01:00 of UTC: 02 is an hour that nobody sees.
        (
            BERLIN,
            ("2024-03-31T00:10", "2024-03-31T00:59", "2024-03-31T01:00", "2024-03-31T02:00"),
            {"2024-03-31 00": 1, "2024-03-31 02": 3, "2024-03-31 03": 4},
        ),
        # They are set back at 01:00 of UTC: 02 is there twice, and has one tag.
        (
            BERLIN,
            ("2024-10-27T00:10", "2024-10-27T01:10", "2024-10-27T01:59", "2024-10-27T02:00"),
            {"2024-10-27 01": 1, "2024-10-27 02": 4},
        ),
        (
            {_MODE: "process-time", "sink.process-time-zone": "GMT-08:00"},
            ("2024-03-02T05:20", "2024-03-02T07:59", "2024-03-02T08:00"),
            {"2024-02-29": 1, "2024-03-01": 3},
        ),
        # A clock that was set back makes no tag again.
        (
            HOURLY,
            ("2024-03-02T06:00", "2024-03-02T05:10", "2024-03-02T07:00"),
            {"2024-03-02 05": 1, "2024-03-02 06": 3},
        ),
    ],
)
def test_a_tag_is_due_once_a_period_has_ended(
    texts: Mapping[str, str], times: Sequence[str], expected: Mapping[str, int]
) -> None:
    snapshots = _snapshots(*times)
    assert _made(snapshots, texts) == expected
    # The same in rounds of one snapshot, each from what is remembered.
    progress, found = TagProgress(options=_options(texts)), dict[str, int]()
    for snapshot in snapshots:
        now = {"now_ms": _LATE_MS, "zone": UTC}
        is_quiet = not may_be_due(snapshot, progress, _options(texts), **now)  # type: ignore[arg-type]
        made = _made([snapshot], texts, progress=progress)
        assert not (is_quiet and made)
        found |= made
    assert found == expected
    # And from the tags alone, as after a start.
    for seen in range(1, len(snapshots)):
        present = {name: snapshots[id_ - 1] for name, id_ in expected.items() if id_ <= seen}
        progress = TagProgress()
        progress.advance(_options(texts), present)
        rest = [each for each in snapshots if each.id >= progress.next_id]
        later = {name: id_ for name, id_ in expected.items() if id_ > seen}
        assert _made(rest, texts, progress=progress) == later


def test_watermarks_count_where_they_are_times() -> None:
    texts = {**HOURLY, _MODE: "watermark", "sink.watermark-time-zone": "Asia/Shanghai"}
    times = (None, "2024-03-02T05:20", None, "2024-03-02T06:00", "2024-03-02T07:00")
    snapshots = _snapshots(*times, watermarks=True)
    # None yet, as Flink says it, and the end of an input.
    snapshots[0] = replace(snapshots[0], watermark=-(1 << 63))
    snapshots[4] = replace(snapshots[4], watermark=(1 << 63) - 1)
    expected = {"2024-03-02 12": 2, "2024-03-02 13": 4}
    assert _made(snapshots, texts) == expected
    assert _made(snapshots, {**HOURLY, _MODE: "watermark"}) == {
        "2024-03-02 04": 2,
        "2024-03-02 05": 4,
    }


def test_a_snapshot_from_after_our_time_waits_for_it() -> None:
    """One clock is wrong: a tag is never made before its period has ended by both."""
    snapshots = _snapshots("2024-03-02T05:20", "2024-03-02T06:10", "2024-03-02T06:20")
    now_ms, options = _ms("2024-03-02T05:30"), _options(HOURLY)
    progress = TagProgress(options=options)
    assert _made(snapshots, HOURLY, progress=progress, now_ms=now_ms) == {"2024-03-02 04": 1}
    assert progress.next_id == 2
    assert not may_be_due(snapshots[2], progress, options, now_ms=now_ms, zone=UTC)
    now_ms = _ms("2024-03-02T06:15")
    assert may_be_due(snapshots[2], progress, options, now_ms=now_ms, zone=UTC)
    assert _made(snapshots[1:], HOURLY, progress=progress, now_ms=now_ms) == {"2024-03-02 05": 2}
    # One that is years ahead stops nothing.
    snapshots[1] = replace(snapshots[1], time_ms=_ms("2094-01-01"))
    progress = TagProgress()
    assert _made(snapshots, HOURLY, progress=progress, now_ms=_ms("2024-03-02T06:30")) == {
        "2024-03-02 04": 1,
        "2024-03-02 05": 3,
    }
    assert progress.next_id == 4


def test_a_snapshot_has_one_such_tag_and_too_many_are_the_oldest() -> None:
    first, second, third = _snapshots("2024-03-02T05:20", "2024-03-02T07:00", "2024-03-02T07:10")
    options = _options({**HOURLY, "tag.num-retained-max": "2"})
    # Somebody gave snapshot 2 a name that counts.
    tags = {"2024-03-02 04": first, "2024-03-01 01": second, "mine": first}
    progress = TagProgress()
    progress.advance(options, tags)
    made = _made([second, third], HOURLY, progress=progress)
    assert made == {"2024-03-02 06": 3}
    assert surplus_tags(tags, options) == []
    after = {**tags, "2024-03-02 06": third}
    assert surplus_tags(after, options) == ["2024-03-02 04"]
    assert surplus_tags(after, _options(HOURLY)) == ()


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({_MODE: "often"}, "option tag.automatic-creation='often': expected one of"),
        ({"tag.creation-period": "weekly"}, "option tag.creation-period='weekly': expected one of"),
        ({"tag.period-formatter": "iso"}, "option tag.period-formatter='iso': expected one of"),
        ({"tag.creation-period-duration": "0"}, "expected a duration from 1 ms to"),
        ({"tag.creation-period-duration": "99999 d"}, "expected a duration from 1 ms to"),
        ({"tag.creation-delay": "24 h"}, "as long as the period or longer"),
        ({"tag.creation-delay": "soon"}, "expected a duration"),
        ({"tag.num-retained-max": "0"}, "expected a number above 0"),
        ({"tag.automatic-completion": "yes"}, "expected true or false"),
        ({"tag.default-time-retained": "7 y"}, "expected a duration"),
        ({"sink.process-time-zone": "Moon"}, "expected a time zone"),
        ({_MODE: "watermark", "sink.watermark-time-zone": "Moon"}, "expected a time zone"),
        ({"metastore.tag-to-partition": "dt"}, "option metastore.tag-to-partition=dt"),
        # What does not count is not read.
        ({"sink.watermark-time-zone": "Moon"}, None),
        ({"tag.creation-period": "two-hours", "tag.period-formatter": "iso"}, None),
        ({_MODE: "batch", "tag.creation-period": "weekly"}, None),
        ({_MODE: "none"}, None),
    ],
)
def test_options_that_are_wrong_are_named_and_keep_tags_alone_from_being_made(
    texts: Mapping[str, str], said: str | None
) -> None:
    given = {_MODE: "process-time", **texts}
    schema = replace(latest_schema(Lineage().storage, TABLE.location), options=given)
    options = parse_options(schema)
    assert not options.unreadable
    asks = said is None and given[_MODE] == "process-time"
    assert ("create_tags" in options.maintenance.requested) is asks
    found = [each for each in unserved_maintenance(options) if "no tags are created" in each]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
