from __future__ import annotations

import pytest

from compactord.engine.masters import MESSAGE_CHARACTERS_MAX, Messages

_PLAIN = Messages("local", {})
SECRET = "s3same-wJalrXUtnFEMI"
_WARN = "2026-11-21 21:19:27,784 WARN org.apache.spark.util.Utils: Your hostname resolves to ::1"
_ERROR = "2026-11-21 21:19:27,900 ERROR org.apache.spark.SparkContext: no"
_REASON = 'Exception in thread "main" org.apache.spark.SparkException: it cannot be'


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ("", ""),
        (f"{_WARN}\n{_WARN}\n{_REASON}\n\tat a.b(C.java:1)\n", f" Its last output: {_REASON}"),
        (f"{_WARN}\n{_ERROR}\n{_REASON}", f" Its last output: {_ERROR} | {_REASON}"),
        (f"{_WARN}\n", f" Its last output: {_WARN}"),
        ("a WARN b\n", " Its last output: a WARN b"),
    ],
)
def test_the_last_words_are_the_reason_without_warnings_and_stacks(log: str, expected: str) -> None:
    assert _PLAIN.last_words(log) == expected


# Of Spark 4.3 and of an API server under a quota on limits.cpu; `Status` is shortened.
_PODS = "org.apache.spark.scheduler.cluster.k8s"
_REFUSED = (
    "io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST at: "
    "https://kubernetes.default.svc/api/v1/namespaces/compactord/pods. Message: "
    'pods "compactord-bf7e-exec-4" is forbidden: failed quota: all: must specify limits.cpu for: '
    "executor."
)
_STATUS = (
    f"{_REFUSED} Received status: Status(apiVersion=v1, code=403, {'x' * 600}, status=Failure)."
)
_GIVEN_UP = f"2026-11-28 09:58:44,392 ERROR {_PODS}.ExecutorPodsLifecycleManager: Max number (3)"
_STOPPED = (
    "2026-11-28 09:58:44,701 ERROR org.apache.spark.SparkContext: Error initializing SparkContext."
    "\njava.lang.IllegalStateException: Spark context stopped while waiting for backend"
    "\n\tat org.apache.spark.scheduler.TaskSchedulerImpl.waitBackendReady(TaskScheduler.scala:1202)"
)
_WARNED = f"2026-11-28 09:58:44,015 WARN {_PODS}.ExecutorPodsSnapshotsStoreImpl: Exception when"
_MISSING = f"2026-11-28 09:58:43,015 WARN {_PODS}.ExecutorPodsAllocator: Executors 1 were not found"
_CLOSED = f"2026-11-28 09:58:45,015 WARN {_PODS}.ExecutorPodsWatcher: client has been closed."


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ((_STATUS, _GIVEN_UP, _STOPPED), _REFUSED),
        ((_WARNED, _STATUS, _GIVEN_UP, _STOPPED, _CLOSED), _REFUSED),
        ((_WARNED, f"Caused by: {_STATUS}", _GIVEN_UP, _STOPPED), f"Caused by: {_REFUSED}"),
        ((_MISSING, _WARN, _GIVEN_UP, _STOPPED, _CLOSED), _MISSING),
        ((_STATUS, _GIVEN_UP, _STOPPED, f"{_ERROR} {'y' * 900}"), _REFUSED),
    ],
)
def test_why_kubernetes_starts_no_executor_outlives_what_is_said_of_it(
    log: tuple[str, ...], why: str
) -> None:
    said = _PLAIN.last_words("\n".join(log))
    assert said.startswith(f" Its last output: {why} | ")
    assert len(said) < MESSAGE_CHARACTERS_MAX + 30
    assert "Received status" not in said


def test_a_brief_text_has_neither_stack_nor_headings() -> None:
    text = (
        "Job aborted: PythonException: Traceback (most recent call last):\n"
        '  File "worker.py", line 3, in run\n'
        "    return 1 / 0\n"
        "ZeroDivisionError: division by zero\n"
        "\n"
        "\tat org.apache.spark.Runner.run(Runner.scala:3)\n"
        "\t... 1 more\n"
        "Driver stacktrace:\n"
    )
    assert _PLAIN.brief(text) == "Job aborted: PythonException: ZeroDivisionError: division by zero"


def test_a_brief_text_keeps_both_ends_of_a_long_one() -> None:
    text = _PLAIN.brief("begin " + "x" * 10_000 + " end")
    assert text.startswith("begin")
    assert text.endswith("end")
    assert len(text) <= MESSAGE_CHARACTERS_MAX + 3


@pytest.mark.parametrize(
    ("settings", "quoted"),
    [
        ({"spark.authenticate.secret": SECRET}, f"bad length of {SECRET}"),
        ({"spark.hadoop.fs.azure.account.key.lake": SECRET}, f"in '{SECRET}'"),
        ({"spark.a.token": SECRET, "spark.b.token": SECRET[:10]}, SECRET),
        ({"spark.private.key": f"-----BEGIN\n  {SECRET}\nEND-----\n"}, f"no PEM:\n{SECRET}"),
        ({"spark.driver.extraJavaOptions": f"-Dpassword={SECRET}"}, f"-Dpassword={SECRET}"),
        ({}, f"sc://head:15002/;user_id=me;token={SECRET};x-org={SECRET} is refused"),
        ({}, f"no metadata {SECRET}"),
    ],
)
def test_no_value_of_a_secret_setting_is_quoted(settings: dict[str, str], quoted: str) -> None:
    master = f"sc://head:15002/;user_id=me;token={SECRET};x-org={SECRET}"
    messages = Messages(master, settings)
    # Cut in the middle of the secret, too: a half is one half too many.
    for words in (quoted, quoted + "." * (MESSAGE_CHARACTERS_MAX - 10)):
        for text in (
            messages.redacted(words),
            messages.brief(words),
            messages.brief(ValueError(words)),
            messages.last_words(words),
        ):
            assert not any(part in text for part in (SECRET, SECRET[:8], SECRET[-8:]))
            assert "***" in text or len(words) > MESSAGE_CHARACTERS_MAX


def test_values_that_are_no_secrets_are_quoted() -> None:
    settings = {"spark.driver.memory": "100-megs", "spark.a.token.enabled": "true", "spark.b": ""}
    messages = Messages("spark://head:7077", settings)
    text = "spark://head:7077: true, spark.driver.memory should be bytes, but was 100-megs"
    assert messages.brief(text) == text
