"""An archive of the classes that Spark loads as it starts: `make test` starts it a hundred times.

    python -m tests.tools.class_archive

With it a start takes two thirds of the time. It lies in the environment of the Python that runs
tests, as it is of that one's jars. Java itself passes over an archive that does not fit its version
or its jars; this program makes it anew then.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_ARCHIVE = Path(sys.prefix) / "var" / "spark-classes.jsa"


def archive_options() -> str:
    """For a JVM of Spark's; empty when there is no archive."""
    # One that does not fit is no news.
    return f"-XX:SharedArchiveFile={_ARCHIVE} -Xlog:cds=off" if _ARCHIVE.exists() else ""


def main() -> int:
    os.environ.pop("SPARK_SUBMIT_OPTS", None)
    with tempfile.TemporaryDirectory(prefix="classes-") as folder:
        names = Path(folder) / "names"
        java, class_path = _start_spark(names)
        if not _fits(java, class_path):
            _ARCHIVE.parent.mkdir(exist_ok=True)
            fresh = Path(folder) / "spark-classes.jsa"
            _dump(java, class_path, names, fresh)
            # Tests that run meanwhile keep theirs, whole.
            partial = _ARCHIVE.with_suffix(f".{os.getpid()}")
            partial.write_bytes(fresh.read_bytes())
            partial.replace(_ARCHIVE)
            assert _fits(java, class_path), f"{java} does not take the archive that it has made"
    print(_ARCHIVE)
    return 0


def _start_spark(names: Path) -> tuple[str, list[str]]:
    """Java and its class path, entry by entry; the names of the classes loaded are written."""
    from pyspark import SparkContext

    from compactord.engine.spark import start_spark

    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:DumpLoadedClassList={names}"
    # Only spark-submit reads SPARK_SUBMIT_OPTS; a setting that changes nothing asks for it.
    with start_spark("local[2]", {"spark.eventLog.enabled": "false"}):
        system = SparkContext._active_spark_context._jvm.System
        home, class_path = (system.getProperty(f"java.{name}") for name in ("home", "class.path"))
    return f"{home}/bin/java", class_path.split(":")


def _fits(java: str, class_path: Sequence[str]) -> bool:
    needed = ("-Xshare:on", *archive_options().split(), "-cp", ":".join(class_path), "-version")
    run = subprocess.run([java, *needed], capture_output=True, check=False)
    return _ARCHIVE.exists() and run.returncode == 0


def _dump(java: str, class_path: Sequence[str], names: Path, target: Path) -> None:
    # Spark names a jar twice. Java leaves out the second as it dumps, and then misses it as it
    # compares, unless it is spelled in another way.
    spelled: list[str] = []
    for entry in class_path:
        folder, _, name = entry.rpartition("/")
        spelled.append(f"{folder}/./{name}" if entry in spelled else entry)
    command = [
        java,
        "-Xshare:dump",
        f"-XX:SharedClassListFile={names}",
        f"-XX:SharedArchiveFile={target}",
        "-XX:+UseSerialGC",
        # Classes that cannot be archived, one by one.
        "-Xlog:disable",
        "-cp",
        ":".join(spelled),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
