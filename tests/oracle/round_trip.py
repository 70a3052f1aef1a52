"""A table in a store that Java writes, compactord compacts, and Java reads, writes and compacts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.plan.table import Strategy
from compactord.storage.open import STORES
from tests import builders
from tests.oracle.differential import canonical
from tests.oracle.judge import Judge
from tests.store_servers import StoreServer

_KEYED = {
    "columns": [("k", "BIGINT NOT NULL"), ("p", "STRING NOT NULL"), ("v", "STRING")],
    "primary_key": ["k", "p"],
    "partition_by": ["p"],
    "options": {"bucket": "2", "num-sorted-run.compaction-trigger": "3"},
}
_APPENDED = {
    "columns": [("k", "BIGINT"), ("p", "STRING"), ("v", "STRING")],
    "partition_by": ["p"],
    "options": {"bucket": "-1"},
}
# Shapes of tables and strategies, by names for tests.
CASES: Mapping[str, tuple[Mapping[str, Any], Strategy]] = {
    "keyed-minor": (_KEYED, Strategy.MINOR),
    "keyed-full": (_KEYED, Strategy.FULL),
    "appended-minor": (_APPENDED, Strategy.MINOR),
}


def go_round(java: Judge, lake: StoreServer, case: str) -> None:
    """Raises AssertionError where Java sees other rows than were written, or files left over."""
    shape, strategy = CASES[case]
    # Its name and the values of its partitions are such as URLs and signatures may stumble over.
    path = f"{lake.root}/java wh/{case}+ä/db.db/t"
    java.create_table(path, **{**shape, "options": {**shape["options"], "write-only": "true"}})
    model = _Model(is_keyed=shape is _KEYED)
    for commit in range(6):
        java.write(path, model.written(commit))
    catalog = FilesystemCatalog(*STORES.open(path.removesuffix("/db.db/t"), lake.options))
    table = catalog.find_table("db.t")
    storage, publisher = catalog.warehouse_storage, catalog.open(table).publisher
    totals = builders.compact(storage, table, publisher=publisher, strategy=strategy)
    assert totals.failures == []
    assert totals.compactions >= 2
    assert canonical(java.read(path)) == model.rows()
    assert len(java.files(path)) < 8
    assert java.orphan_files(path) == []
    for commit in range(6, 11):
        java.write(path, model.written(commit))
    assert canonical(java.read(path)) == model.rows()
    assert java.compact(path, full=True) is not None
    assert canonical(java.read(path)) == model.rows()
    again = builders.compact(storage, table, publisher=publisher, strategy=strategy)
    assert again.failures == []
    assert canonical(java.read(path)) == model.rows()
    assert java.orphan_files(path) == []


class _Model:
    """The rows that the table must have."""

    def __init__(self, *, is_keyed: bool) -> None:
        self._is_keyed = is_keyed
        self._rows: dict[object, list[object]] = {}

    def written(self, commit: int) -> list[list[object]]:
        """The rows of one commit; keys come again."""
        rows: list[list[object]] = [
            [key, partition, f"{commit} of {key}"]
            for partition, key in itertools.product(["a=b/c", "ü %2F"], range(commit, 30, 2))
        ]
        for row in rows:
            identity = (row[0], row[1]) if self._is_keyed else tuple(row)
            self._rows[identity] = row
        return rows

    def rows(self) -> list[str]:
        return canonical(self._rows.values())
