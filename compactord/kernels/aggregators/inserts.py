"""Folds of windows of inserts, for all keys at once, without a Python object for each value.

An element of an array, or an entry of a map, has a slot, a place in the column's children, and a
code of what is compared. One stable sort of (slot, code) finds the equal elements of each slot. The
aggregator's accumulator gives the same values; only the order of a map's entries may differ. A fold
returns None for rare forms, which only the accumulator can fold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactord.kernels.aggregators.base import Values, comparable
from compactord.kernels.codes import text_ranks, word_ranks
from compactord.kernels.columns import (
    Bools,
    Int64s,
    integer_words,
    is_text,
    taken,
    text_buffers,
    validity,
)
from compactord.kernels.order import precedence_words
from compactord.paimon.java_text import BLANKS
from compactord.paimon.options.merge import COUNT_LIMIT_MAX, ColumnRule, NullKeys


class Inserts(NamedTuple):
    """Rows that are added, none of them null, by slot and then from first to last; and their
    slots.
    """

    values: Values
    rows: Int64s
    slots: Int64s

    @property
    def counts(self) -> Int64s:
        """The number of rows of each slot."""
        return np.bincount(self.slots, minlength=self.values.slots)

    @property
    def nulls(self) -> pa.Array | None:
        """A mask of the slots without rows."""
        nulls = self.counts == 0
        return pa.array(nulls) if nulls.any() else None

    def is_first(self) -> Bools:
        """A mask of each slot's first row."""
        return np.append(True, self.slots[1:] != self.slots[:-1])[: len(self.slots)]

    def of(self, chosen: npt.NDArray[Any]) -> Inserts:
        """Some of the rows."""
        return self._replace(rows=self.rows[chosen], slots=self.slots[chosen])


Fold: TypeAlias = Callable[[Inserts, ColumnRule], pa.Array | None]


def merged_values(values: pa.Array, others: pa.Array, where: Bools) -> pa.Array:
    """By slot: `others` where the mask is True, and `values` elsewhere."""
    places = np.arange(len(where)) + len(where) * where
    return pc.take(pa.concat_arrays([values, others]), pa.array(places), boundscheck=False)


class _Elements(NamedTuple):
    """Elements in the order of the inserts: their slots, their places, and whether they belong to
    the slot's first value.
    """

    slots: Int64s
    places: Int64s
    is_first: Bools

    def at(self, chosen: npt.NDArray[Any]) -> _Elements:
        return _Elements(self.slots[chosen], self.places[chosen], self.is_first[chosen])


def _elements(inserts: Inserts) -> _Elements:
    offsets = inserts.values.column.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)[inserts.rows]
    ends = np.cumsum(lengths)
    skipped = offsets[inserts.rows] - (ends - lengths)
    places = np.arange(lengths.sum()) + np.repeat(skipped, lengths)
    return _Elements(
        np.repeat(inserts.slots, lengths), places, np.repeat(inserts.is_first(), lengths)
    )


def _offsets(inserts: Inserts, slots: Int64s) -> pa.Array:
    counts = np.bincount(slots, minlength=inserts.values.slots)
    return pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))


def _arrays(inserts: Inserts, slots: Int64s, children: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(
        _offsets(inserts, slots), children, type=inserts.values.column.type, mask=inserts.nulls
    )


def _arrays_of(inserts: Inserts, elements: _Elements) -> pa.Array:
    children = inserts.values.column.values.take(pa.array(elements.places))
    return _arrays(inserts, elements.slots, children)


def _maps_of(inserts: Inserts, entries: _Elements) -> pa.Array:
    column, places = inserts.values.column, pa.array(entries.places)
    return pa.MapArray.from_arrays(
        _offsets(inserts, entries.slots),
        column.keys.take(places),
        column.items.take(places),
        type=column.type,
        mask=inserts.nulls,
    )


def _codes(column: pa.Array) -> Int64s:
    """A number from 0 for each value, the same for values that are equal (`comparable`)."""
    if pa.types.is_nested(column.type) or pa.types.is_dictionary(column.type):
        numbers: dict[Any, int] = {}
        return np.array([numbers.setdefault(v, len(numbers)) for v in comparable(column)], np.int64)
    if is_text(column.type):
        words = [column]
    else:
        nulls = ~validity(column) if column.null_count else None
        words = [pa.array(word, mask=nulls) for word in integer_words(column)]
    return _joined(
        [word.dictionary_encode("encode").indices.to_numpy().astype(np.int64) for word in words]
    )


def _joined(codes: list[Int64s]) -> Int64s:
    """One code for each row of codes."""
    found = codes[0]
    for other in codes[1:]:
        pairs = pa.array(found * (other.max(initial=0) + 1) + other)
        found = pairs.dictionary_encode().indices.to_numpy().astype(np.int64)
    return found


class _Equal:
    """Groups of elements with the same slot and code.

    `order` has the elements group by group, each from first to last; groups begin where `begins` is
    True, and end where `ends` is.
    """

    def __init__(self, slots: Int64s, codes: Int64s) -> None:
        self.packed = slots << int(codes.max(initial=0)).bit_length() | codes
        self.order = np.argsort(self.packed, kind="stable")
        ordered = self.packed[self.order]
        self.begins = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
        self.ends = np.append(self.begins[1:], True)[: len(ordered)]

    def firsts(self) -> Int64s:
        """The first element of each group, ascending."""
        return np.sort(self.order[self.begins])

    def lasts(self, ranks: Int64s | None = None) -> Int64s:
        """The last element of each group, or with `ranks` the last one of the greatest rank; in the
        order of the groups' first elements.
        """
        order = self.order if ranks is None else np.lexsort((ranks, self.packed))
        found = np.full(len(order), -1, np.int64)
        found[self.order[self.begins]] = order[self.ends]
        return found[found >= 0]


def collect(inserts: Inserts, rule: ColumnRule) -> pa.Array:
    elements = _elements(inserts)
    if rule.distinct:
        children = inserts.values.column.values.take(pa.array(elements.places))
        elements = elements.at(_Equal(elements.slots, _codes(children)).firsts())
    return _arrays_of(inserts, elements)


def _key_codes(inserts: Inserts, entries: _Elements) -> Int64s:
    """The codes of entries' keys; in a slot's only value, which stays as it is, none are equal."""
    codes = _codes(inserts.values.column.keys.take(pa.array(entries.places)))
    alone = np.flatnonzero((inserts.counts == 1)[entries.slots])
    codes[alone] = len(codes) + alone
    return codes


def merge_map(inserts: Inserts, rule: ColumnRule) -> pa.Array:
    entries = _elements(inserts)
    equal = _Equal(entries.slots, _key_codes(inserts, entries))
    return _maps_of(inserts, entries.at(equal.lasts()))


def merge_map_with_keytime(inserts: Inserts, rule: ColumnRule) -> pa.Array | None:
    """The first entry with the greatest time after the last removal of each key.

    Entries of a slot's first value neither remove, nor need a time.
    """
    entries, items = _elements(inserts), inserts.values.column.items
    name = rule.time_field
    field = items.type.num_fields - 1 if name is None else items.type.get_field_index(name)
    times = items.field(field).take(pa.array(entries.places))
    if text_buffers(times)[1].max(initial=0) >= 0xF0:
        # Java compares UTF-16, which orders characters of four bytes differently.
        return None
    is_null = ~validity(items)[entries.places]
    has_time = ~is_null & validity(times)
    ranks = np.full(len(times), -1, np.int64)
    ranks[has_time] = text_ranks(times.filter(pa.array(has_time)))
    equal = _Equal(entries.slots, _key_codes(inserts, entries))
    order, is_first = equal.order, entries.is_first[equal.order]
    group = np.cumsum(equal.begins)
    removes = is_null[order] & ~is_first
    # Equal keys of a first value: the last one counts.
    counts = np.where(is_first, equal.ends | ~np.append(is_first[1:], False), ranks[order] >= 0)
    removed = np.cumsum(removes)
    kept = np.flatnonzero(counts & ~removes & (removed == removed[equal.ends][group - 1]))
    best = kept[np.lexsort((-kept, ranks[order[kept]], group[kept]))]
    is_last = np.append(group[best][1:] != group[best][:-1], True)[: len(best)]
    return _maps_of(inserts, entries.at(np.sort(order[best[is_last]])))


def _present(inserts: Inserts) -> _Elements:
    """The elements that are not null."""
    elements, rows = _elements(inserts), inserts.values.column.values
    return elements.at(validity(rows)[elements.places]) if rows.null_count else elements


def _by_key(
    inserts: Inserts, elements: _Elements, rule: ColumnRule
) -> tuple[_Elements, Int64s] | None:
    """Rows with a nested key, and the codes of the keys; None if a null key is an error."""
    rows = inserts.values.column.values
    fields = [_field(rows, name).take(pa.array(elements.places)) for name in rule.nested_key]
    if rule.null_keys is not NullKeys.MERGE and any(field.null_count for field in fields):
        if rule.null_keys is NullKeys.ERROR:
            return None
        known = np.logical_and.reduce([validity(field) for field in fields])
        return _by_key(inserts, elements.at(known), rule)
    return elements, _joined([_codes(field) for field in fields])


def _field(rows: pa.Array, name: str) -> pa.Array:
    return rows.field(rows.type.get_field_index(name))


def nested_update(inserts: Inserts, rule: ColumnRule) -> pa.Array | None:
    elements = _present(inserts)
    if rule.nested_key:
        if (keyed := _by_key(inserts, elements, rule)) is None:
            return None
        elements, codes = keyed
        ranks = None
        if rule.nested_sequence:
            rows = inserts.values.column.values
            fields = [_field(rows, name) for name in rule.nested_sequence]
            ranks = word_ranks(
                list(precedence_words(fields, None, elements.places, is_descending=False))
            )
        elements = elements.at(_Equal(elements.slots, codes).lasts(ranks))
    if rule.count_limit < COUNT_LIMIT_MAX:
        number = np.arange(len(elements.slots)) - np.searchsorted(elements.slots, elements.slots)
        elements = elements.at(number < rule.count_limit)
    return _arrays_of(inserts, elements)


def nested_partial_update(inserts: Inserts, rule: ColumnRule) -> pa.Array | None:
    if (keyed := _by_key(inserts, _present(inserts), rule)) is None:
        return None
    elements, codes = keyed
    equal, rows = _Equal(elements.slots, codes), inserts.values.column.values
    firsts = equal.firsts()
    # The number of each element's row in the result.
    number = np.empty(len(codes), np.int64)
    number[equal.order] = np.searchsorted(firsts, equal.order[equal.begins])[
        np.cumsum(equal.begins) - 1
    ]
    fields = []
    for place in range(rows.type.num_fields):
        field = rows.field(place)
        valid = validity(field)[elements.places]
        found = np.full(len(firsts), -1, np.int64)
        found[number[valid]] = elements.places[valid]
        fields.append(taken(field, found))
    children = pa.StructArray.from_arrays(fields, fields=list(rows.type))
    return _arrays(inserts, elements.slots[firsts], children)


def listagg(inserts: Inserts, rule: ColumnRule) -> pa.Array | None:
    if rule.distinct and len(rule.delimiter) != 1:
        # Parts that are joined may be split at other places.
        return None
    type_ = inserts.values.column.type
    texts = inserts.values.column.take(pa.array(inserts.rows))
    if is_encoded := pa.types.is_dictionary(type_):
        texts = texts.dictionary_decode()
    shown = _is_shown(texts)
    inserts = inserts.of(shown)
    texts, slots = texts.filter(pa.array(shown)), inserts.slots
    if rule.distinct:
        parts = pc.split_pattern(texts, rule.delimiter)
        lengths = pc.list_value_length(parts).to_numpy()
        texts, slots = parts.flatten(), np.repeat(slots, lengths)
        firsts = np.zeros(len(slots), np.bool_)
        firsts[_Equal(slots, _codes(texts)).firsts()] = True
        kept = np.repeat(inserts.is_first(), lengths) | (firsts & _is_shown(texts))
        texts, slots = texts.filter(pa.array(kept)), slots[kept]
    lists = pa.ListArray.from_arrays(_offsets(inserts, slots), texts, mask=inserts.nulls)
    joined = pc.binary_join(lists, rule.delimiter)
    return joined.dictionary_encode() if is_encoded else joined


def _is_shown(texts: pa.Array) -> Bools:
    lengths = pc.binary_length(pc.utf8_trim(texts, BLANKS))
    shown: Bools = lengths.to_numpy() > 0
    return shown
