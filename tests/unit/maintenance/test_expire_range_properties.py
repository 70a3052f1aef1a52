"""The range against the rule written out the way Java goes through it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from compactord.maintenance.snapshots import expire_range
from compactord.paimon.options.maintenance import ExpireOptions

NOW_MS = 10_000


def _by_the_rule(
    options: ExpireOptions,
    earliest: int,
    latest: int,
    consumer: int | None,
    times: dict[int, int],
) -> int:
    older_than = NOW_MS - options.time_retained_ms
    first_asked = max(latest - options.num_retained_max + 1, earliest)
    max_exclusive = latest - options.num_retained_min + 1
    if consumer is not None and consumer < max_exclusive:
        max_exclusive = consumer
    if earliest + options.limit < max_exclusive:
        max_exclusive = earliest + options.limit
    snapshot_id = first_asked
    while snapshot_id < max_exclusive:
        if snapshot_id + 1 in times and older_than <= times[snapshot_id + 1]:
            return snapshot_id
        snapshot_id += 1
    return max_exclusive


@st.composite
def _cases(draw: st.DrawFn) -> tuple[ExpireOptions, int, int, int | None, dict[int, int]]:
    earliest = draw(st.integers(1, 20))
    latest = earliest + draw(st.integers(0, 20))
    fewest = draw(st.integers(1, 15))
    options = ExpireOptions(
        num_retained_min=fewest,
        num_retained_max=draw(st.integers(fewest, 30)),
        time_retained_ms=draw(st.integers(0, NOW_MS)),
        limit=draw(st.integers(0, 25)),
        clean_empty_directories=False,
    )
    ids = range(earliest, latest + 1)
    # Clocks of several writers: times need not ascend, and some snapshots are gone.
    times = {i: draw(st.integers(0, NOW_MS)) for i in ids if draw(st.booleans())}
    return options, earliest, latest, draw(st.none() | st.integers(0, 45)), times


@given(_cases())
def test_the_end_is_the_one_of_the_rule(
    case: tuple[ExpireOptions, int, int, int | None, dict[int, int]],
) -> None:
    options, earliest, latest, consumer, times = case
    found = expire_range(
        options,
        earliest=earliest,
        latest=latest,
        next_of_consumers=consumer,
        keep_from=None,
        time_of=times.get,
        now_ms=NOW_MS,
    )
    assert found.end == max(_by_the_rule(options, earliest, latest, consumer, times), earliest)
    unlimited = replace(options, limit=1000)
    rest = max(_by_the_rule(unlimited, earliest, latest, consumer, times), earliest)
    if not found.more and options.limit:
        assert found.end == rest
    if found.more:
        assert found.end < rest


@given(_cases(), st.integers(0, 45))
def test_what_somebody_reads_stays_and_nothing_else_changes(
    case: tuple[ExpireOptions, int, int, int | None, dict[int, int]], keep_from: int
) -> None:
    options, earliest, latest, consumer, times = case

    def end(keep: int | None) -> int:
        return expire_range(
            options,
            earliest=earliest,
            latest=latest,
            next_of_consumers=consumer,
            keep_from=keep,
            time_of=times.get,
            now_ms=NOW_MS,
        ).end

    assert end(keep_from) == max(min(end(None), keep_from), earliest)
    assert end(keep_from) <= latest
