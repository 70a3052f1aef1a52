"""Folders of dead processes go; all others stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compactord import ids
from compactord.engine import masters
from compactord.engine.masters import new_scratch
from compactord.errors import EngineUnavailable

_MAKE = "from compactord.engine.masters import new_scratch; print(new_scratch(), flush=True)"
_MAKE_AND_WAIT = f"{_MAKE}; input()"


def _made_by_another(program: str, parent: Path) -> tuple[Path, subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    return folder, process


def test_the_folder_of_a_killed_process_is_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    folder, process = _made_by_another(_MAKE_AND_WAIT, tmp_path)
    (folder / "java-home").mkdir()
    (folder / "java-home" / "java").write_text("x")
    process.kill()
    process.communicate()
    ours = new_scratch(tmp_path)
    assert list(tmp_path.iterdir()) == [ours]


def test_the_folder_of_a_living_process_stays(tmp_path: Path) -> None:
    folder, process = _made_by_another(_MAKE_AND_WAIT, tmp_path)
    try:
        new_scratch(tmp_path)
        assert folder.is_dir()
    finally:
        process.communicate("\n")


def test_folders_of_one_process_differ_and_the_next_one_keeps_them(tmp_path: Path) -> None:
    first, second = new_scratch(tmp_path), new_scratch(tmp_path)
    assert first != second
    assert first.is_dir()
    assert first.stat().st_mode & 0o777 == 0o700


def test_folders_of_other_hosts_and_of_unknown_names_stay(tmp_path: Path) -> None:
    me = ids.this_process()
    stranger = ids.Owner(host=me.host ^ 1, start_ticks=1, pid=1)
    names = [
        f"compactord-spark-{masters._mark(stranger)}.0",
        "compactord-spark-abcdefgh",
        "compactord-spark-.0",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    new_scratch(tmp_path)
    assert all((tmp_path / name).is_dir() for name in names)


def test_a_link_with_a_dead_name_is_not_followed(tmp_path: Path) -> None:
    folder, process = _made_by_another(_MAKE, tmp_path)
    process.communicate()
    folder.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("x")
    folder.symlink_to(elsewhere)
    new_scratch(tmp_path)
    assert (elsewhere / "file").exists()


def test_a_process_id_that_was_given_anew_is_told_apart(tmp_path: Path) -> None:
    me = ids.this_process()
    before = ids.Owner(host=me.host, start_ticks=(me.start_ticks + 1) % (1 << 28), pid=me.pid)
    folder = tmp_path / f"compactord-spark-{masters._mark(before)}.0"
    folder.mkdir()
    new_scratch(tmp_path)
    assert not folder.exists()


@pytest.mark.parametrize(
    "owner",
    [
        ids.Owner(host=0, start_ticks=0, pid=0),
        ids.Owner(host=2**24 - 1, start_ticks=2**28 - 1, pid=2**22 - 1),
        ids.Owner(host=0xABCDEF, start_ticks=1, pid=2**21 + 1),
    ],
)
def test_a_name_tells_its_owner_and_is_short(owner: ids.Owner) -> None:
    name = f"compactord-spark-{masters._mark(owner)}.0"
    assert masters._owner_of(name) == owner
    assert len(name) == 33


def test_no_folder_can_be_made_is_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="temporary files"):
        new_scratch(tmp_path / "none")
