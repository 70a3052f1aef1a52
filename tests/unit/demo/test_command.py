from __future__ import annotations

from pathlib import Path

import pytest

from compactord_demo.command import main


def test_a_demo_keeps_away_from_a_folder_in_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    assert main(["--warehouse", str(tmp_path)]) == 2
    assert f"{tmp_path} is not empty" in capsys.readouterr().err
    assert main(["--warehouse", str(tmp_path / "file")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert main(["--warehouse", ""]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_backlog_is_only_kept_with_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--keep-backlog"]) == 2
    assert "--keep-backlog needs --warehouse" in capsys.readouterr().err


def test_a_warehouse_of_another_kind_is_named_and_a_catalog_without_a_lock_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--metastore", "jdbc"]) == 2
    assert "--allow-http and --allow-scheme need --warehouse" in (capsys.readouterr().err)
    locked = ("--metastore", "jdbc", "--catalog-option", f"uri=jdbc:sqlite:{tmp_path}/none.db")
    assert main(["--warehouse", str(tmp_path / "wh"), *locked]) == 3
    assert "unable to open database file" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_help_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("Start serve") and len(line) < 100 for line in lines)


@pytest.mark.parametrize("seconds", ["0", "3601", "-1", "1.5", "a", "١"])
def test_a_time_that_cannot_be_meant_is_refused(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"--seconds={seconds}"]) == 2
    found = capsys.readouterr().err
    assert found == f"compactord: --seconds {seconds}: not a number from 1 to 3600\n"
