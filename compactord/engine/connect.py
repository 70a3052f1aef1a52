"""Subcompactions through a Spark Connect server: `mapInArrow` over rows of one, pickled, each."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TimeIsUp
from typing import Any
from urllib.parse import urlsplit

from compactord.engine.inspection import inspect_batches
from compactord.engine.messages import Messages
from compactord.engine.pool import JobFailed
from compactord.engine.scratch import new_scratch
from compactord.engine.shipping import check_workers, package_zip
from compactord.engine.worker import Assignment, run_batches
from compactord.errors import EngineUnavailable
from compactord.model import FailureKind, Subcompaction, SubcompactionOutcome

# Rows enough for a partition in each task slot.
_CHECK_ROWS = 100_000
_DEFAULT_PORT = 15002


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
            # Task slots when the session began.
            self.capacity = self._check_workers(start_seconds_max)
        except BaseException:
            self.close()
            raise

    def run(self, subcompaction: Subcompaction, group: str) -> SubcompactionOutcome:
        # No lease: it is unknown whether the executors of a remote server can reach this machine.
        payload = pickle.dumps(Assignment(subcompaction=subcompaction, lease=None))
        self._session.addTag(group)
        try:
            rows = self._session.createDataFrame([(payload,)], "payload binary")
            answers = self._collect(rows.mapInArrow(run_batches, "outcome binary"))
        finally:
            # Tags belong to the thread, which carries other subcompactions afterwards.
            self._session.removeTag(group)
        outcome: SubcompactionOutcome = pickle.loads(answers[0])
        return outcome

    def cancel(self, group: str) -> None:
        with contextlib.suppress(Exception):
            self._session.interruptTag(group)

    def watch(self) -> None:
        """Nothing to do: the server watches its executors."""

    def why_gone(self) -> str | None:
        return None

    def close(self) -> None:
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.stop()
            self._session = None
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _check_reachable(self, seconds_max: float) -> None:
        """Connect with our own time limit: Spark's client would try for ten minutes."""
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
            # Connect has many error classes, and they differ between versions.
            name = type(error).__name__
            kind = FailureKind.TRANSIENT if name == "PythonException" else FailureKind.LOST
            messages = self._messages
            raise JobFailed(
                kind, name, messages.brief(error), messages.redacted(str(error))
            ) from error
