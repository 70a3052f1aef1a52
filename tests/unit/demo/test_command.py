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


def test_help_is_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("Fill two tables") and len(line) < 100 for line in lines)
