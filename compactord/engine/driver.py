"""The JVM of Spark's driver: started with a suitable Java and settings, and ended cleanly."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compactord.engine.inspection import package_zip
from compactord.engine.jvm import (
    LEAST,
    ClassArchive,
    Java,
    cache_folder,
    find_java,
    jvm_command,
    starts_without_submit,
    submit_arguments,
)
from compactord.engine.masters import Messages, is_embedded, new_scratch
from compactord.errors import EngineUnavailable, UsageError

_STOP_SECONDS_MAX = 10.0
# Our defaults, overridden by the configuration.
SETTINGS = {
    "spark.app.name": "compactord",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.worker.reuse": "true",
    # Spark 4.1 and later. Without it each task waits 40 ms for a TCP acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    # A merge allocates and frees buffers by the megabyte. If the allocator keeps them instead of
    # returning them to the system, a worker takes 5 % less time and, with one arena, 40 MB less
    # memory; huge pages, where the system grants them, save another 5 %. With one arena for each
    # thread that fetches from an object store, freed memory would be kept sixteen times.
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
    "spark.executorEnv.MALLOC_TRIM_THRESHOLD_": "1000000000",
    "spark.executorEnv.MALLOC_MMAP_THRESHOLD_": "1000000000",
    "spark.executorEnv.GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1",
}
# The driver only forwards byte strings: a small heap, a quick start, no extra threads or files.
_EMBEDDED_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
_LOG_SETTINGS = """\
rootLogger.level = {level}
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n%xEx{{short}}
"""
# Spark refuses longer folders for its Unix domain sockets.
_SOCKET_FOLDER_BYTES_MAX = 60
_POLL_SECONDS = 0.01
_LAST_MOMENT_SECONDS = 2.0


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether a record is not py4j's, which also logs by the root logger."""
    return "/py4j/" not in record.pathname


class Driver:
    """A running SparkContext, `context`, in its own JVM. A process can have one at a time."""

    def __init__(
        self, master: str, settings: Mapping[str, str], *, start_seconds_max: float
    ) -> None:
        """Raises `EngineUnavailable` if there is no Java, or Spark does not start in time."""
        self.messages = Messages(master, settings)
        self._master = master
        self.is_embedded = is_embedded(master)
        self._start_seconds_max = start_seconds_max
        self.scratch = new_scratch()
        self._log_path = self.scratch / "spark.log"
        # For Unix domain sockets on this machine; None if the path of the temporary folder is too
        # long.
        self.socket_folder: Path | None = None
        if self.is_embedded and len(os.fsencode(self.scratch)) <= _SOCKET_FOLDER_BYTES_MAX:
            self.socket_folder = self.scratch
        self.context: Any = None
        self._process: subprocess.Popen[bytes] | None = None
        self._archive: ClassArchive | None = None
        try:
            self._start(settings)
        except OSError as error:
            self.close()
            raise EngineUnavailable(
                f"Spark at {master} did not start: {error} (temporary files go to {self.scratch})"
            ) from error
        except BaseException:
            self.close()
            raise

    def why_failed(self) -> str | None:
        """Why no job can run any more, or None."""
        if not self._is_running():
            return f"Spark's driver process has ended.{self.last_words()}"
        try:
            stopped = bool(self.context._jsc.sc().isStopped())
        except gateway_errors():
            stopped = True
            # The connection breaks shortly before the process has ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert self._process is not None, "it was running just now"
                self._process.wait(_LAST_MOMENT_SECONDS)
                return f"Spark's driver process has ended.{self.last_words()}"
        master = self.messages.master
        return f"Spark at {master} has stopped.{self.last_words()}" if stopped else None

    def last_words(self) -> str:
        """The end of the JVM's log as a sentence; empty if there is none."""
        try:
            return self.messages.last_words(self._log_path.read_text(errors="replace"))
        except OSError:
            return ""

    def close(self) -> None:
        """End the JVM and reset PySpark, so that this process can start another driver."""
        if self.context is not None:
            self._stop_context()
            self.context = None
        if self._process is not None:
            self._stop_process(self._process)
            # A killed JVM may have written only a part of its list.
            if self._archive is not None and self._process.returncode == 0:
                self._archive.make()
            self._process = None
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _start(self, settings: Mapping[str, str]) -> None:
        import pyspark
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway

        # It logs broken connections with a stack, but the callers get the error anyway.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_not_of_py4j)
        alone = starts_without_submit(self._master, settings)
        java = find_java(pyspark.__version__, os.environ, None if alone else self.scratch)
        if SparkContext._active_spark_context is not None:
            raise UsageError("this process has a Spark already; a process can have only one")
        merged = self._settings(settings)
        conf = SparkConf(loadDefaults=False)
        for name, value in ((LEAST | merged) if alone else merged).items():
            conf.set(name, value)
        handler = signal.getsignal(signal.SIGINT)
        with _environment(self._variables(settings, java.home)):
            try:
                launched = self._launch_embedded(java, merged) if alone else self._launch(conf)
                with _environment(launched):
                    gateway = launch_gateway(conf)  # type: ignore[no-untyped-call]
                self.context = SparkContext(conf=conf, gateway=gateway)
                # When the JVM ends and breaks its connection, this server would print a stack.
                self.context._accumulatorServer.handle_error = lambda request, address: None
            except EngineUnavailable:
                raise
            except Exception as error:
                raise EngineUnavailable(
                    f"Spark at {self.messages.master} did not start: "
                    f"{self.messages.brief(error)}{self.last_words()}"
                ) from error
            finally:
                # Interrupts are handled by the program, not by Spark.
                if threading.current_thread() is threading.main_thread():
                    signal.signal(signal.SIGINT, handler)

    def _launch(self, conf: Any) -> dict[str, str | None]:
        """Start the JVM by spark-submit. Returns the variables by which PySpark finds it.

        PySpark could start it, but would wait without a limit for a JVM that does not answer.
        """
        from pyspark.find_spark_home import _find_spark_home

        spark_home = _find_spark_home()
        properties = self.scratch / "spark.properties"
        folder = os.environ.get("SPARK_CONF_DIR") or f"{spark_home}/conf"
        arguments = submit_arguments(
            properties,
            dict(conf.getAll()),
            given=os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"),
            defaults=None if self.is_embedded else Path(folder, "spark-defaults.conf"),
        )
        gateway = self._started([f"{spark_home}/bin/spark-submit", *arguments])
        # The JVM has read it: the secrets in it are not needed any more.
        properties.unlink()
        return gateway

    def _launch_embedded(self, java: Java, settings: Mapping[str, str]) -> dict[str, str | None]:
        """Start the embedded Spark's JVM without spark-submit: see `jvm`.

        SPARK_HOME stays unset, so workers import the installed pyspark. With it they would import a
        zip file of sources, and compile them at each start.
        """
        from pyspark.find_spark_home import _find_spark_home

        command = jvm_command(java.executable, Path(_find_spark_home()), settings)
        self._archive = ClassArchive(
            cache_folder(os.environ), command, java_version=java.version, list_in=self.scratch
        )
        options = self._archive.options()
        try:
            return self._started(command.arguments(*options))
        except EngineUnavailable:
            if not self._archive.is_there or self._is_running():
                raise
            # A damaged archive must not keep Spark from starting.
            self._archive.forget()
        return self._started(command.arguments())

    def _started(self, arguments: Sequence[str]) -> dict[str, str | None]:
        """Start the JVM and wait for its gateway.

        In its own session, the JVM gets no signal sent to our process group. It ends when its
        standard input is closed, and so also if this process is killed.
        """
        from pyspark.serializers import UTF8Deserializer, read_int

        answer = self.scratch / "gateway"
        answered = {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer), "SPARK_CONNECT_MODE": "0"}
        # Java's output goes to a file: it is for developers, and quoted when a start fails.
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | answered,
                start_new_session=True,
            )
        deadline = time.monotonic() + self._start_seconds_max
        while not answer.exists():
            if self._process.poll() is not None:
                raise EngineUnavailable(
                    f"Spark at {self.messages.master} did not start: its driver process ended with "
                    f"code {self._process.returncode}.{self.last_words()}"
                )
            if time.monotonic() > deadline:
                self._process.kill()
                raise EngineUnavailable(
                    f"Spark at {self.messages.master} did not start within "
                    f"{self._start_seconds_max:.0f} s.{self.last_words()}"
                )
            time.sleep(_POLL_SECONDS)
        with answer.open("rb") as info:
            port, secret = read_int(info), UTF8Deserializer().loads(info)  # type: ignore[no-untyped-call]
        return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}

    def _settings(self, theirs: Mapping[str, str]) -> dict[str, str]:
        logs = self.scratch / "log4j2.properties"
        logs.write_text(_LOG_SETTINGS.format(level="error" if self.is_embedded else "warn"))
        options = [f"-Dlog4j2.configurationFile={logs.as_uri()}"]
        ours = dict(SETTINGS)
        if self.is_embedded:
            options += [_EMBEDDED_JVM, f'"-Djava.io.tmpdir={self.scratch}"']
            ours["spark.driver.memory"] = "600m"
            ours["spark.driver.host"] = ours["spark.driver.bindAddress"] = "127.0.0.1"
            ours["spark.local.dir"] = str(self.scratch)
            if self.socket_folder is None:
                ours["spark.python.unix.domain.socket.enabled"] = "false"
            else:
                ours["spark.python.unix.domain.socket.dir"] = str(self.socket_folder)
        options.append(theirs.get("spark.driver.extraJavaOptions", ""))
        merged = ours | dict(theirs)
        merged["spark.master"] = self._master
        merged["spark.driver.extraJavaOptions"] = " ".join(options).strip()
        if not self.is_embedded:
            files = (str(package_zip(self.scratch)), merged.get("spark.submit.pyFiles"))
            merged["spark.submit.pyFiles"] = ",".join(file for file in files if file)
        return merged

    def _variables(self, settings: Mapping[str, str], java_home: Path) -> dict[str, str | None]:
        """The environment of the start; None removes a variable."""
        variables: dict[str, str | None] = {
            "JAVA_HOME": str(java_home),
            "PYSPARK_PIN_THREAD": "true",
            "PYSPARK_GATEWAY_PORT": None,
            "SPARK_REMOTE": None,
        }
        if not self.is_embedded:
            python = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
            return variables | {"PYSPARK_PYTHON": python or sys.executable}
        # A user's settings for a cluster must not affect the embedded Spark; a fixed host name
        # needs no name lookup.
        return variables | {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": None,
            "SPARK_HOME": None,
            "SPARK_CONF_DIR": None,
            "SPARK_LOCAL_HOSTNAME": "localhost",
        }

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _stop_context(self) -> None:
        if not self._is_running():
            self.context._jsc = None  # there is no JVM to notify
        # PySpark would wait a second for this server, which compactord does not use.
        server, self.context._accumulatorServer = self.context._accumulatorServer, None

        def stop_server() -> None:
            with contextlib.suppress(OSError):
                server.shutdown()

        threading.Thread(target=stop_server, name="stop-accumulators", daemon=True).start()
        with contextlib.suppress(*gateway_errors()):
            self.context.stop()

    def _stop_process(self, process: subprocess.Popen[bytes]) -> None:
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        SparkContext._gateway = None
        SparkContext._jvm = None
        if gateway is not None:
            with contextlib.suppress(*gateway_errors()):
                gateway.shutdown()
        if process.stdin is not None:
            # The JVM ends when its standard input is closed, and so also if this process is killed.
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def gateway_errors() -> tuple[type[Exception], ...]:
    """The errors that a call into a JVM raises if it fails or the JVM has ended."""
    from py4j.protocol import Py4JError

    return Py4JError, OSError, EOFError


@contextlib.contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables while Spark starts: some of its settings are only read from the environment."""
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
