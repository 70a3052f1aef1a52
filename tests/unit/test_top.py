from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from compactord.catalog.base import Catalog
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.open import open_catalog
from compactord.cli.command import _parser
from compactord.cli.top import top
from compactord.clock import SystemClock
from compactord.config.policy import config_of_warehouse
from compactord.errors import AccessDenied, TableNotFound, UsageError
from compactord.service import codec, site
from compactord.service.http import HttpServer, PageResponse, Request
from compactord.service.view import ServiceView, TableStatus
from compactord.storage.local import LocalStorage
from compactord.table.status import Backlog
from compactord.top.daemon import DaemonSource, NoAnswer
from compactord.top.frame import age_cell, frame, size_cell
from compactord.top.status import Rates, rates_between, shown_name
from compactord.top.top import run
from compactord.top.warehouse import WarehouseSource
from tests.builders import VirtualClock, compact, fill_keyed, keyed_table, writer
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.views import (
    GIB,
    MIB,
    NOW_MS,
    all_of_one,
    busy_night,
    halt,
    pattern_excluded_view,
    plurals_of_one,
    service_view,
    table_view,
)

HOST = "127.0.0.1"


class Daemon:
    """The JSON of a daemon under a port; `view` is what it shows, `status` what it answers."""

    def __init__(self, view: ServiceView) -> None:
        self.view = view
        self.status = 200
        self.body: bytes | None = None
        self.server = HttpServer(self._answer, host=HOST, port=0)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server.port}"

    def _answer(self, request: Request) -> PageResponse:
        shown = {"/v1/status": codec.status_json, "/v1/tables": site.tables}.get(request.path)
        if shown is None:
            return PageResponse(status=404, content_type="text/plain", body=b"")
        body = self.body if self.body is not None else codec.encode(shown(self.view))
        return PageResponse(status=self.status, content_type="application/json", body=body)


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    found = Daemon(busy_night().view())
    yield found
    found.server.stop()


def sent(status: Mapping[str, Any], tables: Mapping[str, Any]) -> ServiceView:
    """What `top` has of a daemon that answers so."""
    return codec.decode(ServiceView, {**status, "tables": tables["tables"]})


def status_of(view: ServiceView) -> ServiceView:
    return sent(codec.plain(codec.status_json(view)), codec.plain(site.tables(view)))


def _as_sent(view: ServiceView) -> ServiceView:
    """Without what is internal."""
    return replace(view, steady_ms=0, queued_by_table={})


def drawn(
    status: ServiceView, rates: Rates | None = None, *, width: int = 120, **how: Any
) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, color_system=None).print(
        frame("http://daemon", status, rates, **how)
    )
    return stream.getvalue().splitlines()


def line_of(lines: list[str], name: str) -> str:
    return next(line for line in lines if line.startswith(name))


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, "0B"), (999, "999B"), (1000, "1.0K"), (5_300 * MIB, "5.2G"), (940 * MIB, "940M"),
     (99.96 * GIB, "100G"), (4 << 60, "4096P")],
)  # fmt: skip
def test_sizes_take_five_columns(size: float, expected: str) -> None:
    assert size_cell(size) == expected
    assert len(expected) <= 5


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [(-1, "0s"), (59_999, "59s"), (3_599_000, "59m"), (86_399_000, "23h"), (172_800_000, "2d")],
)
def test_ages_have_one_unit(milliseconds: int, expected: str) -> None:
    assert age_cell(milliseconds) == expected


def test_a_table_is_a_line_with_runs_against_triggers() -> None:
    line = line_of(drawn(status_of(busy_night().view())), "lake.sales.orders")
    assert line.split() == [
        *("lake.sales.orders", "degraded", "████████", "9/5/8", "8", "64", "18.0G"),
        *("5.2G", "41m", "1m"),
    ]
    customers = line_of(drawn(status_of(busy_night().view())), "lake.crm.customers")
    assert "██████·· 6/5/8" in customers


def test_tables_come_by_need() -> None:
    lines = drawn(status_of(busy_night().view()))
    found = [line.split()[0] for line in lines if line.startswith("lake.")][:5]
    assert found == [
        "lake.sales.refunds",
        "lake.sales.orders",
        "lake.sales.payments",
        "lake.logs.clicks",
        "lake.crm.customers",
    ]


def test_halted_tables_say_why() -> None:
    stopped = table_view("d.t", status=TableStatus.HALTED, halt=halt(action="restore it"))
    assert (
        "lake.d.t halted: merge-engine = aggregation is not supported yet; next attempt in 20 min. "
        "What to do: restore it"
    ) in " ".join(drawn(status_of(service_view(stopped)), width=200))


def test_a_table_that_could_not_be_read_once_is_not_halted() -> None:
    failed = table_view("d.t", status=TableStatus.ERROR, error="no answer")
    lines = drawn(status_of(service_view(failed)))
    assert line_of(lines, "lake.d.t ").split()[1] == "error"
    assert line_of(lines, "lake.d.t error: no answer. What to do: ")


def test_runs_at_the_trigger_are_not_due_while_nothing_is_picked() -> None:
    due = Backlog(tasks=1, files=5, size_bytes=7 << 30, oldest_ms=NOW_MS)
    status = status_of(
        service_view(table_view("d.q", runs=5), table_view("d.w", runs=5, backlog=due))
    )
    lines = drawn(status)
    assert "at trigger" in line_of(lines, "lake.d.q ")
    assert line_of(lines, "lake.d.w ").split()[1] == "due"


def test_tables_that_are_left_alone_are_listed_with_their_state_and_why() -> None:
    due = Backlog(tasks=1, files=5, size_bytes=7 << 30, oldest_ms=NOW_MS)
    refused = table_view("d.r", status=TableStatus.UNSUPPORTED, halt=halt(), first_poll_ms=0)
    paused = table_view("d.p", status=TableStatus.PAUSED, why="by rules.0.set.mode", backlog=due)
    status = status_of(service_view(paused, refused, pattern_excluded_view("d.tmp")))
    lines = drawn(status)
    assert line_of(lines, "lake.d.p ").split()[1:3] == ["paused", "██······"]
    assert line_of(lines, "lake.d.r ").split()[1:3] == ["unsupported", "primary-key"]
    assert line_of(lines, "lake.d.tmp ").split()[1:3] == ["excluded", "–"]
    text = "\n".join(lines)
    for note in (
        "lake.d.p paused: by rules.0.set.mode",
        "lake.d.r unsupported: merge-engine = aggregation is not supported yet",
        "lake.d.tmp excluded: discovery.excluding_tables (c.yaml:9) is .*tmp_.*",
        "backlog 0B",
    ):
        assert note in text


def test_running_and_recent_work_is_shown() -> None:
    lines = drawn(status_of(busy_night().view()), Rates(input_bytes=41e6, output_bytes=30.04e6))
    text = "\n".join(lines)
    assert "slots 3/4, mem 1.5G/4.0G, queue 5, backlog 6.4G" in text
    assert "in 41.0 MB/s, out 30.0 MB/s" in text
    assert "running (3)" in text
    assert "b3 dt=2026-11-18 size_ratio 12 files 1.5G ███····· 2/5" in text
    assert "9→3 700M→512M snapshot 811" in text
    assert "conflict: data-77ab.parquet is no longer" in text


@pytest.mark.parametrize("width", [80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_numbers_are_whole(width: int) -> None:
    view = busy_night().view()
    long = table_view("d." + "long" * 40, runs=120, backlog=view.tables[0].backlog)
    lines = drawn(status_of(replace(view, tables=(*view.tables, long))), width=width)
    assert max(map(len, lines)) <= width
    line = line_of(lines, "lake.d.long")
    assert "… " in line
    for number in ("120/5/8", "119", "18.0G", "5.2G", "41m"):
        assert number in line


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_still_says_which_table(width: int) -> None:
    lines = drawn(status_of(busy_night().view()), width=width)
    assert max(map(len, lines)) <= width
    (line,) = (line for line in lines if "9/5/8" in line)
    assert line.startswith("lake.sales")


def test_a_frame_fits_a_terminal_of_few_lines_and_counts_what_it_leaves_out() -> None:
    view = busy_night().view()
    many = [table_view(f"d.t{n}") for n in range(50)]
    status = status_of(replace(view, tables=(*view.tables, *many)))
    lines = drawn(status, width=100, height=40)
    assert len(lines) <= 40
    shown = sum("lake." in line and "/5/" in line for line in lines)
    more = re.search(r"(\d+) more tables are less urgent", "\n".join(lines))
    assert more is not None
    # Of the 66 one is an append table, without triggers.
    assert shown + 1 + int(more[1]) == 66


def test_what_is_there_once_is_not_called_many() -> None:
    status = status_of(all_of_one().shown)
    assert not plurals_of_one("\n".join(drawn(status) + drawn(replace(status, started_ms=0))))


def test_names_cannot_steer_the_terminal_nor_rich() -> None:
    view = table_view("d.[bold red]x\x1b]0;owned\x07\n[/]")
    lines = drawn(status_of(service_view(view)))
    assert r"lake.d.[bold red]x\x1b]0;owned\x07\n[/]" in line_of(lines, "lake.d.")


def test_an_engine_that_has_not_failed_is_starting() -> None:
    view = service_view(table_view())
    starting = replace(view, is_started=False, engine=replace(view.engine, is_up=False))
    lines = drawn(status_of(starting))
    assert line_of(lines, "slots").endswith("the engine is starting")
    assert not any("is down" in line for line in lines)


def test_troubles_of_the_service_are_shown() -> None:
    view = service_view(table_view())
    broken = replace(
        view,
        is_draining=True,
        engine=replace(view.engine, is_up=False, error="py4j is gone"),
        catalogs=(replace(view.catalogs[0], error="denied"),),
        config=replace(view.config, last_reload_successful=False, error="line 3"),
        loops=(replace(view.loops[0], heartbeat_ms=NOW_MS - 95_000),),
    )
    text = "\n".join(drawn(status_of(broken)))
    for trouble in (
        "draining",
        "The engine is down. py4j is gone",
        "Catalog lake cannot be listed. denied",
        "could not be reloaded; the last valid one stays in effect. line 3",
        "The loop service has been silent for 1 min 35 s. A heartbeat",
    ):
        assert trouble in text


def _grown(view: ServiceView, seconds: float, read: int, written: int) -> ServiceView:
    table = view.tables[0]
    counters = replace(
        table.counters,
        input_bytes=table.counters.input_bytes + read,
        output_bytes=table.counters.output_bytes + written,
    )
    return replace(
        view,
        now_ms=view.now_ms + round(1000 * seconds),
        tables=(replace(table, counters=counters), *view.tables[1:]),
    )


def test_rates_are_growth_by_time() -> None:
    view = busy_night().view()
    before, now = status_of(view), status_of(_grown(view, 2, 80, 60))
    assert rates_between(before, now) == Rates(input_bytes=40, output_bytes=30)
    assert rates_between(now, now) is None
    assert rates_between(replace(before, started_ms=0), now) is None


def test_a_daemon_that_began_anew_and_tables_that_came_have_no_rate() -> None:
    view = busy_night().view()
    before = status_of(view)
    shrunk = status_of(_grown(view, 2, -500, -500))
    assert rates_between(before, shrunk) == Rates(input_bytes=0, output_bytes=0)
    without = replace(view, tables=view.tables[1:])
    came = status_of(_grown(view, 2, 80, 60))
    assert rates_between(status_of(without), came) == Rates(input_bytes=0, output_bytes=0)


def test_a_daemon_is_looked_at_over_http(daemon: Daemon) -> None:
    source = DaemonSource(daemon.url + "/")
    view = source.view()
    assert (source.name, view) == (daemon.url, _as_sent(daemon.view))
    assert (len(view.tables), view.now_ms) == (16, NOW_MS)


def test_fields_of_another_version_count_as_empty() -> None:
    status = sent({"engine": 3, "running": [1, {}]}, {"tables": [{"name": 1}, None]})
    assert len(status.tables) == len(status.running) == 1
    assert not any("down" in line or "reloaded" in line for line in drawn(status))


@pytest.mark.parametrize(
    "url",
    ["localhost:9464", "ftp://host", "http://", "http://h:99999", "http://h/?a=1", "http://a b"],
)
def test_a_url_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(UsageError, match=r"--url .*http://daemon:9464"):
        DaemonSource(url)


def test_nobody_at_the_url_is_said(daemon: Daemon) -> None:
    url = daemon.url
    daemon.server.stop()
    with pytest.raises(NoAnswer, match=f"no daemon answers at {url}: .*refused"):
        DaemonSource(url).view()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, b"{}", "is not compactord, or the URL has a path too many"),
        (500, b"{}", "answers /v1/status with status 500"),
        (200, b"<html>", "is not compactord: /v1/status is no JSON object"),
        (200, b"[1]", "is not compactord: /v1/status is no JSON object"),
        (200, b'{"a": 1}', "is not compactord"),
        (200, b"[" * 100_000, "is no JSON object"),
    ],
)
def test_somebody_else_at_the_url_is_said(
    daemon: Daemon, status: int, body: bytes, expected: str
) -> None:
    daemon.status, daemon.body = status, body
    with pytest.raises(NoAnswer, match=re.escape(expected)):
        DaemonSource(daemon.url).view()


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://{HOST}:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert DaemonSource(daemon.url).view().tables


class Statuses:
    """A source that gives these, or raises them, and then asks to stop."""

    name = "http://daemon"

    def __init__(
        self, *found: ServiceView | Exception, stop: threading.Event | None = None
    ) -> None:
        self._found = list(found)
        self._stop = stop

    def view(self) -> ServiceView:
        found = self._found.pop(0)
        if not self._found and self._stop is not None:
            self._stop.set()
        if isinstance(found, Exception):
            raise found
        return found


def test_once_prints_one_plain_frame() -> None:
    stream = io.StringIO()
    status = status_of(busy_night().view())
    run(Statuses(status), interval_s=60, once=True, stop=threading.Event(), stream=stream)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().count("compactord top") == 1
    assert "lake.mart.daily_revenue" in stream.getvalue()


def test_frames_go_on_with_rates_through_a_daemon_that_goes_away() -> None:
    view = busy_night().view()
    stop, stream = threading.Event(), io.StringIO()
    source = Statuses(
        status_of(view),
        status_of(_grown(view, 1, 5_000_000, 3_000_000)),
        NoAnswer("no daemon answers at http://daemon: refused"),
        status_of(_grown(view, 3, 5_000_000, 3_000_000)),
        stop=stop,
    )
    run(source, interval_s=0.01, once=False, stop=stop, stream=stream)
    first, second, lost, back = stream.getvalue().split("compactord top  ")[1:]
    assert "MB/s" not in first
    assert "in 5.0 MB/s, out 3.0 MB/s" in second
    assert "no daemon answers at http://daemon: refused; trying again" in lost
    assert "lake.sales.orders" in lost
    assert "trying again" not in back


def test_nothing_to_look_at_from_the_start_is_an_error() -> None:
    source = Statuses(NoAnswer("no daemon answers"))
    with pytest.raises(NoAnswer, match="no daemon answers"):
        run(source, interval_s=1, once=False, stop=threading.Event(), stream=io.StringIO())


def _source(catalog: Catalog) -> WarehouseSource:
    loaded = config_of_warehouse(catalog.warehouse)
    return WarehouseSource(catalog, loaded, clock=SystemClock(), stop=threading.Event())


def test_a_warehouse_is_looked_at_without_a_daemon_and_followed(tmp_path: Path) -> None:
    storage = LocalStorage()
    table = keyed_table(storage, f"{tmp_path}/db.db/t", buckets=1)
    fill_keyed(writer(storage, table), commits=6)
    source = _source(open_catalog(str(tmp_path)))
    first = source.view()
    [found] = first.tables
    shape, info = found.shape, found.info
    assert (shown_name(found.name), found.status) == ("db.t", TableStatus.ACTIVE)
    assert (shape.sorted_runs_max, info.compaction_trigger, info.stop_trigger) == (6, 5, 8)
    assert (shape.files, shape.level0_files, found.last_commit_ms) == (6, 6, 0)
    assert found.backlog.size_bytes == shape.size_bytes > 0
    assert first.recent == ()
    compact(storage, table)
    [found] = (second := source.view()).tables
    assert found.shape.sorted_runs_max == 1
    assert (found.backlog.size_bytes, found.backlog.oldest_ms) == (0, 0)
    assert [each.snapshot_id for each in second.recent] == [7]
    assert found.last_commit_ms == second.recent[0].finished_ms > 0
    fill_keyed(writer(storage, table), commits=5)
    compact(storage, table)
    assert [each.snapshot_id for each in source.view().recent] == [13, 7]
    text = "\n".join(drawn(second))
    assert "only a daemon knows" in text
    assert "running (" not in text


def test_how_long_rows_wait_is_known_without_a_daemon(tmp_path: Path) -> None:
    storage = LocalStorage()
    options = {"changelog-producer": "full-compaction"}
    table = keyed_table(storage, f"{tmp_path}/db.db/t", buckets=1, options=options)
    source = _source(open_catalog(str(tmp_path)))
    assert source.view().tables[0].shape.waiting_since_ms == 0
    fill_keyed(writer(storage, table), commits=2)
    status = source.view()
    assert status.tables[0].shape.waiting_since_ms == VirtualClock().now_ms()
    assert "db.t rows wait" in "\n".join(drawn(status))
    compact(storage, table)
    assert source.view().tables[0].shape.waiting_since_ms == 0


def test_tables_of_a_warehouse_that_cannot_be_served_say_why(tmp_path: Path) -> None:
    storage = LocalStorage()
    keyed_table(storage, f"{tmp_path}/a.db/sums", options={"row-tracking.enabled": "true"})
    keyed_table(storage, f"{tmp_path}/a.db/torn")
    (tmp_path / "a.db/torn/schema/schema-0").write_text("{")
    (tmp_path / "a.db/no_table").mkdir()
    (tmp_path / "other").mkdir()
    source = _source(open_catalog(str(tmp_path)))
    sums, torn = source.view().tables
    assert (shown_name(sums.name), sums.status) == ("a.sums", TableStatus.UNSUPPORTED)
    assert "row-tracking" in sums.why
    assert (shown_name(torn.name), torn.status) == ("a.torn", TableStatus.ERROR)
    assert "schema-0" in torn.why


def test_tables_that_are_dropped_and_made_are_followed(tmp_path: Path) -> None:
    storage = LocalStorage()
    keyed_table(storage, f"{tmp_path}/a.db/first")
    source = _source(open_catalog(str(tmp_path)))
    assert [shown_name(table.name) for table in source.view().tables] == ["a.first"]
    (tmp_path / "a.db/first/schema/schema-0").unlink()
    (tmp_path / "a.db/first/schema").rmdir()
    keyed_table(storage, f"{tmp_path}/a.db/second")
    assert [shown_name(table.name) for table in source.view().tables] == ["a.second"]


def test_no_warehouse_is_an_error(tmp_path: Path) -> None:
    source = _source(open_catalog(f"{tmp_path}/gone"))
    with pytest.raises(TableNotFound, match="gone"):
        source.view()


def test_a_database_that_cannot_be_listed_is_an_error() -> None:
    def fail(call: Call) -> None:
        if call.path == "/wh/a.db":
            raise AccessDenied(call.path, "list failed")

    inner = MemoryStorage()
    keyed_table(inner, "/wh/a.db/t")
    source = _source(FilesystemCatalog(HookedStorage(inner, before=fail), "/wh"))
    with pytest.raises(AccessDenied, match=r"list failed: /wh/a\.db"):
        source.view()


def _arguments(*arguments: str) -> argparse.Namespace:
    return _parser().parse_args(["top", *arguments])


def test_the_command_prints_a_frame_of_a_daemon(
    daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    assert top(_arguments("--url", daemon.url, "--once", "--width", "80")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert line_of(lines, "lake.sales.orders")
    assert max(map(len, lines)) <= 80


def test_a_frame_is_printed_as_json(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    assert top(_arguments("--url", daemon.url, "--once", "--json")) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    orders = next(table for table in found["tables"] if table["name"]["table"] == "orders")
    sent = codec.plain(daemon.view.tables[0])
    note = orders.pop("note")
    assert orders == {**sent, "need": "degraded"}
    assert note.startswith(sent["why"])
    assert found["engine"] == codec.plain(daemon.view.engine)
    assert found["trouble"] == ""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--interval", "0"], "expected 200 ms to 1 h"),
        (["--interval", "5"], "with its unit, such as 5 s or 5 min"),
        (["--interval", "nan"], "--interval 'nan': expected a duration"),
        (["--interval", "2 h"], "expected 200 ms to 1 h"),
        (["--width", "10"], "--width 10"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: list[str], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        top(_arguments("--url", "http://daemon:1", *arguments))


@pytest.mark.parametrize("arguments", [[], ["--url", "http://h", "--warehouse", "/w"]])
def test_one_thing_to_look_at_is_wanted(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        _arguments(*arguments)


_LIVE = """
import sys
from compactord.cli.command import main
main(["top", *sys.argv[1:]])
"""


def test_on_a_terminal_it_is_live_until_q_and_leaves_the_terminal_as_it_was(
    daemon: Daemon,
) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    command = [sys.executable, "-c", _LIVE, "--url", daemon.url, "--interval", "200 ms"]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        shown = _read_until(ours, "lake.sales.orders")
        daemon.view = replace(daemon.view, tables=(table_view("d.newcomer"),))
        shown += _read_until(ours, "lake.d.newcomer")
        os.write(ours, b"xq")
        assert process.wait(60) == 0
        shown += _read_until(ours, "\x1b[?1049l")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert "\x1b[?1049h" in shown


def _read_until(descriptor: int, text: str) -> str:
    shown, deadline = "", time.monotonic() + 180
    while text not in shown and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 0.2)[0]:
            shown += os.read(descriptor, 1 << 16).decode(errors="replace")
    assert text in shown
    return shown


class _Dumb(io.StringIO):
    """A terminal on which nothing can be drawn anew."""

    def isatty(self) -> bool:
        return True


def test_a_dumb_terminal_gets_plain_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    status, stop, stream = status_of(busy_night().view()), threading.Event(), _Dumb()
    threading.Timer(0.5, stop.set).start()
    run(Statuses(status), interval_s=5, once=False, stop=stop, stream=stream)
    assert "lake.sales.orders" in stream.getvalue()
