"""Against real master, worker and executor processes of a standalone cluster."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pytest

from compactord.errors import EngineUnavailable
from compactord.model import FailureKind, SubcompactionFailure, SubcompactionResult
from tests.spark.cluster import EXECUTOR, JVM, Cluster, doubles_zip, free_port, worker_python
from tests.spark.remote import RemoteEngine, descendants, process_texts, settings_of_driver
from tests.spark.subcompactions import (
    PATIENCE_SECONDS,
    GatedStorage,
    append_subcompaction,
    eventually,
    outputs,
    waiters,
    waiting,
)

NO_EXECUTOR_SECONDS = 3.0
SECRET = "s3same-wJalrXUtnFEMI"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def engine(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteEngine]:
    with RemoteEngine(cluster.master, _conf(tmp_path_factory.mktemp("driver"))) as engine:
        yield engine


def _conf(folder: Path, customization: str = "") -> dict[str, str]:
    return {
        "spark.pyspark.python": str(worker_python(folder / "python", customization)),
        "spark.submit.pyFiles": str(doubles_zip(folder)),
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JVM,
        "spark.executor.cores": "1",
        "spark.cores.max": "2",
        "spark.driver.memory": "600m",
        "spark.driver.host": "127.0.0.1",
    }


def test_subcompactions_run_on_both_workers_without_an_installed_compactord(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    for number in range(2):
        engine.submit(append_subcompaction(tmp_path, number, GatedStorage(gate=str(gate))))
    with waiting(gate, 2) as names:
        executors = {name.split("-")[1] for name in names}
    outcomes = [engine.next_outcome(PATIENCE_SECONDS) for _ in range(2)]
    assert len(executors) == 2
    assert all(isinstance(outcome, SubcompactionResult) for outcome in outcomes)
    assert len(outputs(tmp_path)) == 2


def test_capacity_is_the_number_of_cores_that_executors_have(
    engine: RemoteEngine, cluster: Cluster, tmp_path: Path
) -> None:
    capacity = attrgetter("capacity")
    eventually(lambda: engine.ask(capacity) == 2, "both executors have registered")
    # Spark's default parallelism is 2 at least, and may be set.
    conf = _conf(tmp_path) | {"spark.cores.max": "1", "spark.default.parallelism": "7"}
    with RemoteEngine(cluster.master, conf) as other:
        assert other.ask(capacity) == 1


def test_what_a_user_set_up_for_spark_holds_below_ours_and_shows_no_secret(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text(
        f"spark.hadoop.theirs.password {SECRET}\n"
        "spark.both theirs\n"
        "spark.driver.memory 4g\n"
        "spark.redaction.regex (?i)password|both\n"
        "spark.theirs a\\"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(defaults.parent))
    conf = _conf(tmp_path) | {"spark.both": "ours", "spark.hadoop.fs.s3a.secret.key": SECRET}
    with RemoteEngine(cluster.master, conf) as engine:
        held = engine.ask(settings_of_driver)
        below = [engine.process.pid, *(worker.pid for worker in cluster.workers)]
        shown = {pid: process_texts(pid) for root in below for pid in descendants(root)}
    assert held.items() >= {
        ("spark.hadoop.theirs.password", SECRET),
        ("spark.hadoop.fs.s3a.secret.key", SECRET),
        ("spark.both", "ours"),
        ("spark.driver.memory", "600m"),
        ("spark.redaction.regex", "(?i)password|both"),
        ("spark.theirs", "a"),
    }
    assert sum(EXECUTOR in text for text in shown.values()) >= 2
    assert [pid for pid, text in shown.items() if SECRET in text] == []
    assert cluster.files_with(SECRET) == []


def test_a_subcompaction_of_a_killed_executor_is_run_again_and_only_one_file_stays(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    engine.submit(append_subcompaction(tmp_path, 0, GatedStorage(gate=str(gate))))
    with waiting(gate, 1) as names:
        worker = int(names[0].split("-")[-1])
        executor = _parent(_parent(worker))
        os.kill(executor, signal.SIGKILL)
        eventually(lambda: len(waiters(gate)) == 2, "the subcompaction is run again")
    outcome = engine.next_outcome(PATIENCE_SECONDS)
    assert isinstance(outcome, SubcompactionResult), outcome
    (file,) = outcome.after
    eventually(lambda: outputs(tmp_path) == [file.file_name], "the first attempt's file goes")


def test_cancelled_subcompactions_leave_no_file_on_a_cluster(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    for number in range(2):
        engine.submit(append_subcompaction(tmp_path, number, GatedStorage(gate=str(gate))))
    with waiting(gate, 2):
        engine.cancel()
        eventually(lambda: not outputs(tmp_path), "the workers remove their files")
    outcomes = [engine.next_outcome(PATIENCE_SECONDS) for _ in range(2)]
    assert {o.kind for o in outcomes if isinstance(o, SubcompactionFailure)} == {FailureKind.LOST}


def test_of_speculative_twins_one_file_stays(cluster: Cluster, tmp_path: Path) -> None:
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "500ms",
    }
    gate = tmp_path / "gate"
    with RemoteEngine(cluster.master, _conf(tmp_path) | speculation) as engine:
        engine.submit(append_subcompaction(tmp_path, 0, GatedStorage(gate=str(gate))))
        with waiting(gate, 2):
            assert len(outputs(tmp_path)) == 2
        outcome = engine.next_outcome(PATIENCE_SECONDS)
        assert isinstance(outcome, SubcompactionResult), outcome
        (file,) = outcome.after
        eventually(lambda: outputs(tmp_path) == [file.file_name], "the twin's file goes")


def test_without_any_executor_a_subcompaction_is_lost_and_nothing_hangs(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    gate = tmp_path / "gate"
    with (
        Cluster(folder) as cluster,
        RemoteEngine(
            cluster.master, _conf(tmp_path), no_executor_seconds_max=NO_EXECUTOR_SECONDS
        ) as engine,
    ):
        engine.submit(append_subcompaction(tmp_path, 0, GatedStorage(gate=str(gate))))
        with waiting(gate, 1):
            for worker in cluster.workers:
                pids = (worker.pid, *cluster.executors(worker))
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            outcome = engine.next_outcome(PATIENCE_SECONDS)
            assert isinstance(outcome, SubcompactionFailure)
            assert outcome.kind is FailureKind.LOST
            eventually(lambda: not outputs(tmp_path), "the worker removes its file")


@pytest.mark.parametrize(
    ("customization", "words"),
    [
        pytest.param(
            "import sys; sys.modules['pyarrow'] = None", "need pyarrow", id="missing package"
        ),
        pytest.param(
            "import collections, sys\n"
            "Version = collections.namedtuple('Version', 'major minor micro releaselevel serial')\n"
            "sys.version_info = Version(3, 99, 0, 'final', 0)\n",
            r"different (minor )?version.*3(\.|, )99",
            id="other Python",
        ),
    ],
)
def test_workers_that_cannot_run_subcompactions_are_found_at_the_start(
    cluster: Cluster, tmp_path: Path, customization: str, words: str
) -> None:
    with pytest.raises(EngineUnavailable, match=words) as raised:
        RemoteEngine(cluster.master, _conf(tmp_path, customization))
    assert "at org.apache" not in str(raised.value)
    assert cluster.master in str(raised.value)


def test_a_cluster_that_gives_no_executor_is_unavailable(cluster: Cluster, tmp_path: Path) -> None:
    conf = _conf(tmp_path) | {"spark.executor.memory": "64g"}
    with pytest.raises(EngineUnavailable, match="took a task within 20 s"):
        # Its driver has to start within that time, too, on a busy machine.
        RemoteEngine(cluster.master, conf, start_seconds_max=20.0)


def test_a_master_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    conf = _conf(tmp_path) | {"spark.network.timeout": "5s", "spark.rpc.askTimeout": "5s"}
    with pytest.raises(EngineUnavailable):
        RemoteEngine(f"spark://127.0.0.1:{free_port()}", conf, start_seconds_max=5.0)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
