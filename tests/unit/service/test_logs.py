from __future__ import annotations

import io
import json
import logging
import re
from datetime import datetime, timezone, tzinfo
from typing import Any

import pytest
import structlog
from structlog.contextvars import bound_contextvars

from compactord.config.choices import LogFormat, LogLevel
from compactord.service.logs import configure_logs

SECRET = "s3same"


class _Clock:
    """Stands at 2026-11-21T08:05:03.007Z until it is moved."""

    time_zone: tzinfo = timezone.utc

    def __init__(self) -> None:
        self.passed_s = 0.0

    def now_ms(self) -> int:
        start = datetime(2026, 11, 21, 8, 5, 3, tzinfo=timezone.utc)
        return int(start.timestamp()) * 1000 + 7 + int(self.passed_s * 1000)

    def monotonic_s(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _configure(
    *,
    level: LogLevel = LogLevel.INFO,
    format: LogFormat = LogFormat.JSON,
    clock: _Clock | None = None,
    stream: io.StringIO | None = None,
) -> io.StringIO:
    stream = stream if stream is not None else io.StringIO()
    configure_logs(
        level=level,
        format=format,
        stream=stream,
        instance="host-1",
        version="1.2.3",
        clock=clock or _Clock(),
    )
    return stream


def _lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def _logger() -> Any:
    return structlog.get_logger("compactord.service.somewhere")


def test_an_event_is_one_json_object_on_one_line() -> None:
    stream = _configure()
    _logger().info("compaction_finished", table="d.t", duration_s=1.5, text="a\nb")
    assert stream.getvalue().count("\n") == 1
    (line,) = _lines(stream)
    assert line == {
        "ts": "2026-11-21T08:05:03.007Z",
        "level": "info",
        "event": "compaction_finished",
        "logger": "compactord.service.somewhere",
        "version": "1.2.3",
        "instance": "host-1",
        "table": "d.t",
        "duration_s": 1.5,
        "text": "a\nb",
    }
    assert list(line)[:4] == ["ts", "level", "event", "logger"]


def test_a_logger_without_a_name_has_that_of_its_module() -> None:
    stream = _configure(level=LogLevel.WARNING)
    structlog.get_logger().warning("commit_conflict")
    assert _lines(stream)[0]["logger"] == __name__


def test_a_command_names_neither_instance_nor_version() -> None:
    stream = io.StringIO()
    configure_logs(level=LogLevel.WARNING, format=LogFormat.AUTO, stream=stream)
    _logger().info("quiet")
    _logger().warning("sweep_failed", table="d.t")
    (line,) = _lines(stream)
    assert set(line) == {"ts", "level", "event", "logger", "table"}
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["ts"])


def test_without_a_stream_events_go_nowhere() -> None:
    configure_logs(level=LogLevel.INFO, format=LogFormat.AUTO, stream=None)
    _logger().info("service_started")


@pytest.mark.parametrize(
    ("level", "written"),
    [
        (LogLevel.DEBUG, ["debug", "info", "warning", "error"]),
        (LogLevel.INFO, ["info", "warning", "error"]),
        (LogLevel.ERROR, ["error"]),
    ],
)
def test_events_below_the_level_are_left_out(level: LogLevel, written: list[str]) -> None:
    stream = _configure(level=level)
    for name in ("debug", "info", "warning", "error"):
        getattr(_logger(), name)("plan_finished")
    assert [line["level"] for line in _lines(stream)] == written


def test_configuring_again_replaces_what_was_configured() -> None:
    old = _configure()
    log = _logger()
    new = _configure(level=LogLevel.DEBUG)
    log.debug("task_picked")
    assert old.getvalue() == ""
    assert len(_lines(new)) == 1


def test_a_terminal_gets_text_and_anything_else_json() -> None:
    terminal = _configure(format=LogFormat.AUTO, stream=_Terminal())
    _logger().info("service_started", port=9464)
    assert re.search(r"info.*service_started.*port.*9464", terminal.getvalue())
    assert not terminal.getvalue().startswith("{")
    pipe = _configure(format=LogFormat.AUTO)
    _logger().info("service_started")
    assert len(_lines(pipe)) == 1
    asked = _configure(format=LogFormat.CONSOLE)
    _logger().info("service_started")
    assert not asked.getvalue().startswith("{")
    forced = _configure(format=LogFormat.JSON, stream=_Terminal())
    _logger().info("service_started")
    assert len(_lines(forced)) == 1


def test_libraries_pass_the_same_formatter_from_warning_on() -> None:
    stream = _configure(level=LogLevel.DEBUG)
    for name in ("py4j.java_gateway", "apscheduler.scheduler", "waitress.queue", "botocore"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("depth is %d", 3)
    assert [(line["logger"], line["event"], line["instance"]) for line in _lines(stream)] == [
        ("py4j.java_gateway", "depth is 3", "host-1"),
        ("apscheduler.scheduler", "depth is 3", "host-1"),
        ("waitress.queue", "depth is 3", "host-1"),
        ("botocore", "depth is 3", "host-1"),
    ]


def test_handlers_of_others_do_not_get_our_events() -> None:
    stream, foreign = _configure(), io.StringIO()
    logging.getLogger().addHandler(logging.StreamHandler(foreign))
    _logger().warning("config_loaded", password=SECRET)
    assert len(_lines(stream)) == 1
    assert foreign.getvalue() == ""


def test_exceptions_are_dictionaries_without_local_variables() -> None:
    stream = _configure()
    password = SECRET
    try:
        raise ValueError("cannot reach s3://me:s3same@host/?sig=s3same")
    except ValueError:
        _logger().exception("compaction_failed", table="d.t")
        logging.getLogger("waitress").exception("uncaught")
    assert password not in stream.getvalue()
    for line in _lines(stream):
        assert line["level"] == "error"
        (found,) = line["exception"]
        assert found["exc_type"] == "ValueError"
        assert found["exc_value"] == "cannot reach s3://***@host/?***"
        assert found["frames"][0]["name"].startswith("test_exceptions")


@pytest.mark.parametrize("format", [LogFormat.JSON, LogFormat.CONSOLE])
def test_no_secret_reaches_the_stream(format: LogFormat) -> None:
    stream = _configure(format=format)
    catalog = {
        "warehouse": f"s3://me:{SECRET}@bucket/wh?X-Amz-Signature={SECRET}",
        "options": [{"s3.secret-key": SECRET, "jdbc.password": [SECRET], "sas": {"a": SECRET}}],
    }
    _logger().info(
        "config_loaded", catalog=catalog, token=SECRET, why=ValueError(f"pwd token={SECRET}")
    )
    structlog.contextvars.bind_contextvars(credential=SECRET)
    try:
        _logger().info("config_loaded")
    finally:
        structlog.contextvars.clear_contextvars()
    logging.getLogger("py4j").error("auth_token=%s", SECRET)
    try:
        raise RuntimeError(f"password={SECRET}") from ValueError(f"https://u:{SECRET}@h")
    except RuntimeError:
        _logger().exception("compaction_failed")
    assert SECRET not in stream.getvalue()
    assert stream.getvalue().count("***") >= 8


def test_bound_context_is_in_every_event() -> None:
    stream = _configure()
    structlog.contextvars.bind_contextvars(cycle_id="c1")
    try:
        _logger().info("plan_finished")
    finally:
        structlog.contextvars.clear_contextvars()
    assert _lines(stream)[0]["cycle_id"] == "c1"


def test_a_warning_is_repeated_once_in_five_minutes_with_the_count_in_between() -> None:
    clock = _Clock()
    stream = _configure(clock=clock)
    for _ in range(4):
        _logger().warning("slow_storage", table="d.t")
        clock.sleep(99)
    _logger().warning("slow_storage", table="d.t")
    clock.sleep(300)
    _logger().warning("slow_storage", table="d.t")
    assert [(line["ts"][14:19], line.get("suppressed")) for line in _lines(stream)] == [
        ("05:03", None),
        ("11:39", 3),
        ("16:39", None),
    ]


def test_warnings_of_jobs_of_other_tables_are_no_repetitions() -> None:
    stream = _configure()
    for table in ("t", "u", "t"):
        with bound_contextvars(catalog="lake", database="d", table=table):
            _logger().warning("refresh_failed", error="gone")
    assert [line["table"] for line in _lines(stream)] == ["t", "u"]


def test_warnings_of_other_tables_and_events_and_all_errors_pass() -> None:
    stream = _configure()
    for table in ("d.t", "d.u", None):
        for event in ("slow_storage", "commit_conflict"):
            for _ in range(2):
                _logger().warning(event, table=table)
                _logger().warning(event, table=table, catalog="other")
                _logger().error("compaction_failed", table=table)
                _logger().info("plan_finished", table=table)
    levels = [line["level"] for line in _lines(stream)]
    assert levels.count("warning") == 3 * 2 * 2
    assert levels.count("error") == levels.count("info") == 3 * 2 * 2 * 1


def test_the_memory_of_repetitions_is_bounded() -> None:
    stream = _configure()
    for number in range(5000):
        _logger().warning("slow_storage", table=f"d.t{number}")
    # The first has been forgotten and passes; one of the latest has not.
    _logger().warning("slow_storage", table="d.t0")
    _logger().warning("slow_storage", table="d.t4999")
    assert len(_lines(stream)) == 5001


def test_a_stream_that_fails_ends_nothing() -> None:
    class _Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(28, "No space left on device")

    _configure(stream=_Full())
    _logger().info("service_started")
    closed = _configure()
    closed.close()
    _logger().info("service_started")


def test_a_value_that_cannot_be_shown_costs_its_line_only() -> None:
    class _Broken:
        def __repr__(self) -> str:
            raise RuntimeError(SECRET)

    stream = _configure()
    _logger().info("plan_finished", value=_Broken())
    _logger().info("plan_finished")
    lost, line = _lines(stream)
    assert lost == {"event": "log_line_lost", "error": "RuntimeError"}
    assert line["event"] == "plan_finished"


def test_no_text_of_an_event_controls_the_terminal() -> None:
    hostile = "a\x1b]0;owned\x07\u202eb\nc"
    stream = _configure(format=LogFormat.AUTO, stream=_Terminal())
    try:
        raise ValueError(hostile)
    except ValueError:
        _logger().error("failed", table=hostile, tables=[hostile], exc_info=True)
    logging.getLogger("library").warning("bad name %s", hostile)
    # The renderer's own colours.
    said = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert said.replace("\n", "").isprintable()
    assert said.count(r"a\x1b]0;owned\x07\u202eb") == 4
    assert "Traceback (most recent call last):\n" in said
