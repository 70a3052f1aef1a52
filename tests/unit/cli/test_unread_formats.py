"""Every command refuses a table with live files that nobody reads, whatever its options are."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactord.cli.command import main
from compactord.storage.local import LocalStorage
from tests import builders
from tests.unit.doors.test_a_format import BOTH


@pytest.mark.parametrize(
    "words",
    [
        "tables",
        "why db.t",
        "inspect --table db.t",
        "plan --table db.t",
        "compact --table db.t",
        "top --once",
    ],
)
def test_commands_agree_on_a_table_with_files_of_an_unknown_format(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = LocalStorage()
    table = builders.keyed_table(storage, f"{tmp_path}/db.db/t")
    builders.fill_keyed(builders.writer(storage, table), commits=6)
    builders.compact(storage, table, formats=BOTH, overrides={"file.format": "arrow"})
    builders.fill_keyed(builders.writer(storage, table), commits=6)
    code = main([*words.split(), "--warehouse", str(tmp_path)])
    captured = capsys.readouterr()
    assert "it has files of format arrow" in captured.out + captured.err
    # `inspect` and `top` only show tables.
    assert code == (0 if words.startswith(("inspect", "top")) else 4)
