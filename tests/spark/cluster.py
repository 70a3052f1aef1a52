"""A standalone Spark cluster of two worker processes on the loopback.

Workers have two cores each: one for the engine that tests share, one for those of single tests.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from types import TracebackType

import pyspark

from compactord.engine.jvm import find_java
from tests.conftest import REPOSITORY
from tests.spark.remote import descendants, find_process
from tests.spark.subcompactions import eventually
from tests.tools.class_archive import archive_options

SPARK_HOME = Path(pyspark.__file__).parent
WORKERS = 2
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# Started for a test only: a small heap and a quick start.
JVM = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {archive_options()}"


class Cluster:
    """`master` is its address. Everything lives below `folder`."""

    def __init__(self, folder: Path) -> None:
        java = find_java(pyspark.__version__, os.environ, folder)
        self._environment = os.environ | {
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self._folder = folder
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        self._master = self._start("master.Master", "--port", str(port))
        eventually(lambda: is_listening(port), "the master listens")
        self.workers = [self._start_worker(number) for number in range(WORKERS)]

    def executors(self, worker: subprocess.Popen[bytes]) -> set[int]:
        """Executor processes that this worker runs now."""
        with contextlib.suppress(ValueError):
            return {find_process(EXECUTOR, descendants(worker.pid))}
        return set()

    def files_with(self, text: str) -> list[Path]:
        """Logs, and what else its processes wrote."""
        files = (path for path in self._folder.rglob("*") if path.is_file())
        return [path for path in files if text.encode() in path.read_bytes()]

    def close(self) -> None:
        for process in (*self.workers, self._master):
            for pid in (*descendants(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start_worker(self, number: int) -> subprocess.Popen[bytes]:
        work = self._folder / f"worker-{number}"
        options = ("--cores", "2", "--memory", "2g", "--work-dir", str(work))
        # Hosts of their own: Spark starts no speculative twin on the host of the first attempt.
        return self._start("worker.Worker", *options, self.master, host=f"127.0.0.{2 + number}")

    def _start(self, name: str, *options: str, host: str = "127.0.0.1") -> subprocess.Popen[bytes]:
        command = [
            str(SPARK_HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{name}",
            *("--host", host, "--webui-port", "0"),
            *options,
        ]
        with (self._folder / "daemons.log").open("ab") as log:
            return subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, cwd=self._folder
            )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def doubles_zip(folder: Path) -> Path:
    """What workers need to unpickle the storage doubles."""
    target = folder / "doubles.zip"
    with zipfile.ZipFile(target, "w") as archive:
        for name in (
            "tests/__init__.py",
            "tests/spark/__init__.py",
            "tests/spark/subcompactions.py",
        ):
            archive.write(REPOSITORY / name, name)
    return target


def worker_python(folder: Path, customization: str = "") -> Path:
    """A Python for workers with the packages of this one, but without compactord.

    `customization` is Python that runs when it starts.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(customization)
    packages = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    path = ":".join([str(folder), *packages])
    program = folder / "python"
    # -S leaves out what an editable installation puts on the path.
    program.write_text(
        f'#!/bin/sh\nPYTHONPATH="{path}:$PYTHONPATH" exec {sys.executable} -S '
        '-c "import sitecustomize, runpy, sys; del sys.argv[0]; del sys.argv[0]; '
        'runpy.run_module(sys.argv[0], run_name=\'__main__\', alter_sys=True)" "$@"\n'
    )
    program.chmod(0o755)
    return program
