"""What Spark itself makes of settings for Kubernetes, asked in its own JVM; no cluster is needed.

A program: it reads settings as JSON on standard input, and answers with JSON on standard output.
Spark reads settings of a cluster only when it has one to talk to, so its own classes are called:
the registry of documented settings, and the builder of executor pods.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from compactord.engine.jvm import find_java

# Objects whose making registers the settings that they declare.
_DECLARING = (
    "org.apache.spark.internal.config.package$",
    "org.apache.spark.internal.config.Python$",
    "org.apache.spark.internal.config.UI$",
    "org.apache.spark.internal.config.Tests$",
    "org.apache.spark.deploy.k8s.Config$",
    "org.apache.spark.scheduler.cluster.SchedulerBackendUtils$",
)


def main() -> None:
    settings: dict[str, str] = json.load(sys.stdin)
    import pyspark
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # The builder takes them as any program would give them; nothing is started.
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    conf = SparkConf(loadDefaults=False)
    # What the Python side gives on to a JVM.
    for name, value in builder._options.items():
        conf.set(name, value)
    # The gateway's own driver is none of Kubernetes; it is never started.
    with tempfile.TemporaryDirectory() as scratch:
        java = find_java(pyspark.__version__, os.environ, Path(scratch))
        os.environ["JAVA_HOME"] = str(java.home)
        SparkContext._ensure_initialized()
    assert SparkContext._jvm is not None
    jvm: Any = SparkContext._jvm
    java_conf = jvm.org.apache.spark.SparkConf(False)
    for name, value in conf.getAll():
        java_conf.set(name, value)
    unknown = _unknown(jvm, java_conf, sorted(settings))
    pod = _executor_pod(jvm, java_conf)
    SparkContext._gateway.shutdown()
    json.dump({"unknown": unknown, "pod": pod}, sys.stdout)


def _unknown(jvm: Any, java_conf: Any, names: list[str]) -> list[str]:
    """Names that Spark declares nowhere. Fails for a value that its setting cannot hold."""
    for name in _DECLARING:
        jvm.java.lang.Class.forName(name)
    unknown = []
    for name in names:
        entry = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(name)
        if entry is None:
            unknown.append(name)
        else:
            java_conf.get(entry)
    return unknown


def _executor_pod(jvm: Any, java_conf: Any) -> Any:
    """The pod that Spark would ask the API server for."""
    spark = jvm.org.apache.spark
    java_conf.set("spark.app.id", "spark-0")
    java_conf.set("spark.app.name", "compactord")
    nothing = jvm.scala.Option.empty()
    executor = spark.deploy.k8s.KubernetesExecutorConf(java_conf, "spark-0", "1", nothing, 0)
    security = spark.SecurityManager(
        java_conf, nothing, getattr(spark.SecurityManager, "$lessinit$greater$default$3")()
    )
    # It loads the template from a file; it talks to nobody.
    client = jvm.io.fabric8.kubernetes.client.KubernetesClientBuilder().build()
    profiles = getattr(getattr(spark.resource, "ResourceProfile$"), "MODULE$")
    profile = profiles.getOrCreateDefaultProfile(java_conf)
    builder = spark.scheduler.cluster.k8s.KubernetesExecutorBuilder()
    spec = builder.buildFromFeatures(executor, security, client, profile)
    pod = spec.pod()
    to_json = jvm.io.fabric8.kubernetes.client.utils.Serialization.asJson
    found = json.loads(to_json(pod.pod()))
    found["spec"].setdefault("containers", []).append(json.loads(to_json(pod.container())))
    return found


if __name__ == "__main__":
    main()
