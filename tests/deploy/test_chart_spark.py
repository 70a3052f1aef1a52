"""The chart with Spark: inside of the daemon's pod, on a cluster, as executors of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from compactord.engine.worker import IDLE_WORKER_BYTES
from tests.deploy.rendered import (
    EVERYTHING,
    EXECUTORS,
    KUBERNETES,
    LOCAL,
    S3,
    Object,
    container_of,
    executor_template,
    loaded_config,
    objects_of,
    only,
    pod_of,
)
from tests.deploy.rendering import ROOT


def test_a_spark_inside_the_pod_uses_the_cores_that_the_pod_has(tmp_path: Path) -> None:
    variables = {variable["name"]: variable for variable in container_of(LOCAL)["env"]}
    reference = variables["CORES"]["valueFrom"]["resourceFieldRef"]
    assert reference == {"containerName": "compactord", "resource": "limits.cpu"}
    assert loaded_config(LOCAL, tmp_path).config.spark.master == "local[2]"
    no_limit = ("--set", "resources.limits.cpu=null")
    variables = {variable["name"]: variable for variable in container_of(LOCAL, *no_limit)["env"]}
    assert variables["CORES"]["valueFrom"]["resourceFieldRef"]["resource"] == "requests.cpu"
    neither = (*no_limit, "--set", "resources.requests.cpu=null")
    assert "CORES" not in {variable["name"] for variable in container_of(LOCAL, *neither)["env"]}


def test_only_a_daemon_with_executors_may_ask_the_api_server() -> None:
    assert pod_of(LOCAL)["automountServiceAccountToken"] is False
    assert not any(o["kind"] in ("Role", "RoleBinding") for o in objects_of(LOCAL))
    assert pod_of(EXECUTORS)["automountServiceAccountToken"] is True
    binding = only("RoleBinding", EXECUTORS)
    # Not the executors' account.
    assert [subject["name"] for subject in binding["subjects"]] == ["compactord"]
    assert binding["roleRef"]["name"] == only("Role", EXECUTORS)["metadata"]["name"]


def test_the_driver_may_do_with_executors_what_spark_does() -> None:
    allowed = {
        (resource, verb)
        for rule in only("Role", EXECUTORS)["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    everything = {"get", "list", "watch", "create", "delete", "deletecollection"}
    assert {("pods", verb) for verb in everything | {"patch"}} <= allowed
    assert {("configmaps", verb) for verb in everything | {"update"}} <= allowed
    assert not [pair for pair in allowed if pair[0] in ("secrets", "*") or pair[1] == "*"]


def test_executors_find_the_driver_by_the_name_of_a_service_without_address() -> None:
    (driver,) = [
        o
        for o in objects_of(EXECUTORS)
        if o["kind"] == "Service" and o["spec"].get("clusterIP") == "None"
    ]
    # The pod is not ready before executors have come.
    assert driver["spec"]["publishNotReadyAddresses"] is True
    name = f"{driver['metadata']['name']}.compactord.svc.cluster.local"
    pod = _spark_says(EXECUTORS)["pod"]
    variables = {v["name"]: v.get("value") for v in pod["spec"]["containers"][0]["env"]}
    assert variables["SPARK_DRIVER_URL"] == f"spark://CoarseGrainedScheduler@{name}:7078"
    assert {port["port"] for port in driver["spec"]["ports"]} == {7078, 7079}


@pytest.mark.spark
@pytest.mark.parametrize("values", [EXECUTORS, EVERYTHING], ids=lambda path: path.stem)
def test_spark_knows_every_setting_and_takes_its_value(values: Path) -> None:
    assert _spark_says(values)["unknown"] == []


@pytest.mark.spark
def test_executors_have_a_limit_of_cpu_where_a_quota_asks_for_one() -> None:
    name = "COMPACTORD__SPARK__CONF__spark.kubernetes.executor.limit.cores"
    for written, value in (("2", "2"), ("1.5", "1.5"), ("1500m", "1500m")):
        env = container_of(EXECUTORS, "--set", f"executors.cpuLimit={written}")["env"]
        assert {"name": name, "value": value} in env
    for values, limit in ((EXECUTORS, None), (EVERYTHING, "3")):
        resources = _spark_says(values)["pod"]["spec"]["containers"][0]["resources"]
        assert resources["limits"].get("cpu") == limit


@pytest.mark.spark
@pytest.mark.parametrize("values", [EXECUTORS, EVERYTHING], ids=lambda path: path.stem)
def test_the_executor_pod_that_spark_makes_of_it_can_run(values: Path) -> None:
    pod = _spark_says(values)["pod"]
    for version in KUBERNETES:
        if version != KUBERNETES[0]:  # `resizePolicy` came later than that
            kubernetes_validate.validate(_without_nulls(pod), version, strict=True)
    spec = pod["spec"]
    (container,) = spec["containers"]
    daemon = container_of(values)
    assert container["image"] == daemon["image"]
    assert container["args"] == ["executor"]
    assert "command" not in container  # the image's own first program
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["automountServiceAccountToken"] is False
    account = spec["serviceAccountName"]
    assert account.endswith("-executor")
    assert account != pod_of(values)["serviceAccountName"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/tmp", "/var/lib/compactord", "/warehouse"} <= mounts
    assert container["lifecycle"]["preStop"]["exec"]["command"] == [
        "/opt/compactord/bin/decommission"
    ]
    # The policies that let it talk to the daemon name it by these.
    policies = [o for o in objects_of(values) if o["kind"] == "NetworkPolicy"]
    assert any(
        policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        for policy in policies
    )


def _without_nulls(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_nulls(value) for key, value in found.items() if value is not None}
    return [_without_nulls(value) for value in found] if isinstance(found, list) else found


def test_a_setting_of_the_configuration_wins_over_the_chart(tmp_path: Path) -> None:
    conf = loaded_config(EXECUTORS, tmp_path).config.spark.conf
    assert conf["spark.executor.memory"] == "1g"
    assert conf["spark.executor.instances"] == "4"
    assert conf["spark.executor.cores"] == "4"
    assert conf["spark.kubernetes.driver.pod.name"] == "compactord-0"
    assert loaded_config(EVERYTHING, tmp_path).config.spark.conf["spark.task.maxFailures"] == "2"


def test_memory_for_merges_is_that_of_the_executors(tmp_path: Path) -> None:
    """Left out, it would be a share of the daemon's own pod, which merges nothing then."""
    assert loaded_config(EXECUTORS, tmp_path).config.limits.memory_bytes == 4 * 6 << 30
    assert loaded_config(LOCAL, tmp_path).config.limits.memory_bytes is None
    variables = {
        variable["name"]
        for variable in container_of(EXECUTORS, "--set", "config.limits.memory=8 gb")["env"]
    }
    assert "COMPACTORD__LIMITS__MEMORY" not in variables
    config = loaded_config(EXECUTORS, tmp_path).config
    one = config.spark.task_memory_bytes + IDLE_WORKER_BYTES
    assert config.limits.memory_bytes is not None
    assert config.limits.memory_bytes // one >= 4 * 4, "every core can merge"


@cache
def _spark_says(values: Path) -> Object:
    """What Spark makes of the settings in effect; see the program that asks it."""
    folder = Path(os.environ.get("TMPDIR", "/tmp"), f"compactord-chart-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    try:
        conf = dict(loaded_config(values, folder).config.spark.conf)
        template_path = folder / "pod.yaml"
        assert (
            conf["spark.kubernetes.executor.podTemplateFile"] == "/etc/compactord-executor/pod.yaml"
        )
        template_path.write_text(yaml.safe_dump(executor_template(values)))
        conf["spark.kubernetes.executor.podTemplateFile"] = str(template_path)
        done = subprocess.run(
            [sys.executable, "-m", "tests.deploy.spark_on_kubernetes"],
            cwd=ROOT,
            input=json.dumps(conf),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_executors_have_what_their_stores_need_and_no_password_of_a_database() -> None:
    spec = executor_template(S3)["spec"]
    (container,) = spec["containers"]
    assert container["env"] == [{"name": "AWS_REGION", "value": "eu-central-1"}]
    assert container["envFrom"] == [{"secretRef": {"name": "compactord-archive"}}]
    assert not [volume for volume in spec["volumes"] if "secret" in volume]
    accounts = {
        found["metadata"]["name"]: found["metadata"].get("annotations", {})
        for found in objects_of(S3)
        if found["kind"] == "ServiceAccount"
    }
    roles = {name: role["eks.amazonaws.com/role-arn"] for name, role in accounts.items()}
    assert roles == {
        "compactord": "arn:aws:iam::111122223333:role/compactord",
        "compactord-executor": "arn:aws:iam::111122223333:role/compactord-executor",
    }


def test_executors_read_files_of_secrets_where_the_daemon_does() -> None:
    spec = executor_template(EVERYTHING)["spec"]
    (volume,) = [volume for volume in spec["volumes"] if "secret" in volume]
    assert volume["secret"]["secretName"] == "compactord-stores"
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    daemon = {
        mount["name"]: mount["mountPath"] for mount in container_of(EVERYTHING)["volumeMounts"]
    }
    assert mounts[volume["name"]] == daemon["secret"] == "/run/secrets/compactord"
