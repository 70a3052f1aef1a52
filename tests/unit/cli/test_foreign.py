"""`orphans --foreign`: a dry run names what nothing names, changes nothing; then that goes."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compactord.cli.command import _parser
from compactord.cli.maintain import foreign_sweep, maintain, orphans
from compactord.cli.maintenance import MaintenanceRun
from compactord.cli.registries import Registries
from compactord.cli.select import choose
from compactord.clock import SystemClock
from compactord.errors import UsageError
from compactord.paimon import paths
from compactord.paimon.schema import TableRef
from compactord.storage.base import Store, StoreLocation
from compactord.storage.open import STORES
from compactord.verify.holds import HOLD_FILE
from tests import builders
from tests.e2e.tables import digest
from tests.storages import MemoryStorage
from tests.unit.cli.warehouses import LOCAL, configuration, keyed

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
    (home / "data/more").mkdir(parents=True)
    shutil.move(home / "bucket-0", home / "data/more/bucket-0")
    left = _leave(home / "bucket-0", home / "data/more/bucket-1", outside / "data/more/bucket-2")
    _leave(home / "data/bucket-1", outside / "bucket-2")
    table = ("--warehouse", str(warehouse), "--table", "d.t", "--foreign")
    found = _run(capsys, *table, "--dry-run")
    assert {one["path"] for one in found["orphans"]} == set(left[:2])
    assert found["left_alone"] == [f"file://{outside}", "s3://elsewhere/x"]
    found = _run(capsys, *table, "--external-paths", "--trash", str(trash))
    assert {one["path"] for one in found["orphans"]} == set(left)
    assert found["left_alone"] == ["s3://elsewhere/x"]
    [moved] = trash.glob("d.t/*")
    assert set(digest(moved)) == {
        f"{place}/{_NAME}" for place in ("bucket-0", "data/more/bucket-1", "external-2/bucket-2")
    }
    assert (moved / "bucket-0" / _NAME).read_bytes() == b"left"
    assert not any(Path(path).exists() for path in left)


@pytest.mark.parametrize("arguments", [("--foreign",), ()])
def test_a_hold_is_no_left_over_file(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ref = keyed(tmp_path, "d.t", commits=1)
    hold = Path(ref.location, HOLD_FILE)
    hold.write_bytes(b"")
    found = _run(capsys, "--warehouse", str(tmp_path), "--table", "d.t", *arguments, "--force")
    assert (found["orphans"], hold.exists()) == ([], True)


@pytest.mark.parametrize("trash", [None, "trash"])
def test_files_at_an_external_path_in_another_store_go_too(
    tmp_path: Path, trash: str | None
) -> None:
    there = MemoryStorage()
    memory = Store(
        schemes=("mem",), locate=lambda at, options: StoreLocation(spec=there, path=at.rstrip("/"))
    )
    ref = keyed(tmp_path / "wh", "d.t", commits=1)
    places = f"mem://a/x/, {tmp_path}/outside, gone://b"
    _with_options(ref, data_file__external_paths=places)
    kept = f"mem://a/other/bucket-0/{_NAME}", "mem://a/x/notes.txt"
    left = f"mem://a/x/bucket-0/{_NAME}", f"mem://a/x/bucket-postpone/{_NAME}"
    for path in (*kept, *left):
        there.write_new(path, b"left")
    here = _leave(Path(ref.location) / "bucket-0", tmp_path / "outside/bucket-1")
    table = ["--warehouse", str(tmp_path / "wh"), "--table", "d.t", "--external-paths"]
    trashed = ["--trash", str(tmp_path / trash)] if trash else []
    args = _parser().parse_args(["orphans", *table, "--foreign", *trashed])
    args.registries = Registries(stores=replace(STORES, known=(*STORES.known, memory)))
    choice = choose(args)
    run = MaintenanceRun(
        args=args,
        choice=choice,
        clock=_IN_TWO_DAYS,
        stop=threading.Event(),
        kinds=(),
        grace_ms=builders.DAY_MS,
    )
    found = foreign_sweep(run, choice.targets[0]).found
    assert {one["path"] for one in found["orphans"]} == {*left, *here}
    assert found["left_alone"] == ["gone://b"]
    assert there.objects.keys() == set(kept)
    assert not any(Path(path).exists() for path in here)
    if trash:
        names = ("bucket-0", "external-1/bucket-0", "external-1/bucket-postpone")
        [moved] = tmp_path.glob(f"{trash}/d.t/*")
        copies = {f"{name}/{_NAME}" for name in (*names, "external-2/bucket-1")}
        assert set(digest(moved)) == copies
        assert (moved / f"external-1/bucket-0/{_NAME}").read_bytes() == b"left"


def _linked(home: Path, other: Path) -> Path:
    (home / "bucket-9").symlink_to(other / "bucket-0")
    return other


def _in_partition(home: Path, other: Path) -> Path:
    path = home / "schema/schema-0"
    schema = json.loads(path.read_text())
    schema["options"] = {"bucket": "-1"}
    path.write_text(json.dumps({**schema, "primaryKeys": [], "partitionKeys": ["k"]}))
    return other.rename(home / "k=1")


def _at_external_path(home: Path, other: Path) -> Path:
    path = home / "schema/schema-0"
    schema = json.loads(path.read_text())
    schema["options"]["data-file.external-paths"] = f"file://{other}"
    path.write_text(json.dumps(schema))
    return other


@pytest.mark.parametrize(
    ("lies", "arguments"),
    [
        (_linked, ()),
        (_linked, ("--foreign",)),
        (_in_partition, ()),
        (_in_partition, ("--foreign",)),
        (_at_external_path, ("--foreign", "--external-paths")),
    ],
)
def test_files_of_another_table_stay_whose_folders_this_one_leads_to(
    lies: Callable[[Path, Path], Path],
    arguments: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home, other = (Path(keyed(tmp_path, name, commits=1).location) for name in ("d.t", "d.o"))
    other = lies(home, other)
    used = digest(other)
    _run(capsys, "--warehouse", str(tmp_path), "--table", "d.t", *arguments)
    assert digest(other) == used


def test_maintain_does_it_only_where_it_is_asked_for_and_the_rule_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rules = """\
        catalogs: {lake: {warehouse: WH}}
        defaults: {foreign_files_trash: WH/trash}
        rules:
        - {match: {table: "d.a"}, set: {remove_foreign_files: true}}
        - {match: {table: "d.b"}, set: {remove_foreign_files: true, foreign_files_older_than: 3 d}}
        """
    path = configuration(tmp_path, rules)
    left = {}
    for name in ("a", "b", "c"):
        home = Path(keyed(tmp_path / "wh", f"d.{name}", commits=1).location)
        left[name] = Path(*_leave(home / "bucket-0"))
    for only, gone in (([], ""), (["--only", "orphans"], ""), (["--only", "foreign"], "a")):
        args = _parser().parse_args(["maintain", "--all", "--config", path, *only])
        assert maintain(args, _IN_TWO_DAYS) == 0
        assert {name for name, each in left.items() if not each.exists()} == set(gone)
    [moved] = tmp_path.glob("wh/trash/*/*")
    assert (moved.parent.name, list(digest(moved))) == ("d.a", [f"bucket-0/{_NAME}"])
    assert "d.c: defaults.remove_foreign_files (default) is false" in capsys.readouterr().out


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
