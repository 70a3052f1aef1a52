"""Subcompactions as Spark tasks: embedded, on a cluster, or through Spark Connect.

Spark is only the transport: the JVM gets one opaque byte string and returns one, and rows stay in
the Python worker. Only this module and `driver` use pyspark; they import it when an engine is
started.

Plain RDD tasks are two to three times faster than `mapInArrow`, so only Connect, which has no RDDs,
uses the latter: over rows of one pickled subcompaction each. On a cluster of Spark 4.1 and earlier
a Python worker reads pyspark's zip file for each task, which costs 80 ms and cannot be avoided
here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import pickle
import shutil
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimeIsUp
from typing import Any
from urllib.parse import urlsplit

from compactord.clock import Clock, SystemClock
from compactord.engine.base import Carrier, Job, JobFailed, PooledEngine
from compactord.engine.driver import Driver, gateway_errors
from compactord.engine.inspection import (
    check_workers,
    inspect_batches,
    inspect_workers,
    package_zip,
)
from compactord.engine.jvm import find_java
from compactord.engine.leases import LeaseOffice, take
from compactord.engine.masters import Messages, new_scratch
from compactord.engine.worker import Assignment, run_batches, run_payloads
from compactord.errors import EngineUnavailable, ErrorKind
from compactord.model import FailureKind
from compactord.rewrite.pipeline import usable_cores

# Enough rows for a partition in each task slot.
_CHECK_ROWS = 100_000
_DEFAULT_PORT = 15002
_CAPACITY_SECONDS = 1.0


class ConnectCarrier:
    """A session on a Spark Connect server; needs no Java on this machine."""

    def __init__(self, master: str, settings: Mapping[str, str], start_seconds_max: float) -> None:
        self._messages = Messages(master, settings)
        self._master = master
        self._scratch = new_scratch()
        self._session: Any = None
        try:
            self._check_reachable(start_seconds_max)
            self._session = self._connect(settings)
            # Task slots when the session started.
            self.capacity = self._check_workers(start_seconds_max)
        except BaseException:
            self.close()
            raise

    def run(self, job: Job) -> None:
        # No lease: it is unknown whether the executors of a remote server can reach this machine.
        payload = pickle.dumps(Assignment(subcompaction=job.first, lease=None))
        self._session.addTag(job.group)
        try:
            rows = self._session.createDataFrame([(payload,)], "payload binary")
            answers = self._collect(rows.mapInArrow(run_batches, "outcome binary"))
        finally:
            # Tags belong to the thread, which later runs other subcompactions.
            self._session.removeTag(job.group)
        take(job, pickle.loads(answers[0]))

    def cancel(self, group: str) -> None:
        with contextlib.suppress(Exception):
            self._session.interruptTag(group)

    def watch(self) -> None:
        """Does nothing: the server watches its executors."""

    def why_failed(self) -> str | None:
        return None

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.stop()
            self._session = None
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _check_reachable(self, seconds_max: float) -> None:
        """Connect with our own time limit: Spark's client would retry for ten minutes."""
        address = urlsplit(self._master)
        try:
            port = address.port or _DEFAULT_PORT
            with socket.create_connection((address.hostname or "", port), seconds_max):
                pass
        except (OSError, ValueError) as error:
            message = f"Spark Connect at {self._messages.master} did not answer: {error}"
            raise EngineUnavailable(message) from error

    def _connect(self, settings: Mapping[str, str]) -> Any:
        try:
            from pyspark.sql.connect.session import SparkSession
        except ImportError as error:
            raise EngineUnavailable(
                f"Spark Connect needs more packages ({error}): pip install 'pyspark[connect]'"
            ) from error
        try:
            builder = SparkSession.builder.remote(self._master).appName("compactord")
            session = builder.create()
            for name, value in settings.items():
                session.conf.set(name, value)
            session.addArtifacts(str(package_zip(self._scratch)), pyfile=True)
        except Exception as error:
            raise EngineUnavailable(
                f"Spark Connect at {self._messages.master} did not answer: "
                f"{self._messages.brief(error)}"
            ) from error
        return session

    def _check_workers(self, seconds_max: float) -> int:
        """The number of task slots, after each has shown that it can run subcompactions."""
        rows = self._session.range(0, _CHECK_ROWS).mapInArrow(inspect_batches, "outcome binary")
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="worker-check")
        try:
            answers = pool.submit(self._collect, rows).result(seconds_max)
        except TimeIsUp as error:
            raise EngineUnavailable(
                f"no executor behind {self._messages.master} took a task within {seconds_max:.0f} s"
            ) from error
        except JobFailed as error:
            raise EngineUnavailable(
                f"workers behind {self._messages.master} cannot run compactord: {error}"
            ) from error
        finally:
            pool.shutdown(wait=False)
        check_workers(self._messages.master, [pickle.loads(answer) for answer in answers])
        return len(answers)

    def _collect(self, frame: Any) -> list[bytes]:
        try:
            return [bytes(row[0]) for row in frame.collect()]
        except Exception as error:
            # Connect has many error classes, which differ between versions.
            name = ErrorKind.of(error)
            kind = FailureKind.TRANSIENT if name == "PythonException" else FailureKind.LOST
            messages = self._messages
            raise JobFailed(
                kind, name, messages.brief(error), messages.redacted(str(error))
            ) from error


START_SECONDS_MAX = 120.0
# Running subcompactions are abandoned after this time without any executor.
NO_EXECUTOR_SECONDS_MAX = 120.0


def check_spark(master: str | None) -> None:
    """Raises `EngineUnavailable` without pyspark, or without a Java unless Connect is used."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        raise EngineUnavailable("pyspark is not installed: pip install pyspark") from None
    if master is None or not master.startswith("sc://"):
        find_java(version, os.environ, None)


def start_spark(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    *,
    clock: Clock | None = None,
    start_seconds_max: float = START_SECONDS_MAX,
    no_executor_seconds_max: float = NO_EXECUTOR_SECONDS_MAX,
) -> PooledEngine:
    """Start an engine on Spark.

    `master` is any Spark master, `sc://host:port` for Spark Connect, or None for a Spark inside
    this process with one task for each usable core. `conf` has `spark.*` settings, which override
    ours. An embedded start takes 1 to 5 s. A process can have one engine at a time.
    Raises `UsageError` if this process has a Spark already, and `EngineUnavailable` if there is no
    Java, no answer within `start_seconds_max`, or if workers cannot run compactord.
    """
    settings = dict(conf or {})
    master = master or settings.get("spark.master") or f"local[{usable_cores()}]"
    clock = clock or SystemClock()
    try:
        import pyspark  # noqa: F401 - the import is the test
    except ImportError as error:
        raise EngineUnavailable("pyspark is not installed: pip install pyspark") from error
    carrier: Carrier
    if master.startswith("sc://"):
        carrier = ConnectCarrier(master, settings, start_seconds_max)
    else:
        carrier = ClassicCarrier(
            master, settings, clock, start_seconds_max, no_executor_seconds_max
        )
    return PooledEngine(carrier, clock=clock)


class ClassicCarrier:
    """RDD jobs of one task, from a driver in this process."""

    def __init__(
        self,
        master: str,
        settings: Mapping[str, str],
        clock: Clock,
        start_seconds_max: float,
        no_executor_seconds_max: float,
    ) -> None:
        self._clock = clock
        self._no_executor_seconds_max = no_executor_seconds_max
        self._last_executor_s = clock.monotonic_s()
        # Task slots, and the time of the query.
        self._capacity, self._capacity_s = 1, -math.inf
        self._leases: LeaseOffice | None = None
        self._driver = Driver(master, settings, start_seconds_max=start_seconds_max)
        try:
            scala_context = self._driver.context._jsc.sc()
            self._scala_context: Any = scala_context
            self._profile: Any = scala_context.resourceProfileManager().defaultResourceProfile()
            self._leases = self._open_leases()
            if self._driver.is_embedded:
                # A worker for each slot, with its packages imported before the first subcompaction.
                # The first subcompaction would repeat and report an error.
                with contextlib.suppress(JobFailed):
                    self._collect(b"", inspect_workers, self.capacity)
            else:
                self._check_workers(start_seconds_max)
        except BaseException:
            self.close()
            raise

    @property
    def capacity(self) -> int:
        """Task slots of the executors that are registered now, including busy ones; at least 1.

        Not `defaultParallelism`, which is at least 2 for a cluster, and also a setting. Queries
        the JVM once a second at most.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._capacity_s >= _CAPACITY_SECONDS:
            self._capacity = 1
            with contextlib.suppress(*gateway_errors()):
                slots = self._scala_context.maxNumConcurrentTasks(self._profile)
                self._capacity = max(1, int(slots))
            self._capacity_s = now_s
        return self._capacity

    def run(self, job: Job) -> None:
        assert self._leases is not None, "the engine is in use"
        lease = self._leases.grant(job)
        try:
            self._name_job(job.group)
            payload = pickle.dumps(Assignment(subcompaction=job.first, lease=lease))
            answer = self._collect(payload, run_payloads)[0]
            if answer:
                # The worker could not give it to the driver itself.
                take(job, pickle.loads(answer))
        finally:
            self._leases.end(lease)

    def cancel(self, group: str) -> None:
        # If the JVM has ended, there are no jobs to cancel.
        with contextlib.suppress(*gateway_errors()):
            self._driver.context.cancelJobGroup(group)

    def watch(self) -> None:
        """Abandon all jobs after too long without an executor: Spark would wait without a limit."""
        if self._driver.is_embedded:
            return
        now = self._clock.monotonic_s()
        with contextlib.suppress(*gateway_errors()):
            # The driver is one of them.
            executors = self._driver.context._jsc.sc().getExecutorMemoryStatus().size() - 1
            if executors > 0:
                self._last_executor_s = now
            elif now - self._last_executor_s > self._no_executor_seconds_max:
                self._driver.context.cancelAllJobs()

    def why_failed(self) -> str | None:
        return self._driver.why_failed()

    def close(self) -> None:
        self._driver.close()
        if self._leases is not None:
            self._leases.close()
            self._leases = None

    def _open_leases(self) -> LeaseOffice:
        if self._driver.socket_folder is not None:
            return LeaseOffice(self._driver.socket_folder)
        conf = self._driver.context.getConf()
        host = conf.get("spark.driver.host")
        return LeaseOffice(None, host=host, bind=conf.get("spark.driver.bindAddress", host))

    def _check_workers(self, seconds_max: float) -> None:
        """Run one small task in each slot. Raises if workers cannot run subcompactions."""
        master = self._driver.messages.master
        group = "compactord-check"
        answers: list[bytes] = []
        failures: list[JobFailed] = []

        def check() -> None:
            try:
                self._name_job(group)
                answers.extend(self._collect(b"", inspect_workers, max(2, self.capacity)))
            except JobFailed as error:
                failures.append(error)

        thread = threading.Thread(target=check, name="worker-check", daemon=True)
        thread.start()
        thread.join(seconds_max)
        if thread.is_alive():
            self.cancel(group)
            raise EngineUnavailable(
                f"no executor of {master} took a task within {seconds_max:.0f} s: it has no free "
                f"core, or its workers cannot reach this machine.{self._driver.last_words()}"
            )
        if failures:
            gone = self._driver.why_failed()
            if gone is not None:
                raise EngineUnavailable(
                    f"no worker of {master} was reached: {gone} Is it up, and reachable from here?"
                ) from failures[0]
            raise EngineUnavailable(
                f"workers of {master} cannot run compactord: {failures[0]} "
                "(their Python is set by spark.pyspark.python)"
            ) from failures[0]
        check_workers(master, [pickle.loads(answer) for answer in answers])

    def _name_job(self, group: str) -> None:
        """Assign jobs that this thread starts to the group."""
        try:
            self._driver.context.setJobGroup(group, group, interruptOnCancel=True)
        except gateway_errors() as error:
            raise self._driver_failure(error) from error

    def _collect(self, payload: bytes, function: Any, partitions: int = 1) -> list[bytes]:
        from py4j.protocol import Py4JJavaError

        try:
            tasks = self._driver.context.parallelize([payload] * partitions, partitions)
            answers: list[bytes] = tasks.mapPartitions(function).collect()
        except Py4JJavaError as error:
            raise self._job_failure(error) from error
        except gateway_errors() as error:
            raise self._driver_failure(error) from error
        return answers

    def _driver_failure(self, error: Exception) -> JobFailed:
        why = self._driver.messages.brief(error)
        text = f"Spark's driver process is gone ({why}).{self._driver.last_words()}"
        return JobFailed(FailureKind.LOST, ErrorKind.of(error), text)

    def _job_failure(self, error: Any) -> JobFailed:
        """A failed job: LOST, unless Python failed, which proves that the worker was alive."""
        names: list[str] = []
        message = ""
        with contextlib.suppress(*gateway_errors()):
            cause = error.java_exception
            message = str(cause.getMessage())
            while cause is not None:
                names.append(str(cause.getClass().getName()))
                cause = cause.getCause()
        in_python = "org.apache.spark.api.python.PythonException" in names
        kind = FailureKind.TRANSIENT if in_python else FailureKind.LOST
        name = (names or ["Py4JJavaError"])[-1].rsplit(".", 1)[-1]
        messages = self._driver.messages
        return JobFailed(
            kind, ErrorKind(name), messages.brief(message), messages.redacted(str(error))
        )
