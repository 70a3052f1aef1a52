"""Random options of tables for maintenance, and for how they are written."""

from __future__ import annotations

import random


class RandomOptions:
    """Options of one table after the other, or for the same one anew."""

    def __init__(self, chance: random.Random, *, has_key: bool, has_days: bool) -> None:
        self._chance = chance
        self.has_key, self.has_days = has_key, has_days

    def options(self) -> dict[str, str]:
        options = {"write-only": "true", **self._layout(), **self.of_snapshots()}
        if self._chance.random() < 0.4:
            options |= self._tags()
        if self._chance.random() < 0.5:
            options["consumer.expiration-time"] = self._chance.choice(("1 d", "5 d"))
        if self.has_days and self._chance.random() < 0.6:
            options |= self._expiry_of_partitions()
        if self.has_days and self._chance.random() < 0.4:
            idle = {"partition.idle-time-to-done": "1 ms", "partition.time-interval": "1 d"}
            options |= idle
        return options

    def _layout(self) -> dict[str, str]:
        chance = self._chance
        options = {
            "bucket": chance.choice(("1", "2", "-1")),
            "num-sorted-run.compaction-trigger": "2",
            "compaction.min.file-num": "2",
            "manifest.merge-min-count": chance.choice(("2", "3", "30")),
            "manifest.full-compaction-threshold-size": chance.choice(("1 kb", "16 mb")),
        }
        if options["bucket"] != "1" and chance.random() < 0.3:
            options["deletion-vectors.enabled"] = "true"
        if self.has_key:
            producers = ["none", "none", "input", "input", "lookup"]
            # Java refuses it with vectors.
            producers += [] if "deletion-vectors.enabled" in options else ["full-compaction"]
            options["changelog-producer"] = chance.choice(producers)
            # Java refuses it elsewhere.
            if options["changelog-producer"] in ("none", "input") and chance.random() < 0.2:
                options["streaming-read-overwrite"] = "true"
        elif options["bucket"] != "-1":
            options["bucket-key"] = "k"
        return options

    def of_snapshots(self) -> dict[str, str]:
        chance = self._chance
        fewest = chance.choice((1, 1, 2, 4))
        options = {
            "snapshot.num-retained.min": str(fewest),
            "snapshot.time-retained": chance.choice(("0 ms", "6 h", "4 d", "15 d")),
            "snapshot.expire.limit": chance.choice(("1", "5", "50")),
            "snapshot.clean-empty-directories": chance.choice(("true", "false")),
        }
        most = None
        if chance.random() < 0.4:
            most = fewest + chance.choice((0, 2, 4))
            options["snapshot.num-retained.max"] = str(most)
        if chance.random() < 0.5:
            more = chance.choice((1, 3, 6))
            options["changelog.num-retained.min"] = str(fewest + more)
            options["changelog.time-retained"] = chance.choice(("0 ms", "8 d", "20 d"))
            options["consumer.changelog-only"] = chance.choice(("true", "false"))
            if most is not None:
                options["changelog.num-retained.max"] = str(most + more + chance.choice((0, 2)))
        return options

    def _tags(self) -> dict[str, str]:
        chance = self._chance
        period = chance.choice(
            (
                {"tag.creation-period": "daily", "tag.creation-delay": "2 h"},
                {"tag.creation-period": "daily", "tag.period-formatter": "without_dashes"},
                {"tag.creation-period": "hourly"},
                {"tag.creation-period": "two-hours"},
                {"tag.creation-period-duration": "45 min"},
            )
        )
        options = {
            "tag.automatic-creation": chance.choice(("process-time", "watermark")),
            "tag.automatic-completion": chance.choice(("true", "false")),
            "tag.create-success-file": chance.choice(("true", "false")),
            **period,
        }
        if chance.random() < 0.5:
            options["tag.num-retained-max"] = chance.choice(("1", "2", "4"))
        if chance.random() < 0.5:
            options["tag.default-time-retained"] = "36 h"
        return options

    def _expiry_of_partitions(self) -> dict[str, str]:
        chance = self._chance
        options = {"partition.expiration-check-interval": "0 s"}
        if chance.random() < 0.3:
            options["partition.expiration-strategy"] = "update-time"
            options["partition.expiration-time"] = chance.choice(("1 ms", "1 d"))
        else:
            options["partition.expiration-time"] = chance.choice(("2 d", "8 d"))
        if chance.random() < 0.4:
            options["partition.expiration-max-num"] = chance.choice(("1", "2"))
        if chance.random() < 0.4:
            options["partition.expiration-batch-size"] = "1"
        return options
