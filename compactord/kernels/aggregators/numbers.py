"""Sums, products and truth values.

Whole numbers that overflow are an error. A decimal of at most 18 digits is summed as a 64-bit
number, even beyond its precision; larger decimals become null if they exceed it.
Sources: aggregate/Field{Sum,Product,BoolAnd,BoolOr}Agg.java, utils/DecimalUtils.java,
data/Decimal.java.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.aggregators.base import Accumulator, RuleViolation, Values
from compactord.kernels.columns import Bools, Int64s, fixed_array, fixed_values
from compactord.paimon.options.merge import ColumnRule

Numbers = npt.NDArray[Any]
# Decimals of more digits are Python integers.
_COMPACT_DIGITS = 18
_INT32_DIGITS = 9
# Smaller products are exact: two ways to compute them agree.
_SURE = 2.0**62


class _Arithmetic(Accumulator):
    """Numbers per slot; decimals are unscaled. Subclasses define the operations."""

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        self._numbers = _numbers(values)
        self._totals = np.zeros(values.slots, self._numbers.dtype)
        self._known = np.zeros(values.slots, np.bool_)

    def reset(self, slots: Int64s, rows: Int64s) -> None:
        self._totals[slots] = self._numbers[rows]
        self._known[slots] = self._values.valid[rows]

    def add(self, slots: Int64s, rows: Int64s) -> None:
        valid = self._values.valid[rows]
        known = self._known[slots]
        new = valid & ~known
        self._totals[slots[new]] = self._numbers[rows[new]]
        self._known[slots[new]] = True
        self._combine(self._plus, slots, rows, known & valid)

    def retract(self, slots: Int64s, rows: Int64s) -> None:
        valid = self._values.valid[rows]
        known = self._known[slots]
        self._begin_with(slots, rows, valid & ~known)
        self._combine(self._minus, slots, rows, known & valid)

    def result(self) -> pa.Array:
        return _column(self._totals, self._known, self._values.column.type)

    def _combine(
        self,
        operation: Callable[[Numbers, Numbers], tuple[Numbers, Bools]],
        slots: Int64s,
        rows: Int64s,
        where: Bools,
    ) -> None:
        chosen, taken = slots[where], rows[where]
        if len(chosen) == 0:
            return
        before, values = self._totals[chosen], self._numbers[taken]
        try:
            with np.errstate(all="ignore"):
                totals, fits = operation(before, values)
        except ArithmeticError as error:
            raise RuleViolation(int(taken[0]), str(error)) from error
        self._keep(chosen, taken, totals, fits)

    def _keep(self, slots: Int64s, rows: Int64s, totals: Numbers, fits: Bools) -> None:
        if not fits.all():
            if not pa.types.is_decimal(self._values.column.type):
                place = int(np.flatnonzero(~fits)[0])
                raise RuleViolation(
                    int(rows[place]),
                    f"{self._values.column.type} overflow: {self._totals[slots[place]]} and "
                    f"{self._numbers[rows[place]]}",
                )
            self._known[slots[~fits]] = False
        self._totals[slots] = totals

    def _begin_with(self, slots: Int64s, rows: Int64s, where: Bools) -> None:
        """Retract from null."""

    def _plus(self, left: Numbers, right: Numbers) -> tuple[Numbers, Bools]:
        """The results, and a mask of results that fit the type."""
        raise NotImplementedError

    def _minus(self, left: Numbers, right: Numbers) -> tuple[Numbers, Bools]:
        raise NotImplementedError

    def _within(self, numbers: Numbers) -> Bools:
        """A mask of the numbers within the bounds of the column's type."""
        type_ = self._values.column.type
        if pa.types.is_floating(type_):
            return np.ones(len(numbers), np.bool_)
        if pa.types.is_decimal(type_):
            if numbers.dtype != np.object_:
                return np.ones(len(numbers), np.bool_)
            return _at_most(numbers, 10**type_.precision - 1)
        if type_.bit_width == 64:
            return np.ones(len(numbers), np.bool_)
        most = (1 << (type_.bit_width - 1)) - 1
        fits: Bools = (numbers >= -most - 1) & (numbers <= most)
        return fits


class Sum(_Arithmetic):
    """The sum; retracts subtract."""

    def _begin_with(self, slots: Int64s, rows: Int64s, where: Bools) -> None:
        chosen, taken = slots[where], rows[where]
        self._known[chosen] = True
        self._totals[chosen] = 0
        values = self._numbers[taken]
        with np.errstate(all="ignore"):
            totals = -values
        fits = self._within(totals)
        type_ = self._values.column.type
        if pa.types.is_decimal(type_):
            # A sum beyond the precision becomes null when its sign is changed.
            fits = _at_most(totals, 10**type_.precision - 1)
        elif totals.dtype == np.int64:
            fits &= values != np.iinfo(np.int64).min
        self._keep(chosen, taken, totals, fits)

    def _plus(self, left: Numbers, right: Numbers) -> tuple[Numbers, Bools]:
        totals = left + right
        fits = self._within(totals)
        if totals.dtype == np.int64:
            fits &= ((left ^ totals) & (right ^ totals)) >= 0
        return totals, fits

    def _minus(self, left: Numbers, right: Numbers) -> tuple[Numbers, Bools]:
        totals = left - right
        fits = self._within(totals)
        if totals.dtype == np.int64:
            fits &= ((left ^ right) & (left ^ totals)) >= 0
        return totals, fits


class Product(_Arithmetic):
    """The product; retracts divide."""

    def _plus(self, left: Numbers, right: Numbers) -> tuple[Numbers, Bools]:
        type_ = self._values.column.type
        if pa.types.is_decimal(type_):
            unit = 10**type_.scale
            exact = [_rounded(int(a) * int(b), unit) for a, b in zip(left, right, strict=True)]
            return self._decimals(exact)
        totals = left * right
        fits = self._within(totals)
        if totals.dtype == np.int64:
            unsure = np.abs(left.astype(np.float64) * right.astype(np.float64)) >= _SURE
            for place in np.flatnonzero(unsure).tolist():
                fits[place] &= int(left[place]) * int(right[place]) == int(totals[place])
        return totals, fits

    def _minus(self, left: Numbers, right: Numbers) -> tuple[Numbers, Bools]:
        type_ = self._values.column.type
        if pa.types.is_floating(type_):
            return left / right, np.ones(len(left), np.bool_)
        if (right == 0).any():
            raise ZeroDivisionError("division by zero")
        if pa.types.is_decimal(type_):
            unit = 10**type_.scale
            exact = [
                _exact_quotient(int(a), int(b), unit) for a, b in zip(left, right, strict=True)
            ]
            return self._decimals(exact)
        # Towards zero, as Java divides; the smallest number has no negative.
        totals = left // right
        totals += (left % right != 0) & ((left < 0) != (right < 0))
        return totals, self._within(totals) & ~((left == np.iinfo(np.int64).min) & (right == -1))

    def _decimals(self, exact: list[int]) -> tuple[Numbers, Bools]:
        most = 10**self._values.column.type.precision - 1
        fits = np.array([abs(number) <= most for number in exact], np.bool_)
        kept = [number if is_kept else 0 for number, is_kept in zip(exact, fits, strict=True)]
        return np.array(kept, self._numbers.dtype), fits


class BoolAnd(Accumulator):
    """Whether all values that are not null are true."""

    _operation: np.ufunc = np.logical_and

    def __init__(self, values: Values, rule: ColumnRule) -> None:
        super().__init__(values, rule)
        filled = pc.fill_null(values.column, False) if values.column.null_count else values.column
        self._truths: Bools = filled.to_numpy(zero_copy_only=False)
        self._totals = np.zeros(values.slots, np.bool_)
        self._known = np.zeros(values.slots, np.bool_)

    def reset(self, slots: Int64s, rows: Int64s) -> None:
        self._totals[slots] = self._truths[rows]
        self._known[slots] = self._values.valid[rows]

    def add(self, slots: Int64s, rows: Int64s) -> None:
        valid = self._values.valid[rows]
        slots, rows = slots[valid], rows[valid]
        truths, known = self._truths[rows], self._known[slots]
        both = self._operation(self._totals[slots], truths)
        self._totals[slots] = np.where(known, both, truths)
        self._known[slots] = True

    def result(self) -> pa.Array:
        return pa.array(self._totals, mask=~self._known)


class BoolOr(BoolAnd):
    """Whether one of the values is true."""

    _operation = np.logical_or


def _numbers(values: Values) -> Numbers:
    """The numbers of a column; values at nulls are undefined."""
    column, type_ = values.column, values.column.type
    if pa.types.is_floating(type_):
        return fixed_values(column, np.dtype(f"f{type_.bit_width // 8}"))
    if not pa.types.is_decimal(type_):
        return fixed_values(column, np.dtype(f"i{type_.bit_width // 8}")).astype(np.int64)
    words = fixed_values(column, np.int64, 2)
    if type_.precision <= _COMPACT_DIGITS:
        return np.ascontiguousarray(words[0::2])
    numbers = np.zeros(len(column), np.object_)
    for row in values.used.tolist():
        numbers[row] = (int(words[2 * row + 1]) << 64) | (int(words[2 * row]) & (1 << 64) - 1)
    return numbers


def _column(numbers: Numbers, known: Bools, type_: pa.DataType) -> pa.Array:
    if pa.types.is_floating(type_):
        return fixed_array(numbers, known, type_)
    if not pa.types.is_decimal(type_):
        return fixed_array(numbers.astype(f"i{type_.bit_width // 8}"), known, type_)
    if type_.precision <= _INT32_DIGITS:
        # Files hold these decimals in 32 bits; Java truncates larger values.
        numbers = numbers.astype(np.int32).astype(np.int64)
    if numbers.dtype == np.object_:
        numbers = np.where(known, numbers, 0)
        low = np.array([number & (1 << 64) - 1 for number in numbers], np.uint64).view(np.int64)
        high = np.array([number >> 64 for number in numbers], np.int64)
    else:
        low, high = numbers, numbers >> 63
    words = np.empty(2 * len(numbers), np.int64)
    words[0::2], words[1::2] = low, high
    return fixed_array(words, known, type_)


def _at_most(numbers: Numbers, most: int) -> Bools:
    if numbers.dtype != np.object_:
        within: Bools = (numbers >= -most) & (numbers <= most)
        return within
    return np.array([abs(number) <= most for number in numbers], np.bool_)


def _rounded(number: int, unit: int) -> int:
    """`number` / `unit`, halves away from zero."""
    quotient, rest = divmod(abs(number), unit)
    quotient += 2 * rest >= unit
    return quotient if number >= 0 else -quotient


def _exact_quotient(number: int, divisor: int, unit: int) -> int:
    """The quotient of two decimals of one scale in that scale, halves away from zero."""
    exact = Fraction(number, divisor)
    denominator = exact.denominator
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    if denominator != 1:
        raise ArithmeticError(f"{number} / {divisor} has no exact decimal expansion")
    return _rounded(exact.numerator * unit, exact.denominator)
