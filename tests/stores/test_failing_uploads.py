"""Outputs of several parts: any request of their upload fails, or their process is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactord import ids
from compactord.ids import owner_of
from compactord.paimon.schema import TableRef
from compactord.plan.table import Strategy
from compactord.table.jobs import CompactTotals
from tests import builders
from tests.builders import FIRST, SECOND, WRITER
from tests.sampling import CutPoints
from tests.store_servers import StoreServer
from tests.stores.trials import LargeTrials, each_once
from tests.tools.store_faults import Fault, How, Request, from_nth, nth
from tests.tools.store_proxy import StoreProxy

REPOSITORY = Path(__file__).parent.parent.parent
_KINDS = ("start_upload", "upload_part", "complete_upload")


@pytest.fixture(scope="module")
def trials(started: Callable[[str], StoreServer]) -> Iterator[LargeTrials]:
    moto = started("moto")
    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        yield LargeTrials(moto, proxy)


def _of_upload(request: Request) -> bool:
    return request.kind in _KINDS


_ONCE = [
    Fault(how=How.CLOSE),
    Fault(how=How.CLOSE, after=True),
    Fault(how=How.HALF),
    Fault(how=How.ANSWER, status=503),
    Fault(how=How.ANSWER, status=500, after=True),
    Fault(how=How.ANSWER, status=200),
    Fault(how=How.ANSWER, status=200, after=True),
]


@pytest.mark.parametrize("fault", _ONCE, ids=str)
def test_a_request_of_an_upload_that_fails_once_costs_nothing(
    trials: LargeTrials, fault: Fault
) -> None:
    def concerns(request: Request) -> bool:
        # Only the end of an upload is answered with 200 before it is known how it ends.
        return request.kind == "complete_upload" if fault.status == 200 else _of_upload(request)

    table = trials.copy()
    totals = trials.compact(table, each_once(fault, stride=1, at=0, concerns=concerns))
    assert isinstance(totals, CompactTotals)
    assert (totals.failures, totals.snapshots) == ([], [trials.next_snapshot])
    assert {request.kind for request in trials.failed} == (
        {"complete_upload"} if fault.status == 200 else {*_KINDS}
    )
    trials.check_whole(table, str(fault))
    assert builders.leftovers(trials.direct, table, [FIRST]) == set()
    # Nobody knows of an upload that was begun by a request without an answer.
    has_effect = fault.after or fault.how is How.HALF
    is_unknown = has_effect and "start_upload" in {request.kind for request in trials.failed}
    assert len(trials.unfinished(table)) == is_unknown
    builders.remove_leftovers(trials.direct, table, myself=SECOND)
    assert trials.unfinished(table) == []
    trials.check_whole(table, "swept")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        *((Fault(how=How.ANSWER, status=403), kind) for kind in _KINDS),
        (Fault(how=How.CLOSE, after=True), "complete_upload"),
    ],
    ids=str,
)
def test_an_upload_that_cannot_go_on_leaves_nothing_and_the_next_run_heals(
    trials: LargeTrials, fault: Fault, kind: str
) -> None:
    table = trials.copy()
    trials.compact(table, from_nth(1, fault, lambda request: request.kind == kind), attempts=2)
    assert trials.failed
    trials.check_whole(table, kind)
    trials.check_healed(table, kind)


def test_what_a_process_leaves_that_is_killed_at_any_request_is_swept(
    trials: LargeTrials, cut_points: CutPoints
) -> None:
    """It is killed before every third request that changes something, and after some.

    Before three in a row an upload is unfinished.
    """
    left = set()
    with _victims(trials.proxy.port) as victims:
        for after in (False, True):
            for number in cut_points(1 if after else 3):
                fault = Fault(how=How.HANG, after=after)
                hang = nth(number, fault, _ends_something if after else _changes)
                table = trials.copy()
                failed = _kill_at(trials, victims, table, hang)
                what = f"killed {'after' if after else 'before'} {failed}"
                trials.check_whole(table, what)
                uploads, files = trials.unfinished(table), _left(trials, table)
                removed = builders.sweep_later(trials.direct, table.location)
                assert {orphan.name for orphan in removed} == files | {
                    path.rpartition("/")[2] for path in uploads
                }, what
                left |= {"upload" for _ in uploads} | {"file" for _ in files}
                assert trials.unfinished(table) == [], what
                assert _left(trials, table) == set(), what
                totals = builders.compact(
                    trials.direct, table, owner=ids.this_process(), strategy=Strategy.FULL
                )
                assert totals.failures == [], what
                trials.check_whole(table, what)
                if failed is None:
                    break
            assert number > (3 if after else 8), "the kills reached the whole run"
    assert left == {"upload", "file"}


def _changes(request: Request) -> bool:
    return request.is_mutation


def _ends_something(request: Request) -> bool:
    return request.kind == "complete_upload" or (
        request.is_mutation and "/snapshot/" in request.target
    )


def _left(trials: LargeTrials, table: TableRef) -> set[str]:
    """Files that no snapshot names, of others than the writer."""
    folders = ("manifest", "snapshot", "bucket-0")
    names = {
        child.name
        for folder in folders
        for child in trials.direct.list(f"{table.location}/{folder}")
    }
    owners = {owner for name in names if (owner := owner_of(name)) not in (None, WRITER)}
    return builders.leftovers(trials.direct, table, [owner for owner in owners if owner])


@contextlib.contextmanager
def _victims(port: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.stores.victim", str(port)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.communicate(timeout=180)
        assert process.returncode == 0


def _kill_at(
    trials: LargeTrials, victims: subprocess.Popen[str], table: TableRef, hang: object
) -> Request | None:
    """Kill a compaction when a request hangs; which one, None if it came to its end."""
    assert victims.stdin is not None
    assert victims.stdout is not None
    trials.proxy.reset()
    trials.proxy.fail(hang)  # type: ignore[arg-type]
    victims.stdin.write(f"{table.location}\n")
    victims.stdin.flush()
    child = int(victims.stdout.readline())
    while not trials.proxy.failed:
        if _has_ended(child):
            break
        time.sleep(0.01)
    failed = next(iter(trials.proxy.failed), None)
    if failed is not None:
        os.kill(child, signal.SIGKILL)
    expected = 0 if failed is None else signal.SIGKILL
    assert int(victims.stdout.readline()) == expected
    trials.proxy.fail(None)
    return failed


def _has_ended(child: int) -> bool:
    return not Path(f"/proc/{child}").exists()
