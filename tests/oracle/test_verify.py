"""Of what Java writes and expires `verify` finds nothing wrong, and one lost file where it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.judge import Judge
from tests.oracle.test_expire import (
    SHAPES,
    Shape,
    ids,
    shape_indexes,
    shape_keyed,
    shape_partitioned,
)
from tests.unit.cli.warehouses import answered

EVERYTHING = ("--all-snapshots", "--footers", "all")


def _verified(capsys: pytest.CaptureFixture[str], path: Path, *, code: int = 0) -> dict:
    warehouse, table = path.parent.parent, f"db.{path.name}"
    return answered(
        capsys,
        "verify",
        "--warehouse",
        str(warehouse),
        "--table",
        table,
        *EVERYTHING,
        code=code,
    )


@pytest.mark.parametrize("shape", [shape_keyed, shape_partitioned], ids=lambda s: s.__name__)
def test_a_lost_file_of_java_is_found(
    judge: Judge, shape: Shape, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two layouts of folders: what is missing is looked for again after a pause of seconds."""
    path = shape(judge, tmp_path / "db.db" / "t").path
    lost = next(path.glob("**/bucket-0/data-*"))
    lost.unlink()
    (finding,) = _verified(capsys, path, code=3)["findings"]
    assert finding["path"] == str(lost)


@pytest.mark.parametrize("shape", [*SHAPES, shape_indexes], ids=lambda shape: shape.__name__)
def test_tables_of_java_with_tags_and_branches_are_whole(
    judge: Judge, shape: Shape, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shape(judge, tmp_path / "db.db" / "t").path
    first = ids(path)[0]
    judge.create_tag(path, "old", first + 1)
    judge.create_branch(path, "side", "old")
    found = _verified(capsys, path)
    assert found["findings"] == []
    assert found["not_verified"] == []
    assert found["footers"] == found["data_files"] > 0
    assert {"tag old", f"branch side, snapshot {first + 1}"} <= set(found["files_of"])
    # What expiry leaves behind is whole, what only the tag needs included.
    judge.expire_snapshots(path, 1)
    found = _verified(capsys, path)
    assert found["findings"] == []
