"""The command that starts the embedded Spark's JVM: Java itself, with the jars that it needs.

spark-submit would start a shell and a JVM that only prints the command of a second one, with all
of Spark's jars on its class path. What else spark-submit does an embedded Spark does not need when
its settings are among those of `_PASSED_ON`, which reach it through the gateway. With others (more
jars, plug-ins, a class path) spark-submit is used.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from compactord.errors import EngineUnavailable

# What a user may set without a need for spark-submit or for the jars left out.
_PASSED_ON = (
    "spark.app.name",
    "spark.driver.extraJavaOptions",
    "spark.driver.memory",
    "spark.executorEnv.",
    "spark.local.dir",
    "spark.python.",
    "spark.redaction.",
    "spark.task.",
)
# SQL's formats and shells, machine learning, Hive and Kubernetes: no part of RDDs.
_LEFT_OUT = (
    "JLargeArrays",
    "JTransforms",
    "arpack",
    "breeze",
    "datanucleus",
    "derby",
    "hive-",
    "kubernetes-",
    "lapack",
    "orc-",
    "parquet-",
    "rocksdbjni",
    "spark-hive",
    "spark-kubernetes",
    "spark-mllib",
    "spark-repl",
    "spark-yarn",
    "spire",
    "vertx-",
)
# What Spark needs of Java 17 and later; earlier ones ignore it.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
)
_GATEWAY = "org.apache.spark.api.python.PythonGatewayServer"


def starts_alone(master: str, settings: Mapping[str, str]) -> bool:
    """Whether the embedded Spark can be started without spark-submit."""
    # local-cluster starts further JVMs by Spark's scripts.
    is_one_process = master == "local" or master.startswith("local[")
    return is_one_process and all(name.startswith(_PASSED_ON) for name in settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class JvmCommand:
    """`java -cp jars options PythonGatewayServer`; `java` is the path of the executable."""

    java: Path
    jars: tuple[Path, ...]
    options: tuple[str, ...]

    def arguments(self, *more: str) -> list[str]:
        """With `more` options for this start."""
        return [str(self.java), *self.launch_options, *more, _GATEWAY]

    @property
    def launch_options(self) -> tuple[str, ...]:
        opened = (f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED)
        path = os.pathsep.join(map(str, self.jars))
        return ("-cp", path, "-XX:+IgnoreUnrecognizedVMOptions", *opened, *self.options)


def jvm_command(java: Path, spark_home: Path, settings: Mapping[str, str]) -> JvmCommand:
    """The command for the embedded Spark with all its settings. Raises `EngineUnavailable`."""
    jars = tuple(_needed(sorted((spark_home / "jars").glob("*.jar"))))
    if not jars:
        raise EngineUnavailable(f"there is no Spark in {spark_home}: it has no jars")
    options = shlex.split(settings.get("spark.driver.extraJavaOptions", ""))
    return JvmCommand(
        java=java, jars=jars, options=(f"-Xmx{settings['spark.driver.memory']}", *options)
    )


def _needed(jars: Iterable[Path]) -> Iterable[Path]:
    return (jar for jar in jars if not jar.name.startswith(_LEFT_OUT))
