"""Tables that Java wrote, compacted and expired are never held, and one lost file holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord import ids
from compactord.catalog.access import table_in_folder
from compactord.clock import SystemClock
from compactord.paimon.schema import TableRef
from compactord.storage.local import LocalStorage
from compactord.table.opening import describe_table
from compactord.verify.holds import Hold, TableHolds
from tests.oracle.judge import Judge
from tests.oracle.test_expire import SHAPES, Shape, shape_indexes

LOCAL = LocalStorage()


def _hold(path: Path) -> Hold | None:
    access = table_in_folder(LOCAL, TableRef(database="db", name=path.name, location=str(path)))
    table = describe_table(access, access.newest_schema(), {})
    holds = TableHolds(LOCAL, access.ref, SystemClock(), ids.this_process(), is_kept=False)
    return holds.why_held(lambda: access.newest_state().state, table.bucket_folder)


@pytest.mark.parametrize("shape", [*SHAPES, shape_indexes], ids=lambda shape: shape.__name__)
def test_a_table_of_java_is_not_held_until_a_live_file_is_lost(
    judge: Judge, shape: Shape, tmp_path: Path
) -> None:
    path = shape(judge, tmp_path / "db.db" / "t").path
    assert _hold(path) is None
    newest = judge.files_table(path)
    assert newest, "it has live files"
    live = {str(value) for row in newest for value in row}
    files = path.glob("**/bucket-*/*")
    lost = next(file for file in files if live & {str(file), file.name})
    lost.unlink()
    hold = _hold(path)
    assert hold is not None
    assert hold.path == str(lost)
