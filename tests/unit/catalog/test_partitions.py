"""What catalogs keep of partitions: the calls, and what becomes of them when they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from compactord.catalog.access import TableAccess
from compactord.catalog.hive import wire
from compactord.catalog.open import open_catalog
from compactord.errors import (
    CatalogDown,
    CatalogUnavailable,
    ObjectNotFound,
    StorageError,
    TableNotFound,
    TransientStorageError,
)
from compactord.paimon.catalog_partitions import PartitionEntries, PartitionEvents
from compactord.storage.local import LocalStorage
from tests.builders import append_table
from tests.unit.catalog.metastore import Metastore, running, table
from tests.unit.catalog.rest_server import Answer, Asked, FakeServer, FakeTable, serving

SPEC = {"dt": "2023-11-13", "h": "a b/c"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as open_things:
        yield open_things


def _opened(stack: ExitStack, metastore: Metastore, **options: str) -> TableAccess:
    given = {"uri": stack.enter_context(running(metastore)), **options}
    catalog = open_catalog("/wh", metastore="hive", options=given)
    return catalog.open(catalog.find_table("d.t$branch_b"))


def _entries(access: TableAccess) -> PartitionEntries:
    assert access.entries is not None
    return access.entries


def _events(access: TableAccess) -> PartitionEvents:
    assert access.events is not None
    return access.events


@pytest.mark.parametrize(
    ("parameters", "options", "location", "shown"),
    [
        ({}, {}, "hdfs://h/t/dt=2023-11-13/h=a b%2Fc", {}),
        (
            {"data-file.path-directory": "data"},
            {},
            "hdfs://h/t/data/dt=2023-11-13/h=a b%2Fc",
            {},
        ),
        (
            {"paimon_location": "file:/x"},
            {"location-in-properties": "true"},
            "hdfs://h/t",
            {"paimon_location": "file:/x/dt=2023-11-13/h=a b%2Fc"},
        ),
    ],
    ids=["in the descriptor", "with a folder of data", "in the parameters"],
)
def test_an_entry_is_a_copy_of_the_tables_descriptor_in_its_own_place(
    stack: ExitStack,
    parameters: Mapping[str, str],
    options: Mapping[str, str],
    location: str,
    shown: Mapping[str, str],
) -> None:
    own = table("d", "t", "hdfs://h/t", parameters=parameters)
    column = wire.Column(name="v", type="bigint")
    serde = wire.Serde(library="org.example.Serde", parameters={"a": "b"})
    assert own.sd is not None
    known = {**vars(own.sd), "columns": [column], "serde": serde, "compressed": False}
    own.sd = wire.WholeDescriptor(**known)
    metastore = Metastore(own)
    entries = _entries(_opened(stack, metastore, **options, **{"fs.defaultFS": "hdfs://h"}))
    entries.add([SPEC])
    [(key, made)] = metastore.entries.items()
    assert key == ("d", "t", *SPEC.values())
    stated = vars(made)
    assert (stated["database"], stated["table"], made.values) == ("d", "t", [*SPEC.values()])
    assert stated["parameters"] == shown
    assert made.sd is not None
    assert (made.sd.location, made.sd.input, made.sd.output) == (
        location,
        own.sd.input,
        own.sd.output,
    )
    described = vars(made.sd)
    assert [vars(each) for each in described["columns"]] == [vars(column)]
    assert vars(described["serde"]) == vars(serde)
    assert described["compressed"] is False


def test_entries_stay_as_they_are_and_what_is_not_there_is_passed_over(stack: ExitStack) -> None:
    metastore = Metastore(table("d", "t", "file:/x"))
    access = _opened(stack, metastore)
    entries, events = _entries(access), _events(access)
    assert entries.added_ms(SPEC) is None
    entries.add([SPEC])
    [made] = metastore.entries.values()
    made.created_s = 1_700
    entries.add([SPEC])
    assert entries.added_ms(SPEC) == 1_700_000
    assert [*metastore.entries.values()] == [made]
    entries.drop([{**SPEC, "dt": "never"}, SPEC])
    assert not metastore.entries
    calls = len(metastore.calls)
    entries.add([])
    entries.drop([])
    assert len(metastore.calls) == calls
    assert events.are_done([SPEC]) == [False]
    events.mark_done(SPEC)
    assert events.are_done([{**SPEC, "dt": "never"}, SPEC]) == [False, True]


_CHANGES: dict[str, tuple[str, Callable[[TableAccess], None]]] = {
    "add": ("add_partitions_req", lambda access: _entries(access).add([SPEC])),
    "drop": ("drop_partition", lambda access: _entries(access).drop([SPEC])),
    "mark": ("markPartitionForEvent", lambda access: _events(access).mark_done(SPEC)),
}
_LOOKS: dict[str, tuple[str, Callable[[TableAccess], object]]] = {
    "added": ("get_partition", lambda access: _entries(access).added_ms(SPEC)),
    "are done": ("isPartitionMarkedForEvent", lambda access: _events(access).are_done([SPEC])),
}


@pytest.mark.parametrize("change", _CHANGES)
def test_nothing_is_changed_of_a_table_that_was_made_again(stack: ExitStack, change: str) -> None:
    metastore = Metastore(table("d", "t", "file:/x"))
    access = _opened(stack, metastore)
    metastore.tables = [table("d", "t", "file:/x", created_s=8)]
    with pytest.raises(TableNotFound, match=r"table d\.t was dropped and created again"):
        _CHANGES[change][1](access)
    assert _CHANGES[change][0] not in metastore.names()


@pytest.mark.parametrize("call", [*_CHANGES, *_LOOKS])
def test_a_metastore_that_refuses_or_is_silent_is_named(stack: ExitStack, call: str) -> None:
    metastore = Metastore(table("d", "t", "file:/x"))
    access = _opened(stack, metastore)
    name, run = {**_CHANGES, **_LOOKS}[call]
    metastore.broken.add(name)
    # The first exception of a drop is that there is no such entry.
    if call != "drop":
        with pytest.raises(CatalogUnavailable, match=r"the metastore answered .*: out of order"):
            run(access)
    metastore.is_gone = True
    with pytest.raises(CatalogDown, match="no answer"):
        run(access)


def test_an_answer_that_is_lost_makes_one_event_and_no_second_entry(stack: ExitStack) -> None:
    metastore = Metastore(table("d", "t", "file:/x"))
    access = _opened(stack, metastore)
    metastore.lost = {name for name, _ in _CHANGES.values()}
    for name, change in _CHANGES.values():
        metastore.calls.clear()
        with pytest.raises(CatalogDown):
            change(access)
        # What may be repeated is asked for on a new connection, too.
        assert metastore.names().count(name) == (1 if name == "markPartitionForEvent" else 2)
    metastore.lost.clear()
    assert len(metastore.marks) == 1
    assert not metastore.entries


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(FakeServer()) as running:
        yield running


def _of_server(server: FakeServer, folder: Path, *, is_external: bool = False) -> TableAccess:
    path = folder / "t"
    append_table(LocalStorage(), str(path))
    server.tables["db.t"] = FakeTable(path=str(path), id="u", is_external=is_external)
    catalog = open_catalog("lake", metastore="rest", options=server.options, allow_schemes=["file"])
    return catalog.open(catalog.find_table("db.t"))


def test_a_server_is_told_what_is_done_and_asked_in_batches(
    server: FakeServer, tmp_path: Path
) -> None:
    access = _of_server(server, tmp_path)
    assert access.entries is None
    events = _events(access)
    server.asked.clear()
    events.mark_done(SPEC)
    assert server.marked == [SPEC]
    others = [{**SPEC, "h": str(number)} for number in range(1_500)]
    assert events.are_done([*others, SPEC]) == [*[False] * 1_500, True]
    assert [each.raw_path.partition("/tables/")[2] for each in server.asked] == [
        "t/partitions/mark",
        *["t/partitions/list-by-names"] * 2,
    ]
    assert [len(each.body["specs"]) for each in server.asked] == [1, 1_000, 501]


def test_of_an_external_table_its_server_is_told_nothing(
    server: FakeServer, tmp_path: Path
) -> None:
    """As in Java, which has no catalog for these."""
    access = _of_server(server, tmp_path, is_external=True)
    assert (access.entries, access.events) == (None, None)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((501, None), CatalogUnavailable),
        ((404, {"resourceType": "TABLE", "code": 404}), ObjectNotFound),
        ((500, None), TransientStorageError),
        ((503, None), TransientStorageError),
        ((200, {"partitions": 7}), CatalogUnavailable),
        ((200, b"<html>"), TransientStorageError),
    ],
)
def test_a_server_that_does_not_do_it_is_named(
    server: FakeServer, tmp_path: Path, answer: Answer, error: type[StorageError]
) -> None:
    events = _events(_of_server(server, tmp_path))

    def fault(asked: Asked) -> Answer | None:
        return answer if "partitions" in asked.parts else None

    server.fault = fault
    with pytest.raises(error):
        events.are_done([SPEC])
    if answer[1] != {"partitions": 7}:
        with pytest.raises(error):
            events.mark_done(SPEC)
