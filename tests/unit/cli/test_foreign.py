"""`orphans --foreign`: a dry run names what nothing names, changes nothing; then that goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from compactord.cli.command import _parser
from compactord.cli.maintain import orphans
from compactord.clock import SystemClock
from compactord.errors import UsageError
from compactord.paimon import paths
from compactord.paimon.table import TableRef
from tests import builders
from tests.e2e.tables import digest
from tests.unit.cli.warehouses import LOCAL, keyed

_NAME = "data-0b4e1a2c-7f1d-4c3a-9d2e-0123456789ab-0.parquet"
_IN_TWO_DAYS = builders.VirtualClock(SystemClock().now_ms() + 2 * builders.DAY_MS)


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    args = _parser().parse_args(["orphans", *arguments, "--json"])
    assert orphans(args, _IN_TWO_DAYS) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def _leave(*folders: Path) -> list[str]:
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _NAME).write_bytes(b"left")
    return [str(folder / _NAME) for folder in folders]


def _with_options(ref: TableRef, **options: str) -> None:
    """The table's newest schema gets these options; `_` stands for a dash, `__` for a dot."""
    path = Path(paths.schema_path(ref.location, 0))
    schema = json.loads(path.read_text())
    for key, text in options.items():
        schema["options"][key.replace("__", ".").replace("_", "-")] = text
    path.write_text(json.dumps(schema))


def test_what_nothing_names_goes_with_the_folders_that_are_empty_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = keyed(tmp_path, "d.t", commits=3)
    rows, home = builders.read_keyed(LOCAL, ref), Path(ref.location)
    table = ("--warehouse", str(tmp_path), "--table", "d.t", "--foreign")
    used = digest(tmp_path)
    left = _leave(home / "bucket-0", home / "bucket-7", home / "manifest")
    (home / "bucket-8").mkdir()
    before = digest(tmp_path)
    found = _run(capsys, *table, "--dry-run")
    assert sorted(found["orphans"], key=lambda one: one["path"]) == [
        {"path": path, "bytes": 4} for path in sorted(left)
    ]
    assert digest(tmp_path) == before
    assert _run(capsys, *table, "--older-than", "3 d")["orphans"] == []
    assert len(_run(capsys, *table)["orphans"]) == 3
    assert digest(tmp_path) == used
    assert not (home / "bucket-7").exists()
    assert not (home / "bucket-8").exists()
    assert builders.read_keyed(LOCAL, ref) == rows


def test_files_go_to_the_trash_from_wherever_the_options_put_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warehouse, outside, trash = tmp_path / "wh", tmp_path / "outside", tmp_path / "trash"
    ref = keyed(warehouse, "d.t", commits=1)
    _with_options(
        ref,
        data_file__path_directory="data/more",
        data_file__external_paths=f"file://{outside}, s3://elsewhere/x",
        data_file__external_paths__strategy="round-robin",
    )
    home = Path(ref.location)
    left = _leave(home / "bucket-0", home / "data/more/bucket-1", outside / "data/more/bucket-2")
    _leave(home / "data/bucket-1", outside / "bucket-2")
    table = ("--warehouse", str(warehouse), "--table", "d.t", "--foreign")
    found = _run(capsys, *table, "--dry-run")
    assert {one["path"] for one in found["orphans"]} == set(left[:2])
    assert found["left_alone"] == [f"file://{outside}", "s3://elsewhere/x"]
    found = _run(capsys, *table, "--external-paths", "--trash", str(trash))
    assert {one["path"] for one in found["orphans"]} == set(left)
    assert found["left_alone"] == ["s3://elsewhere/x"]
    assert set(digest(trash)) == {
        f"d.t/{place}/{_NAME}"
        for place in ("bucket-0", "data/more/bucket-1", "external-2/bucket-2")
    }
    assert (trash / "d.t/bucket-0" / _NAME).read_bytes() == b"left"
    assert not any(Path(path).exists() for path in left)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--older-than", "2 d"], "need --foreign"),
        (["--trash", "/x"], "need --foreign"),
        (["--external-paths"], "need --foreign"),
        (["--foreign", "--older-than", "59 min"], "1 h or more"),
        (["--foreign", "--trash", "s3://bucket/trash"], "of the store of d.t"),
        (["--foreign", "--trash", "WH/d.db/t/trash"], "outside d.t"),
    ],
)
def test_arguments_without_a_meaning_are_refused(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    keyed(tmp_path, "d.t", commits=1)
    given = [text.replace("WH", str(tmp_path)) for text in arguments]
    table = ["--warehouse", str(tmp_path), "--table", "d.t"]
    with pytest.raises(UsageError, match=message):
        orphans(_parser().parse_args(["orphans", *table, *given]), _IN_TWO_DAYS)
