"""A table in an object store is compacted by the same machinery as one on a disk."""

from __future__ import annotations

import pickle

from compactord.catalog.filesystem import FilesystemCatalog
from compactord.engine.inline import InlineEngine
from compactord.model import Subcompaction
from compactord.storage.open import open_storage
from tests import builders
from tests.builders import FIRST
from tests.store_servers import StoreServer


class Away(InlineEngine):
    """Subcompactions go to their worker as bytes."""

    def submit(self, subcompaction: Subcompaction) -> None:
        super().submit(pickle.loads(pickle.dumps(subcompaction)))


def test_a_table_in_s3_is_compacted(moto: StoreServer) -> None:
    catalog = FilesystemCatalog(*open_storage(f"{moto.root}/compaction", moto.options))
    table = builders.keyed_table(catalog.storage, f"{catalog.warehouse}/db.db/t")
    rows = builders.fill_keyed(builders.writer(catalog.storage, table), commits=6)
    found = catalog.find_table("db.t")
    totals = builders.compact(
        catalog.storage, found, publisher=catalog.publisher, start_engine=Away
    )
    assert (totals.snapshots, totals.compactions, totals.failures) == ([7], 2, [])
    assert builders.read_keyed(catalog.storage, found) == rows
    builders.check_chain(catalog.storage, found)
    assert builders.leftovers(catalog.storage, found, [FIRST]) == set()
    assert found.location == f"{moto.root}/compaction/db.db/t"
