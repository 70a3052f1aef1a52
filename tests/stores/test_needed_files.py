"""Requests fail while a table is compacted, expires and is swept: what is needed keeps its rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar, cast

import pytest

from compactord.storage.base import Storage
from compactord.storage.calls import RetryPolicy
from compactord.storage.objects.store import ObjectStorage
from tests.builders import VirtualClock
from tests.retained import expire, maintain, names_in, retained, sweep
from tests.sampling import CutPoints, one_in
from tests.storages import Call, MemoryStorage, SwitchedStorage, WatchedStorage
from tests.store_servers import StoreServer, s3
from tests.tools.store_faults import Fault, How, every_nth, nth
from tests.tools.store_proxy import StoreProxy

T = TypeVar("T")
# Of something before the store, which answers whatever it is asked.
FOREIGN_404 = Fault(how=How.ANSWER, status=404, is_foreign=True)
# A page of HTML, which is XML like the listing that was asked for.
FOREIGN_PAGE = Fault(how=How.ANSWER, status=200, is_foreign=True)
REFUSALS = (
    FOREIGN_404,
    Fault(how=How.ANSWER, status=404),
    Fault(how=How.ANSWER, status=403),
)
PASSING = (
    Fault(how=How.ANSWER, status=500),
    Fault(how=How.ANSWER, status=503, after=True),
    Fault(how=How.HALF),
)
SILENCE = Fault(how=How.HANG)


class DryStorage(WatchedStorage):
    """Changes nothing, and remembers what would have been deleted."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.deleted: list[str] = []

    def around(self, call: Call, effect: Callable[[], T]) -> T:
        if not call.is_mutation:
            return effect()
        if call.method == "delete":
            self.deleted.append(call.path)
        return cast(T, None)


@pytest.fixture(scope="module")
def moto(started: object) -> StoreServer:
    return started("moto")  # type: ignore[operator,no-any-return]


@pytest.fixture(scope="module")
def proxy(moto: StoreServer) -> Iterator[StoreProxy]:
    with StoreProxy(("127.0.0.1", moto.port)) as proxy:
        yield proxy


@one_in(2)
@pytest.mark.parametrize(
    ("fault", "n"),
    [
        *((fault, n) for fault in REFUSALS for n in (19, 3)),
        *((fault, n) for fault in PASSING for n in (19, 7)),
        *((SILENCE, n) for n in (7, 19)),
    ],
    ids=str,
)
def test_every_nth_request_fails(
    moto: StoreServer, proxy: StoreProxy, fault: Fault, n: int
) -> None:
    given, direct = retained(), moto.spec.open()
    table = given.put(direct, f"{moto.root}/{uuid.uuid4().hex}")
    spec = replace(s3(proxy.port).spec, timeout_s=0.3 if fault is SILENCE else 30)
    proxy.reset()
    proxy.fail(every_nth(n, fault))
    # Pauses between attempts take no time; its workers use the same.
    store = ObjectStorage(spec, RetryPolicy(clock=VirtualClock()))
    maintain(WatchedStorage(store), table)
    proxy.fail(None)
    assert len(proxy.failed) >= 3
    assert maintain(direct, table) == []
    given.check(direct, table, f"{fault}, every {n}th")
    given.check_tidy(direct, table, f"{fault}, every {n}th")


def test_any_listing_may_be_answered_with_a_page_of_a_gateway(
    moto: StoreServer, proxy: StoreProxy, cut_points: CutPoints
) -> None:
    """A tag, a branch or a consumer that such an answer does not list is not gone.

    It is the first or the second answer of a listing: of these every fifth.
    """
    given = retained()
    table = given.put(moto.spec.open(), f"{moto.root}/{uuid.uuid4().hex}")
    storage = ObjectStorage(s3(proxy.port).spec, RetryPolicy(clock=VirtualClock()))
    proxy.fail(None)
    proxy.reset()
    clean = DryStorage(storage)
    assert maintain(clean, table, (expire, sweep)) == []
    wanted = set(clean.deleted)
    listings = dict.fromkeys(request.target for request in proxy.log if request.kind == "list")
    assert len(wanted) > 10
    assert len(listings) > 10
    answers = [(target, number) for target in listings for number in (1, 2)]
    for target, number in cut_points.of(answers, 5):
        proxy.fail(nth(number, FOREIGN_PAGE, lambda request, at=target: request.target == at))
        dry = DryStorage(storage)
        maintain(dry, table, (expire, sweep))
        assert set(dry.deleted) <= wanted, f"{number} of {target}"
    proxy.fail(None)


@pytest.mark.parametrize("fault", REFUSALS, ids=str)
def test_any_call_of_expiry_and_sweep_may_be_answered_so(
    fault: Fault, cut_points: CutPoints
) -> None:
    """The next run finishes, and nothing is lost that a run without faults leaves.

    One call goes to a store that answers nothing else, all others to memory: every third.
    """
    given, template = retained(), MemoryStorage()
    with StoreProxy(("127.0.0.1", 0)) as proxy:
        proxy.fail(every_nth(1, fault))
        spec = s3(proxy.port).spec
        refusing = ObjectStorage(spec, RetryPolicy(clock=VirtualClock(), attempts_max=1))
        table = given.put(template, f"{spec.root}/t")
        clean = template.copy()
        assert maintain(clean, table, (expire, sweep)) == []
        wanted = names_in(clean, table).keys()
        hurt: dict[Call, list[str]] = {}
        for at in cut_points(3):
            storage = template.copy()
            switched = SwitchedStorage(storage, refusing, at)
            maintain(switched, table, (expire, sweep))
            maintain(storage, table, (expire, sweep))
            if lost := wanted - names_in(storage, table).keys():
                hurt[switched.switched[0]] = sorted(lost)
            if not switched.switched:
                break
    assert at > 100, "the faults reached the whole run"
    assert hurt == {}
