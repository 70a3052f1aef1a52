"""A table in an object store is compacted by the same machinery as one on a disk."""

from __future__ import annotations

import pickle
from collections import Counter

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.model import Subcompaction, SubcompactionOutcome, SubcompactionResult
from compactord.storage.open import STORES
from tests import builders
from tests.builders import FIRST
from tests.inline_engine import InlineEngine
from tests.store_servers import StoreServer


class Away(InlineEngine):
    """Subcompactions go to their worker as bytes; `asked` is what workers asked of the store."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[tuple[str, str]] = Counter()

    def submit(self, subcompaction: Subcompaction) -> None:
        super().submit(pickle.loads(pickle.dumps(subcompaction)))

    def next_outcome(self, timeout_s: float | None) -> SubcompactionOutcome | None:
        outcome = super().next_outcome(timeout_s)
        if isinstance(outcome, SubcompactionResult):
            for total in pickle.loads(pickle.dumps(outcome)).stats.requests:
                self.asked[total.store, total.op.value] += total.requests
        return outcome


def test_a_table_in_s3_is_compacted(moto: StoreServer) -> None:
    catalog = FilesystemCatalog(*STORES.open(f"{moto.root}/compaction", moto.options))
    table = builders.keyed_table(catalog.warehouse_storage, f"{catalog.warehouse}/db.db/t")
    rows = builders.fill_keyed(builders.writer(catalog.warehouse_storage, table), commits=6)
    found = catalog.find_table("db.t")
    engine = Away()
    totals = builders.compact(
        catalog.warehouse_storage,
        found,
        publisher=catalog.open(found).publisher,
        start_engine=lambda: engine,
    )
    assert (totals.snapshots, totals.compactions, totals.failures) == ([7], 2, [])
    assert builders.read_keyed(catalog.warehouse_storage, found) == rows
    builders.check_chain(catalog.warehouse_storage, found)
    assert builders.leftovers(catalog.warehouse_storage, found, [FIRST]) == set()
    # An output for each of the two buckets, and at least one read of each of their files.
    assert engine.asked["s3", "put"] == 2
    assert engine.asked["s3", "get"] >= 12
    assert found.location == f"{moto.root}/compaction/db.db/t"
