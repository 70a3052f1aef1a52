"""A store of another scheme is defined here and used without a change of the product."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import pytest

from compactord.catalog.base import Catalog
from compactord.catalog.open import open_catalog
from compactord.engine.inline import InlineEngine
from compactord.errors import AccessDenied, UsageError
from compactord.model import Subcompaction
from compactord.storage.base import Storage
from compactord.storage.metered import metered
from compactord.storage.open import STORES, open_storage, scheme_of
from compactord.storage.requests import StorageOp, StorageRequest
from tests import builders
from tests.builders import FIRST, VirtualClock
from tests.storages import MemoryStorage

_KEY = "only-for-those-who-open"
# What a process finds where it runs: the objects of each bucket, and the key to them.
_OBJECTS: dict[str, dict[str, bytes]] = {}
_ENVIRONMENT: dict[str, str] = {}


@dataclass(frozen=True)
class BucketSpec:
    bucket: str

    def open(self) -> Bucket:
        return Bucket(self.bucket, _ENVIRONMENT.get("key", ""))


class Bucket(MemoryStorage):
    """`mem://bucket/path`: paths begin with a slash. Cannot be pickled, as it holds a lock."""

    def __init__(self, bucket: str, key: str) -> None:
        super().__init__()
        if key != _KEY:
            raise AccessDenied(bucket, "open failed (wrong key)")
        self.objects = _OBJECTS.setdefault(bucket, {})
        self._bucket, self._key = bucket, key

    @property
    def spec(self) -> BucketSpec:
        return BucketSpec(self._bucket)


def _locate(location: str, options: Mapping[str, str]) -> tuple[BucketSpec, str]:
    bucket, slash, path = location.removeprefix("mem://").partition("/")
    if not bucket:
        raise UsageError(f"{location}: a bucket is missing, as in mem://bucket/wh")
    return BucketSpec(bucket), slash + path


_open_ours = partial(open_storage, stores={**STORES, "mem": _locate})


class Away(InlineEngine):
    """Subcompactions go to their worker as bytes, which `on_the_way` is shown."""

    def __init__(self, on_the_way: Callable[[bytes], None]) -> None:
        super().__init__()
        self._on_the_way = on_the_way

    def submit(self, subcompaction: Subcompaction) -> None:
        payload = pickle.dumps(subcompaction)
        self._on_the_way(payload)
        super().submit(pickle.loads(payload))


@pytest.fixture
def filled() -> tuple[Catalog, dict[int, int], Counter[StorageOp]]:
    """A warehouse with a table that is due, the table's rows, and what its driver asked for."""
    _OBJECTS.clear()
    _ENVIRONMENT["key"] = _KEY
    asked: Counter[StorageOp] = Counter()

    def report(request: StorageRequest) -> None:
        assert request.store == "mem"
        asked[request.op] += 1

    def open_metered(location: str, options: Mapping[str, str]) -> tuple[Storage, str]:
        storage, path = _open_ours(location, options)
        return metered(storage, report, VirtualClock(), store=scheme_of(location)), path

    catalog = open_catalog("mem://lake/wh", open_metered, is_guarded=True)
    table = builders.keyed_table(catalog.storage, f"{catalog.warehouse}/db.db/t")
    rows = builders.fill_keyed(builders.writer(catalog.storage, table), commits=6)
    catalog.check_commits()
    asked.clear()
    return catalog, rows, asked


def test_a_table_of_a_store_of_another_scheme_is_compacted(
    filled: tuple[Catalog, dict[int, int], Counter[StorageOp]],
) -> None:
    catalog, rows, asked = filled
    table = catalog.find_table("db.t")
    sent: list[bytes] = []
    totals = builders.compact(
        catalog.storage,
        table,
        publisher=catalog.publisher,
        start_engine=lambda: Away(sent.append),
    )
    assert (totals.snapshots, totals.compactions, totals.failures) == ([7], 2, [])
    assert builders.read_keyed(catalog.storage, table) == rows
    builders.check_chain(catalog.storage, table)
    assert builders.leftovers(catalog.storage, table, [FIRST]) == set()
    assert table.location == "/wh/db.db/t"
    assert not any(_KEY.encode() in payload for payload in sent)
    # What workers write, their driver does not ask for: it publishes.
    assert asked[StorageOp.PUT_IF_ABSENT] == 1


def test_a_worker_opens_the_store_by_what_it_finds_itself(
    filled: tuple[Catalog, dict[int, int], Counter[StorageOp]],
) -> None:
    catalog, rows, _ = filled
    table = catalog.find_table("db.t")

    def lose_the_key(payload: bytes) -> None:
        _ENVIRONMENT["key"] = "another"

    totals = builders.compact(
        catalog.storage,
        table,
        publisher=catalog.publisher,
        start_engine=lambda: Away(lose_the_key),
    )
    assert (totals.snapshots, totals.denied) == ([], len(totals.failures))
    assert len(totals.failures) == 2
    assert all("wrong key" in failure for failure in totals.failures)
    assert builders.read_keyed(catalog.storage, table) == rows


def test_what_the_store_refuses_is_an_error_of_the_warehouse() -> None:
    with pytest.raises(UsageError, match="warehouse mem:///wh: a bucket is missing"):
        open_catalog("mem:///wh", _open_ours)


def test_where_nobody_adds_it_the_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match=r"mem://lake/wh: scheme mem:// is not supported yet"):
        open_catalog("mem://lake/wh")
