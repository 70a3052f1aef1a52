"""Java knows our marks and we know Java's; partitions stand for the times that Java finds."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.paimon.java_text import formatter_trouble, partition_time_ms
from compactord.storage.local import LocalStorage
from compactord.table.opening import open_table
from tests.oracle.judge import Judge
from tests.rounds import mark_done

LOCAL = LocalStorage()
_FORMATTERS = (
    *(None, "yyyy-MM-dd", "yyyyMMdd", "yyyyMMddHH", "yyyy/M/d", "yyyy-MM-dd['T'HH[:mm]]"),
    *("yyyy-MM-dd HH:mm:ss.SSS", "uuuu-M-d H:m:s", "dd.MM.yyyy", "yyyy-MM", "yyyyMMdd'h'HH''"),
)


def test_marks_are_the_same_to_both(judge: Judge, tmp_path: Path) -> None:
    path = tmp_path / "db.db" / "t"
    options = {
        "bucket": "1",
        "write-only": "true",
        "partition.idle-time-to-done": "1 s",
        "partition.time-interval": "1 d",
    }
    columns = (("dt", "STRING NOT NULL"), ("h", "STRING NOT NULL"), ("k", "BIGINT NOT NULL"))
    judge.create_table(
        path,
        columns,
        partition_by=("dt", "h"),
        primary_key=("dt", "h", "k"),
        options=options,
    )
    rows = [("2024-01-05", "a b/c"), ("2024-01-05", "0"), ("2024-01-06", "1"), ("never", "1")]
    judge.write(path, [(*row, 1) for row in rows])
    folders = ["dt=2024-01-05/h=a b%2Fc", "dt=2024-01-05/h=0", "dt=2024-01-06/h=1"]

    def marked() -> list[list[int] | None]:
        return [
            judge.jvm.ask("Upkeep", "marked", {"path": str(path), "partition": folder})
            for folder in (*folders, "dt=never/h=1")
        ]

    def mark(later_ms: int) -> list[str]:
        ref = FilesystemCatalog(LOCAL, str(tmp_path)).find_table("db.t")
        table = open_table(FilesystemCatalog(LOCAL, str(tmp_path)).open(ref), {})
        return mark_done(table, int(time.time() * 1000) + later_ms)

    judge.jvm.call("Upkeep", "markDone", {"path": str(path), "partition": folders[0]})
    assert sorted(mark(10_000)) == sorted(folders[1:])
    found = marked()
    assert all(found[:3])
    assert found[3] is None
    # Rows that come later: marked again by us, and then by Java, first marks stay.
    judge.write(path, [(*row, 2) for row in rows[:1]])
    assert mark(20_000) == folders[:1]
    ours = marked()[0]
    assert ours is not None
    assert found[0] is not None
    assert (ours[0], ours[1] > found[0][1]) == (found[0][0], True)
    judge.jvm.call("Upkeep", "markDone", {"path": str(path), "partition": folders[1]})
    theirs = marked()[1]
    assert theirs is not None
    assert found[1] is not None
    assert theirs[0] == found[1][0]
    assert len(judge.read(path)) == 5


def test_a_partition_stands_for_the_time_that_java_finds(judge: Judge) -> None:
    dice = random.Random(31)
    asked = []
    for _ in range(4_000):
        pattern = dice.choice((None, None, "$dt", "$dt $h:00:00", "$dt-$h", "$h.$dt"))
        day, own = dice.choice(_DAYS)
        values = {"dt": day(dice), "h": dice.choice(("0", "7", "07", "24", "31", "x"))}
        asked.append((values, pattern, dice.choice(own if dice.random() < 0.8 else _FORMATTERS)))
    theirs = judge.jvm.ask(
        "Upkeep",
        "partitionTimes",
        [
            {"keys": list(spec), "values": list(spec.values()), "pattern": how, "formatter": form}
            for spec, how, form in asked
        ],
    )
    ours = [partition_time_ms(*each) for each in asked]
    wrong = [each for each in zip(asked, ours, theirs, strict=True) if each[1] != each[2]]
    assert not wrong, wrong[:5]
    assert sum(found is not None for found in ours) > 500
    assert not any(each and formatter_trouble(each) for each in _FORMATTERS)


def _digits(dice: random.Random, least: int, most: int) -> str:
    return str(dice.randrange(least, most)).zfill(dice.choice((1, 2, 2, 2)))


_FRACTIONS = ("", ".5", ".123", ".1234567")
# With the formatters that are meant for them.
_DAYS: tuple[tuple[Callable[[random.Random], str], tuple[str | None, ...]], ...] = (
    (
        lambda dice: f"20{_digits(dice, 10, 30)}-{_digits(dice, 0, 14)}-{_digits(dice, 0, 33)}",
        (None, "yyyy-MM-dd", "yyyy-MM-dd['T'HH[:mm]]"),
    ),
    (lambda dice: f"2024{_digits(dice, 1, 14)}{_digits(dice, 1, 33)}", ("yyyyMMdd",)),
    (
        lambda dice: f"2024{_digits(dice, 1, 14)}{_digits(dice, 1, 33)}{_digits(dice, 0, 26)}",
        ("yyyyMMddHH",),
    ),
    (lambda dice: f"2024/{_digits(dice, 1, 14)}/{_digits(dice, 1, 33)}", ("yyyy/M/d",)),
    (
        lambda dice: (
            f"2024-02-{_digits(dice, 27, 32)}T{_digits(dice, 0, 26)}:{_digits(dice, 0, 62)}"
        ),
        ("yyyy-MM-dd['T'HH[:mm]]",),
    ),
    (
        lambda dice: (
            f"2024-0{dice.randrange(10)}-1{dice.randrange(10)} {_digits(dice, 0, 26)}:"
            f"{_digits(dice, 0, 62)}:{_digits(dice, 0, 62)}{dice.choice(_FRACTIONS)}"
        ),
        (None, "yyyy-MM-dd HH:mm:ss.SSS", "uuuu-M-d H:m:s"),
    ),
    (lambda dice: f"0{_digits(dice, 1, 9)}.{_digits(dice, 1, 14)}.2024", ("dd.MM.yyyy",)),
    (lambda dice: dice.choice(("", "today", "2024", "2024-01", "9998-12-31")), (None, "yyyy-MM")),
)
