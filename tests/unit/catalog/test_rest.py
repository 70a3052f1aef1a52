"""The REST catalog against a small server: options, pages, names, errors, lost answers."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta, timezone
from pathlib import Path

import pytest
import yaml

from compactord.catalog.base import Catalog, Verdict
from compactord.catalog.open import open_catalog
from compactord.catalog.rest.access import InternalTable
from compactord.catalog.rest.catalog import RestCatalog
from compactord.catalog.rest.http import Http, NoAnswer
from compactord.catalog.rest.publisher import RestPublisher, statistics
from compactord.cli.command import main
from compactord.cli.doctor import catalog_checks
from compactord.cli.registries import Registries
from compactord.cli.serve import check_online, load_usable, refuse_literal_secrets
from compactord.clock import SystemClock
from compactord.commit.changes import BucketChange, Committed
from compactord.config.load import show_text
from compactord.config.policy import config_of_warehouse
from compactord.errors import (
    AccessDenied,
    CatalogDown,
    CatalogOptionInvalid,
    CatalogUnavailable,
    CommitUnknown,
    CompactordError,
    FormatError,
    ObjectNotFound,
    TableNotFound,
    UnsupportedTable,
)
from compactord.paimon.data_file import EMPTY_ROW, EMPTY_STATS, BucketId, DataFile
from compactord.paimon.schema import TableRef
from compactord.paimon.snapshot import snapshot_json
from compactord.state.follower import Follower
from compactord.storage.local import LocalStorage
from compactord.storage.open import STORES
from compactord.table.planning import CompactRequest
from compactord.table.session import TableSession
from compactord_demo.writer import create_table
from tests import builders
from tests.builders import FIRST
from tests.inline_engine import InlineEngine
from tests.unit.catalog.rest_server import TOKEN, Answer, Asked, FakeServer, FakeTable, serving
from tests.unit.cli.warehouses import configuration
from tests.unit.doors.command import started_by

_STORAGE = LocalStorage()
_NAME = "db.t"


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving(FakeServer()) as running:
        yield running


def _catalog(server: FakeServer, **options: str) -> Catalog:
    given = {**server.options, **options}
    return open_catalog("the lake", metastore="rest", options=given, allow_schemes=["file"])


@dataclass(frozen=True, slots=True)
class Filled:
    """A table that is due, and its rows."""

    path: Path
    rows: dict[int, int]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    path = tmp_path_factory.mktemp("filled") / "t"
    ref = TableRef(database="db", name="t", location=str(path))
    options = {"bucket": "2", "write-only": "true"}
    create_table(_STORAGE, ref, builders.FIELDS, primary_keys=["k"], options=options)
    return Filled(path, builders.fill_keyed(builders.writer(_STORAGE, ref), commits=6))


class Lake:
    """Tables of the server in a folder."""

    def __init__(self, server: FakeServer, folder: Path, filled: Filled) -> None:
        self.server = server
        self.folder = folder
        self.filled = filled
        self.rows: dict[str, dict[int, int]] = {}
        self.add(_NAME)

    def add(self, name: str = _NAME, **more: bool) -> None:
        path = self.folder / f"{len(self.rows)}"
        shutil.copytree(self.filled.path, path)
        self.rows[name] = dict(self.filled.rows)
        self.server.tables[name] = FakeTable(path=str(path), id=f"uuid of {name}", **more)

    def ref(self, name: str = _NAME) -> TableRef:
        return TableRef(database="db", name="t", location=self.server.tables[name].path)

    def write(self, name: str = _NAME) -> None:
        """Another writer's commit."""
        builders.writer(_STORAGE, self.ref(name)).write(builders.rows_of([(1000, 1)]))
        self.rows[name][1000] = 1

    def compact(self, catalog: Catalog, name: str = _NAME, **overrides: str) -> list[int]:
        access = catalog.open(catalog.find_table(name))
        totals = builders.compact(access.storage, access.ref, access=access, overrides=overrides)
        return list(totals.snapshots)

    def check(self, name: str = _NAME) -> None:
        assert builders.read_keyed(_STORAGE, self.ref(name)) == self.rows[name]
        builders.check_chain(_STORAGE, self.ref(name))

    def check_sums(self) -> None:
        """The server's sums are what our commits changed, each once."""
        catalog = _catalog(self.server)
        state = catalog.open(catalog.find_table(_NAME)).newest_state().state
        (sums,) = self.server.sums.values()
        # Of six commits each added one file to each of two buckets.
        assert sums["fileCount"] == state.files.file_count - 12
        assert sums["totalBuckets"] == 2


@pytest.fixture
def lake(server: FakeServer, tmp_path: Path, filled: Filled) -> Lake:
    return Lake(server, tmp_path, filled)


def test_a_table_is_compacted_with_what_the_server_wants_to_know(
    lake: Lake, server: FakeServer
) -> None:
    assert lake.compact(_catalog(server)) == [7]
    lake.check()
    lake.check_sums()
    assert builders.leftovers(_STORAGE, lake.ref(), [FIRST]) == set()
    (commit,) = (one for one in server.asked if one.method == "POST")
    assert set(commit.body) == {"tableId", "baseSnapshotUuid", "snapshot", "statistics"}


def test_the_server_is_told_what_partitions_that_are_removed_had(
    lake: Lake, server: FakeServer
) -> None:
    catalog = _catalog(server)
    followed = TableSession(
        catalog.open(catalog.find_table(_NAME)),
        CompactRequest(),
        clock=builders.VirtualClock(),
        owner=FIRST,
    )
    followed.refresh()
    files = followed.state.files
    done = followed.drop_partitions(lambda table, state: [EMPTY_ROW], busy=())
    assert isinstance(done, Committed)
    assert not builders.read_keyed(_STORAGE, lake.ref())
    lake.check_sums()
    (sums,) = server.sums.values()
    assert (sums["recordCount"], sums["fileSizeInBytes"]) == (-files.row_count, -files.size_bytes)
    assert builders.leftovers(_STORAGE, lake.ref(), [FIRST]) == set()


def test_the_servers_options_go_below_and_above_those_of_the_client(
    lake: Lake, server: FakeServer
) -> None:
    server.defaults = {"prefix": "p", "header.X-One": "default", "s3.region": "a", "x": None}
    server.overrides = {"prefix": "a $/ä", "header.X-Two": "override"}
    catalog = _catalog(server, **{"header.X-One": "own", "header.X-Two": "own", "prefix": "q"})
    assert isinstance(catalog, RestCatalog)
    catalog.check_access()
    config, databases = server.asked
    assert config.query == {"warehouse": "the lake"}
    assert config.headers["X-Two"] == "own"
    assert databases.raw_path == "/v1/a+%24%2F%C3%A4/databases"
    assert (databases.headers["X-One"], databases.headers["X-Two"]) == ("own", "override")
    assert lake.compact(catalog) == [7]


def test_a_quiet_poll_is_two_requests_and_no_listing(lake: Lake, server: FakeServer) -> None:
    catalog = _catalog(server)
    ref = catalog.find_table(_NAME)
    server.calls()
    access = catalog.open(ref)
    state, schema = access.newest_state().state, access.newest_schema()
    assert server.calls() == ["GET tables/t", "GET t/snapshot"]
    assert access.refreshed_state(state).state is state
    assert not access.has_later_schema(schema)
    assert server.calls() == ["GET t/snapshot", "GET tables/t"]
    assert access.keeps_schema(schema)


def test_new_snapshots_are_followed_by_their_deltas(lake: Lake, server: FakeServer) -> None:
    catalog = _catalog(server)
    access = catalog.open(catalog.find_table(_NAME))
    known = access.newest_state().state
    for _ in range(3):
        lake.write()
    server.calls()
    found = access.refreshed_state(known)
    assert server.calls() == ["GET t/snapshot"]
    assert found.changed is not None
    assert len(found.changed) == 1
    whole = access.newest_state().state
    assert found.state.snapshot == whole.snapshot
    assert found.state.files.file_count == whole.files.file_count == known.files.file_count + 3


def test_a_snapshot_that_is_gone_when_it_is_read_is_asked_for_again(
    lake: Lake, server: FakeServer
) -> None:
    catalog = _catalog(server)
    access = catalog.open(catalog.find_table(_NAME))
    newest = access.newest_state().state.snapshot
    assert newest is not None
    gone = json.loads(snapshot_json(replace(newest, base_manifest_list="manifest-list-gone")))
    left = [(200, {"snapshot": {"snapshot": gone}})] * 2
    server.fault = lambda asked: left.pop() if asked.parts[-1] == "snapshot" and left else None
    assert access.newest_state().state.snapshot == newest


def test_tables_are_listed_by_pages_and_what_has_other_files_is_passed_over(
    lake: Lake, server: FakeServer
) -> None:
    for name in ("db.a b", "db.a$branch_b", "db.a/b", "other.t"):
        lake.add(name)
    for type_ in ("format-table", "object-table", "iceberg-table", "lance-table"):
        server.tables[f"db.{type_}"] = FakeTable(path="/none", id="x", type=type_)
    server.page_size = 2
    catalog = _catalog(server)
    listed = catalog.list_tables()
    assert [table.full_name for table in listed.tables] == [
        *("db.a b", "db.a$branch_b", "db.a/b", "db.t", "other.t")
    ]
    assert not listed.unreadable
    for table in listed.tables:
        access = catalog.open(table)
        assert access.ref == table
        assert access.newest_state().state.snapshot is not None
    assert catalog.find_table("db.a/b") == listed.tables[2]
    with pytest.raises(UnsupportedTable, match="option type=format-table is not supported"):
        catalog.open(catalog.find_table("db.format-table"))
    with pytest.raises(TableNotFound, match=r"db\.tt does not exist in http.*did you mean db\.t"):
        catalog.find_table("db.tt")


def _only(end: str, answer: Answer) -> Callable[[Asked], Answer | None]:
    """The answer to requests whose path ends so; nothing else is changed."""
    return lambda asked: answer if "/".join(asked.parts).endswith(end) else None


def _endless(asked: Asked) -> Answer | None:
    page = {"databases": ["db"], "nextPageToken": "again"}
    return (200, page) if asked.parts[-1] == "databases" else None


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (_only("databases", (403, {"message": "token=x no"})), AccessDenied, "403"),
        (_only("databases", (401, None)), AccessDenied, "the server answered 401"),
        (_only("databases", (500, b"<html>")), CatalogUnavailable, "answered 500: http"),
        (_only("databases", (503, None)), CatalogDown, "answered 503"),
        (_only("databases", (429, None)), CatalogDown, "answered 429"),
        (_only("databases", (302, None)), CatalogUnavailable, "answered 302"),
        (_only("databases", (200, b"<html>")), CatalogUnavailable, "not a JSON object"),
        (_only("databases", (200, b'{"databases": 1}')), CatalogUnavailable, "no list"),
        (_only("databases", (200, b'{"databases": ["db"')), CatalogUnavailable, "not a JSON"),
        (_endless, CatalogUnavailable, "its pages lead back to an earlier one"),
        (_only("config", (404, None)), ObjectNotFound, "answered 404"),
    ],
)
def test_a_listing_fails_with_what_is_wrong(
    server: FakeServer,
    fault: Callable[[Asked], Answer | None],
    error: type[CompactordError],
    text: str,
) -> None:
    server.fault = fault
    catalog = _catalog(server)
    with pytest.raises(error, match=text) as caught:
        catalog.list_tables()
    assert catalog.advice(caught.value) != ""


def test_what_concerns_one_database_or_table_leaves_the_others(
    lake: Lake, server: FakeServer
) -> None:
    lake.add("other.t")
    catalog = _catalog(server)
    for fault, error in (
        (_only("other/table-details", (403, None)), AccessDenied),
        (_only("other/table-details", (404, None)), ObjectNotFound),
        (_only("other/table-details", (500, None)), CatalogUnavailable),
        (_only("other/table-details", (200, {"tableDetails": [{"id": 1}]})), CatalogUnavailable),
    ):
        server.fault = fault
        listed = catalog.list_tables()
        assert [table.full_name for table in listed.tables] == ["db.t"]
        assert isinstance(listed.unreadable["other"], error)
    good = server._details("other.t")
    details = json.dumps({"tableDetails": [{**good, "name": "\ud800"}, good]})
    server.fault = _only("other/table-details", (200, details.encode()))
    listed = catalog.list_tables()
    assert [table.full_name for table in listed.tables] == ["db.t", "other.t"]
    assert r"whose name is '\ud800'" in str(listed.unreadable["other"])
    server.fault = _only("databases", (200, b'{"databases": ["\\udfff", "db"]}'))
    listed = catalog.list_tables()
    assert [table.full_name for table in listed.tables] == ["db.t"]
    assert isinstance(listed.unreadable["\udfff"], CatalogUnavailable)
    server.fault = _only("other/table-details", (404, {"resourceType": "DATABASE"}))
    assert not catalog.list_tables().unreadable


_TABLE_U = {"id": "x", "name": "u", "path": "/u", "isExternal": False, "schemaId": 0, "schema": {}}


@pytest.mark.parametrize(
    ("end", "answer", "error", "text"),
    [
        ("tables/t", (403, None), AccessDenied, "answered 403"),
        ("tables/t", (404, None), TableNotFound, "db.t does not exist"),
        ("tables/t", (200, b"[]"), CatalogUnavailable, "not a JSON object"),
        ("tables/t", (200, {"name": "t", "id": 7}), CatalogUnavailable, "'t' whose id is 7"),
        ("tables/t", (200, _TABLE_U), CatalogUnavailable, "answered with the table 'u'"),
        ("t/snapshot", (403, None), AccessDenied, "answered 403"),
        ("t/snapshot", (404, {"resourceType": "TABLE"}), TableNotFound, "does not exist"),
        ("t/snapshot", (200, {"snapshot": {}}), FormatError, "not a JSON object"),
        ("t/snapshot", (200, {"snapshot": {"snapshot": {"id": 1}}}), FormatError, "version"),
    ],
)
def test_a_table_fails_alone_with_what_is_wrong(
    lake: Lake,
    server: FakeServer,
    *,
    end: str,
    answer: Answer,
    error: type[CompactordError],
    text: str,
) -> None:
    catalog = _catalog(server)
    ref = catalog.find_table(_NAME)
    server.fault = _only(end, answer)
    with pytest.raises(error, match=text):
        catalog.open(ref).newest_state()
    server.fault = lambda _: None
    assert lake.compact(catalog) == [7]


def test_schemas_that_differ_or_are_gone_are_told(lake: Lake, server: FakeServer) -> None:
    catalog = _catalog(server)
    access = catalog.open(ref := catalog.find_table(_NAME))
    known = access.newest_schema()
    schema = Path(server.tables[_NAME].path, "schema", "schema-0")
    text, details = schema.read_text(), server._details(_NAME)
    server.fault = _only("tables/t", (200, details))
    schema.write_text(text.replace('"name": "v"', '"name": "w"'))
    with pytest.raises(FormatError, match="other columns or keys than the catalog's schema"):
        access.newest_schema(known)
    schema.unlink()
    for ask in (lambda: access.newest_schema(known), lambda: catalog.open(ref)):
        with pytest.raises(ObjectNotFound, match="the newest that the catalog names, is not there"):
            ask()
    schema.write_text(text)
    details["id"] = "another"
    with pytest.raises(TableNotFound, match="was dropped and created again"):
        access.newest_schema(known)


def test_an_external_table_follows_unlocked_writers_by_its_store(
    lake: Lake, server: FakeServer
) -> None:
    lake.add("db.e", is_external=True)
    catalog = _catalog(server)
    assert not isinstance(catalog.open(catalog.find_table("db.e")), InternalTable)
    assert lake.compact(catalog, "db.e") == [7]
    lake.check("db.e")
    assert not any(one.method == "POST" for one in server.asked)
    server.tables["db.e"].shown = "s3://bucket/e"
    catalog = _catalog(server, **{"s3.endpoint": "http://127.0.0.1:9", "s3.region": "x"})
    with pytest.raises(UnsupportedTable, match="without a lock Java's writers replace"):
        catalog.open(catalog.find_table("db.e"))
    server.tables["db.e"].shown = "viewfs://name/e"
    with pytest.raises(UnsupportedTable, match="viewfs:// is not supported"):
        catalog.open(catalog.find_table("db.e"))
    assert lake.compact(catalog) == [7]


def _close(asked: Asked) -> Answer | None:
    raise ConnectionError


_LOST = {
    "no answer, nothing done": ("fault", _close),
    "no answer, done": ("after", _close),
    "500, nothing done": ("fault", lambda _: (500, None)),
    "500, done": ("after", lambda _: (500, None)),
    "503, done": ("after", lambda _: (503, None)),
    "nonsense, done": ("after", lambda _: (200, b"<html>")),
    "false, nothing done": ("fault", lambda _: (200, {"success": False})),
    "false, done": ("after", lambda _: (200, {"success": False})),
}


@pytest.mark.parametrize("name", _LOST)
@pytest.mark.parametrize("is_beaten", [False, True])
def test_a_lost_answer_to_a_commit_loses_and_doubles_nothing(
    lake: Lake, server: FakeServer, name: str, *, is_beaten: bool
) -> None:
    where, effect = _LOST[name]
    left = [effect]

    def once(asked: Asked) -> Answer | None:
        if asked.method != "POST" or not left:
            return None
        if is_beaten and where == "fault":
            lake.write()
        return left.pop()(asked)

    setattr(server, where, once)
    assert lake.compact(_catalog(server)) in ([7], [8])
    lake.check()
    lake.check_sums() if not is_beaten else None
    assert builders.leftovers(_STORAGE, lake.ref(), [FIRST]) == set() or is_beaten
    posts = [one for one in server.asked if one.method == "POST"]
    uuids = [one.body["snapshot"]["uuid"] for one in posts]
    if where == "after":
        assert len(uuids) == 1, "the newest snapshot said that it was done"


@pytest.mark.parametrize("where", ["fault", "after"])
def test_every_request_may_have_no_answer(lake: Lake, server: FakeServer, where: str) -> None:
    """Before and after its effect, at each request of a run."""
    for number in itertools.count():
        left = [number]

        def fail(_: Asked, left: list[int] = left) -> Answer | None:
            left[0] -= 1
            if left[0] == -1:
                raise ConnectionError
            return None

        setattr(server, where, fail)
        lake.write()
        lake.compact(_catalog(server), **{"num-sorted-run.compaction-trigger": "2"})
        setattr(server, where, lambda _: None)
        lake.check()
        if left[0] >= 0:
            break
    assert number > 6


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("fault", CommitUnknown),
        # The snapshot's file says that it was committed.
        ("after", CatalogDown),
    ],
)
def test_a_server_that_falls_silent_leaves_everything_in_place(
    lake: Lake, server: FakeServer, where: str, error: type[CompactordError]
) -> None:
    gone: list[Asked] = []

    def go(asked: Asked) -> Answer | None:
        gone.extend([asked] if asked.method == "POST" else [])
        if gone:
            raise ConnectionError
        return None

    setattr(server, where, go)
    with pytest.raises(error):
        lake.compact(_catalog(server))
    setattr(server, where, lambda _: None)
    lake.check()
    catalog = _catalog(server)
    state = catalog.open(catalog.find_table(_NAME)).newest_state().state
    on_disk = {path.name for path in Path(lake.ref().location).rglob("data-*.parquet")}
    assert {Path(path).name for path in builders.live_paths(_STORAGE, lake.ref(), state)} <= on_disk
    lake.compact(catalog)
    lake.check()
    lake.check_sums()


def test_a_commit_waits_for_a_server_that_is_down(lake: Lake, server: FakeServer) -> None:
    asked = itertools.count(1)

    def restart(one: Asked) -> Answer | None:
        # The first is that of the plan; a request is tried four times.
        if one.parts[-1] == "snapshot" and next(asked) in range(2, 12):
            raise ConnectionError
        return None

    server.fault = restart
    assert lake.compact(_catalog(server)) == [7]
    lake.check()
    assert len(list(Path(lake.ref().location).glob("bucket-*/data-*"))) == 14, "merged once"


def _file(rows: int, size: int, created_ms: int | None) -> DataFile:
    empty = EMPTY_STATS
    return DataFile(
        file_name=f"data-{rows}",
        file_size=size,
        row_count=rows,
        min_key=b"",
        max_key=b"",
        key_stats=empty,
        value_stats=empty,
        min_sequence_number=0,
        max_sequence_number=0,
        schema_id=0,
        level=0,
        creation_time_ms=created_ms,
    )


def test_statistics_are_sums_of_partitions_with_the_newest_time_of_all_files() -> None:
    def change(partition: bytes, before: list[DataFile], after: list[DataFile]) -> BucketChange:
        return BucketChange(
            bucket=BucketId(partition, 0),
            total_buckets=len(partition),
            output_level=0,
            before=tuple(before),
            upgraded=(),
            outputs=builders.data_outputs(*after),
            files_above=frozenset(),
        )

    changes = [
        change(b"a", [_file(5, 50, 10_800_000), _file(6, 60, None)], [_file(10, 70, 9_000_000)]),
        change(b"bb", [_file(1, 1, 0)], [_file(1, 2, 0)]),
        change(b"a", [], [_file(1, 8, 0)]),
    ]
    zone = timezone(timedelta(hours=2))
    found = [
        tuple(one.values()) for one in statistics(changes, lambda row: {"p": row.decode()}, zone)
    ]
    # Records, bytes, files, the newest file's time since the epoch, buckets.
    assert found == [({"p": "a"}, 0, -32, 0, 3_600_000, 1), ({"p": "bb"}, 0, 1, 0, 0, 2)]


def test_our_snapshot_that_a_writer_rolled_back_is_planned_anew_and_no_loss(
    lake: Lake, server: FakeServer
) -> None:
    catalog = _catalog(server)
    access = catalog.open(catalog.find_table(_NAME))
    assert isinstance(access.publisher, RestPublisher)
    assert lake.compact(catalog) == [7]
    follower = Follower(access, user="us")
    state = follower.loaded()
    assert state.snapshot is not None
    follower.user, follower.may_be_replaced = state.snapshot.commit_user, False
    Path(server.tables[_NAME].path, "snapshot", "snapshot-7").unlink()
    lake.write()
    state = follower.refreshed(state)
    assert (state.snapshot and state.snapshot.id, follower.lost_snapshots) == (7, [])
    assert lake.compact(catalog) == [8]
    lake.check()


def test_a_token_in_a_file_is_read_again_once_it_is_refused(
    lake: Lake, server: FakeServer, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    catalog = _catalog(server, token=f"${{file:{secret}}}")
    catalog.check_access()
    server.token = "another"
    secret.write_text("another\n")
    assert lake.compact(catalog) == [7]
    server.token = "a third"
    with pytest.raises(AccessDenied):
        catalog.check_access()


@pytest.mark.parametrize(
    ("begun", "pause_s"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", 60.0),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", 0.05),
        (b"HTTP/1.1 200 OK\r\nX-Name:", 0.05),
    ],
    ids=["no answer", "an answer in drops", "headers in drops"],
)
def test_a_request_has_a_deadline(begun: bytes, pause_s: float) -> None:
    is_over = threading.Event()

    class Slow(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1 << 16)
            self.request.sendall(begun)
            with contextlib.suppress(OSError):
                while not is_over.wait(pause_s):
                    self.request.sendall(b" ")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Slow) as silent:
        threading.Thread(target=silent.serve_forever, kwargs={"poll_interval": 0.01}).start()
        url = f"http://127.0.0.1:{silent.server_address[1]}"
        http = Http(url, SystemClock(), read_seconds_max=0.3)
        began_s = time.monotonic()
        try:
            with pytest.raises(NoAnswer) as caught:
                http.send("GET", url, {}, bytes_max=1000)
        finally:
            is_over.set()
            silent.shutdown()
        assert time.monotonic() - began_s < 30
    assert caught.value.was_sent
    with pytest.raises(NoAnswer) as caught:
        http.send("GET", url, {}, bytes_max=1000)
    assert not caught.value.was_sent, "nobody is there"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"uri": ""}, "uri"),
        ({"uri": "http://me:secret@host"}, "uri"),
        ({"token.provider": "other"}, "token.provider"),
        ({"token": ""}, "token"),
        ({"dlf.token-pth": "/x"}, "dlf.token-pth"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, str], key: str) -> None:
    given = {"uri": "https://host", "token.provider": "bear", "token": "x", **options}
    with pytest.raises(CatalogOptionInvalid) as caught:
        open_catalog("wh", metastore="rest", options=given)
    assert caught.value.key == key


def _arguments(server: FakeServer) -> list[str]:
    options = (f"--catalog-option={key}={text}" for key, text in server.options.items())
    place = ("--warehouse", "the lake", "--allow-scheme", "file")
    return [*place, "--metastore", "rest", *options]


def test_commands_take_its_tables(
    lake: Lake, server: FakeServer, capsys: pytest.CaptureFixture[str]
) -> None:
    lake.add("db.e", is_external=True)
    server.fault = _only("tables/e", (403, None))
    inline = Registries(engines=started_by(lambda *_: InlineEngine()))
    code = main(["compact", "--database=db", *_arguments(server), "--json"], inline)
    said = capsys.readouterr()
    assert json.loads(said.out.splitlines()[-1])["summary"] == {"done": 1, "failed": 1}
    assert "db.e: FAILED: the server answered 403" in said.err
    assert code != 0
    lake.check()


def test_the_doctor_says_what_is_wrong_with_it(lake: Lake, server: FakeServer) -> None:
    clock, config = SystemClock(), config_of_warehouse(server.uri).config

    def found() -> dict[str, tuple[Verdict, str]]:
        checks = catalog_checks({"p": _catalog(server)}, clock, config)
        return {check.name: (check.verdict, check.found + check.advice) for check in checks}

    good = found()
    assert {name: verdict for name, (verdict, _) in good.items()} == {
        "p: tables": Verdict.OK,
        "p: polls": Verdict.OK,
        "p: permissions": Verdict.OK,
    }
    assert f"1 table in {server.uri}" in good["p: tables"][1]
    for answer, advice in (((401, None), "correct token"), ((500, None), "correct uri")):
        server.fault = _only("databases", answer)
        ((verdict, text),) = found().values()
        assert verdict is Verdict.FAILED
        assert advice in text


def test_its_place_in_a_configuration(server: FakeServer, tmp_path: Path) -> None:
    options = {**server.options, "s3.secret-key": "literal", "s3.endpoint": "http://x"}
    text = yaml.safe_dump(
        {"catalogs": {"p": {"metastore": "rest", "warehouse": "the lake", "options": options}}}
    )
    loaded = load_usable(configuration(tmp_path, text), (), Registries())
    assert TOKEN not in "\n".join(show_text(loaded)) + repr(loaded)
    assert check_online(loaded, SystemClock(), Registries()) == []
    server.token = "another"
    ((trouble, problem),) = check_online(loaded, SystemClock(), Registries())
    assert problem.key == "catalogs.p.options.uri"
    assert not trouble.may_pass
    with pytest.raises(CatalogOptionInvalid, match=r"s3\.secret-key"):
        refuse_literal_secrets(loaded.config, "spark://elsewhere:7077", STORES)
    refuse_literal_secrets(loaded.config, "local[2]", STORES)
