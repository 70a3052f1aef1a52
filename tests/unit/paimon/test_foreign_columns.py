"""Columns of newer releases: nulls never matter, values are carried wherever an entry is copied."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from compactord.errors import FormatError, UnsupportedTable
from compactord.paimon import paths
from compactord.paimon.avro.container import ContainerWriter, open_container
from compactord.paimon.data_file import ManifestEntry
from compactord.paimon.manifest.entry_columns import MIN_CURSORS
from compactord.paimon.manifest.foreign import TypesDiffer
from compactord.paimon.manifest.manifest_files import (
    ManifestFile,
    describe_entries,
    encode_manifest_list,
    read_entries,
    read_manifest_list,
    roll_entries,
)
from compactord.paimon.manifest.schemas import (
    MANIFEST,
    MANIFEST_LIST,
    MANIFEST_LIST_WITH_EXTRA_FILES,
)
from compactord.state.loading import load_live_files
from tests.containers import encode_container, records_of
from tests.unit.paimon.foreign_files import (
    ENTRY,
    FILE,
    ROOT,
    SEQUENCES,
    SEQUENCES_TYPE,
    STATS,
    Added,
    list_of,
    manifest_of,
    sequences,
    with_columns,
)
from tests.unit.paimon.table_builder import CODEC, MemoryStorage, data_file, deleted, entry

PLAIN = [entry(data_file(f"data-{n}.parquet", level=n % 3), bucket=n % 2) for n in range(6)]
COLOR = {"type": "enum", "name": "Color", "namespace": "elsewhere", "symbols": ["RED", "BLUE"]}
PAIR: dict[str, Any] = {
    "type": "record",
    "name": "Pair",
    "namespace": "elsewhere",
    "doc": "d",
    "fields": [
        {"name": "a", "type": "int", "default": 7},
        {"name": "b", "type": ["null", COLOR]},
    ],
}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [{"name": "below", "type": ["null", {"type": "array", "items": "Tree"}]}],
}
# Types with values of which none is null.
TYPES: dict[str, tuple[Any, list[Any]]] = {
    "int": ("int", [0, -(1 << 31), 77]),
    "timestamp": ({"type": "long", "logicalType": "timestamp-millis"}, [0, 1 << 62, -1]),
    "boolean": ("boolean", [True, False, True]),
    "float": ("float", [0.5, -0.0, float("inf")]),
    "double": ("double", [0.5, -0.0, 1e300]),
    "bytes": ("bytes", [b"", b"\x00" * 200, b"ab"]),
    "string": ("string", ["", "ü" * 100, "ab"]),
    "fixed": ({"type": "fixed", "name": "Four", "size": 4}, [b"abcd", b"\x00" * 4, b"\xff" * 4]),
    "enum": (COLOR, ["RED", "BLUE", "RED"]),
    "map": ({"type": "map", "values": ["null", "long"]}, [{}, {"a": 1, "b": None}, {"": -1}]),
    "nested arrays": (
        {"type": "array", "items": {"type": "array", "items": "long"}},
        [[], [[], [1]], [[1, 2], [3]]],
    ),
    "record": (
        PAIR,
        [{"a": 1, "b": None}, {"a": -1, "b": "BLUE"}, {"a": 0, "b": "RED"}],
    ),
    "array of records": (
        {"type": "array", "items": {**PAIR, "fields": [PAIR["fields"][0]]}},
        [[], [{"a": 1}], [{"a": 1}, {"a": 2}]],
    ),
    "union": (["int", "long", "string"], [("long", 5), ("int", 5), "x"]),
}


def _roll(entries: list[ManifestEntry]) -> tuple[bytes, ManifestFile]:
    ((data, manifest),) = roll_entries(
        entries,
        names=(f"m-{number}" for number in itertools.count()),
        target_size=8 << 20,
        codec=CODEC,
        partition_types=[],
    )
    return data, manifest


def _rolled(entries: list[ManifestEntry]) -> tuple[ManifestEntry, ...]:
    data, manifest = _roll(entries)
    storage = MemoryStorage({paths.manifest_path(ROOT, manifest.file_name): data})
    return read_entries(storage, ROOT, manifest)


def _live(
    storage: MemoryStorage, manifest: ManifestFile, cursors: int = MIN_CURSORS
) -> dict[str, ManifestEntry]:
    live = load_live_files(storage, ROOT, [manifest], min_cursors=cursors)
    entries = [one for bucket in live.bucket_ids() for one in live.entries(bucket)]
    return {one.file.file_name: one for one in entries}


def _nulls(type_: Any) -> Any:
    return ["null", *type_] if isinstance(type_, list) else ["null", type_]


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
@pytest.mark.parametrize("place", [ENTRY, FILE, STATS], ids=["entry", "file", "statistics"])
@pytest.mark.parametrize("type_", [*TYPES, "null"])
def test_columns_of_nulls_say_nothing(type_: str, place: tuple[str, ...], cursors: int) -> None:
    avro_type = "null" if type_ == "null" else _nulls(TYPES[type_][0])
    for number in (0, 1000):
        added = Added(place, "_ADDED", avro_type, [None] * len(PLAIN), number)
        storage, manifest = manifest_of(PLAIN, added)
        assert read_entries(storage, ROOT, manifest) == tuple(PLAIN)
        assert _live(storage, manifest, cursors) == {one.file.file_name: one for one in PLAIN}


@pytest.mark.parametrize("form", ["as it is", "nullable", "null last"])
@pytest.mark.parametrize("place", [ENTRY, FILE], ids=["entry", "file"])
@pytest.mark.parametrize("type_", TYPES)
def test_values_are_written_again_as_they_were(
    type_: str, place: tuple[str, ...], form: str
) -> None:
    avro_type, values = TYPES[type_]
    if form == "nullable":
        avro_type, values = _nulls(avro_type), [None, *values[1:]]
    elif form == "null last":
        avro_type = [*_nulls(avro_type)[1:], "null"]
        values = [values[0], None, values[2]]
    storage, manifest = manifest_of(PLAIN[:3], Added(place, "_ADDED", avro_type, values, 1))
    before = read_entries(storage, ROOT, manifest)
    column = ".".join((*place, "_ADDED"))
    assert [[v.column for v in one.file.foreign] for one in before] == [
        [] if value is None else [column] for value in values
    ]
    data, _ = _roll(list(before))
    container = open_container(data, "m")
    records: list[Any] = records_of(container)
    for name in place:
        records = [record[name] for record in records]
    plain_values = [value[1] if isinstance(value, tuple) else value for value in values]
    assert [record["_ADDED"] for record in records] == plain_values
    # Once more: what we have written ourselves is read as the same.
    assert _rolled(list(before)) == before
    assert _live(storage, manifest) == {one.file.file_name: one for one in before}


def test_what_a_type_means_is_carried_with_it() -> None:
    """Java reads a timestamp by its logical type."""
    avro_type, values = TYPES["timestamp"]
    storage, manifest = manifest_of(PLAIN[:3], Added(FILE, "_ADDED", avro_type, values))
    data, _ = _roll(list(read_entries(storage, ROOT, manifest)))
    json = open_container(data, "m").schema.json
    assert json["fields"][-1]["type"]["fields"][-1] == {
        "name": "_ADDED",
        "type": ["null", avro_type],
        "default": None,
    }


def test_branches_of_a_union_are_not_guessed() -> None:
    avro_type, values = TYPES["union"]
    storage, manifest = manifest_of(PLAIN[:2], Added(FILE, "_ADDED", avro_type, values[:2]))
    ours, theirs = read_entries(storage, ROOT, manifest)
    assert [one.file.foreign[0].data for one in (ours, theirs)] == [b"\x04\x0a", b"\x02\x0a"]


def test_two_columns_of_one_named_type_are_written_as_two_types() -> None:
    columns = [
        Added(ENTRY, "_ONE", ["null", COLOR], ["RED"], 0),
        Added(FILE, "_TWO", ["null", "elsewhere.Color"], ["BLUE"]),
        Added(ENTRY, "_THREE", "elsewhere.Color", ["BLUE"]),
    ]
    storage, manifest = manifest_of(PLAIN[:1], *columns)
    before = read_entries(storage, ROOT, manifest)
    assert [v.column for v in before[0].file.foreign] == ["_FILE._TWO", "_ONE", "_THREE"]
    assert _rolled(list(before)) == before
    ((record,),) = [records_of(open_container(_roll(list(before))[0], "m"))]
    assert (record["_ONE"], record["_FILE"]["_TWO"], record["_THREE"]) == ("RED", "BLUE", "BLUE")


def test_without_values_files_have_the_columns_of_2_0_0_and_no_others() -> None:
    null = Added(FILE, SEQUENCES, SEQUENCES_TYPE, [None] * len(PLAIN))
    storage, manifest = manifest_of(PLAIN, null)
    data, described = _roll(list(read_entries(storage, ROOT, manifest)))
    assert open_container(data, "m").schema.json == MANIFEST.json
    row = read_manifest_list(
        MemoryStorage({"l": list_of([described], Added(ENTRY, "_X", ["null", "int"], [None]))}), "l"
    )
    assert open_container(encode_manifest_list(row, CODEC), "l").schema.json == MANIFEST_LIST.json


def test_a_manifest_gets_the_columns_that_its_entries_bring() -> None:
    first = replace(PLAIN[1], file=replace(PLAIN[1].file, foreign=(sequences(1, 2),)))
    storage, manifest = manifest_of(PLAIN[:1], Added(ENTRY, "_OTHER", "int", [5]))
    (second,) = read_entries(storage, ROOT, manifest)
    entries = [PLAIN[3], first, PLAIN[2], deleted(second), second, PLAIN[4]]
    assert _rolled(entries) == tuple(entries)
    fields = open_container(_roll(entries)[0], "m").schema.json["fields"]
    assert fields[:5] == MANIFEST.json["fields"][:5]
    assert fields[5]["type"]["fields"][:-1] == MANIFEST.json["fields"][5]["type"]["fields"]
    assert [fields[5]["type"]["fields"][-1]["name"], fields[6]["name"]] == [SEQUENCES, "_OTHER"]


def test_one_column_of_two_types_is_refused_by_name() -> None:
    def with_type(type_: str) -> ManifestEntry:
        storage, manifest = manifest_of(PLAIN[:1], Added(FILE, "_ADDED", type_, [5]))
        return read_entries(storage, ROOT, manifest)[0]

    with pytest.raises(TypesDiffer, match=r"column _FILE\._ADDED .*int.*long"):
        _roll([with_type("int"), with_type("long")])


@pytest.mark.parametrize("cursors", [-1, 25], ids=["vectors", "objects"])
@pytest.mark.parametrize(
    ("place", "type_", "value"),
    [(STATS, ["null", "long"], 5), (STATS, "int", 5)],
    ids=["statistics", "always"],
)
def test_values_that_cannot_be_carried_are_refused_when_the_entry_is_looked_at(
    place: tuple[str, ...], type_: Any, value: Any, cursors: int
) -> None:
    name = ".".join((*place, "_ADDED"))
    storage, manifest = manifest_of(PLAIN[:1], Added(place, "_ADDED", type_, [value]))
    with pytest.raises(UnsupportedTable, match=f"columns that are not known: {name}$") as caught:
        read_entries(storage, ROOT, manifest)
    assert caught.value.table == ROOT
    with pytest.raises(UnsupportedTable, match=f"columns that are not known: {name}$") as caught:
        _live(storage, manifest, cursors)
    assert caught.value.table == ROOT


def _nested(levels: int) -> Any:
    """Each level names the one before twice."""
    type_: Any = {"type": "record", "name": "L0", "fields": [{"name": "a", "type": "int"}]}
    for level in range(1, levels):
        first = {"name": "a", "type": type_}
        second = {"name": "b", "type": f"L{level - 1}"}
        type_ = {"type": "record", "name": f"L{level}", "fields": [first, second]}
    return ["null", type_]


@pytest.mark.parametrize(
    "type_",
    [
        {"type": "array", "items": "null"},
        {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}},
        _nested(15),
        TREE,
        {"type": "record", "name": "R", "fields": [{"name": "a.b", "type": "int"}]},
    ],
    ids=[
        "items without bytes",
        "empty items",
        "many types",
        "a type within itself",
        "a dotted name",
    ],
)
def test_types_that_nobody_means_are_damage(type_: Any) -> None:
    storage, manifest = manifest_of(PLAIN[:1])
    schema = with_columns(MANIFEST.json, [Added(FILE, "_ADDED", type_, [])])
    data = encode_container(schema, [], CODEC)
    storage.objects[paths.manifest_path(ROOT, "m")] = data
    manifest = replace(manifest, file_size=len(data))
    with pytest.raises(FormatError, match=r"Avro .*: .*/manifest/m"):
        read_entries(storage, ROOT, manifest)


def test_a_value_that_is_cut_is_damage() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 40}
    storage, manifest = manifest_of(PLAIN[:1], Added(ENTRY, "_ADDED", fixed, [b"x" * 40]))
    path = paths.manifest_path(ROOT, "m")
    whole = open_container(storage.objects[path], "m")
    ((_, data),) = whole.encoded_records()
    writer = ContainerWriter(whole.schema, CODEC)
    writer.append(data[:-3])
    cut = writer.finish()
    storage.objects[path] = cut
    with pytest.raises(FormatError, match="Avro record"):
        read_entries(storage, ROOT, replace(manifest, file_size=len(cut)))


MANIFESTS = tuple(describe_entries(f"m-{n}", 9, PLAIN[n : n + 1], []) for n in range(3))


def _listed(data: bytes) -> tuple[ManifestFile, ...]:
    return read_manifest_list(MemoryStorage({f"{ROOT}/manifest/l": data}), f"{ROOT}/manifest/l")


@pytest.mark.parametrize("type_", TYPES)
def test_values_of_a_manifest_list_are_carried(type_: str) -> None:
    avro_type, values = TYPES[type_]
    rows = _listed(list_of(MANIFESTS, Added(ENTRY, "_ADDED", avro_type, values, 3)))
    assert [replace(row, foreign=()) for row in rows] == list(MANIFESTS)
    again = encode_manifest_list([*rows, MANIFESTS[0]], CODEC)
    records = records_of(open_container(again, "l"))
    plain_values = [value[1] if isinstance(value, tuple) else value for value in values]
    assert [record["_ADDED"] for record in records] == [*plain_values, None]
    assert _listed(again) == (*rows, MANIFESTS[0])


def test_lists_as_pypaimon_2_1_writes_them() -> None:
    """With sidecars of some manifests, and bucket counts."""
    extra = ["null", {"type": "array", "items": "string"}]
    columns = [
        Added(ENTRY, "_TOTAL_BUCKETS", ["null", "int"], [None, 4, None]),
        Added(ENTRY, "_EXTRA_FILES", extra, [None, ["m-1.avro.sidecar"], []]),
    ]
    rows = _listed(list_of(MANIFESTS, *columns))
    assert [row.extra_files for row in rows] == [(), ("m-1.avro.sidecar",), ()]
    assert [len(row.foreign) for row in rows] == [0, 1, 0]
    again = encode_manifest_list(rows, CODEC)
    assert _listed(again) == rows
    fields = open_container(again, "l").schema.json["fields"]
    assert fields[:-1] == MANIFEST_LIST_WITH_EXTRA_FILES.json["fields"]
    assert fields[-1] == {"name": "_TOTAL_BUCKETS", "type": ["null", "int"], "default": None}
    # A manifest that is written anew has neither.
    plain = encode_manifest_list(MANIFESTS, CODEC)
    assert open_container(plain, "l").schema.json == MANIFEST_LIST.json


def test_items_of_extra_files_may_be_nullable_but_not_null() -> None:
    type_ = ["null", {"type": "array", "items": ["null", "string"]}]
    good = Added(ENTRY, "_EXTRA_FILES", type_, [None, ["x"], []])
    assert [row.extra_files for row in _listed(list_of(MANIFESTS, good))] == [(), ("x",), ()]
    for name in (None, "../x", "a/b", ""):
        bad = Added(ENTRY, "_EXTRA_FILES", type_, [None, [name], []])
        with pytest.raises(FormatError, match="is not a plain file name"):
            _listed(list_of(MANIFESTS, bad))


def test_values_in_the_statistics_of_a_list_are_refused_and_nulls_are_not() -> None:
    place = ("_PARTITION_STATS",)
    null = Added(place, "_ADDED", ["null", "int"], [None, None, None])
    assert _listed(list_of(MANIFESTS, null)) == MANIFESTS
    value = Added(place, "_ADDED", ["null", "int"], [None, 3, None])
    with pytest.raises(UnsupportedTable, match=r"not known: _PARTITION_STATS\._ADDED") as caught:
        _listed(list_of(MANIFESTS, value))
    assert caught.value.table == ROOT


def test_rows_of_one_list_with_two_types_of_a_column_are_refused() -> None:
    first, second = (
        _listed(list_of(MANIFESTS[:1], Added(ENTRY, "_ADDED", type_, [5])))
        for type_ in ("int", "long")
    )
    with pytest.raises(TypesDiffer, match="column _ADDED"):
        encode_manifest_list([*first, *second], CODEC)


@pytest.mark.parametrize("valued", [False, True], ids=["nulls", "values"])
def test_live_files_keep_the_values_when_they_are_consolidated(valued: bool) -> None:
    """So many changes that base and layers become one again."""
    foreign = (sequences(7),) if valued else ()
    named = [
        entry(data_file(f"data-{n}.parquet", foreign=foreign if n % 2 else ()), bucket=n % 3)
        for n in range(2200)
    ]
    values = [[7] if valued and n % 2 else None for n in range(100)]
    storage, manifest = manifest_of(
        [replace(one, file=replace(one.file, foreign=())) for one in named[:100]],
        Added(FILE, SEQUENCES, SEQUENCES_TYPE, values),
    )
    live = load_live_files(storage, ROOT, [manifest])
    live = live.applied(named[100:1000]).applied([deleted(named[1]), deleted(named[101])])
    live = live.applied(named[1000:])
    assert not live.layers, "consolidated"
    kept = {one.file.file_name: one for one in named if one not in (named[1], named[101])}
    found = [one for bucket in live.bucket_ids() for one in live.entries(bucket)]
    assert {one.file.file_name: one for one in found} == kept
    assert len(found) == len(kept)
