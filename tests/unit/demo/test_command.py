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
