"""The two ingestion jobs, with the rows that they write and that readers must find afterwards.

A job keeps the expected rows in arrays of its own, independent of the table format; the rows read
from the table at the end are compared with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from compactord.clock import Clock
from compactord.ids import Owner
from compactord.paimon.schema import TableRef
from compactord.paimon.types import AtomicType, DataField, TypeRoot
from compactord.storage.base import Storage
from compactord_demo.writer import WriteOnlyWriter, create_table

# Few snapshots are retained, so that expiry is seen within a minute.
SNAPSHOTS_KEPT = 10
_OPTIONS = {
    "write-only": "true",
    "continuous.discovery-interval": "1 s",
    "snapshot.num-retained.min": "5",
    "snapshot.num-retained.max": str(SNAPSHOTS_KEPT),
}
_ORDER_KEYS, _ORDER_ROWS, _ORDER_PERIOD_S = 200_000, 20_000, 0.5
_CLICK_ROWS, _CLICK_PERIOD_S = 10_000, 0.7
_DELETED = 0.05
_KIND_DELETE = 3
_STATES = np.array(["new", "paid", "packed", "sent", "returned"])
_REGIONS = np.array(["asia", "europe"])
_MS_FROM, _MS_TO = 1_700_000_000_000, 1_800_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The environment of a job. Jobs of one `seed` write the same rows in the same order."""

    storage: Storage
    warehouse: str
    owner: Owner
    clock: Clock
    seed: int = 7


class Job(Protocol):
    """One write-only job. `commit` may run in another thread if nothing else uses the job then."""

    @property
    def table(self) -> TableRef: ...

    @property
    def period_s(self) -> float:
        """The interval between commits."""
        ...

    def commit(self) -> int:
        """Write one batch; returns its number of rows."""
        ...

    def expected(self) -> pa.Table:
        """The rows that a reader must find now, ordered by `sort_names`."""
        ...

    @property
    def sort_names(self) -> Sequence[str]: ...


class OrdersJob:
    """Upserts and deletes in `sales.orders`, with random keys."""

    period_s = _ORDER_PERIOD_S
    sort_names = ("id",)

    def __init__(self, scene: Scene) -> None:
        """Creates the table. Raises `StorageError` if it exists."""
        self.table = _ref(scene.warehouse, "sales", "orders")
        create_table(
            scene.storage,
            self.table,
            [
                _field(0, "id", TypeRoot.BIGINT, is_key=True),
                _field(1, "amount", TypeRoot.DOUBLE),
                _field(2, "status", TypeRoot.VARCHAR, 2**31 - 1),
                _field(3, "changed", TypeRoot.TIMESTAMP, 3),
            ],
            primary_keys=["id"],
            options={"bucket": "2", **_OPTIONS},
        )
        self._writer = _writer(scene, self.table)
        self._rng = np.random.default_rng(scene.seed)
        self._amount = np.zeros(_ORDER_KEYS)
        self._status = np.zeros(_ORDER_KEYS, np.int64)
        self._changed = np.zeros(_ORDER_KEYS, np.int64)
        self._is_there = np.zeros(_ORDER_KEYS, bool)

    def commit(self) -> int:
        rng = self._rng
        ids = rng.choice(_ORDER_KEYS, _ORDER_ROWS, replace=False)
        amount = rng.random(_ORDER_ROWS).round(2)
        status = rng.integers(0, len(_STATES), _ORDER_ROWS)
        changed = rng.integers(_MS_FROM, _MS_TO, _ORDER_ROWS)
        is_deleted = rng.random(_ORDER_ROWS) < _DELETED
        self._writer.write(
            _orders(ids, amount, status, changed),
            kinds=pa.array(is_deleted * _KIND_DELETE, pa.int8()),
        )
        self._amount[ids], self._status[ids], self._changed[ids] = amount, status, changed
        self._is_there[ids] = ~is_deleted
        return _ORDER_ROWS

    def expected(self) -> pa.Table:
        ids = np.flatnonzero(self._is_there)
        return _orders(ids, self._amount[ids], self._status[ids], self._changed[ids])


class ClicksJob:
    """Appends to `logs.clicks`, which has a partition for each region."""

    period_s = _CLICK_PERIOD_S
    sort_names = ("region", "user", "url")

    def __init__(self, scene: Scene) -> None:
        """Creates the table. Raises `StorageError` if it exists."""
        self.table = _ref(scene.warehouse, "logs", "clicks")
        create_table(
            scene.storage,
            self.table,
            [
                _field(0, "region", TypeRoot.VARCHAR, 2**31 - 1, is_key=True),
                _field(1, "user", TypeRoot.BIGINT),
                _field(2, "url", TypeRoot.VARCHAR, 2**31 - 1),
            ],
            partition_keys=["region"],
            options={"bucket": "-1", **_OPTIONS},
        )
        self._writer = _writer(scene, self.table)
        self._rng = np.random.default_rng(scene.seed)
        self._written = [self._batch(0)]

    def commit(self) -> int:
        rows = self._batch(_CLICK_ROWS)
        self._writer.write(rows)
        self._written.append(rows)
        return _CLICK_ROWS

    def expected(self) -> pa.Table:
        rows = pa.concat_tables(self._written)
        return rows.sort_by([(name, "ascending") for name in self.sort_names])

    def _batch(self, count: int) -> pa.Table:
        user = self._rng.integers(0, 1_000_000, count)
        return pa.table(
            {
                "region": _REGIONS[self._rng.integers(0, len(_REGIONS), count)],
                "user": user,
                "url": np.char.add("/product/", user.astype(str)),
            }
        )


_Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
_Reals = np.ndarray[tuple[int], np.dtype[np.float64]]


def _orders(ids: _Numbers, amount: _Reals, status: _Numbers, changed: _Numbers) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "amount": amount,
            "status": _STATES[status],
            "changed": pa.array(changed, pa.timestamp("ms")),
        }
    )


def _ref(warehouse: str, database: str, table: str) -> TableRef:
    location = f"{warehouse}/{database}.db/{table}"
    return TableRef(database=database, name=table, location=location)


def _writer(scene: Scene, table: TableRef) -> WriteOnlyWriter:
    return WriteOnlyWriter(scene.storage, table, owner=scene.owner, clock=scene.clock)


def _field(
    number: int, name: str, root: TypeRoot, precision: int | None = None, *, is_key: bool = False
) -> DataField:
    kind = AtomicType(root=root, nullable=not is_key, precision=precision)
    return DataField(id=number, name=name, type=kind)
