"""The chart, rendered for every values file that it comes with."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

import compactord
from compactord.config.load import LoadedConfig, load_config
from compactord.service.admission import IDLE_WORKER_BYTES
from tests.deploy.rendering import (
    CHART,
    ROOT,
    VALUES,
    chart_files,
    helm,
    manifests,
    objects,
    template,
)
from tests.tools.obtain import tool_path

# The oldest that the chart says it runs on, and the newest that the schemas are there for.
KUBERNETES = ("1.27", kubernetes_validate.latest_version())
LOCAL, EVERYTHING, EXECUTORS, STANDALONE = (
    CHART / "ci" / f"{name}-values.yaml"
    for name in ("local-on-volume", "everything", "spark-on-kubernetes", "standalone-spark")
)
every_values = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)

Object = dict[str, Any]


@cache
def _rendered(values: Path, *arguments: str) -> tuple[Object, ...]:
    return tuple(objects(template(values, *arguments)))


def _only(kind: str, values: Path, *arguments: str) -> Object:
    (found,) = [o for o in _rendered(values, *arguments) if o["kind"] == kind]
    return found


def _pod(values: Path, *arguments: str) -> Object:
    spec: Object = _only("Deployment", values, *arguments)["spec"]["template"]["spec"]
    return spec


def _container(values: Path, *arguments: str) -> Object:
    (found,) = _pod(values, *arguments)["containers"]
    return dict(found)


def _config_text(values: Path) -> str:
    (text,) = [
        o["data"]["compactord.yaml"]
        for o in _rendered(values)
        if o["kind"] == "ConfigMap" and "compactord.yaml" in o["data"]
    ]
    return str(text)


def _executor_template(values: Path) -> Object:
    (text,) = [
        o["data"]["pod.yaml"]
        for o in _rendered(values)
        if o["kind"] == "ConfigMap" and "pod.yaml" in o["data"]
    ]
    return dict(yaml.safe_load(text))


# -- what holds for every values file


def test_each_part_of_the_chart_has_a_values_file_that_renders_it() -> None:
    assert {path.stem for path in VALUES} == {
        "everything-values",
        "local-on-volume-values",
        "spark-on-kubernetes-values",
        "standalone-spark-values",
    }
    rendered = {o["kind"] for o in _rendered(EVERYTHING)}
    rendered |= {o["kind"] for o in _rendered(EVERYTHING, *_POD_MONITOR)}
    written = {
        kind
        for path in (CHART / "templates").rglob("*.yaml")
        for kind in re.findall(r"^kind: (\w+)$", path.read_text(), re.MULTILINE)
    }
    assert rendered == written


_POD_MONITOR = ("--set", "serviceMonitor.enabled=false,podMonitor.enabled=true")


@every_values
def test_lint_finds_nothing(values: Path) -> None:
    done = helm("lint", "--strict", CHART, "--values", values)
    assert (done.returncode, "[WARNING]" in done.stdout) == (0, False), done.stdout + done.stderr


@every_values
@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_are_what_kubernetes_takes(values: Path, version: str) -> None:
    own = [o for o in _rendered(values) if "monitoring.coreos.com" not in o["apiVersion"]]
    assert len(own) > 5
    for found in own:
        kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("arguments", [(), _POD_MONITOR], ids=["service", "pod"])
def test_objects_for_the_operator_are_what_its_definitions_say(arguments: tuple[str, ...]) -> None:
    custom = [
        o for o in _rendered(EVERYTHING, *arguments) if "monitoring.coreos.com" in o["apiVersion"]
    ]
    assert len(custom) == 2
    for found in custom:
        jsonschema.validate(found["spec"], _definition(found["kind"]))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(found["spec"] | {"unheard": 1}, _definition(found["kind"]))


def _definition(kind: str) -> Object:
    """The schema of `spec` in a custom resource's definition, unknown fields refused."""
    path = tool_path("operator-crds") / f"monitoring.coreos.com_{kind.lower()}s.yaml"
    (version,) = yaml.safe_load(path.read_text())["spec"]["versions"]
    schema: Object = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return _strict(schema)


def _strict(schema: Object) -> Object:
    strict = {
        key: {name: _strict(part) for name, part in value.items()}
        if key == "properties"
        else _strict(value)
        if isinstance(value, dict)
        else value
        for key, value in schema.items()
    }
    if "properties" in strict and not strict.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", False)
    # Go takes flags in the middle, Python only at the beginning.
    if isinstance(pattern := strict.get("pattern"), str) and pattern.startswith("^(?i)"):
        strict["pattern"] = "(?i)^" + pattern.removeprefix("^(?i)")
    # "int or string" in OpenAPI's way.
    if strict.pop("x-kubernetes-int-or-string", False):
        return {"type": ["integer", "string"]}
    return strict


@every_values
def test_kube_score_finds_nothing_critical(values: Path, tmp_path: Path) -> None:
    scored = [o for o in _rendered(values) if "monitoring.coreos.com" not in o["apiVersion"]]
    if any(o["kind"] == "Role" for o in scored):
        # Spark gives an executor its image, cores and memory.
        pod = copy.deepcopy(_executor_template(values))
        pod["metadata"] |= {"name": "executor-1", "namespace": "compactord"}
        container = pod["spec"]["containers"][0]
        container |= {"image": _container(values)["image"], "imagePullPolicy": "Always"}
        for amounts in container["resources"].values():
            amounts |= {"cpu": "1", "memory": "1Gi"}
        scored.append(pod)
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(scored))
    done = subprocess.run(
        [tool_path("kube-score"), "score", "--output-format", "ci", path],
        capture_output=True,
        text=True,
        check=False,
    )
    grades = done.stdout.splitlines()
    assert len(grades) > 20, done.stderr
    assert [grade for grade in grades if grade.startswith("[CRITICAL]")] == []


@every_values
def test_selectors_ports_and_volumes_fit_together(values: Path) -> None:
    deployment = _only("Deployment", values)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    container = _container(values)
    ports = {port["name"] for port in container["ports"]}
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    services = [o for o in _rendered(values) if o["kind"] == "Service"]
    for service in services:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert "http" in ports
    volumes = {volume["name"] for volume in _pod(values)["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    accounts = {o["metadata"]["name"] for o in _rendered(values) if o["kind"] == "ServiceAccount"}
    assert _pod(values)["serviceAccountName"] in accounts


@every_values
def test_every_object_is_named_and_labelled_as_usual(values: Path) -> None:
    names = [(o["kind"], o["metadata"]["name"]) for o in _rendered(values)]
    assert len(set(names)) == len(names)
    for found in _rendered(values):
        labels = found["metadata"]["labels"]
        assert found["metadata"]["namespace"] == "compactord"
        assert labels["app.kubernetes.io/instance"] == "compactord"
        assert {"app.kubernetes.io/name", "app.kubernetes.io/component"} <= labels.keys()


@every_values
def test_nothing_in_a_pod_runs_as_root_or_writes_but_where_it_may(values: Path) -> None:
    pods = [_pod(values), _only("Pod", values)["spec"]]
    if any(o["kind"] == "Role" for o in _rendered(values)):
        pods.append(_executor_template(values)["spec"])
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] is True
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"]["ephemeral-storage"]
        for volume in pod.get("volumes", ()):
            if "emptyDir" in volume and volume["name"] != "spill":
                assert volume["emptyDir"]["sizeLimit"]


@every_values
def test_the_configuration_is_the_one_of_the_values_and_the_daemon_takes_it(
    values: Path, tmp_path: Path
) -> None:
    written = yaml.safe_load(values.read_text())["config"]
    assert yaml.safe_load(_config_text(values)) == written
    loaded = _loaded(values, tmp_path)
    assert set(loaded.config.catalogs) == set(written["catalogs"])


def _loaded(values: Path, folder: Path) -> LoadedConfig:
    """The configuration as the daemon reads it in the pod that the chart describes."""
    path = folder / "compactord.yaml"
    secret = folder / "archive"
    secret.write_text("/archive\n")
    text = _config_text(values).replace("/run/secrets/compactord/archive", str(secret))
    path.write_text(text)
    # What the kubelet fills in.
    filled = {"POD_NAME": "compactord-0", "POD_IP": "10.1.2.3", "CORES": "2"}
    environ = dict(filled)
    for variable in _container(values)["env"]:
        if "value" in variable:
            name = variable["name"]
            environ[name] = re.sub(r"\$\((\w+)\)", lambda m: filled[m[1]], variable["value"])
    return load_config(str(path), environ=environ)


# -- lifecycle


def test_the_kubelet_waits_half_a_minute_longer_than_a_drain_may_take() -> None:
    assert _pod(LOCAL)["terminationGracePeriodSeconds"] == 330
    assert _pod(EVERYTHING)["terminationGracePeriodSeconds"] == 630
    own = ("--set", "terminationGracePeriodSeconds=45")
    assert _pod(LOCAL, *own)["terminationGracePeriodSeconds"] == 45


@pytest.mark.parametrize(
    ("grace", "seconds"),
    [("90 s", 120), ("90s", 120), ("5 min", 330), ("1h", 3630), ("45000", 75), ("1500 ms", 32)],
)
def test_the_grace_is_read_as_the_configuration_reads_it(grace: str, seconds: int) -> None:
    own = ("--set-string", f"config.shutdown.grace={grace}")
    assert _pod(LOCAL, *own)["terminationGracePeriodSeconds"] == seconds


def test_the_daemon_gives_up_starting_before_the_kubelet_does() -> None:
    for values, timeout_s in ((LOCAL, 300), (EVERYTHING, 480)):
        probe = _container(values)["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= timeout_s + 30


def test_probes_ask_three_different_questions() -> None:
    container = _container(LOCAL)
    paths = {
        probe: container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/startupz",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }


def test_two_daemons_never_run_at_a_time() -> None:
    spec = _only("Deployment", LOCAL)["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_a_changed_configuration_reaches_the_daemon_without_a_restart() -> None:
    changed = ("--set", "config.log.level=debug")
    mounts = {mount["name"]: mount for mount in _container(LOCAL)["volumeMounts"]}
    # With subPath the kubelet would never renew the file.
    assert mounts["config"] == {
        "name": "config",
        "mountPath": "/etc/compactord",
        "readOnly": True,
    }
    before, after = (_only("Deployment", LOCAL, *more) for more in ((), changed))
    assert before == after
    restart = ("--set", "configReload=restart")
    before, after = (_only("Deployment", LOCAL, *restart, *more) for more in ((), changed))
    assert before != after


def test_probes_and_the_service_follow_the_port_of_the_configuration() -> None:
    container = _container(EVERYTHING)
    assert {"name": "http", "containerPort": 9500} in container["ports"]
    assert container["livenessProbe"]["httpGet"]["port"] == "http"


# -- Spark


def test_a_spark_inside_the_pod_uses_the_cores_that_the_pod_has(tmp_path: Path) -> None:
    variables = {variable["name"]: variable for variable in _container(LOCAL)["env"]}
    reference = variables["CORES"]["valueFrom"]["resourceFieldRef"]
    assert reference == {"containerName": "compactord", "resource": "limits.cpu"}
    assert _loaded(LOCAL, tmp_path).config.spark.master == "local[2]"
    no_limit = ("--set", "resources.limits.cpu=null")
    variables = {variable["name"]: variable for variable in _container(LOCAL, *no_limit)["env"]}
    assert variables["CORES"]["valueFrom"]["resourceFieldRef"]["resource"] == "requests.cpu"
    neither = (*no_limit, "--set", "resources.requests.cpu=null")
    assert "CORES" not in {variable["name"] for variable in _container(LOCAL, *neither)["env"]}


def test_only_a_daemon_with_executors_may_ask_the_api_server() -> None:
    assert _pod(LOCAL)["automountServiceAccountToken"] is False
    assert not any(o["kind"] in ("Role", "RoleBinding") for o in _rendered(LOCAL))
    assert _pod(EXECUTORS)["automountServiceAccountToken"] is True
    binding = _only("RoleBinding", EXECUTORS)
    # Not the executors' account.
    assert [subject["name"] for subject in binding["subjects"]] == ["compactord"]
    assert binding["roleRef"]["name"] == _only("Role", EXECUTORS)["metadata"]["name"]


def test_the_driver_may_do_with_executors_what_spark_does() -> None:
    allowed = {
        (resource, verb)
        for rule in _only("Role", EXECUTORS)["rules"]
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
        for o in _rendered(EXECUTORS)
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
@pytest.mark.parametrize("values", [EXECUTORS, EVERYTHING], ids=lambda path: path.stem)
def test_the_executor_pod_that_spark_makes_of_it_can_run(values: Path) -> None:
    pod = _spark_says(values)["pod"]
    for version in KUBERNETES:
        if version != KUBERNETES[0]:  # `resizePolicy` came later than that
            kubernetes_validate.validate(_without_nulls(pod), version, strict=True)
    spec = pod["spec"]
    (container,) = spec["containers"]
    daemon = _container(values)
    assert container["image"] == daemon["image"]
    assert container["args"] == ["executor"]
    assert "command" not in container  # the image's own first program
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["automountServiceAccountToken"] is False
    account = spec["serviceAccountName"]
    assert account.endswith("-executor")
    assert account != _pod(values)["serviceAccountName"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert {"/tmp", "/var/lib/compactord", "/warehouse"} <= mounts
    assert container["lifecycle"]["preStop"]["exec"]["command"] == [
        "/opt/compactord/bin/decommission"
    ]
    # The policies that let it talk to the daemon name it by these.
    policies = [o for o in _rendered(values) if o["kind"] == "NetworkPolicy"]
    assert any(
        policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        for policy in policies
    )


def _without_nulls(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _without_nulls(value) for key, value in found.items() if value is not None}
    return [_without_nulls(value) for value in found] if isinstance(found, list) else found


def test_a_setting_of_the_configuration_wins_over_the_chart(tmp_path: Path) -> None:
    conf = _loaded(EXECUTORS, tmp_path).config.spark.conf
    assert conf["spark.executor.memory"] == "1g"
    assert conf["spark.executor.instances"] == "4"
    assert conf["spark.executor.cores"] == "4"
    assert conf["spark.kubernetes.driver.pod.name"] == "compactord-0"
    assert _loaded(EVERYTHING, tmp_path).config.spark.conf["spark.task.maxFailures"] == "2"


def test_memory_for_merges_is_that_of_the_executors(tmp_path: Path) -> None:
    """Left out, it would be a share of the daemon's own pod, which merges nothing then."""
    assert _loaded(EXECUTORS, tmp_path).config.limits.memory_bytes == 4 * 6 << 30
    assert _loaded(LOCAL, tmp_path).config.limits.memory_bytes is None
    variables = {
        variable["name"]
        for variable in _container(EXECUTORS, "--set", "config.limits.memory=8 gb")["env"]
    }
    assert "COMPACTORD__LIMITS__MEMORY" not in variables
    config = _loaded(EXECUTORS, tmp_path).config
    one = config.spark.task_memory_bytes + IDLE_WORKER_BYTES
    assert config.limits.memory_bytes is not None
    assert config.limits.memory_bytes // one >= 4 * 4, "every core can merge"


@cache
def _spark_says(values: Path) -> Object:
    """What Spark makes of the settings in effect; see the program that asks it."""
    folder = Path(os.environ.get("TMPDIR", "/tmp"), f"compactord-chart-{os.getpid()}")
    folder.mkdir(exist_ok=True)
    try:
        conf = dict(_loaded(values, folder).config.spark.conf)
        template_path = folder / "pod.yaml"
        assert (
            conf["spark.kubernetes.executor.podTemplateFile"] == "/etc/compactord-executor/pod.yaml"
        )
        template_path.write_text(yaml.safe_dump(_executor_template(values)))
        conf["spark.kubernetes.executor.podTemplateFile"] = str(template_path)
        done = subprocess.run(
            [sys.executable, "-m", "tests.deploy.spark_on_kubernetes"],
            cwd=ROOT,
            input=json.dumps(conf),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
    finally:
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


# -- alerts and dashboard


def test_the_rules_of_the_cluster_are_those_of_the_repository_with_runbooks_at_an_address() -> None:
    shipped = yaml.safe_load((ROOT / "deploy/prometheus/compactord.rules.yaml").read_text())
    groups = _only("PrometheusRule", EVERYTHING)["spec"]["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    base = "https://git.example.com/compactord/blob/main/"
    for rule in alerts:
        address = rule["annotations"]["runbook_url"]
        assert address.startswith(base)
        rule["annotations"]["runbook_url"] = address.removeprefix(base)
        assert (ROOT / rule["annotations"]["runbook_url"]).suffix == ".md"
    assert len(alerts) > 10
    assert groups == shipped["groups"]


def test_alerts_find_the_job_by_its_name() -> None:
    """`CompactordDown` looks for a job of this name, whatever the chart's objects are called."""
    for arguments, kind in (((), "ServiceMonitor"), (_POD_MONITOR, "PodMonitor")):
        rendered = objects(template(EVERYTHING, *arguments, release_name="lake"))
        monitor = next(o for o in rendered if o["kind"] == kind)
        label = monitor["spec"]["jobLabel"]
        service = next(o for o in rendered if o["kind"] == "Service")
        pod = next(o for o in rendered if o["kind"] == "Deployment")["spec"]["template"]
        target = service if kind == "ServiceMonitor" else pod
        assert target["metadata"]["labels"][label] == "compactord"
        selected = monitor["spec"]["selector"]["matchLabels"]
        assert selected.items() <= target["metadata"]["labels"].items()


def test_the_dashboard_comes_whole_under_the_label_that_grafana_looks_for() -> None:
    (found,) = [
        o
        for o in _rendered(EVERYTHING)
        if o["kind"] == "ConfigMap" and "compactord.json" in o["data"]
    ]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = json.loads((ROOT / "deploy/grafana/compactord.json").read_text())
    assert json.loads(found["data"]["compactord.json"]) == shipped


# -- wrong values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["imag.tag=1"], "additional properties 'imag' not allowed"),
        (["image.tagg=1"], "additional properties 'tagg' not allowed"),
        (["config.limits.task_slot=1"], "additional properties 'task_slot' not allowed"),
        (["config.limits.task_slots=0"], "/config/limits/task_slots"),
        (["config.defaults.expire_snapshots=false"], "/config/defaults/expire_snapshots"),
        (["config.catalogs=null"], "/config/catalogs"),
        (["config.shutdown.grace=soon"], "is no duration such as 300 s"),
        (["config.service.http.port=0"], "probes need a certain one"),
        (["config.service.http.bind=127.0.0.1"], "cannot be reached by probes"),
        (["config.catalogs.lake.warehouse=s3://bucket/wh"], "is not supported yet"),
        (["executors.enabled=true", "config.spark.master=spark://x:7077"], "exclude each other"),
        (["serviceMonitor.enabled=true", "podMonitor.enabled=true"], "exclude each other"),
        (["executors.conf.hadoop=1"], "/executors/conf"),
        (
            ["executors.enabled=true", r"executors.conf.spark\.executor\.cores=8"],
            "is said by executors.cores",
        ),
        (
            ["executors.enabled=true", r"config.spark.conf.spark\.executor\.instances=8"],
            "is said by executors.instances",
        ),
        (["service.port=70000"], "/service/port"),
        (["configReload=sometimes"], "/configReload"),
        (["prometheusRule.runbookBaseUrl=https://x.example.com"], "/prometheusRule/runbookBaseUrl"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_values_are_refused_with_their_place(arguments: list[str], message: str) -> None:
    sets = [word for argument in arguments for word in ("--set", argument)]
    with pytest.raises(ValueError, match=re.escape(message)):
        template(LOCAL, *sets)


def test_values_without_a_catalog_are_refused() -> None:
    done = helm("template", "x", CHART)
    assert "missing property 'catalogs'" in done.stderr


# -- files that are made


@pytest.mark.parametrize(
    ("path", "text"), chart_files().items(), ids=lambda value: getattr(value, "name", "")
)
def test_a_made_file_of_the_chart_is_what_would_be_made_now(path: Path, text: str) -> None:
    assert path.read_text() == text, "run `make manifests`"


@pytest.mark.parametrize("name", ["local-on-volume.yaml", "spark-on-kubernetes.yaml"])
def test_a_plain_manifest_is_what_would_be_made_now(name: str) -> None:
    texts = {path.name: text for path, text in manifests().items()}
    assert (ROOT / "deploy" / "kubernetes" / name).read_text() == texts[name], (
        "run `make manifests`"
    )
    assert "helm" not in re.sub(r"^#.*$", "", texts[name], flags=re.MULTILINE).lower()
    assert {path.name for path in (ROOT / "deploy" / "kubernetes").glob("*.yaml")} == texts.keys()


def test_the_schema_and_the_values_have_the_same_keys() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert _schema_keys(schema, schema["$defs"]) - {"global"} == _value_keys(values)


def _schema_keys(schema: Object, definitions: Object) -> set[str]:
    found = set()
    for name, part in schema["properties"].items():
        found.add(name)
        reference = part.get("$ref", "").removeprefix("#/$defs/")
        part = definitions.get(reference, part)
        if reference != "config" and "properties" in part:
            found |= {f"{name}.{key}" for key in _schema_keys(part, definitions)}
    return found


def _value_keys(values: Object) -> set[str]:
    # What is Kubernetes' own is passed on, whatever its keys.
    passed_on = {"podSecurityContext", "securityContext", "requests", "limits", "labels"}
    found = set()
    for name, value in values.items():
        found.add(name)
        if isinstance(value, dict) and name not in passed_on:
            found |= {f"{name}.{key}" for key in _value_keys(value)}
    return found


def test_every_value_is_explained() -> None:
    rows = set(re.findall(r"^\| `([\w.]+)` \|", (CHART / "README.md").read_text(), re.MULTILINE))
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    leaves = {
        key
        for key in _value_keys(values)
        if not any(other.startswith(f"{key}.") for other in _value_keys(values))
    }
    # Kubernetes' own words, under the comment of their section.
    known = {"periodSeconds", "timeoutSeconds", "failureThreshold"}
    assert {key for key in leaves - rows if key.rsplit(".", 1)[-1] not in known} == set()


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (compactord.__version__,) * 2


def test_a_packaged_chart_is_whole(tmp_path: Path) -> None:
    done = helm("package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    from_package = helm("template", "x", package, "--values", EVERYTHING)
    from_folder = helm("template", "x", CHART, "--values", EVERYTHING)
    assert from_package.stdout == from_folder.stdout
    assert "CompactordDown" in from_package.stdout
