"""Append tables whose pages are copied: Java reads, prunes and describes them as by decoding."""

from __future__ import annotations

import operator
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from compactord.formats.parquet import thrift
from compactord.formats.parquet.copying import footer_of
from compactord.plan.table import Strategy
from tests.oracle.differential import LiveTable, assert_same_outcome, canonical
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import JudgeError, Row, Value
from tests.oracle.samples import ATOMIC, EVERY_TYPE
from tests.sampling import one_in
from tests.unit.formats.parquet.stored_pages import assert_healthy, bodies

COMMITS, ROWS = 5, 5_000
LAYOUTS: dict[str, dict[str, str]] = {
    "unaware": {"bucket": "-1"},
    "bucketed": {
        "bucket": "1",
        "bucket-key": "n",
        "file.compression": "gzip",
        "parquet.enable.dictionary": "false",
        "parquet.page.row.count.limit": "1000",
    },
}
# Ascending with the rows, so that each page has its own range of values; `pad` makes files large.
ORDERED = (("n", "INT NOT NULL"), ("s", "STRING"), ("t", "TIMESTAMP(3)"), ("d", "DOUBLE"))
PAD = ("pad", "BYTES")


def ordered(number: int) -> list[Value]:
    """Values of `ORDERED`: every seventh text is null, and whole pages of times are."""
    return [
        number,
        None if number % 7 == 0 else f"{number:012}",
        None if number // ROWS % 3 == 1 else f"{1_600_000_000_000 + 977 * number}:0",
        "NaN" if number % 11 == 0 else number / 8,
    ]


def _hex(chance: random.Random, size: int) -> str:
    return chance.randbytes(size).hex()


def _float(chance: random.Random) -> float:
    (number,) = struct.unpack("<f", struct.pack("<f", chance.gauss(0, 1e6)))
    return float(number)


def _decimal(digits: int, scale: int) -> Callable[[random.Random], str]:
    def draw(chance: random.Random) -> str:
        number = chance.randrange(-(10**digits) + 1, 10**digits)
        whole, part = divmod(abs(number), 10**scale)
        fraction = f".{part:0{scale}}" if scale else ""
        return f"{'-' if number < 0 else ''}{whole}{fraction}"

    return draw


def _time(unit: int, nanos: int) -> Callable[[random.Random], str]:
    """Of whole `unit` milliseconds and `nanos` nanoseconds, within what 64 bits of those hold."""

    def draw(chance: random.Random) -> str:
        millis = chance.randrange(-9_000_000_000_000, 9_000_000_000_000) // unit * unit
        return f"{millis}:{chance.randrange(1_000_000) // nanos * nanos if nanos else 0}"

    return draw


# Values that are too many for a dictionary.
MANY: dict[str, Callable[[random.Random], Value]] = {
    "boolean": lambda chance: chance.random() < 0.5,
    "tinyint": lambda chance: chance.randrange(-128, 128),
    "smallint": lambda chance: chance.randrange(-(2**15), 2**15),
    "int": lambda chance: chance.randrange(-(2**31), 2**31),
    "bigint": lambda chance: chance.randrange(-(2**63), 2**63),
    "float": _float,
    "double": lambda chance: chance.gauss(0, 1e100),
    "decimal-9": _decimal(9, 2),
    "decimal-18": _decimal(18, 3),
    "decimal-19": _decimal(19, 0),
    "decimal-38": _decimal(38, 10),
    "char": lambda chance: _hex(chance, 1),
    "varchar": lambda chance: _hex(chance, 4),
    "string": lambda chance: _hex(chance, chance.randrange(20)),
    "binary": lambda chance: f"x:{_hex(chance, 2)}",
    "bytes": lambda chance: f"x:{_hex(chance, chance.randrange(30))}",
    "varbinary": lambda chance: f"x:{_hex(chance, 12)}",
    "date": lambda chance: chance.randrange(-(2**31), 2**31),
    "time-0": lambda chance: chance.randrange(86_400) * 1000,
    "time-3": lambda chance: chance.randrange(86_400_000),
    **{f"{zone}timestamp-0": _time(1000, 0) for zone in ("", "local-")},
    **{f"{zone}timestamp-3": _time(1, 0) for zone in ("", "local-")},
    **{f"{zone}timestamp-6": _time(1, 1000) for zone in ("", "local-")},
    **{f"{zone}timestamp-9": _time(1, 1) for zone in ("", "local-")},
}


def every_type(chance: random.Random) -> list[Value]:
    """One value of each type, null at times, and at times an extreme one."""
    row = []
    for kind, (_, pool) in EVERY_TYPE.items():
        dice = chance.random()
        if dice < 0.1:
            row.append(None)
        elif dice < 0.2 or kind not in MANY:
            # Long ones have no bounds in footers: other tests have them.
            row.append(chance.choice([v for v in pool if len(str(v)) < 500]))
        else:
            row.append(MANY[kind](chance))
    return row


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """A table before and after our compaction, and a twin from before it."""

    layout: str
    table: LiveTable
    twin: LiveTable
    before: list[Path]
    after: list[Path]

    def is_copied(self, name: str) -> bool:
        """Whether the outputs hold the very pages of the inputs, which are several times as many
        as encoding would have made."""
        pages = Counter(body for path in self.before for body in bodies(path, name))
        return pages == Counter(body for path in self.after for body in bodies(path, name))


@pytest.fixture(scope="module", params=LAYOUTS)
def compacted(
    request: pytest.FixtureRequest, judge: Judge, tmp_path_factory: pytest.TempPathFactory
) -> Compacted:
    """Shared: tests that change the table take a copy."""
    table = wide_table(judge, tmp_path_factory.mktemp("copied") / "db.db" / "t", request.param)
    before, twin = data_files(table), table.copy("java")
    assert table.settle(Strategy.FULL).snapshots
    return Compacted(
        layout=request.param, table=table, twin=twin, before=before, after=data_files(table)
    )


def wide_table(judge: Judge, path: Path, layout: str) -> LiveTable:
    columns = [(f"c-{kind}", type_) for kind, (type_, _) in EVERY_TYPE.items()]
    table = LiveTable(
        judge=judge, path=path, columns=(*ORDERED, *columns, PAD), options=LAYOUTS[layout]
    ).create()
    chance = random.Random(layout)
    for commit in range(COMMITS):
        table.write([wide_row(chance, commit * ROWS + n) for n in range(ROWS)])
    return table


def wide_row(chance: random.Random, number: int) -> list[Value]:
    return [*ordered(number), *every_type(chance), f"x:{_hex(chance, 60)}"]


def data_files(table: LiveTable) -> list[Path]:
    """The live ones, in the order of their rows."""
    files = sorted(table.files(), key=lambda file: int(file["min_sequence_number"]))
    return [table.path / f"bucket-{file['bucket']}" / file["file_name"] for file in files]


def test_pages_of_java_are_copied(compacted: Compacted) -> None:
    assert (len(compacted.before), len(compacted.after)) == (COMMITS, 1)
    # Dictionaries cannot be copied.
    encoded: set[str] = set()
    if compacted.layout == "unaware":
        encoded = {"tinyint", "char", "string", "timestamp-9", "local-timestamp-9"}
    columns = [name for name, _ in (*ORDERED, PAD)]
    columns += [f"c-{kind}" for kind in ATOMIC if kind not in encoded]
    assert [name for name in columns if not compacted.is_copied(name)] == []
    assert [kind for kind in encoded if compacted.is_copied(f"c-{kind}")] == []
    assert_healthy(compacted.after[0])
    pages = COMMITS * (5 if compacted.layout == "bucketed" else 1)
    assert len(bodies(compacted.after[0], "n")) == pages


def test_java_reads_the_rows_and_describes_files_in_the_same_way(compacted: Compacted) -> None:
    """Statistics are those of Java's own compaction, too."""
    twin = compacted.twin.copy("java-compacted")
    twin.java_settle(full=True)
    assert_same_outcome(compacted.table, twin)


# --- filters --------------------------------------------------------------------------------------

OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
LAST = COMMITS * ROWS - 1


def comparable(value: Value) -> Any:
    """Java's order: NaN above all numbers, times as numbers."""
    if value == "NaN":
        return (1, 0.0)
    if isinstance(value, str) and ":" in value:
        millis, _, nanos = value.partition(":")
        return (0, int(millis), int(nanos))
    return (0, value)


def assert_filtered(table: LiveTable, *terms: tuple[str, str, Value]) -> int:
    """Java finds the rows of the model for which all terms hold; how many they are."""
    names = [name for name, _ in ORDERED]

    def holds(row: Row, name: str, op: str, wanted: Value) -> bool:
        value = row[names.index(name)]
        if op in ("is_null", "is_not_null"):
            return (value is None) == (op == "is_null")
        return value is not None and OPERATORS[op](comparable(value), comparable(wanted))

    found = table.judge.read(table.path, columns=names, filter=terms)
    wanted = [row[: len(names)] for row in table.appended if all(holds(row, *t) for t in terms)]
    # The first column is unique.
    assert sorted(map(tuple, found)) == [tuple(row) for row in wanted]
    return len(wanted)


@one_in(3)
@pytest.mark.parametrize("number", [0, 3 * ROWS + 1_234, LAST + 5])
def test_java_finds_rows_by_the_page_index(compacted: Compacted, number: int) -> None:
    n, s, t, d = ordered(number)
    for name, value in (("n", n), ("s", s or f"{number:012}"), ("t", t or "0:0"), ("d", d)):
        for op in ("equal", "not_equal", "lt", "ge"):
            assert_filtered(compacted.table, (name, op, value))


def test_java_finds_nulls_and_ranges_by_the_page_index(compacted: Compacted) -> None:
    table = compacted.table
    for name, _ in ORDERED:
        found = [assert_filtered(table, (name, op, None)) for op in ("is_null", "is_not_null")]
        assert sum(found) == COMMITS * ROWS
    low, high = ordered(ROWS - 52), ordered(3 * ROWS + 51)
    assert None not in (*low, *high)
    for place, (name, _) in enumerate(ORDERED):
        assert_filtered(table, (name, "ge", low[place]), (name, "lt", high[place]))
    assert assert_filtered(table, ("n", "gt", 9_998), ("s", "lt", f"{10_004:012}")) == 4
    assert assert_filtered(table, ("n", "equal", 10_001), ("t", "is_null", None)) == 0


@one_in(3)
@pytest.mark.parametrize("column", ["n", "s", "t"])
def test_java_reads_no_other_pages_than_the_index_names(compacted: Compacted, column: str) -> None:
    """All other copied pages are broken, and whole rows come out nevertheless."""
    number = 3 * ROWS + 1_234
    table = compacted.table.copy(f"broken-{column}")
    (path,) = data_files(table)
    # Files of a table without buckets are packed in the order of their names.
    place = pq.read_table(path, columns=["n"]).column("n").to_pylist().index(number)
    broken = break_pages(path, [n for n, _ in table.columns if compacted.is_copied(n)], place)
    assert broken > 25 * (COMMITS - 1)
    (wanted,) = [row for row in table.appended if row[0] == number]
    value = wanted[[name for name, _ in ORDERED].index(column)]
    found = table.judge.read(table.path, filter=[(column, "equal", value)])
    assert canonical(found) == canonical([wanted])
    with pytest.raises(JudgeError):
        table.judge.read(table.path)


def break_pages(path: Path, names: Iterable[str], row: int) -> int:
    """Make every page of these columns that does not hold the row unreadable; how many did not."""
    content = bytearray(path.read_bytes())
    wanted = {name.encode() for name in names}
    broken = 0
    (group,) = footer_of(bytes(content))[4].value.values
    for chunk in group[1].value.values:
        (name, *inner) = chunk[3].value[3].value.values
        if inner or name not in wanted:
            continue
        locations = thrift.decode(content, chunk[4].value)[0][1].value.values
        firsts = [location[3].value for location in locations]
        for location, first, end in zip(locations, firsts, [*firsts[1:], 1 << 31], strict=True):
            if not first <= row < end:
                start, size = location[1].value, location[2].value
                content[start : start + size] = b"\xff" * size
                broken += 1
    path.write_bytes(content)
    return broken


# --- afterwards -----------------------------------------------------------------------------------


def test_java_goes_on_writing_and_compacting(compacted: Compacted) -> None:
    table = compacted.table.copy("goes-on")
    chance = random.Random(3)
    for commit in range(6):
        first = (COMMITS + commit) * ROWS
        table.write([wide_row(chance, first + n) for n in range(100)])
    table.java_settle(full=True)
    table.check()
    table.write([wide_row(chance, LAST + 10 * ROWS)])
    table.settle(Strategy.FULL)
    table.check()
    assert_filtered(table, ("n", "ge", LAST - 5))
