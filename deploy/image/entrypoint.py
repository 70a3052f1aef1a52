#!/opt/compactord/bin/python
"""First program of the image: `compactord`, or an executor of Spark on Kubernetes.

Spark starts executor pods with the single argument `executor` and passes all settings in the
environment, as to its own images. All other arguments are passed to `compactord`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
# Arguments, and the variables in which Spark passes their values.
ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}


def executor_command(environment: Mapping[str, str], jars: Path) -> list[str]:
    """The JVM of an executor. Raises KeyError for a variable that Spark always sets."""
    options: list[str] = []
    while (option := environment.get(f"SPARK_JAVA_OPT_{len(options)}")) is not None:
        options.append(option)
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    classes = [
        environment.get("SPARK_CONF_DIR", "/opt/spark/conf"),
        environment.get("SPARK_CLASSPATH", ""),
        f"{jars}/*",
    ]
    command = ["java", *options, f"-Xms{memory}", f"-Xmx{memory}"]
    command += ["-cp", ":".join(filter(None, classes)), EXECUTOR]
    for argument, variable in ARGUMENTS.items():
        command += [argument, environment[variable]]
    return command


def main() -> None:
    arguments = sys.argv[1:]
    if arguments == ["executor"]:
        import pyspark

        command = executor_command(os.environ, Path(pyspark.__file__).parent / "jars")
    else:
        command = [str(Path(sys.executable).with_name("compactord")), *arguments]
    sys.stdout.flush()
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
