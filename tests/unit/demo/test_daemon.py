"""The daemon of the demo, as far as it shows without Spark."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from compactord.paimon.schema import TableRef
from compactord_demo.daemon import DaemonFailed, DaemonProcess


def _last_word(daemon: DaemonProcess) -> str:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        try:
            daemon.check()
        except DaemonFailed as failed:
            return str(failed)
        time.sleep(0.05)
    return "it has not ended"


def test_a_folder_of_our_name_in_the_working_folder_is_not_taken_for_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where somebody has cloned the repository, for one."""
    (tmp_path / "compactord").mkdir()
    monkeypatch.chdir(tmp_path)
    # What cannot be served ends the daemon before it starts anything.
    table = TableRef(database="d", name="t", location="s3://bucket/wh/d.db/t")
    with DaemonProcess(tmp_path, {"warehouse": "s3://bucket/wh"}, [table]) as daemon:
        said = _last_word(daemon)
    assert "exit code 2" in said, said
    assert "region of the bucket is not known" in said, said
