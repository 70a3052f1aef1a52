"""What is left of an engine when its process closes it, is told to stop, or is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.errors import EngineUnavailable
from compactord.model import FailureKind, SubcompactionFailure, SubcompactionResult
from tests.conftest import REPOSITORY
from tests.spark.remote import RemoteEngine, find_process, is_alive
from tests.spark.subcompactions import (
    PATIENCE_SECONDS,
    GatedStorage,
    append_subcompaction,
    eventually,
    outputs,
    waiting,
)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files of engines."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def engine(scratch: Path) -> Iterator[RemoteEngine]:
    with RemoteEngine("local[1]", {"spark.executorEnv.PYTHONPATH": str(REPOSITORY)}) as engine:
        yield engine


def test_closing_while_a_subcompaction_runs_leaves_no_process_and_no_file(
    engine: RemoteEngine, tmp_path: Path, scratch: Path
) -> None:
    engine.submit(append_subcompaction(tmp_path, 1))
    assert isinstance(engine.next_outcome(PATIENCE_SECONDS), SubcompactionResult)
    done = outputs(tmp_path)
    engine.submit(append_subcompaction(tmp_path, 2, GatedStorage(gate=str(tmp_path / "gate"))))
    with waiting(tmp_path / "gate", 1):
        family = engine.children()
        assert len(family) >= 3, "a JVM, its daemon and a worker"
        engine.close()
        eventually(lambda: not any(map(is_alive, family)), "the processes end")
    assert outputs(tmp_path) == done
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_stopped_program_takes_its_processes_and_unfinished_files_along(
    engine: RemoteEngine, tmp_path: Path, number: signal.Signals
) -> None:
    engine.submit(append_subcompaction(tmp_path, 1, GatedStorage(gate=str(tmp_path / "gate"))))
    with waiting(tmp_path / "gate", 1):
        family = engine.children()
        engine.process.send_signal(number)
        eventually(lambda: not any(map(is_alive, family)), "the processes end")
        eventually(lambda: not outputs(tmp_path), "the worker removes its file")


def test_a_start_that_fails_says_why_in_java_s_words_without_a_stack(scratch: Path) -> None:
    with pytest.raises(EngineUnavailable, match="did not start") as raised:
        RemoteEngine("local[1]", {"spark.driver.memory": "100m"})
    assert "100m" in str(raised.value) or "memory" in str(raised.value)
    assert "\tat " not in str(raised.value)
    assert list(scratch.iterdir()) == []


def test_an_engine_whose_jvm_died_is_unavailable(engine: RemoteEngine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    engine.submit(append_subcompaction(tmp_path, 1, GatedStorage(gate=str(gate))))
    with waiting(gate, 1):
        os.kill(
            find_process("org.apache.spark.api.python.PythonGatewayServer", engine.children()), 9
        )
        outcome = engine.next_outcome(PATIENCE_SECONDS)
        assert isinstance(outcome, SubcompactionFailure)
        assert outcome.kind is FailureKind.LOST
        assert "driver process is gone" in outcome.message
        eventually(lambda: not outputs(tmp_path), "the worker removes its file")
        with pytest.raises(EngineUnavailable, match="driver process has ended"):
            engine.submit(append_subcompaction(tmp_path, 2))


def test_the_next_start_uses_an_archive_of_classes_and_a_damaged_one_is_no_hindrance(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    archives = tmp_path / "cache" / "compactord" / "jvm"
    settings = {"spark.executorEnv.PYTHONPATH": str(REPOSITORY)}
    with RemoteEngine("local[1]", settings) as engine:
        engine.close()
    eventually(lambda: any(archives.glob("*.jsa")), "the archive is made")
    eventually(lambda: not any(archives.glob("*.making")), "nothing else is left")
    (archive,) = archives.iterdir()
    with RemoteEngine("local[1]", settings) as engine:
        jvm = find_process("org.apache.spark.api.python.PythonGatewayServer", engine.children())
        assert str(archive) in Path(f"/proc/{jvm}/maps").read_text()
        engine.submit(append_subcompaction(tmp_path, 1))
        assert isinstance(engine.next_outcome(PATIENCE_SECONDS), SubcompactionResult)
        engine.close()
    whole = archive.read_bytes()
    archive.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    with RemoteEngine("local[1]", settings) as engine:
        engine.submit(append_subcompaction(tmp_path, 2))
        assert isinstance(engine.next_outcome(PATIENCE_SECONDS), SubcompactionResult)
        engine.close()
    assert not archive.exists() or archive.read_bytes() != whole
    assert list(scratch.iterdir()) == []
