"""The chart's objects for a values file, and the configuration as its daemon reads it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from compactord.config.load import LoadedConfig, load_config
from tests.deploy.rendering import CHART, VALUES, objects, template

# The oldest that the chart says it runs on, and the newest that the schemas are there for.
KUBERNETES = ("1.27", kubernetes_validate.latest_version())
LOCAL, EVERYTHING, EXECUTORS, STANDALONE, S3, HIVE, REST = (
    CHART / "ci" / f"{name}-values.yaml"
    for name in (
        "local-on-volume",
        "everything",
        "spark-on-kubernetes",
        "standalone-spark",
        "s3-jdbc",
        "hive",
        "rest",
    )
)
POD_MONITOR = ("--set", "serviceMonitor.enabled=false,podMonitor.enabled=true")
every_values = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)

Object = dict[str, Any]


@cache
def objects_of(values: Path, *arguments: str) -> tuple[Object, ...]:
    return tuple(objects(template(values, *arguments)))


def only(kind: str, values: Path, *arguments: str) -> Object:
    (found,) = [o for o in objects_of(values, *arguments) if o["kind"] == kind]
    return found


def pod_of(values: Path, *arguments: str) -> Object:
    spec: Object = only("Deployment", values, *arguments)["spec"]["template"]["spec"]
    return spec


def container_of(values: Path, *arguments: str) -> Object:
    """The daemon's, which comes first."""
    return dict(pod_of(values, *arguments)["containers"][0])


def config_text(values: Path) -> str:
    (text,) = [
        o["data"]["compactord.yaml"]
        for o in objects_of(values)
        if o["kind"] == "ConfigMap" and "compactord.yaml" in o["data"]
    ]
    return str(text)


def executor_template(values: Path) -> Object:
    (text,) = [
        o["data"]["pod.yaml"]
        for o in objects_of(values)
        if o["kind"] == "ConfigMap" and "pod.yaml" in o["data"]
    ]
    return dict(yaml.safe_load(text))


def loaded_config(values: Path, folder: Path) -> LoadedConfig:
    """The configuration as the daemon reads it in the pod that the chart describes."""
    path = folder / "compactord.yaml"
    secret = folder / "archive"
    secret.write_text("/archive\n")
    text = re.sub(r"/run/secrets/compactord/[\w-]+", str(secret), config_text(values))
    path.write_text(text)
    # What the kubelet fills in.
    filled = {"POD_NAME": "compactord-0", "POD_IP": "10.1.2.3", "CORES": "2"}
    # Of Secrets, whose names alone are known here.
    environ = {**filled, **dict.fromkeys(re.findall(r"\$\{env:(\w+)\}", text), "secret")}
    for variable in container_of(values)["env"]:
        if "value" in variable:
            name = variable["name"]
            environ[name] = re.sub(r"\$\((\w+)\)", lambda m: filled[m[1]], variable["value"])
    return load_config(str(path), environ=environ)
