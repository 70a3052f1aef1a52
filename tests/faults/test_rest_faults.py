"""One writing call fails while a table is committed through a REST server: nothing is lost."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from compactord.catalog.open import open_catalog
from compactord.errors import CompactordError, StorageError, TransientStorageError
from compactord.storage.local import LocalStorage
from tests import builders
from tests.builders import FIRST, SECOND
from tests.storages import Call, Fault, FaultyStorage
from tests.unit.catalog.rest_server import FakeServer, FakeTable, serving

_LOCAL = LocalStorage()


def _mutation(call: Call) -> bool:
    return call.is_mutation


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after its effect"])
def test_a_failing_call_loses_nothing_and_the_next_run_heals(
    tmp_path: Path, *, after_effect: bool
) -> None:
    table = builders.keyed_table(_LOCAL, str(tmp_path / "template"), buckets=1)
    rows = builders.fill_keyed(builders.writer(_LOCAL, table), commits=5, keys=20)
    path = tmp_path / "t"
    error: type[StorageError] = TransientStorageError
    with serving(FakeServer()) as server:
        server.tables["db.t"] = FakeTable(path=str(path), id="x")
        catalog = open_catalog(
            "lake", metastore="rest", options=server.options, allow_schemes=["file"]
        )
        for at in itertools.count(1):
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(tmp_path / "template", path)
            server.sums.clear()
            access = catalog.open(catalog.find_table("db.t"))
            fault = Fault(at=at, error=error, concerns=_mutation, after_effect=after_effect)
            storage = FaultyStorage(_LOCAL, fault)
            with contextlib.suppress(CompactordError):
                builders.compact(storage, access.ref, access=replace(access, storage=storage))
            what = str(storage.failed[:1])
            assert builders.read_keyed(_LOCAL, access.ref) == rows, what
            builders.check_chain(_LOCAL, access.ref)
            builders.remove_leftovers(_LOCAL, access.ref, myself=SECOND)
            totals = builders.compact(_LOCAL, access.ref, access=access, owner=SECOND)
            assert totals.failures == totals.lost_snapshots == [], what
            assert builders.read_keyed(_LOCAL, access.ref) == rows, what
            assert builders.leftovers(_LOCAL, access.ref, [FIRST, SECOND]) == set(), what
            state = access.newest_state().state
            sums = server.sums[json.dumps({})]
            # Five commits made a file each.
            assert (state.files.file_count, sums["fileCount"]) == (1, -4), what
            if not storage.failed:
                break
    assert at > 6, "the faults reached the whole run"
