"""The command that starts the JVM of Spark's driver.

For the embedded Spark that is Java itself, with the jars that it needs. spark-submit would start a
shell and a JVM that only prints the command of a second one, with all of Spark's jars on its class
path. What else spark-submit does an embedded Spark does not need when its settings are among those
of `_PASSED_ON`, which reach it through the gateway. With others (more jars, plug-ins, a class path)
spark-submit is used, as for a cluster; settings go into a file then, because all users can see
command lines.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compactord.errors import EngineUnavailable
from compactord.text import SECRET

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
_PROPERTIES_FILE = "--properties-file"
# For Spark's pages and event logs. Spark's default misses account keys and passphrases.
LEAST = {"spark.redaction.regex": f"(?i){SECRET}"}
_PLAIN = re.compile(r"[A-Za-z0-9._/-]")


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
    found = sorted((spark_home / "jars").glob("*.jar"))
    jars = tuple(jar for jar in found if not jar.name.startswith(_LEFT_OUT))
    if not jars:
        raise EngineUnavailable(f"there is no Spark in {spark_home}: it has no jars")
    options = shlex.split(settings.get("spark.driver.extraJavaOptions", ""))
    return JvmCommand(
        java=java, jars=jars, options=(f"-Xmx{settings['spark.driver.memory']}", *options)
    )


def submit_arguments(
    file: Path, settings: Mapping[str, str], *, given: str, defaults: Path | None
) -> list[str]:
    """Write the settings to `file` and return the arguments of spark-submit.

    `given` are other arguments, quoted as in a shell; `defaults` is the settings file to use if
    they name none. Spark reads only one file (4.0 and later could read two), so the user's is
    copied to the beginning of ours: the last setting of a name counts.

    Raises `OSError` if `file` exists already, or if the user's file cannot be read.
    """
    arguments, theirs = _without_file(shlex.split(given))
    if theirs is None and defaults is not None and defaults.is_file():
        theirs = defaults
    below = b"" if theirs is None else theirs.read_bytes()
    # Empty lines, as their last one may end in a backslash.
    content = _lines(LEAST) + below + b"\n\n" + _lines(settings)
    # The mode holds from the first moment on, whatever the umask is.
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
        written.write(content)
    return [_PROPERTIES_FILE, str(file), *arguments]


def _without_file(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Arguments of spark-submit without the file of settings, and that file."""
    kept: list[str] = []
    file: Path | None = None
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        if name == _PROPERTIES_FILE:
            file = Path(value if equals else next(left, ""))
        else:
            kept.append(argument)
    return kept, file


def _lines(settings: Mapping[str, str]) -> bytes:
    """In the format of java.util.Properties."""
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items()]
    return "".join(lines).encode("ascii")


def _escaped(text: str) -> str:
    """Every character that may have a special meaning is escaped as UTF-16 units."""
    return "".join(sign if _PLAIN.match(sign) else _units(sign) for sign in text)


def _units(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
