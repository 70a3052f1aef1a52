from __future__ import annotations

import pytest

from compactord.scheduler.compaction import HaltReason
from compactord.service.metrics import OwnSeries
from compactord.service.view import TableStatus, TableView
from compactord.table.status import Backlog
from tests.views import NOW_MS, halt, pattern_excluded_view, service_view, table_view


def table(name: str, *, backlog_bytes: int = 0, **changes: object) -> TableView:
    return table_view(f"d.{name}", backlog=Backlog(size_bytes=backlog_bytes), **changes)


def own(series: OwnSeries, *tables: TableView) -> set[str]:
    chosen, others = series.choose(service_view(*tables))
    assert others == len(tables) - len(chosen)
    return {each.name.table for each in chosen}


def test_within_the_limit_every_table_has_its_own() -> None:
    assert own(OwnSeries(2), table("a"), table("b")) == {"a", "b"}


def test_the_smallest_backlogs_have_none() -> None:
    tables = (table("a", backlog_bytes=5), table("b", backlog_bytes=50), table("c"))
    assert own(OwnSeries(1), *tables) == {"b"}
    assert own(OwnSeries(2), *tables) == {"a", "b"}


@pytest.mark.parametrize(
    "needy",
    [
        pytest.param(
            table("z", status=TableStatus.HALTED, halt=halt(HaltReason.CORRUPT_METADATA)),
            id="halted",
        ),
        pytest.param(table("z", status=TableStatus.ERROR, error="no answer"), id="error"),
        pytest.param(table("z", runs=9), id="over its stop trigger"),
        pytest.param(table("z", status=TableStatus.DEGRADED, why="corrupt"), id="degraded"),
        pytest.param(table("z", consecutive_failures=1), id="fails"),
        pytest.param(
            table_view("d.z", backlog=Backlog(tasks=1, oldest_ms=NOW_MS - 31 * 60_000)),
            id="late",
        ),
        pytest.param(table("z", runs=7), id="near its stop trigger"),
    ],
)
def test_a_table_that_an_alert_may_name_comes_first(needy: TableView) -> None:
    series = OwnSeries(1)
    assert own(series, table("a", backlog_bytes=5)) == {"a"}
    assert own(series, table("a", backlog_bytes=5), needy) == {"z"}


def test_a_table_keeps_its_series_until_another_needs_them_much_more() -> None:
    series = OwnSeries(1)
    assert own(series, table("a", backlog_bytes=10), table("b")) == {"a"}
    assert own(series, table("a", backlog_bytes=10), table("b", backlog_bytes=15)) == {"a"}
    assert own(series, table("a", backlog_bytes=10), table("b", backlog_bytes=25)) == {"b"}


def test_idle_tables_keep_their_places() -> None:
    series = OwnSeries(1)
    assert own(series, table("b", backlog_bytes=1), table("a")) == {"b"}
    assert own(series, table("b"), table("a")) == {"b"}


def test_excluded_tables_take_the_room_that_is_left() -> None:
    excluded = [pattern_excluded_view(f"d.tmp_{n}") for n in range(5)]
    chosen, others = OwnSeries(3).choose(service_view(*excluded, table("a")))
    assert [each.name.table for each in chosen] == ["a", "tmp_0", "tmp_1"]
    assert others == 0
