"""Folds for all keys at once have the values of the walk from value to value, for every shape."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compactord.kernels.aggregators.base import FoldedBytes, RuleViolation, Values
from compactord.kernels.aggregators.bitmap64_inserts import rbm64_unions
from compactord.kernels.aggregators.bitmap_inserts import rbm32_unions
from compactord.kernels.aggregators.bitmaps import Bitmap64, RoaringBitmap32, RoaringBitmap64
from compactord.kernels.aggregators.bitmaps import serialised as serialised64
from compactord.kernels.aggregators.inserts import Inserts
from compactord.kernels.aggregators.set_unions import Unite, united_sets
from compactord.kernels.functions.folding import Action, Step, added_at_once, stepwise
from compactord.paimon.deletion_vectors import Container, Kind, serialised
from compactord.paimon.options.merge import ColumnRule, NullKeys

Draw = Callable[[random.Random], Any]
(NAN,) = struct.unpack("<d", (0xFFF8000000000001).to_bytes(8, "little"))


def one_of(*values: Any) -> Draw:
    return lambda chance: chance.choice(values)


def lists(element: Draw) -> Draw:
    return lambda chance: [element(chance) for _ in range(chance.randint(0, 4))]


def maps(key: Draw, value: Draw) -> Draw:
    """Some with a key twice, which no writer makes."""
    return lambda chance: [(key(chance), value(chance)) for _ in range(chance.randint(0, 3))]


def rows(**fields: Draw) -> Draw:
    def draw(chance: random.Random) -> Any:
        if chance.random() < 0.1:
            return None
        return {name: value(chance) for name, value in fields.items()}

    return draw


def bitmaps(*kinds: str) -> Draw:
    def draw(chance: random.Random) -> bytes:
        kind, found = chance.choice(kinds), {}
        for key in sorted(chance.sample([0, 1, 2, 65535], chance.randint(0, 3))):
            last = 6 if kind == "dense" else 65535
            count = chance.randint(1, 6) if kind != "large" else chance.choice([4000, 4096])
            numbers = np.array(sorted(chance.sample(range(last + 1), count)), np.uint16)
            found[key] = Container(Kind.RUNS if kind == "runs" else Kind.ARRAY, numbers)
        return serialised(found)

    return draw


def bitmaps64(
    *sizes: int, bytes_: int = 1, kinds: tuple[Kind, ...] = (Kind.ARRAY,), step: int = 1
) -> Draw:
    """Bitmaps of so many containers, whose keys came in any order and differ in any of their last
    bytes. Without a `step`, unions may have runs.
    """

    def draw(chance: random.Random) -> bytes:
        made, keys = Bitmap64(), set[bytes]()
        above, most = bytes(5 - bytes_) + bytes([chance.choice([0, 7])]), 256 if bytes_ == 1 else 7
        size = chance.choice(sizes)
        while len(keys) < size:
            keys.add(above + bytes(chance.randrange(most) for _ in range(bytes_)))
        for key in chance.sample(sorted(keys), len(keys)):
            last = chance.choice([9 * step, 65536])
            numbers = sorted(chance.sample(range(0, last, step), chance.randint(1, 5)))
            made.put(key, Container(chance.choice(kinds), np.array(numbers, np.uint16)))
        return serialised64(made)

    return draw


NUMBERS, NAMES = one_of(None, 1, 2, 3), one_of("", "a", "é", "\uffff")
ROWS = pa.list_(pa.struct({"a": pa.int64(), "b": pa.string(), "c": pa.int32()}))
ROW = rows(a=NUMBERS, b=one_of(None, "x", "y"), c=NUMBERS)
TIMED = pa.map_(pa.string(), pa.struct({"t": pa.string(), "v": pa.int32(), "u": pa.string()}))
TIMES = one_of(None, "", "1", "2", "\uffff")
ENTRY = rows(t=TIMES, v=NUMBERS, u=TIMES)
TEXTS = one_of("", " ", "\u00a0", "\u3000\t", "a", "b", "a,b", ",c,a", "é", "a--b")
ELEMENTS: dict[str, tuple[pa.DataType, Draw]] = {
    "int": (pa.int32(), NUMBERS),
    "boolean": (pa.bool_(), one_of(None, True, False)),
    "double": (pa.float64(), one_of(None, 0.0, -0.0, float("nan"), NAN, 1.5)),
    "string": (pa.string(), one_of(None, "", "a", "b")),
    "binary": (pa.binary(3), one_of(None, b"aaa", b"aab")),
    "decimal": (pa.decimal128(38, 2), one_of(None, *map(Decimal, ("1.00", "-2.50", "9e30")))),
    "timestamp": (pa.timestamp("us"), one_of(None, 0, 5, 2**50)),
    "row": (ROWS.value_type, ROW),
    "array": (pa.list_(pa.int32()), one_of(None, [], [1], [1, None], [2])),
    "map": (pa.map_(pa.string(), pa.int32()), one_of(None, [], [("a", 1)], [("a", None)])),
}


@dataclass(frozen=True)
class Case:
    """Values and how they are aggregated. `walks`: the values have a form that is
    walked. `seeds`: how many columns are drawn."""

    aggregator: str
    type_: pa.DataType
    draw: Draw
    options: dict[str, Any] = field(default_factory=dict)
    walks: bool = False
    seeds: int = 60


CASES = {
    **{
        f"collect-{name}{'-distinct' * distinct}": Case(
            "collect", pa.list_(type_), lists(draw), {"distinct": distinct}
        )
        for name, (type_, draw) in ELEMENTS.items()
        for distinct in (False, True)
    },
    "merge-map": Case("merge_map", pa.map_(pa.string(), pa.int32()), maps(NAMES, NUMBERS)),
    "merge-map-of-numbers": Case(
        "merge_map", pa.map_(pa.int64(), ROWS), maps(one_of(1, 2), lists(ROW))
    ),
    "key-time": Case("merge_map_with_keytime", TIMED, maps(NAMES, ENTRY)),
    "key-time-of-one-length": Case(
        "merge_map_with_keytime",
        TIMED,
        maps(NAMES, rows(t=TIMES, v=NUMBERS, u=one_of("10:00", "09:59", "10:01"))),
    ),
    "key-time-by-name": Case(
        "merge_map_with_keytime", TIMED, maps(NAMES, ENTRY), {"time_field": "t"}
    ),
    "key-time-beyond-utf-16": Case(
        "merge_map_with_keytime",
        TIMED,
        maps(NAMES, rows(t=TIMES, v=NUMBERS, u=one_of("\uffff", "\U0001f600"))),
        walks=True,
    ),
    **{
        f"nested-{aggregator}-{number}": Case(f"nested_{aggregator}", ROWS, lists(ROW), options)
        for aggregator, many in {
            "update": [
                {},
                {"count_limit": 3},
                {"count_limit": 0},
                {"nested_key": ("a",)},
                {"nested_key": ("a", "b")},
                {"nested_key": ("b",), "null_keys": NullKeys.IGNORE, "count_limit": 1},
                {"nested_key": ("a",), "nested_sequence": ("b", "c"), "count_limit": 2},
            ],
            "partial_update": [
                {"nested_key": ("a",)},
                {"nested_key": ("b", "a")},
                {"nested_key": ("b", "a"), "null_keys": NullKeys.IGNORE},
            ],
        }.items()
        for number, options in enumerate(many)
    },
    "nested-update-null-keys": Case(
        "nested_update",
        ROWS,
        lists(ROW),
        {"nested_key": ("a",), "null_keys": NullKeys.ERROR},
        walks=True,
    ),
    "listagg": Case("listagg", pa.string(), TEXTS, {"delimiter": "--"}),
    "listagg-nothing-between": Case("listagg", pa.string(), TEXTS, {"delimiter": ""}),
    "listagg-distinct": Case("listagg", pa.string(), TEXTS, {"distinct": True}),
    "listagg-distinct-long": Case(
        "listagg", pa.string(), TEXTS, {"distinct": True, "delimiter": "--"}, walks=True
    ),
    "listagg-dictionary": Case("listagg", pa.dictionary(pa.int32(), pa.string()), TEXTS),
    "rbm32": Case("rbm32", pa.binary(), bitmaps("array")),
    "rbm32-mixed": Case("rbm32", pa.binary(), bitmaps(*["array"] * 9, "dense", "runs", "large")),
    "rbm32-runs": Case("rbm32", pa.binary(), bitmaps("runs")),
    "rbm64-few": Case("rbm64", pa.binary(), bitmaps64(0, 1, 2, 4)),
    "rbm64-nodes": Case("rbm64", pa.binary(), bitmaps64(1, 3, 5, 12, 16, 17, 40), seeds=20),
    "rbm64-large-nodes": Case("rbm64", pa.binary(), bitmaps64(1, 47, 48, 49, 100, 256), seeds=4),
    "rbm64-deep": Case("rbm64", pa.binary(), bitmaps64(1, 5, 17, bytes_=5), seeds=20),
    "rbm64-levels": Case("rbm64", pa.binary(), bitmaps64(1, 4, 40, 200, bytes_=3), seeds=4),
    "rbm64-many": Case("rbm64", pa.binary(), bitmaps64(1, 300, bytes_=4), seeds=4),
    "rbm64-runs": Case("rbm64", pa.binary(), bitmaps64(1, 2, 3, kinds=(Kind.ARRAY, Kind.RUNS))),
    "rbm64-dictionary": Case("rbm64", pa.dictionary(pa.int32(), pa.binary()), bitmaps64(1, 2)),
    "rbm32-dictionary": Case("rbm32", pa.dictionary(pa.int32(), pa.binary()), bitmaps("array")),
}
ORDERED = ("collect", "listagg", "rbm32", "rbm64", "hll_sketch", "theta_sketch")
SLOTS = 12


def drawn(chance: random.Random, case: Case, *, only_adds: bool) -> tuple[Values, list[Step]]:
    """A column behind an offset with rounds of steps."""
    nulls = chance.choice([0.0, 0.2, 0.7])
    rounds = chance.randint(1, 6)
    cells = [
        None if chance.random() < nulls else case.draw(chance) for _ in range(SLOTS * rounds + 3)
    ]
    plain = case.type_.value_type if pa.types.is_dictionary(case.type_) else case.type_
    column = pa.array(cells, plain)
    column = (column if plain == case.type_ else column.dictionary_encode())[3:]
    numbers = np.array(chance.sample(range(len(column)), len(column)))
    actions = [Action.ADD] if only_adds else [*[Action.ADD] * 9, Action.RESET, Action.ADD_EARLIER]
    if not only_adds and case.aggregator in ("collect", "merge_map", "nested_update"):
        actions.append(Action.RETRACT)
    steps = []
    for rows in numbers.reshape(rounds, SLOTS):
        count = chance.randint(0, SLOTS)
        chosen = np.array([chance.choice(actions).value for _ in range(count)])
        for action in Action:
            slots = np.flatnonzero(chosen == action.value)
            if len(slots):
                steps.append(Step(action, slots, rows[slots]))
    used = np.concatenate([np.empty(0, np.int64), *(step.rows for step in steps)])
    return Values(column, used, SLOTS), steps


def outcome(fold: Callable[..., Any], *arguments: Any) -> Any:
    """The values, or the error."""
    try:
        return fold(*arguments)
    except RuleViolation as error:
        return str(error)


def comparable(case: Case, found: Any) -> Any:
    """As text, so that NaN equals itself; sorted where the order of elements has no meaning."""
    rows = found.to_pylist()
    if case.aggregator in ORDERED:
        return list(map(repr, rows))
    return [row if row is None else sorted(map(repr, row)) for row in rows]


@pytest.mark.parametrize("only_adds", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_fold_at_once_has_the_values_of_the_walk(name: str, only_adds: bool) -> None:
    compare_folds(name, CASES[name], only_adds=only_adds)


def compare_folds(name: str, case: Case, *, only_adds: bool) -> None:
    """Random values folded at once have the values of the walk."""
    folded = 0
    rule = ColumnRule(column="v", aggregator=case.aggregator, **case.options)
    for seed in range(case.seeds):
        values, steps = drawn(random.Random(f"{name} {seed}"), case, only_adds=only_adds)
        at_once, walked = (outcome(fold, values, rule, steps) for fold in (added_at_once, stepwise))
        if at_once is None:
            assert case.walks
            continue
        folded += 1
        if isinstance(walked, str):
            assert at_once == walked
            continue
        at_once.validate(full=True)
        assert at_once.type == walked.type
        assert comparable(case, at_once) == comparable(case, walked), seed
    assert folded if not case.walks else folded < case.seeds


EVERY = np.arange(40)


def two_of_each(draw: Draw, chance: random.Random) -> tuple[Values, list[Step]]:
    """A column with two values for each slot."""
    cells = [draw(chance) for _ in range(80)]
    steps = [Step(Action.ADD, EVERY, EVERY), Step(Action.ADD, EVERY, EVERY + 40)]
    return Values(pa.array(cells, pa.binary()), np.arange(80), 40), steps


def check_not_walked(unite: Unite, kind: type[FoldedBytes], draw: Draw) -> None:
    """All unions are made by `unite`, and are those of the walk."""

    class Unused(kind):  # type: ignore[valid-type, misc]
        def __init__(self, *_: Any) -> None:
            raise AssertionError("walked")

    values, steps = two_of_each(draw, random.Random(5))
    inserts = Inserts(values, np.stack([EVERY, EVERY + 40], axis=1).reshape(-1), EVERY.repeat(2))
    rule = ColumnRule(column="v", aggregator="")
    walked = kind(values, rule)
    for step in steps:
        walked.add(step.slots, step.rows)
    assert united_sets(unite, Unused, inserts, rule).equals(walked.result())


@pytest.mark.parametrize(
    ("unite", "kind", "draw"),
    [
        (rbm32_unions, RoaringBitmap32, bitmaps("array")),
        (rbm64_unions, RoaringBitmap64, bitmaps64(0, 1, 5, 17, 40, step=2)),
        (rbm64_unions, RoaringBitmap64, bitmaps64(50, 100, 256, step=2)),
        (rbm64_unions, RoaringBitmap64, bitmaps64(4, 40, 100, bytes_=4, step=2)),
    ],
)
def test_usual_bitmaps_are_not_walked(unite: Unite, kind: type[FoldedBytes], draw: Draw) -> None:
    check_not_walked(unite, kind, draw)


def check_damaged(aggregator: str, draw: Draw) -> None:
    """Damaged bytes have the walk's error, or its bytes: those of an empty form, or of other
    numbers, are valid.
    """
    rule, refused = ColumnRule(column="v", aggregator=aggregator), 0
    for seed in range(400):
        chance = random.Random(seed)
        whole, damaged, slots = draw(chance), bytearray(draw(chance)), np.zeros(1, np.int64)
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(min(len(damaged), chance.choice([28, 1000])))
            damaged[at] = chance.choice([0, 1, 8, 0x1A, 77, 255, damaged[at] ^ 1])
        cut = bytes(damaged[: chance.choice([len(damaged)] * 3 + [chance.randrange(len(damaged))])])
        values = Values(pa.array([whole, cut], pa.binary()), np.arange(2), 1)
        steps = [Step(Action.ADD, slots, slots + row) for row in chance.sample(range(2), 2)]
        folds = (added_at_once, stepwise)
        found = [outcome(fold, values, rule, steps) for fold in folds]
        assert found[0] == found[1], (seed, whole.hex(), cut.hex())
        refused += isinstance(found[0], str)
    assert 100 < refused < 390


@pytest.mark.parametrize("draw", [bitmaps64(0, 1, 3, 20), bitmaps64(1, 3, 12, bytes_=5, step=2)])
def test_a_damaged_bitmap64_has_the_outcome_of_the_walk(draw: Draw) -> None:
    check_damaged("rbm64", draw)


def ascending() -> bytes:
    numbers = np.array([5, 9, 400], np.uint16)
    return serialised({0: Container(Kind.ARRAY, numbers), 3: Container(Kind.ARRAY, numbers)})


@pytest.mark.parametrize(
    ("at", "replaced", "message"),
    [
        (8, b"\3\0", "do not ascend"),
        (8, b"\4\0", "do not ascend"),
        (24, b"\x09\0", "do not ascend"),
        (32, b"\xff\xff", "do not ascend"),
        (0, b"\0\0", "it begins with"),
        (10, b"\xff\0", "bytes are needed"),
        (4, b"\xff\xff\xff", "containers"),
    ],
)
def test_a_damaged_bitmap_is_an_error(at: int, replaced: bytes, message: str) -> None:
    whole = ascending()
    damaged = whole[:at] + replaced + whole[at + len(replaced) :]
    rule, slots = ColumnRule(column="v", aggregator="rbm32"), np.array([0, 1])
    values = Values(pa.array([whole, whole, damaged, whole]), np.arange(4), 2)
    steps = [Step(Action.ADD, slots, slots), Step(Action.ADD, slots, slots + 2)]
    for fold in (added_at_once, stepwise):
        with pytest.raises(
            RuleViolation, match=f"not a roaring bitmap of 32 bits: .*{message}"
        ) as e:
            fold(values, rule, steps)
        assert e.value.row == 2


def test_bitmaps_are_united_in_parts_of_any_size() -> None:
    """More bytes than one part has, of one slot and of many."""
    rule = ColumnRule(column="v", aggregator="rbm32")
    chance = np.random.default_rng(1)
    for numbers, slots in ((60, 2000), (4000, 3)):
        cells = [
            serialised(
                {
                    key: Container(Kind.ARRAY, np.unique(chance.integers(0, 65536, numbers, "u2")))
                    for key in range(0, 40, 4)
                }
            )
            for _ in range(2 * slots)
        ]
        values = Values(pa.array(cells), np.arange(2 * slots), slots)
        every = np.arange(slots)
        steps = [Step(Action.ADD, every, every), Step(Action.ADD, every, every + slots)]
        at_once = added_at_once(values, rule, steps)
        assert at_once is not None
        assert at_once.equals(stepwise(values, rule, steps))
