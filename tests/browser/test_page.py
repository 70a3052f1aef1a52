from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compactord.model import TableName
from compactord.service.view import TableDetail, TableStatus
from compactord.table.status import Backlog
from tests.browser.serving import Served
from tests.tools.browser import Browser
from tests.views import (
    MINUTE,
    NOW_MS,
    FixedStatus,
    bucket_detail,
    halt,
    run_view,
    service_view,
    table_view,
)

ORDERS = "/tables/lake/sales/orders"
NARROW, WIDE = 380, 1280
HOSTILE = """<script>window.pwned=1</script>"'><img src=x onerror="window.pwned=1">"""


def _overflow(page: Any) -> int:
    """By how many pixels the page is wider than its window."""
    width: int = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    return width


def _hasten(page: Any) -> None:
    """Timers of five seconds come after a tenth of one: nobody waits for a test."""
    page.add_init_script(
        "const later = setTimeout; setTimeout = (f, ms, ...a) => later(f, Math.min(ms, 100), ...a)"
    )


@pytest.mark.parametrize("path", ["/", ORDERS])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_has_no_error_and_asks_nobody_but_the_daemon(
    browser: Browser, served: Served, path: str, scheme: Any
) -> None:
    with browser.open(served.url(path), color_scheme=scheme) as tab:
        tab.page.wait_for_load_state("networkidle")
        assert tab.errors == []
        assert tab.foreign == []
        assert set(served.asked) <= {path, "/icon.svg"}


def test_the_numbers_are_there_without_javascript(browser: Browser, served: Served) -> None:
    with browser.open(served.url(), java_script_enabled=False) as tab:
        row = tab.page.get_by_role("row").filter(has_text="lake.sales.orders").first
        for number in ("9", "over stop", "64", "18.0 GiB", "5.2 GiB", "41 min"):
            assert number in row.inner_text()
        assert tab.page.get_by_text("Reload for newer numbers").is_visible()
        row.get_by_role("link").click()
        assert tab.page.get_by_role("heading", level=1).inner_text().startswith("lake.sales.orders")
        tab.page.get_by_text("The numbers").first.click()
        assert tab.page.get_by_role("cell", name="9999871").first.is_visible()


def test_a_filter_works_without_javascript(browser: Browser, served: Served) -> None:
    with browser.open(served.url(), java_script_enabled=False) as tab:
        tab.page.get_by_role("searchbox").fill("payments")
        tab.page.get_by_role("button", name="Filter").click()
        assert "1 of 16 tables: the name contains" in tab.page.inner_text("main")
        tables = tab.page.locator("#tables tbody tr")
        assert [text.split()[0] for text in tables.all_inner_texts()] == ["lake.sales.payments"]


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("has_script", [True, False])
def test_heads_sort_and_states_filter_on_any_screen(
    browser: Browser, served: Served, width: int, has_script: bool
) -> None:
    with browser.open(served.url(), width=width, java_script_enabled=has_script) as tab:
        first = tab.page.locator("#tables tbody th").first
        tab.page.locator("#tables thead").get_by_role("link", name="Table").click()
        tab.page.wait_for_url("**sort=name")
        assert first.inner_text() == "lake.crm.customers"
        tab.page.locator("#tables thead").get_by_role("link", name="Table").click()
        tab.page.wait_for_url("**sort=-name")
        assert first.inner_text() == "lake.sales.refunds"
        tab.page.get_by_role("link", name="excluded 1").click()
        tab.page.wait_for_url("**state=excluded**")
        assert tab.page.locator("#tables tbody th").all_inner_texts() == ["lake.ops.tmp_7"]
        assert "excluding_tables" in tab.page.inner_text("#tables")
        assert _overflow(tab.page) <= 0


def test_numbers_come_anew_and_scroll_details_and_focus_stay(
    browser: Browser, served: Served
) -> None:
    with browser.open() as tab:
        _hasten(tab.page)
        tab.page.goto(served.url(ORDERS))
        tab.page.get_by_text("The numbers").nth(1).click()
        tab.page.get_by_role("link", name="All tables").focus()
        tab.page.evaluate("scrollTo(0, 400)")
        served.status = _with_files(served.status, 4_711)
        tab.page.get_by_text("4,711, 12 of them small").wait_for()
        assert tab.page.evaluate("scrollY") == 400
        assert tab.page.evaluate("document.activeElement.textContent") == "All tables"
        opened = tab.page.eval_on_selector_all("details", "all => all.map(one => one.open)")
        assert opened == [False, True, False]
        assert tab.errors == []


def _with_files(status: FixedStatus, files: int) -> FixedStatus:
    name = TableName("lake", "sales", "orders")
    detail = status.details[name]
    view = replace(detail.view, shape=replace(detail.view.shape, files=files))
    return FixedStatus(status.view(), replace(detail, view=view))


def test_a_daemon_that_does_not_answer_is_said_and_comes_back(
    browser: Browser, served: Served
) -> None:
    with browser.open() as tab:
        _hasten(tab.page)
        tab.page.goto(served.url())
        served.is_up.clear()
        tab.page.get_by_text("The daemon does not answer; numbers from").wait_for()
        assert tab.page.get_by_role("link", name="lake.sales.orders").first.is_visible()
        served.is_up.set()
        tab.page.locator("#live[data-state=live]").wait_for()
        assert "does not answer" not in tab.page.inner_text("header")


def test_a_frozen_page_asks_for_nothing_until_it_goes_on(browser: Browser, served: Served) -> None:
    with browser.open() as tab:
        _hasten(tab.page)
        tab.page.goto(served.url())
        tab.page.get_by_role("button", name="Freeze page").click()
        tab.page.wait_for_timeout(300)
        served.asked.clear()
        tab.page.wait_for_timeout(500)
        assert served.asked == []
        assert "Frozen at" in tab.page.inner_text("#live")
        tab.page.get_by_role("button", name="Unfreeze page").click()
        tab.page.wait_for_timeout(300)
        assert served.asked


def test_text_that_somebody_selects_is_not_taken_away(browser: Browser, served: Served) -> None:
    with browser.open() as tab:
        _hasten(tab.page)
        tab.page.goto(served.url())
        tab.page.evaluate("getSelection().selectAllChildren(document.querySelector('.notice'))")
        tab.page.get_by_text("Waits while text is selected").wait_for()
        assert "sales.refunds" in tab.page.evaluate("String(getSelection())")
        tab.page.evaluate("getSelection().removeAllRanges()")
        tab.page.get_by_text("Live", exact=True).wait_for()


def test_hostile_names_do_nothing_and_are_shown(browser: Browser, served: Served) -> None:
    name = TableName(HOSTILE, "d", "t")
    view = replace(
        table_view(),
        name=name,
        status=TableStatus.HALTED,
        halt=halt(message=HOSTILE, action=HOSTILE),
        error=HOSTILE,
        location=HOSTILE,
    )
    bucket = bucket_detail(
        run_view(0, 1 << 20, f"{HOSTILE}..{HOSTILE}"), partition=HOSTILE, plan=HOSTILE
    )
    detail = TableDetail(view=view, buckets=(bucket,), bucket_count=1)
    served.status = FixedStatus(service_view(view), detail)
    # A name with a slash cannot be found by its path: any name leads to this table.
    served.status.detail = lambda name: detail  # type: ignore[method-assign]
    with browser.open() as tab:
        _hasten(tab.page)
        tab.page.goto(served.url())
        assert HOSTILE in tab.page.locator("#tables tbody th").inner_text()
        tab.page.locator("#tables tbody a").first.click()
        tab.page.get_by_role("heading", level=1).filter(has_text="onerror").wait_for()
        tab.page.wait_for_timeout(300)
        assert tab.page.evaluate("window.pwned") is None
        assert tab.page.locator("img").count() == 0
        assert tab.errors == []
        assert tab.foreign == []


def test_dark_is_dark_and_light_is_light(browser: Browser, served: Served) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        with browser.open(served.url(), color_scheme=scheme) as tab:
            colour = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
            grounds[scheme] = sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(",")))
    assert grounds["dark"] < 100
    assert grounds["light"] > 650


@pytest.mark.parametrize("path", ["/", ORDERS])
@pytest.mark.parametrize("width", [320, NARROW, 761, WIDE])
def test_no_width_scrolls_sideways(browser: Browser, served: Served, path: str, width: int) -> None:
    with browser.open(served.url(path), width=width) as tab:
        for summary in tab.page.get_by_text("The numbers").all():
            summary.click()
        assert _overflow(tab.page) <= 0


def test_long_names_do_not_scroll_a_narrow_screen_sideways(
    browser: Browser, served: Served
) -> None:
    served.status = FixedStatus(service_view(table_view("d." + "m" * 400)))
    with browser.open(served.url(), width=NARROW) as tab:
        assert _overflow(tab.page) <= 0


def test_a_narrow_screen_stacks_cells_with_their_titles(browser: Browser, served: Served) -> None:
    with browser.open(served.url(), width=NARROW) as tab:
        row = tab.page.get_by_role("row").filter(has_text="lake.sales.orders").first
        size = row.get_by_role("cell").filter(has_text="18.0 GiB")
        label = size.evaluate("cell => getComputedStyle(cell, '::before').content")
        assert label == '"Size"'
        box = row.bounding_box()
        assert box is not None
        assert 80 < box["height"] < 150


def test_twelve_tables_and_much_work_take_few_screens_of_a_phone(
    browser: Browser, served: Served
) -> None:
    night = served.status.shown
    due = Backlog(tasks=2, files=9, size_bytes=300 << 20, oldest_ms=NOW_MS - 9 * MINUTE)
    tables = [table_view(f"mart.daily_{n}", runs=1 + n, backlog=due) for n in range(9)]
    view = replace(
        night,
        tables=(*night.tables[:3], *tables),
        queue=night.queue[:1] * 50,
        recent=night.recent[:1] * 200,
        running=night.running[:1] * 8,
        top_buckets=night.top_buckets * 7,
    )
    served.status = FixedStatus(view, *served.status.details.values())
    with browser.open(served.url("/?sort=name"), width=390, height=844) as tab:
        assert tab.page.evaluate("document.documentElement.scrollHeight") <= 4000
        recent = tab.page.locator("#recent tbody tr")
        assert [recent.nth(n).is_visible() for n in (0, 2, 3)] == [True, True, False]
        tab.page.locator("#recent + p").get_by_role("link", name="show all").click()
        tab.page.wait_for_url("**/?sort=name&all=1")
        assert recent.nth(199).is_visible()
    with browser.open(served.url(), width=WIDE) as tab:
        assert tab.page.locator("#recent tbody tr").nth(199).is_visible()
        assert tab.page.get_by_role("link", name="show all").count() == 0


def test_a_drawing_has_a_visible_lane_for_each_run(browser: Browser, served: Served) -> None:
    runs = [len(bucket.runs) for bucket in _orders(served).buckets]
    with browser.open(served.url(ORDERS)) as tab:
        drawings = tab.page.locator("svg.lsm")
        assert [drawings.nth(at).locator("g.run").count() for at in range(3)] == runs
        tops, widths = [], []
        for lane in drawings.first.locator("g.run").all():
            box = lane.locator("rect").first.bounding_box()
            assert box is not None
            tops.append(box["y"])
            widths.append(box["width"])
        assert tops == sorted(tops)
        assert widths[-1] == max(widths) > 300
        frame, last = drawings.first.bounding_box(), tops[-1]
        assert frame is not None
        assert last < frame["y"] + frame["height"]


def _orders(served: Served) -> TableDetail:
    return served.status.details[TableName("lake", "sales", "orders")]


def test_letters_of_a_drawing_do_not_shrink_with_the_screen(
    browser: Browser, served: Served
) -> None:
    heights = []
    for width in (NARROW, WIDE):
        with browser.open(served.url(ORDERS), width=width) as tab:
            box = tab.page.locator("svg.lsm g.run text").first.bounding_box()
            assert box is not None
            heights.append(round(box["height"]))
    assert heights[0] == heights[1]


def test_everything_can_be_reached_by_keyboard(browser: Browser, served: Served) -> None:
    with browser.open(served.url()) as tab:
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.className") == "skip"
        reached = set()
        for _ in range(25):
            tab.page.keyboard.press("Tab")
            reached.add(tab.page.evaluate("document.activeElement.textContent"))
        assert {"compactord", "Freeze page", "Filter", "lake.sales.refunds"} <= reached


def test_two_thousand_tables_are_shown_in_good_time(browser: Browser, served: Served) -> None:
    served.status = FixedStatus(service_view(*(table_view(f"d.t{n}") for n in range(2000))))
    with browser.open(served.url("/?all=1")) as tab:
        assert tab.page.locator("#tables tbody tr").count() == 2000
        timing = tab.page.evaluate("performance.getEntriesByType('navigation')[0].duration")
        assert timing < 8000
