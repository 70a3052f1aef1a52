from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from typing import Any

import jinja2
import pytest
from markupsafe import Markup

from compactord.clock import iso_text
from compactord.model import CompactReason, WorkKind
from compactord.scheduler.compaction import HaltReason, PriorityClass
from compactord.service.http import PageResponse
from compactord.service.page.attention import Attention, attention_of, why_text
from compactord.service.page.overview import TABLES_SHOWN
from compactord.service.page.pages import STYLE, environment, render
from compactord.service.view import MaintenanceView, TableDetail, TableStatus
from compactord.state.rewrites import Rewrite
from compactord.table.status import Backlog, CoolingPartition, RunState, TableInfo, run_state
from compactord.text import age_text
from tests.views import (
    GIB,
    HOUR,
    MIB,
    MINUTE,
    NOW_MS,
    SECOND,
    FixedClock,
    FixedStatus,
    all_of_one,
    append_view,
    bucket_detail,
    busy_night,
    compaction_view,
    halt,
    pattern_excluded_view,
    plurals_of_one,
    run_view,
    service_view,
    table_view,
    task_view,
)

ORDERS = "/tables/lake/sales/orders"
MACROS: Any = environment().get_template("macros.html.j2").module
HOSTILE = """<script>alert(1)</script>"'><img src=x onerror=alert(2)>\u202e&amp;"""


class Reader(HTMLParser):
    """What a browser would make of a page: elements with attributes, and their text."""

    def __init__(self, response: PageResponse | None) -> None:
        super().__init__()
        assert response is not None
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[str] = []
        self.texts: list[str] = []
        self.raw: dict[str, str] = {}
        self._open: list[str] = []
        self.feed(response.body.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "link", "input", "br"}:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, "elements close in the order in which they were opened"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in {"style", "script"}:
            self.raw[self._open[-1]] = data
            return
        if data.strip():
            self.texts.append(data)
        if "tr" in self._open:
            self.rows[-1] += data + " "

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def values(self, attribute: str) -> list[str]:
        return [attrs[attribute] or "" for _, attrs in self.elements if attribute in attrs]


def page(status: FixedStatus, path: str = "/", now_ms: int = NOW_MS, **query: str) -> Reader:
    return Reader(render(status, path, query, clock=FixedClock(now_ms)))


def overview(*tables: Any, **changes: Any) -> Reader:
    return page(FixedStatus(service_view(*tables, **changes)))


def test_texts_are_escaped_in_elements_and_attributes_and_markup_is_not() -> None:
    shown = environment().from_string('<p title="{{ text }}">{{ text }}{{ markup }}</p>')
    assert shown.render(text='a < b & "c"', markup=Markup("<br>")) == (
        '<p title="a &lt; b &amp; &#34;c&#34;">a &lt; b &amp; &#34;c&#34;<br></p>'
    )
    assert shown.render(text="a\x1b\nb\u202e", markup=None) == (
        '<p title="a\\x1b\nb\\u202e">a\\x1b\nb\\u202e</p>'
    )


def test_a_name_that_a_template_does_not_have_is_an_error() -> None:
    for source in ("{{ missing }}", "{{ table.missing }}", "{% if table.missing %}{% endif %}"):
        with pytest.raises(jinja2.UndefinedError):
            environment().from_string(source).render(table=table_view())


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (-5, "0 s"),
        (59_999, "59 s"),
        (MINUTE, "1 min"),
        (95 * SECOND, "1 min 35 s"),
        (HOUR + 59 * SECOND, "1 h"),
        (26 * HOUR, "1 d 2 h"),
    ],
)
def test_ages_have_their_two_largest_units(milliseconds: int, expected: str) -> None:
    assert age_text(milliseconds) == expected


def test_times_are_distances_and_utc() -> None:
    past = MACROS.moment(NOW_MS - 3 * HOUR, NOW_MS)
    assert "3 h ago" in past
    assert 'datetime="2026-11-18T08:06:40Z"' in past
    assert "<small>2026-11-18T08:06:40Z</small>" in past
    assert "in 20 min" in MACROS.moment(NOW_MS + 20 * MINUTE, NOW_MS)
    assert "never" in MACROS.moment(0, NOW_MS)


def test_a_time_beyond_any_calendar_is_shown_as_its_number() -> None:
    assert iso_text(1 << 62) == f"{1 << 62} ms"
    assert "datetime" not in MACROS.moment(1 << 62, NOW_MS)


def test_sizes_are_short_and_exact() -> None:
    assert MACROS.size(1_572_864) == '<data value="1572864" title="1,572,864 bytes">1.5 MiB</data>'


@pytest.mark.parametrize("why", CompactReason)
def test_every_reason_says_what_it_means(why: CompactReason) -> None:
    assert why.value in MACROS.reason(why)
    assert 'title=""' not in MACROS.reason(why)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (4, RunState.IDLE),
        (5, RunState.DUE),
        (6, RunState.DUE),
        (7, RunState.NEAR_STOP),
        (8, RunState.NEAR_STOP),
        (9, RunState.OVER_STOP),
    ],
)
def test_bands_of_runs_are_those_of_the_view(runs: int, expected: RunState) -> None:
    assert run_state(runs, 5, 8) is expected


def _attention(**changes: Any) -> Attention:
    return attention_of(table_view(**changes), NOW_MS)


def test_needs_rise_with_the_runs() -> None:
    runs = (4, 5, 7, 8, 9)
    needs = [_attention(runs=count) for count in runs]
    assert needs == [
        *(
            Attention.NOTHING,
            Attention.AT_TRIGGER,
            Attention.NEAR_STOP,
            Attention.NEAR_STOP,
            Attention.OVER_STOP,
        )
    ]


def test_runs_at_the_trigger_are_not_due_while_nothing_is_picked() -> None:
    found = overview(table_view(runs=5))
    assert _attention(runs=5, backlog=Backlog(tasks=1, files=5, size_bytes=1)) is Attention.DUE
    assert "at trigger" in found.text
    assert "due" not in found.rows[-1]


def test_a_backlog_older_than_allowed_and_failures_are_late() -> None:
    old = Backlog(tasks=1, files=5, size_bytes=MIB, oldest_ms=NOW_MS - 31 * MINUTE)
    assert _attention(backlog=old) is Attention.LATE
    assert _attention(backlog=old, max_backlog_age_ms=0) is Attention.DUE
    assert _attention(backlog=replace(old, oldest_ms=NOW_MS - 29 * MINUTE)) is Attention.DUE
    assert _attention(consecutive_failures=1) is Attention.LATE


def test_what_is_left_alone_on_purpose_comes_last() -> None:
    assert _attention(runs=20, status=TableStatus.UNSUPPORTED) is Attention.UNSUPPORTED
    assert _attention(runs=20, status=TableStatus.PAUSED) is Attention.PAUSED
    assert _attention(status=TableStatus.HALTED) is Attention.HALTED
    assert _attention(status=TableStatus.ERROR) is Attention.ERROR
    assert _attention(runs=20, status=TableStatus.DEGRADED) is Attention.DEGRADED


def test_the_overview_shows_the_numbers_of_a_table() -> None:
    backlog = Backlog(tasks=3, files=61, size_bytes=5 * GIB, oldest_ms=NOW_MS - 41 * MINUTE)
    found = overview(table_view(runs=9, backlog=backlog, running_tasks=2))
    row = next(row for row in found.rows if "lake.sales.orders" in row)
    for number in (
        "active", "2 running", "9", "over stop", "trigger 5, stop 8", "64", "12 small",
        "18.0 GiB", "5.0 GiB", "3 compactions", "41 min", "1 min 35 s ago", "2026-11-18T11:05:05Z",
    ):  # fmt: skip
        assert number in row, number
    assert "5,368,709,120 bytes" in found.values("title")
    assert ORDERS in found.values("href")


def test_blocked_work_is_not_hidden_behind_an_empty_backlog() -> None:
    blocked = Backlog(tasks=3, files=61, size_bytes=5 * GIB, oldest_ms=NOW_MS - 41 * MINUTE)
    shown = table_view(status=TableStatus.HALTED, halt=halt(), blocked=blocked)
    found = overview(shown)
    assert "no other work is due" in found.text
    row = next(row for row in found.rows if "lake.sales.orders" in row)
    assert "5.0 GiB blocked" in " ".join(row.split())
    status = FixedStatus(service_view(shown), TableDetail(view=shown, buckets=(), bucket_count=1))
    of_table = " ".join(page(status, ORDERS).text.split())
    assert "quarantine 3 compactions, 5.0 GiB , oldest has waited 41 min" in of_table


@pytest.mark.parametrize("count", [4, 40])
def test_a_long_drawing_can_be_opened_where_it_is_cut(count: int) -> None:
    shown = table_view(runs=count)
    runs = [run_view(0, MIB, f"{n}..{n + 9}") for n in range(count)]
    detail = TableDetail(view=shown, buckets=(bucket_detail(*runs),), bucket_count=1)
    found = page(FixedStatus(service_view(shown), detail), ORDERS)
    assert ("All 40 sorted runs" in found.text) == (count == 40)
    assert ("whole-0" in found.values("id")) == (count == 40)


def test_an_append_table_has_no_runs() -> None:
    row = next(row for row in overview(append_view()).rows if "logs.clicks" in row)
    assert "append: no runs" in row
    assert "trigger" not in row


def test_tables_come_by_trouble_then_by_backlog() -> None:
    pending = Backlog(tasks=1, files=5, size_bytes=MIB, oldest_ms=NOW_MS)
    found = overview(
        table_view("d.calm"),
        table_view("d.off", status=TableStatus.UNSUPPORTED, halt=halt()),
        table_view("d.small", backlog=pending),
        table_view("d.large", backlog=replace(pending, size_bytes=GIB)),
        table_view("d.over", runs=9),
        table_view("d.halted", status=TableStatus.HALTED, halt=halt()),
    )
    rows = [row.split()[0] for row in found.rows if row.startswith("lake.")]
    assert rows == [f"lake.d.{n}" for n in ("halted", "over", "large", "small", "calm", "off")]


def test_halted_tables_say_why_and_what_to_do() -> None:
    stopped = halt(HaltReason.CORRUPT_METADATA, message="not an Avro file", action="restore it")
    found = overview(table_view(status=TableStatus.HALTED, halt=stopped))
    for text in ("not an Avro file", "restore it", "corrupt_metadata", "3 h ago", "in 20 min"):
        assert text in found.text
    assert "1 needs attention" in found.text


def test_an_attempt_that_is_overdue_is_not_one_of_the_past() -> None:
    late = NOW_MS - 10 * MINUTE
    (failed,) = busy_night().shown.tables[0].quarantined
    shown = table_view(
        status=TableStatus.HALTED,
        halt=halt(HaltReason.REPEATED_FAILURES, next_try_ms=late),
        quarantined=(replace(failed, until_ms=late),),
        quarantined_count=1,
    )
    status = FixedStatus(service_view(shown), TableDetail(view=shown, buckets=(), bucket_count=1))
    for found in (page(status), page(status, "/tables/lake/sales/orders")):
        assert "next attempt as soon as a slot is free" in " ".join(found.text.split())
        assert "10 min ago" not in found.text


@pytest.mark.parametrize("status", [TableStatus.HALTED, TableStatus.ERROR, TableStatus.PAUSED])
def test_a_table_has_one_notice(status: TableStatus) -> None:
    (failed,) = busy_night().shown.tables[0].quarantined
    shown = table_view(
        status=status,
        why="for a reason",
        halt=halt(message="for a reason") if status is TableStatus.HALTED else None,
        error="for a reason" if status is TableStatus.ERROR else "",
        quarantined=(failed,),
        quarantined_count=1,
    )
    found = overview(shown)
    notices = [attrs for tag, attrs in found.elements if tag == "li"]
    assert len(notices) == 1
    assert "for a reason" in found.text


def test_a_table_that_cannot_be_read_and_a_quarantined_bucket_say_why() -> None:
    night = busy_night().shown.tables[0]
    found = overview(night, table_view("d.t", status=TableStatus.ERROR, error="no such folder"))
    assert "no such folder What to do: If it lasts, correct what" in " ".join(found.text.split())
    assert "/runbooks/CompactordTableNotPolled" in found.values("href")
    assert "degraded dt=2026-11-17 bucket 5: data-2f1c.parquet" in found.text
    assert "What to do: Restore the file." in " ".join(found.text.split())
    assert "corrupt page header" in found.text
    assert "in 14 min" in found.text


def test_a_paused_table_with_a_quarantined_bucket_says_both_and_promises_no_attempt() -> None:
    (failed,) = busy_night().shown.tables[0].quarantined
    why = f"by rules.0.set.mode; bucket 5: {failed.message}"
    shown = table_view(
        status=TableStatus.PAUSED, why=why, quarantined=(failed,), quarantined_count=1
    )
    assert why_text(shown, NOW_MS) == f"{why}. What to do: {failed.action}"
    found = overview(shown)
    assert f"paused {why} What to do: {failed.action}" in " ".join(found.text.split())
    assert "/runbooks/CompactordBucketsQuarantined" in found.values("href")
    assert "next attempt" not in found.text


def test_the_page_of_a_table_says_what_maintenance_did_and_whether_it_still_does() -> None:
    rounds = {
        "snapshots": MaintenanceView(
            began_ms=NOW_MS - 2 * MINUTE,
            succeeded_ms=NOW_MS - 2 * MINUTE,
            counts={"expired_snapshots": 3, "expired_files": 1_200},
        ),
        "tags": MaintenanceView(began_ms=NOW_MS - MINUTE, succeeded_ms=NOW_MS - 3 * MINUTE),
        "done": MaintenanceView(began_ms=NOW_MS - SECOND, why_not="denied <b>"),
    }
    shown = table_view("d.t", maintenance=rounds)
    status = FixedStatus(service_view(shown), TableDetail(view=shown, buckets=(), bucket_count=1))
    found = re.sub(r"\s*\S+Z |\s+", " ", page(status, "/tables/lake/d/t").text)
    assert "last round 2 min ago expired files: 1,200 expired snapshots: 3" in found
    assert "last round 1 min ago last success 3 min ago" in found
    assert "last round 1 s ago none succeeded ended early: denied <b>" in found


def test_a_damaged_bucket_waits_for_other_files_not_for_a_time() -> None:
    (failed,) = busy_night().shown.tables[0].quarantined
    damaged = replace(failed, message="key range overlaps", until_ms=0)
    shown = table_view("d.t", quarantined=(damaged,), quarantined_count=1)
    status = FixedStatus(service_view(shown), TableDetail(view=shown, buckets=(), bucket_count=1))
    for found in (page(status), page(status, "/tables/lake/d/t")):
        assert "key range overlaps" in found.text
        assert "when its files change" in found.text


@pytest.mark.parametrize(
    ("listed_ms", "expected"),
    [
        (NOW_MS - HOUR, "Catalog lake cannot be listed. denied What to do: Correct what the error"),
        (
            0,
            "Catalog lake cannot be listed, so none of its tables is compacted. "
            "never listed since the start: denied What to do",
        ),
    ],
)
def test_only_a_catalog_that_was_listed_has_known_tables(listed_ms: int, expected: str) -> None:
    view = service_view(table_view())
    broken = replace(view.catalogs[0], error="denied", last_success_ms=listed_ms)
    found = " ".join(page(FixedStatus(replace(view, catalogs=(broken,)))).text.split())
    assert expected in found
    assert ("Known tables are still compacted" in found) == (listed_ms > 0)


def test_old_numbers_lead_to_a_runbook() -> None:
    calm = service_view(table_view())
    view = replace(calm, now_ms=NOW_MS - HOUR, steady_ms=calm.steady_ms - HOUR)
    found = page(FixedStatus(view))
    assert "These numbers are 1 h old" in found.text
    assert "/runbooks/CompactordLoopStalled" in found.values("href")


def test_the_page_of_a_table_says_what_to_do_about_each_quarantined_bucket() -> None:
    (first,) = busy_night().shown.tables[0].quarantined
    second = replace(first, bucket=6, action="Make room.")
    shown = table_view(quarantined=(first, second), quarantined_count=2)
    status = FixedStatus(service_view(shown), TableDetail(view=shown, buckets=(), bucket_count=1))
    rows = " ".join(" ".join(page(status, ORDERS).rows).split())
    assert "What to do" in rows
    assert "Restore the file." in rows
    assert "Make room." in rows


def test_a_calm_service_is_well() -> None:
    found = overview(table_view())
    assert "all well" in found.text
    assert not [attrs for _, attrs in found.elements if "notice" in (attrs.get("class") or "")]
    assert "compactord" in found.texts


def test_paused_tables_are_said_beside_all_others_that_are_well() -> None:
    due = Backlog(tasks=4, files=9, size_bytes=3 * GIB, oldest_ms=NOW_MS - 9 * HOUR)
    why = "by rules.0.set.mode (c.yaml:31)"
    paused = table_view("d.off", runs=20, backlog=due, status=TableStatus.PAUSED, why=why)
    found = overview(table_view(), paused)
    assert "1 paused, otherwise well" in found.text
    assert "all well" not in found.text
    assert "no work is due" in found.text, "a paused table has no backlog that waits"
    assert sum(why in row for row in found.rows) == 1
    assert "1 needs attention" in overview(paused, table_view("d.t", runs=20)).text


def test_excluded_tables_are_in_the_list_with_why_and_no_numbers() -> None:
    excluded = pattern_excluded_view("d.tmp")
    beside = table_view("d.beside", status=TableStatus.EXCLUDED, why="not write-only; x")
    found = overview(table_view(), excluded, beside)
    (row,) = [row for row in found.rows if "lake.d.tmp" in row]
    assert row.split() == ["lake.d.tmp", "excluded", *excluded.why.split(), *"–" * 7]
    assert any("not write-only; x" in row for row in found.rows)
    assert "all well" in found.text
    assert "2 excluded" in found.text
    status = FixedStatus(
        service_view(excluded), TableDetail(view=excluded, buckets=(), bucket_count=0)
    )
    found = page(status, "/tables/lake/d/tmp")
    assert excluded.why in found.text
    assert "Its files have not been read." in found.text
    assert "Priority" not in found.text


@pytest.mark.parametrize(
    ("info", "shown"),
    [
        (table_view().info, "primary-key: not read"),
        (append_view().info, "append-unaware: not read"),
        (TableInfo(), "–"),
    ],
)
def test_a_table_that_was_never_read_is_what_it_is_and_has_no_runs(
    info: TableInfo, shown: str
) -> None:
    halted = table_view(
        "d.t", status=TableStatus.UNSUPPORTED, halt=halt(), info=info, first_poll_ms=0
    )
    (row,) = [row for row in overview(halted).rows if "lake.d.t" in row]
    assert f"unsupported  {shown}" in row.replace("unsupported ", "unsupported  ")
    assert "no runs" not in row


def test_an_engine_without_an_error_is_starting_not_down() -> None:
    view = service_view(table_view(), is_started=False)
    starting = replace(view, engine=replace(view.engine, is_up=False, error=""))
    found = page(FixedStatus(starting))
    assert "starting" in found.texts
    assert "down" not in found.texts
    failed = replace(starting, engine=replace(starting.engine, error="no Java"))
    assert "down" in page(FixedStatus(failed)).texts


@pytest.mark.parametrize("kind", WorkKind)
def test_every_kind_says_what_it_does(kind: WorkKind) -> None:
    assert "title=" in MACROS.work_kind(kind)


@pytest.mark.parametrize("urgency", PriorityClass)
def test_every_class_says_what_is_in_it(urgency: PriorityClass) -> None:
    assert "title=" in MACROS.priority_class(urgency)


def test_a_table_that_was_never_compacted_has_no_last_success() -> None:
    table = table_view("d.t", last_success_ms={})
    status = FixedStatus(service_view(table), TableDetail(view=table, buckets=(), bucket_count=16))
    text = page(status, "/tables/lake/d/t").text
    assert "Last success never" in text
    assert "Last success: minor" not in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine": {"is_up": False, "error": "py4j is gone"}}, "py4j is gone"),
        ({"config": {"last_reload_successful": False, "error": "line 3"}}, "line 3"),
        ({"is_draining": True}, "draining"),
        ({"is_started": False}, "starting"),
        ({"catalogs": {"error": "permission denied"}}, "permission denied"),
        ({"loops": {"heartbeat_ms": NOW_MS - 31 * SECOND}}, "has been silent for 31 s"),
    ],
)
def test_what_is_wrong_with_the_service_is_said(changes: dict[str, Any], expected: str) -> None:
    view = service_view(table_view())
    for name, change in changes.items():
        part = getattr(view, name)
        if isinstance(part, tuple):
            change = (replace(part[0], **change),)
        elif is_dataclass(part):
            change = replace(part, **change)  # type: ignore[type-var]
        view = replace(view, **{name: change})
    found = page(FixedStatus(view))
    assert expected in found.text
    assert "all well" not in found.text


def test_settings_that_wait_for_a_restart_are_named_although_all_is_well() -> None:
    view = service_view(table_view())
    found = page(
        FixedStatus(replace(view, config=replace(view.config, restart_required=("spark.master",))))
    )
    assert "spark.master" in found.text
    assert "all well" in found.text


def test_patterns_that_match_no_table_are_named_although_all_is_well() -> None:
    pattern = r"rules.2.match.table (c.yaml:7) is a\.tmp_.*"
    found = page(FixedStatus(service_view(table_view(), unmatched_patterns=(pattern,))))
    assert pattern in found.text
    assert "all well" in found.text


def test_a_view_that_nobody_renews_is_said_to_be_old() -> None:
    loops = tuple(replace(loop, stale_after_ms=HOUR) for loop in service_view().loops)
    status = FixedStatus(service_view(table_view(), loops=loops))
    assert "old: the service" not in page(status, now_ms=NOW_MS + 5 * SECOND).text
    assert "5 min old: the service" in page(status, now_ms=NOW_MS + 5 * MINUTE).text


def test_work_is_shown_with_reasons_progress_and_what_came_of_it() -> None:
    found = page(busy_night())
    for text in (
        "2 of 5 subcompactions", "size_ratio", "append_pack",
        "waiting in total: 2  forced , 3  benefit",
        "700 MiB", "512 MiB", "4,100,000 → 3,020,117", "12.4 s", "snapshot 811", "4 upgraded",
        "data-77ab.parquet is no longer live: another writer compacted this bucket",
    ):  # fmt: skip
        assert text in found.text, text


def test_only_the_neediest_tables_are_shown_until_all_are_asked_for() -> None:
    tables = [table_view(f"d.t{n:03}") for n in range(TABLES_SHOWN + 30)]
    status = FixedStatus(service_view(*tables, table_view("d.needy", runs=9)))
    first, everything = page(status), page(status, all="1")
    assert sum(row.startswith("lake.d") for row in first.rows) == TABLES_SHOWN
    assert first.rows[1].startswith("lake.d.needy")
    assert "31 more tables are less urgent" in first.text
    assert "1 more table is less urgent" in overview(*tables[:201]).text
    assert "/?all=1" in first.values("href")
    assert sum(row.startswith("lake.d") for row in everything.rows) == TABLES_SHOWN + 31
    assert "more tables are less urgent" not in everything.text


def test_a_filter_is_a_plain_part_of_the_name_and_holds_for_work_too() -> None:
    found = page(busy_night(), q="SALES.")
    names = {row.split()[0] for row in found.rows if row.startswith("lake.")}
    assert names == {"lake.sales.orders", "lake.sales.payments", "lake.sales.refunds"}
    assert "3 of 16 tables: the name contains" in found.text
    assert "SALES." in found.values("value")
    assert not [row for row in page(busy_night(), q=".*").rows if row.startswith("lake.")]


def test_the_numbers_at_the_top_and_of_the_queue_are_those_of_the_tables_shown() -> None:
    def tile(found: Reader, name: str) -> str:
        text = found.text[found.text.index("Engine") : found.text.index("Uptime")]
        return text.partition(f" {name} ")[2]

    whole, clicks = page(busy_night()), page(busy_night(), q="clicks", state="active")
    for name, of_all, of_some in (
        ("Tables", "16 11 active", "1 of 16 1 active Queue"),
        ("Queue", "5 compactions wait", "1 compaction waits"),
        ("Backlog", "6.4 GiB oldest has waited 41 min", "940 MiB oldest has waited 3 min"),
    ):
        assert tile(whole, name).startswith(of_all), name
        assert tile(clicks, name).startswith(of_some), name
    assert tile(whole, "Blocked").startswith("2.7 GiB 5 compactions of halted tables")
    assert "Blocked" not in clicks.text
    assert "waiting in total: 1  benefit" in clicks.text
    assert "waiting in total: 2  forced , 2  benefit" in page(busy_night(), ORDERS).text


def test_a_filter_goes_along_when_all_tables_are_asked_for() -> None:
    status = FixedStatus(service_view(*(table_view(f"d.t{n}") for n in range(300))))
    assert "/?q=d.t%26+x&all=1" not in page(status, q="t").values("href")
    assert "/?q=t&all=1" in page(status, q="t").values("href")


def test_the_page_of_a_table_has_facts_warnings_counters_and_its_own_work() -> None:
    found = page(busy_night(), ORDERS)
    for text in (
        "/data/wh/sales.db/orders", "deduplicate", "5 sorted runs", "8 sorted runs",
        "snapshot.num-retained.min is smaller", "Compactions, minor: committed", "812",
        "Conflicts: snapshot race", "812 GiB", "corrupt page header", "91,000,000",
        "The worst 3 of 48 buckets", "size_ratio: rewrite 8 files",
    ):  # fmt: skip
        assert text in found.text, text
    assert not [row for row in found.rows if "logs.clicks" in row]


def test_the_page_of_a_table_names_who_rewrites_it_and_which_partitions_are_skipped() -> None:
    rewrite = Rewrite(snapshot_id=9, commit_user=HOSTILE, operation="MERGE", time_ms=NOW_MS - HOUR)
    day = CoolingPartition(partition="dt=a", rewrite=rewrite, until_ms=NOW_MS + HOUR)
    view = append_view()
    calm = FixedStatus(service_view(view), TableDetail(view=view, buckets=(), bucket_count=0))
    info = replace(view.info, rewrite=rewrite)
    view = replace(view, info=info, resting=(day, replace(day, partition="")), resting_count=7)
    status = FixedStatus(service_view(view), TableDetail(view=view, buckets=(), bucket_count=0))
    path = "/tables/lake/logs/clicks"
    assert "rewritten by" not in page(calm, path).text
    found = page(status, path)
    assert "in snapshot 9 (MERGE)" in found.text
    assert "quiet_for makes compactord skip" in found.text
    assert "2 of 7" in found.text
    rows = [row for row in found.rows if "(MERGE)" in row]
    assert [row.split(" rewritten by ")[0] for row in rows] == ["dt=a", "the whole table"]
    assert all("in 1 h" in row for row in rows)


def test_paths_lead_to_pages_or_to_none() -> None:
    status = busy_night()
    clock = FixedClock()
    assert render(status, "/nothing", {}, clock=clock) is None
    assert render(status, "/tables/lake/sales", {}, clock=clock) is None
    assert render(status, "/tables/lake//orders", {}, clock=clock) is None
    missing = render(status, "/tables/lake/sales/<b>", {}, clock=clock)
    assert missing is not None
    assert missing.status == 404
    assert b"<b>" not in missing.body
    icon = render(status, "/icon.svg", {}, clock=clock)
    assert icon is not None
    assert icon.content_type == "image/svg+xml"


def test_a_table_whose_name_holds_anything_has_a_page_that_its_link_leads_to() -> None:
    view = table_view()
    view = replace(view, name=replace_name(view.name, table="a b/c?d#e%2f"))
    status = FixedStatus(service_view(view), TableDetail(view=view, buckets=(), bucket_count=0))
    href = next(h for h in page(status).values("href") if h.startswith("/tables"))
    assert href == "/tables/lake/sales/a%20b%2Fc%3Fd%23e%252f"
    assert "No bucket has files." in page(status, "/tables/lake/sales/a b/c?d#e%2f").text


def replace_name(name: Any, **parts: str) -> Any:
    return name._replace(**parts)


def _poisoned(value: Any) -> Any:
    """The same with every text hostile."""
    if isinstance(value, str):
        return HOSTILE
    if is_dataclass(value) and not isinstance(value, type):
        changes = {f.name: _poisoned(getattr(value, f.name)) for f in fields(value)}
        return replace(value, **changes)
    if isinstance(value, tuple):
        items = [_poisoned(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value


@pytest.mark.parametrize("path", ["/", "/tables/" + "/".join([HOSTILE] * 3)])
def test_hostile_texts_are_only_texts(path: str) -> None:
    night = busy_night()
    detail = _poisoned(night.details[night.shown.tables[0].name])
    # Names hold slashes here, so the details are found by any name.
    status = FixedStatus(_poisoned(night.shown))
    status.detail = lambda name: detail  # type: ignore[method-assign]
    found = page(status, path, q=HOSTILE[:20])
    tags = Counter(tag for tag, _ in found.elements)
    assert tags["script"] == tags["style"] == 1
    assert tags["img"] == 0
    attributes = {name for _, attrs in found.elements for name in attrs}
    assert not [name for name in attributes if name.startswith("on")]
    assert not [h for h in found.values("href") if not h.startswith(("/", "#"))]
    assert HOSTILE.replace("\u202e", r"\u202e") in found.texts
    shown = [value or "" for _, attrs in found.elements for value in attrs.values()]
    assert "\u202e" not in "".join((found.text, *shown))


@pytest.mark.parametrize("path", ["/", ORDERS])
def test_what_is_there_once_is_not_called_many(path: str) -> None:
    found = page(all_of_one(), path, q="orders")
    assert not plurals_of_one(" ".join((found.text, *found.values("title"))))


def test_half_a_surrogate_pair_in_a_name_does_not_take_the_page_down() -> None:
    view = table_view("d.\udc80")
    assert r"lake.d.\udc80" in page(FixedStatus(service_view(view))).text


@pytest.mark.parametrize("path", ["/", ORDERS])
def test_a_page_is_well_formed_with_ids_of_their_own_and_labelled_tables(path: str) -> None:
    found = page(busy_night(), path)
    identities = found.values("id")
    assert len(identities) == len(set(identities))
    assert set(found.values("aria-labelledby")) <= set(identities)
    tags = Counter(tag for tag, _ in found.elements)
    assert tags["table"] == tags["caption"] == tags["thead"]
    assert tags["h1"] == tags["main"] == 1
    assert all("scope" in attrs for tag, attrs in found.elements if tag == "th")
    assert "style" not in {name for _, attrs in found.elements for name in attrs}


@pytest.mark.parametrize("path", ["/", ORDERS])
def test_the_policy_lets_only_the_pages_own_style_and_script_run(path: str) -> None:
    response = render(busy_night(), path, {}, clock=FixedClock())
    assert response is not None
    found = Reader(response)
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(found.raw[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in response.security_policy
    assert "unsafe" not in response.security_policy
    assert "default-src 'none'" in response.security_policy
    links = [*found.values("href"), *found.values("src"), *found.values("action")]
    assert [link for link in links if not link.startswith(("/", "#"))] == []


def _luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _contrast(first: str, second: str) -> float:
    low, high = sorted((_luminance(first), _luminance(second)))
    return (high + 0.05) / (low + 0.05)


def _themes() -> Iterator[tuple[str, dict[str, str]]]:
    light, dark = re.findall(r":root \{([^}]*)\}", STYLE)
    for name, text in (("light", light), ("dark", dark)):
        yield name, dict(re.findall(r"--([\w-]+):\s*(#\w+)", text))


@pytest.mark.parametrize(("theme", "colours"), list(_themes()), ids=["light", "dark"])
def test_contrast_is_that_of_wcag_aa(theme: str, colours: dict[str, str]) -> None:
    texts = [(ink, ground) for ink in ("ink", "quiet", "link") for ground in ("ground", "card")]
    texts += [(f"{k}-ink", f"{k}-ground") for k in ("ok", "warn", "bad", "plain")]
    # Marks inside notices, and the names of triggers in drawings.
    texts += [(f"{k}-ink", "card") for k in ("ok", "warn", "bad", "plain")]
    for ink, ground in texts:
        assert _contrast(colours[ink], colours[ground]) >= 4.5, (theme, ink, ground)
    for shape in ("ok", "due", "near", "over", "level0", "level", "top", "span"):
        assert _contrast(colours[shape], colours["card"]) >= 3, (theme, shape)


def test_queue_and_recent_of_a_table_are_its_own() -> None:
    view = table_view()
    status = FixedStatus(
        service_view(
            view,
            queue=(task_view("x.y", started_ms=0), task_view(bucket=77, started_ms=0)),
            recent=(compaction_view("x.y"), compaction_view(bucket=78)),
        ),
        TableDetail(view=view, buckets=(), bucket_count=0),
    )
    found = page(status, ORDERS)
    assert "bucket 77" in found.text
    assert "bucket 78" in found.text
    assert "lake.x.y" not in found.text
