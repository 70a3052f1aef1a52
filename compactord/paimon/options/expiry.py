"""How long a table keeps snapshots, and changelogs after them (options/ExpireConfig.java)."""

from __future__ import annotations

from dataclasses import dataclass

from compactord.paimon.options.texts import OptionTexts

_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogRetention:
    """How long changelogs are kept that outlive their snapshots. Durations in milliseconds.

    `from_deltas`: readers take changes from the files that writers add, for want of a changelog
    producer. `from_overwrites`: they also take what an overwrite removed. `held_alone`:
    consumers hold changelogs only, not snapshots.
    """

    num_retained_min: int
    num_retained_max: int
    time_retained_ms: int
    from_deltas: bool = False
    from_overwrites: bool = False
    held_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpireOptions:
    """How long snapshots are kept. Durations in milliseconds.

    `limit` is how many may expire at a time. `changelogs` None: they go with their snapshots.
    """

    num_retained_min: int
    num_retained_max: int
    time_retained_ms: int
    limit: int
    clean_empty_directories: bool
    changelogs: ChangelogRetention | None = None


def expire_options(texts: OptionTexts, *, has_producer: bool) -> ExpireOptions:
    """What cannot be parsed is in `texts.unreadable`, or raises `UsageError` (`OptionTexts`)."""
    fewest = texts.read("snapshot.num-retained.min", 10)
    most = texts.read("snapshot.num-retained.max", _INT_MAX)
    time_ms = texts.read("snapshot.time-retained", 3_600_000)
    changelogs = ChangelogRetention(
        num_retained_min=texts.read("changelog.num-retained.min", fewest),
        num_retained_max=texts.read("changelog.num-retained.max", most),
        time_retained_ms=texts.read("changelog.time-retained", time_ms),
        from_deltas=not has_producer,
        from_overwrites=texts.read("streaming-read-overwrite", False),
        held_alone=texts.read("consumer.changelog-only", False),
    )
    outlive = (
        changelogs.num_retained_min > fewest
        or changelogs.num_retained_max > most
        or changelogs.time_retained_ms > time_ms
    )
    return ExpireOptions(
        num_retained_min=fewest,
        num_retained_max=most,
        time_retained_ms=time_ms,
        limit=texts.read("snapshot.expire.limit", 50),
        clean_empty_directories=texts.read("snapshot.clean-empty-directories", False),
        changelogs=changelogs if outlive else None,
    )
