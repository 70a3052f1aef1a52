"""Settings reach Spark whole, and nobody but Spark: other users see command lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compactord.engine.base import PooledEngine
from compactord.errors import EngineUnavailable
from compactord.model import SubcompactionResult
from tests.conftest import REPOSITORY
from tests.spark.remote import RemoteEngine, context_of, process_texts, settings_of_driver
from tests.spark.subcompactions import PATIENCE_SECONDS, append_subcompaction

MARKER = "s3same-wJalrXUtnFEMI"
SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": MARKER,
    "spark.hadoop.fs.azure.account.key.lake": f"{MARKER}==",
    "spark.authenticate.secret": MARKER,
}
# What java.util.Properties, its readers in Spark, or a shell could take for something else.
ODD = {
    "spark.odd.signs": r"a=b:c #d !e \f \u0041 \\g 'h' \"i\" $HOME $(id) `id` *",
    "spark.odd.lines": "a\nb\tc\fd\n\ne \\\nf",
    "spark.odd.returns": "a\rb\r\nc",
    "spark.odd.letters": "Größe 数据 😀 \x01\x7f",
    "spark.odd.key=a:b c#d!e\\f\u00fc": "1",
    "spark.odd.empty": "",
    "spark.odd.first": "#a",
}
# `spark-submit` trims what it reads from a file; the driver itself gets it whole.
TRIMMED = {"spark.odd.spaces": " \t a  b \t "}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files of engines."""
    folder = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def engine(scratch: Path) -> Iterator[RemoteEngine]:
    ours = {"spark.executorEnv.PYTHONPATH": str(REPOSITORY), "spark.driver.memory": "650m"}
    with RemoteEngine("local[1]", ours | SECRETS | ODD | TRIMMED) as engine:
        yield engine


def test_no_process_shows_a_secret_on_its_command_line_or_in_its_environment(
    engine: RemoteEngine, tmp_path: Path
) -> None:
    engine.submit(append_subcompaction(tmp_path))
    assert isinstance(engine.next_outcome(PATIENCE_SECONDS), SubcompactionResult)
    family = engine.children()
    assert len(family) >= 3, "a JVM, its daemon and a worker"
    shown = {pid: process_texts(pid) for pid in (engine.process.pid, *family)}
    assert [pid for pid, text in shown.items() if MARKER in text] == []


def test_no_file_holds_a_secret_once_spark_runs(engine: RemoteEngine, scratch: Path) -> None:
    files = [path for path in scratch.rglob("*") if path.is_file()]
    assert any(path.name == "spark.log" for path in files)
    assert [path for path in files if MARKER.encode() in path.read_bytes()] == []


def test_settings_reach_spark_submit_and_the_driver_as_they_were_given(
    engine: RemoteEngine,
) -> None:
    submitted, held = engine.ask(_in_java)
    assert {name: submitted.get(name) for name in ODD} == ODD
    assert {name: held.get(name) for name in ODD | TRIMMED} == ODD | TRIMMED
    assert held["spark.hadoop.fs.s3a.secret.key"] == MARKER
    # What the JVM has to know when it starts.
    assert int(submitted["largest heap"]) == pytest.approx(650 << 20, rel=0.1)


def test_spark_s_own_pages_and_event_logs_hide_what_we_hide(engine: RemoteEngine) -> None:
    shown = engine.ask(_redacted_by_spark)
    assert {name: shown[name] for name in SECRETS} == dict.fromkeys(SECRETS, "*********(redacted)")
    assert shown["spark.driver.memory"] == "650m"


@pytest.mark.parametrize(
    "conf",
    [
        pytest.param({"spark.driver.memory": f"secret={MARKER}"}, id="inside a value"),
        pytest.param(
            {"spark.authenticate": "true", "spark.authenticate.secretBitLength": MARKER},
            id="by the name",
        ),
    ],
)
def test_a_start_that_fails_shows_no_secret_and_leaves_no_file(
    conf: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(EngineUnavailable, match="did not start") as raised:
        RemoteEngine("local[1]", conf)
    assert MARKER not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def _in_java(engine: PooledEngine) -> tuple[dict[str, str], dict[str, str]]:
    """What spark-submit was told, and what the driver's configuration holds."""
    context = context_of(engine)
    lang = context._jvm.java.lang
    submitted = {name: lang.System.getProperty(name) for name in ODD}
    submitted["largest heap"] = str(lang.Runtime.getRuntime().maxMemory())
    return submitted, settings_of_driver(engine)


def _redacted_by_spark(engine: PooledEngine) -> dict[str, str]:
    context = context_of(engine)
    utils = context._jvm.org.apache.spark.util.Utils
    jconf = context._jsc.sc().getConf()
    settings = {}
    for name, value in settings_of_driver(engine).items():
        # Of a map of one: Scala's are awkward to make from here.
        one = context._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({name: value})
        settings[name] = utils.redact(jconf, one.toSeq()).head()._2()
    return settings
