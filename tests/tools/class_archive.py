"""The product's archive of Java's classes, for a Spark that spark-submit or a cluster starts.

    python -m tests.tools.class_archive

These have another class path than the embedded JVM. With the archive a start takes two thirds of
the time. The archive is in the environment of the Python that runs tests, because it belongs to the
jars there.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from compactord.engine.jvm import ClassArchive, JvmCommand, find_java

_FOLDER = Path(sys.prefix) / "var" / "spark-classes"
_SECONDS_MAX = 180.0


def archive_options() -> str:
    """Options for a JVM of Spark's; empty without an archive. Java ignores a stale archive."""
    made = max(_FOLDER.glob("*.jsa"), key=lambda path: path.stat().st_mtime, default=None)
    return f"-XX:SharedArchiveFile={made} -Xlog:cds=off" if made else ""


def main() -> int:
    import pyspark

    deadline_s = time.monotonic() + _SECONDS_MAX
    with tempfile.TemporaryDirectory(prefix="classes-") as folder:
        os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:DumpLoadedClassList={folder}/classes.txt"
        java = find_java(pyspark.__version__, os.environ, Path(folder))
        command = JvmCommand(
            java=java.executable, jars=_class_path(), options=("-XX:+UseSerialGC",)
        )
        archive = ClassArchive(_FOLDER, command, java_version=java.version, list_in=Path(folder))
        archive.make()
        while not archive.is_there:
            assert time.monotonic() < deadline_s, f"{java.executable} makes no archive"
            time.sleep(0.1)
    print(archive_options())
    return 0


def _class_path() -> tuple[Path, ...]:
    """The class path of a Spark that is started for it and stopped; it lists its classes
    meanwhile.
    """
    from pyspark import SparkContext

    from compactord.engine.spark import start_spark

    # Only spark-submit reads SPARK_SUBMIT_OPTS; a setting without effect makes Spark use it.
    with start_spark("local[2]", {"spark.eventLog.enabled": "false"}):
        system = SparkContext._active_spark_context._jvm.System
        named = map(Path, system.getProperty("java.class.path").split(":"))
    found = [path for path in named if path.exists()]
    # Spark names a jar twice. Java omits the second as it dumps, and then misses it as it compares,
    # unless it is spelled in another way.
    return tuple(
        path.parent / ".." / path.parent.name / path.name if path in found[:n] else path
        for n, path in enumerate(found)
    )


if __name__ == "__main__":
    sys.exit(main())
