"""Decides which snapshots and changelogs may expire, from ids and times only.

Agrees with table/ExpireSnapshotsImpl.java (expire), except for two cases in which Java would harm
the table: see `expire_range`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from compactord.errors import UsageError
from compactord.paimon.options.maintenance import ChangelogRetention, ExpireOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireRange:
    """Snapshots from `first` to `end` (exclusive); none if `is_empty`.

    `more`: only the limit per round keeps later ones.
    """

    first: int
    end: int
    more: bool

    @property
    def is_empty(self) -> bool:
        return self.end <= self.first


def expire_range(
    options: ExpireOptions,
    *,
    earliest: int,
    latest: int,
    next_of_consumers: int | None,
    keep_from: int | None,
    time_of: Callable[[int], int | None],
    now_ms: int,
) -> ExpireRange:
    """The snapshots that expire now.

    `next_of_consumers` is the lowest snapshot that a consumer still has to read, `keep_from` the
    lowest that is being read now: these and all later ones are kept. `time_of` is the time in
    milliseconds of a snapshot, None if it is gone; it is called for `limit` + 2 snapshots at most.
    A snapshot expires by age once its successor is older than the time retained; beyond
    `num_retained_max` it expires whatever its age.

    Raises `UsageError` for options with which Java expires nothing or everything: a maximum below
    the minimum, a minimum below 1.
    """
    fewest, most = options.num_retained_min, options.num_retained_max
    if fewest < 1:
        raise UsageError(
            f"option snapshot.num-retained.min={fewest}: expected 1 or more, "
            "or the newest snapshot would expire"
        )
    _require_ordered("snapshot", fewest, most)
    always_kept = [latest - fewest + 1]
    always_kept += [id_ for id_ in (next_of_consumers, keep_from) if id_ is not None]
    by_age = max(latest - most + 1, earliest)

    def end_within(limit: int) -> int:
        end = min(*always_kept, earliest + limit)
        for snapshot_id in range(by_age, end):
            successor_ms = time_of(snapshot_id + 1)
            if successor_ms is not None and now_ms - options.time_retained_ms <= successor_ms:
                return snapshot_id
        return end

    # A limit of 0 switches expiry off: there is no next round then.
    limit = max(options.limit, 0)
    end = max(end_within(limit), earliest)
    return ExpireRange(first=earliest, end=end, more=limit > 0 and end_within(limit + 1) > end)


def changelog_range(
    retention: ChangelogRetention,
    *,
    limit: int,
    earliest: int,
    latest: int,
    snapshots: tuple[int, int],
    next_of_consumers: int | None,
    time_of: Callable[[int], int | None],
    now_ms: int,
) -> ExpireRange:
    """The long-lived changelogs that expire now.

    `earliest` and `latest` are those there are, of which the latest never expires; `snapshots` are
    the oldest and the newest snapshot. Numbers retained count both. A changelog expires by its own
    age, where a snapshot does by its successor's. As table/ExpireChangelogImpl.java, but that here
    changelogs of snapshots that are still there stay.

    Raises `UsageError` for a maximum below the minimum.
    """
    oldest_snapshot, newest = snapshots
    fewest, most = retention.num_retained_min, retention.num_retained_max
    _require_ordered("changelog", fewest, most)
    always_kept = [newest - fewest + 1, latest, oldest_snapshot]
    if next_of_consumers is not None:
        always_kept.append(next_of_consumers)
    by_age = max(newest - most + 1, earliest)

    def end_within(limit: int) -> int:
        end = min(*always_kept, earliest + limit)
        for changelog_id in range(by_age, end):
            time_ms = time_of(changelog_id)
            if time_ms is not None and now_ms - retention.time_retained_ms <= time_ms:
                return changelog_id
        return end

    limit = max(limit, 0)
    end = max(end_within(limit), earliest)
    return ExpireRange(first=earliest, end=end, more=limit > 0 and end_within(limit + 1) > end)


def _require_ordered(what: str, fewest: int, most: int) -> None:
    if most < fewest:
        raise UsageError(
            f"option {what}.num-retained.max={most}: expected at least {fewest}, "
            f"which is {what}.num-retained.min"
        )
