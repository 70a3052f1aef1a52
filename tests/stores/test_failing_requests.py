"""Any request of a compaction fails, in any way: nothing is lost, the next run heals the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from compactord.table.jobs import CompactTotals
from tests import builders
from tests.builders import FIRST
from tests.sampling import CutPoints
from tests.store_servers import StoreServer
from tests.stores.trials import Trials, each_once
from tests.tools.store_faults import Decide, Fault, How, Request, from_nth
from tests.tools.store_proxy import StoreProxy


@pytest.fixture(scope="module")
def trials(s3_server: StoreServer) -> Iterator[Trials]:
    with StoreProxy(("127.0.0.1", s3_server.port)) as proxy:
        yield Trials(s3_server, proxy)


def _anything(request: Request) -> bool:
    return True


def _mutation(request: Request) -> bool:
    return request.is_mutation


def _mutation_or_some_read(request: Request) -> bool:
    return request.is_mutation or request.number % 10 == 0


# A read that failed is the same whether it failed before or after its effect. What hangs, takes
# time.
_CASES = [
    (Fault(how=How.CLOSE), _anything),
    (Fault(how=How.CLOSE, after=True), _mutation),
    (Fault(how=How.HALF), _anything),
    (Fault(how=How.ANSWER, status=503), _anything),
    (Fault(how=How.ANSWER, status=503, after=True), _mutation),
    (Fault(how=How.ANSWER, status=429), _anything),
    (Fault(how=How.ANSWER, status=500, after=True), _anything),
    (Fault(how=How.HANG), _mutation_or_some_read),
    (Fault(how=How.HANG, after=True), _mutation),
]


@pytest.mark.parametrize(("fault", "concerns"), _CASES, ids=[str(fault) for fault, _ in _CASES])
def test_a_request_that_fails_once_costs_nothing(
    trials: Trials, cut_points: CutPoints, fault: Fault, concerns: Callable[[Request], bool]
) -> None:
    """All requests of a compaction and its commit fail, each once: all in one run.

    In a second run every third does.
    """
    hit = 0
    for stride, at in ((1, 0), *((3, place) for place in cut_points.of(range(3), 3))):
        table = trials.copy()
        decide = each_once(fault, stride=stride, at=at, concerns=concerns)
        totals = trials.compact(table, decide, timeout_s=0.5 if fault.how is How.HANG else 30)
        what = f"{fault}, every {stride}th from {at} on"
        assert isinstance(totals, CompactTotals), (what, totals)
        assert (totals.failures, totals.snapshots) == ([], [trials.next_snapshot]), what
        assert totals.lost_snapshots == [], what
        hit += len(trials.failed)
        trials.check_whole(table, what)
        assert builders.leftovers(trials.direct, table, [FIRST]) == set(), what
    assert hit >= (40 if concerns is _anything else 7)


def test_a_store_that_denies_everything_from_some_request_on_loses_nothing(
    trials: Trials, cut_points: CutPoints
) -> None:
    """Every eighth request."""
    outcomes = set()
    for number in cut_points(8):
        fault = from_nth(number, Fault(how=How.ANSWER, status=403))
        outcomes.add(_cut_short(trials, fault))
        if not trials.failed:
            break
    assert outcomes == {False, True}
    assert number > 40, "the faults reached the whole run"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_store_that_is_lost_at_some_change_loses_nothing(
    trials: Trials, cut_points: CutPoints, after: bool
) -> None:
    """The request and all that follow get no answer; its effect is there or not.

    Every third request.
    """
    outcomes = set()
    for number in cut_points(3):
        fault = _lost_at_change(number, Fault(how=How.CLOSE, after=after))
        outcomes.add(_cut_short(trials, fault))
        if not trials.failed:
            break
    assert outcomes == {False, True}
    assert number > 6, "the faults reached the whole run"


def _cut_short(trials: Trials, decide: Decide) -> bool:
    """One trial of a run that gives up at once, and its healing; whether it had published."""
    table = trials.copy()
    totals = trials.compact(table, decide, attempts=1)
    what = str(trials.failed[:1])
    trials.check_whole(table, what)
    if trials.has_changed:
        trials.check_healed(table, what)
    return isinstance(totals, CompactTotals) and bool(totals.snapshots)


def _lost_at_change(number: int, fault: Fault) -> Decide:
    reaches = from_nth(number, fault, _mutation)
    is_lost = False

    def decide(request: Request) -> Fault | None:
        nonlocal is_lost
        is_lost = is_lost or reaches(request) is not None
        return fault if is_lost else None

    return decide
