"""Tables whose files become ORC, and are merged again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compactord.errors import UnsupportedTable
from compactord.paimon import paths
from compactord.plan.table import Strategy
from compactord.storage.base import Storage
from compactord.storage.local import LocalStorage
from tests import builders
from tests.storages import MemoryStorage
from tests.unit.doors.test_a_format import LOCATION, ends

_FORCED = {"compaction.force-rewrite-all-files": "true"}


@pytest.mark.parametrize("is_local", [True, False])
def test_a_table_is_compacted_into_orc_and_out_of_it(is_local: bool, tmp_path: Path) -> None:
    storage: Storage = LocalStorage() if is_local else MemoryStorage()
    table = builders.keyed_table(storage, f"{tmp_path}/db.db/t" if is_local else LOCATION)
    rows = builders.fill_keyed(builders.writer(storage, table), commits=6)
    for wanted in ("orc", "parquet", "orc", "orc"):
        builders.set_options(storage, table, {"file.format": wanted})
        builders.compact(storage, table, strategy=Strategy.FULL, overrides=_FORCED)
        assert ends(storage, table) == {wanted}
        assert builders.read_keyed(storage, table) == rows
    builders.check_chain(storage, table)


def test_orc_files_of_a_table_with_local_time_are_refused_whatever_new_files_are() -> None:
    storage = MemoryStorage()
    table = builders.append_table(storage, LOCATION)
    target = builders.writer(storage, table)
    for commit in range(6):
        target.write(builders.rows_of([(commit, commit)]))
    builders.compact(storage, table, overrides={"file.format": "orc"})
    path = paths.schema_path(table.root, 0)
    schema = json.loads(storage.read(path))
    schema["fields"].append({"id": 9, "name": "at", "type": "TIMESTAMP(3) WITH LOCAL TIME ZONE"})
    schema["highestFieldId"] = 9
    storage.overwrite(path, json.dumps(schema).encode())
    for commit in range(6):
        target.write(builders.rows_of([(commit, commit)]))
    with pytest.raises(UnsupportedTable, match=r"column at .* not supported in orc files"):
        builders.compact(storage, table, strategy=Strategy.FULL, overrides=_FORCED)
