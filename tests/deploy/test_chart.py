"""The chart, rendered for every values file that it comes with."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.rendered import (
    EVERYTHING,
    EXECUTORS,
    HIVE,
    KUBERNETES,
    LOCAL,
    POD_MONITOR,
    REST,
    S3,
    Object,
    config_text,
    container_of,
    every_values,
    executor_template,
    loaded_config,
    objects_of,
    only,
    pod_of,
)
from tests.deploy.rendering import CHART, ROOT, VALUES, helm, objects, template
from tests.tools.obtain import tool_path

_UNSCORED = ("--ignore-test", "container-image-pull-policy")

# -- what holds for every values file


def test_each_part_of_the_chart_has_a_values_file_that_renders_it() -> None:
    assert {path.stem for path in VALUES} == {
        "adls-values",
        "everything-values",
        "gcs-values",
        "hdfs-values",
        "hive-values",
        "local-on-volume-values",
        "rest-values",
        "s3-jdbc-values",
        "spark-on-kubernetes-values",
        "standalone-spark-values",
    }
    rendered = {o["kind"] for o in objects_of(EVERYTHING)}
    rendered |= {o["kind"] for o in objects_of(EVERYTHING, *POD_MONITOR)}
    written = {
        kind
        for path in (CHART / "templates").rglob("*.yaml")
        for kind in re.findall(r"^kind: (\w+)$", path.read_text(), re.MULTILINE)
    }
    assert rendered == written


@every_values
def test_lint_finds_nothing(values: Path) -> None:
    done = helm("lint", "--strict", CHART, "--values", values)
    assert (done.returncode, "[WARNING]" in done.stdout) == (0, False), done.stdout + done.stderr


@every_values
@pytest.mark.parametrize("version", KUBERNETES)
def test_objects_are_what_kubernetes_takes(values: Path, version: str) -> None:
    own = [o for o in objects_of(values) if "monitoring.coreos.com" not in o["apiVersion"]]
    assert len(own) > 5
    for found in own:
        kubernetes_validate.validate(found, version, strict=True)


@pytest.mark.parametrize("arguments", [(), POD_MONITOR], ids=["service", "pod"])
def test_objects_for_the_operator_are_what_its_definitions_say(arguments: tuple[str, ...]) -> None:
    custom = [
        o for o in objects_of(EVERYTHING, *arguments) if "monitoring.coreos.com" in o["apiVersion"]
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
    scored = [o for o in objects_of(values) if "monitoring.coreos.com" not in o["apiVersion"]]
    if any(o["kind"] == "Role" for o in scored):
        # Spark gives an executor its image, cores and memory.
        pod = copy.deepcopy(executor_template(values))
        pod["metadata"] |= {"name": "executor-1", "namespace": "compactord"}
        container = pod["spec"]["containers"][0]
        container |= {"image": container_of(values)["image"], "imagePullPolicy": "Always"}
        for amounts in container["resources"].values():
            amounts |= {"cpu": "1", "memory": "1Gi"}
        scored.append(pod)
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(scored))
    done = subprocess.run(
        # Tags name one image for good: nothing newer is to be pulled.
        [tool_path("kube-score"), "score", "--output-format", "ci", path, *_UNSCORED],
        capture_output=True,
        text=True,
        check=False,
    )
    grades = done.stdout.splitlines()
    assert len(grades) > 20, done.stderr
    assert [grade for grade in grades if grade.startswith("[CRITICAL]")] == []


@every_values
def test_selectors_ports_and_volumes_fit_together(values: Path) -> None:
    deployment = only("Deployment", values)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    container = container_of(values)
    ports = {port["name"] for port in container["ports"]}
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()
    services = [o for o in objects_of(values) if o["kind"] == "Service"]
    for service in services:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    assert "http" in ports
    pod = pod_of(values)
    containers = (*pod.get("initContainers", ()), *pod["containers"])
    mounts = {mount["name"] for each in containers for mount in each.get("volumeMounts", ())}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    accounts = {o["metadata"]["name"] for o in objects_of(values) if o["kind"] == "ServiceAccount"}
    assert pod_of(values)["serviceAccountName"] in accounts


@every_values
def test_every_object_is_named_and_labelled_as_usual(values: Path) -> None:
    names = [(o["kind"], o["metadata"]["name"]) for o in objects_of(values)]
    assert len(set(names)) == len(names)
    for found in objects_of(values):
        labels = found["metadata"]["labels"]
        assert found["metadata"]["namespace"] == "compactord"
        assert labels["app.kubernetes.io/instance"] == "compactord"
        assert {"app.kubernetes.io/name", "app.kubernetes.io/component"} <= labels.keys()


@every_values
def test_nothing_in_a_pod_runs_as_root_or_writes_but_where_it_may(values: Path) -> None:
    pods = [pod_of(values), only("Pod", values)["spec"]]
    if any(o["kind"] == "Role" for o in objects_of(values)):
        pods.append(executor_template(values)["spec"])
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
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
    assert yaml.safe_load(config_text(values)) == written
    loaded = loaded_config(values, tmp_path)
    assert set(loaded.config.catalogs) == set(written["catalogs"])


# -- what users add


def test_containers_and_objects_of_the_users_come_beside_the_daemon() -> None:
    pod = pod_of(EVERYTHING)
    assert [container["name"] for container in pod["initContainers"]] == ["wait"]
    assert [container["name"] for container in pod["containers"]] == ["compactord", "proxy"]
    assert "initContainers" not in pod_of(LOCAL)
    assert len(pod_of(LOCAL)["containers"]) == 1
    (extra,) = [o for o in objects_of(EVERYTHING) if o["metadata"]["name"].endswith("-extra")]
    assert extra["metadata"]["name"] == "compactord-lakekeeper-extra"
    assert extra["data"] == {"key": "value"}


def test_an_image_that_a_node_has_is_not_pulled_again() -> None:
    pods = [pod_of(LOCAL), only("Pod", LOCAL)["spec"]]
    policies = {pod["containers"][0]["imagePullPolicy"] for pod in pods}
    assert policies == {"IfNotPresent"}


# -- lifecycle


def test_the_kubelet_waits_half_a_minute_longer_than_a_drain_may_take() -> None:
    assert pod_of(LOCAL)["terminationGracePeriodSeconds"] == 330
    assert pod_of(EVERYTHING)["terminationGracePeriodSeconds"] == 630
    own = ("--set", "terminationGracePeriodSeconds=45")
    assert pod_of(LOCAL, *own)["terminationGracePeriodSeconds"] == 45


@pytest.mark.parametrize(
    ("grace", "seconds"),
    [("90 s", 120), ("90s", 120), ("5 min", 330), ("1h", 3630), ("1500 ms", 32)],
)
def test_the_grace_is_read_as_the_configuration_reads_it(grace: str, seconds: int) -> None:
    own = ("--set-string", f"config.shutdown.grace={grace}")
    assert pod_of(LOCAL, *own)["terminationGracePeriodSeconds"] == seconds


def test_a_daemon_that_is_not_ready_keeps_no_node_from_being_drained() -> None:
    """By default Kubernetes evicts none, as long as too few others are ready: here always."""
    manifests = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
    plain = [found for path in manifests for found in objects(path.read_text())]
    budgets = [
        found["spec"]
        for found in (*plain, *objects_of(LOCAL), *objects_of(EXECUTORS))
        if found["kind"] == "PodDisruptionBudget"
    ]
    assert len(budgets) == 4
    for spec in budgets:
        assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_the_test_fits_on_a_node_that_the_daemon_fills() -> None:
    resources = only("Pod", LOCAL)["spec"]["containers"][0]["resources"]
    assert resources["requests"]["cpu"] == "10m"
    assert resources["limits"].keys() == resources["requests"].keys()


def test_the_daemon_is_told_how_much_scratch_the_kubelet_lets_it_have() -> None:
    variables = {variable["name"]: variable for variable in container_of(LOCAL)["env"]}
    reference = variables["SCRATCH_LIMIT_BYTES"]["valueFrom"]["resourceFieldRef"]
    # Without a divisor: in bytes.
    assert reference == {"containerName": "compactord", "resource": "limits.ephemeral-storage"}
    assert container_of(LOCAL)["resources"]["limits"]["ephemeral-storage"] == "2Gi"


def test_the_daemon_gives_up_starting_before_the_kubelet_does() -> None:
    for values, timeout_s in ((LOCAL, 300), (EVERYTHING, 480)):
        probe = container_of(values)["startupProbe"]
        assert probe["periodSeconds"] * probe["failureThreshold"] >= timeout_s + 30


def test_probes_ask_three_different_questions() -> None:
    container = container_of(LOCAL)
    paths = {
        probe: container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert paths == {
        "startupProbe": "/startupz",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (LOCAL, [{"podSelector": {}}]),
        (
            EVERYTHING,
            [
                {"podSelector": {}},
                {
                    "namespaceSelector": {
                        "matchLabels": {"kubernetes.io/metadata.name": "monitoring"}
                    }
                },
                {"ipBlock": {"cidr": "10.0.8.0/24"}},
            ],
        ),
    ],
)
def test_the_page_is_read_from_the_releases_namespace_and_named_ones_only(
    values: Path, expected: list[object]
) -> None:
    (policy,) = (
        o
        for o in objects_of(values)
        if o["kind"] == "NetworkPolicy" and "ports" in (o["spec"]["ingress"] or [{}])[0]
    )
    first, *others = policy["spec"]["ingress"]
    assert [port["port"] for port in first["ports"]] == ["http"]
    assert first["from"] == expected
    # No other rule admits everybody, either.
    assert all(rule["from"] for rule in others)
    assert {"namespaceSelector": {}} not in [peer for rule in others for peer in rule["from"]]


@pytest.mark.parametrize(
    ("arguments", "ports"),
    [((), [53]), (("--set", "networkPolicy.dnsPorts={53,5353}"), [53, 5353])],
)
def test_every_pod_may_ask_for_names_at_the_ports_of_the_clusters_dns(
    arguments: tuple[str, ...], ports: list[int]
) -> None:
    policies = [o for o in objects_of(EXECUTORS, *arguments) if o["kind"] == "NetworkPolicy"]
    expected = [{"port": port, "protocol": name} for port in ports for name in ("UDP", "TCP")]
    # The daemon's, the executors', the test's.
    assert [policy["spec"]["egress"][0]["ports"] for policy in policies] == [expected] * 3


_STORE = "config.catalogs.lake.warehouse=s3://lake/wh"


def _egress(values: Path, *arguments: str) -> dict[str, list[Object]]:
    """The rules of the daemon's and of the executors' policies but for DNS."""
    sets = [word for argument in arguments for word in ("--set", argument)]
    return {
        o["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: o["spec"]["egress"][
            1:
        ]
        for o in objects_of(values, *sets)
        if o["kind"] == "NetworkPolicy"
    }


@pytest.mark.parametrize(
    ("arguments", "ports"),
    [
        ([], []),
        ([_STORE], [443]),
        ([_STORE, r"config.catalogs.lake.options.s3\.endpoint=https://minio:9000/"], [443, 9000]),
        ([_STORE, r"config.catalogs.lake.options.fs\.s3a\.endpoint=minio:9000"], [443, 9000]),
        ([_STORE, r"config.catalogs.lake.options.s3\.endpoint=http://minio"], [443, 80]),
        ([_STORE, r"config.catalogs.lake.options.s3\.connection\.ssl\.enabled=false"], [443, 80]),
        ([_STORE, r"config.catalogs.lake.options.s3\.endpoint\.region=eu-1"], [443]),
        (["config.catalogs.lake.warehouse=abfss://c@a.dfs.core.windows.net/wh"], [443]),
        (
            [
                "config.catalogs.lake.warehouse=gs://b/wh",
                r"config.catalogs.lake.options.fs\.gs\.storage\.root\.url=http://gcs:4443",
            ],
            [443, 4443],
        ),
        (
            [
                "config.catalogs.lake.metastore=jdbc",
                "config.catalogs.lake.options.uri=jdbc:postgresql://db.x/p?sslmode=require",
            ],
            [5432],
        ),
        (
            [
                "config.catalogs.lake.metastore=jdbc",
                "config.catalogs.lake.options.uri=jdbc:mysql://db:3307/p",
                _STORE,
            ],
            [443, 3307],
        ),
        (
            [
                "config.catalogs.lake.metastore=rest",
                "config.catalogs.lake.warehouse=lake",
                "config.catalogs.lake.options.uri=http://catalog:8080",
            ],
            [443, 8080],
        ),
        (
            [
                "config.catalogs.lake.metastore=hive",
                r"config.catalogs.lake.options.uri=thrift://a:9084\, thrift://b",
                _STORE,
            ],
            [443, 9084, 9083],
        ),
        (["config.catalogs.lake.warehouse=hdfs://lake/wh"], [8020, 9866]),
        (["config.catalogs.lake.warehouse=hdfs://node:9000/wh"], [9000, 9866]),
        (["config.spark.master=spark://head:7077"], [7077]),
        (["config.spark.master=sc://connect"], [15002]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_the_daemon_is_let_out_to_what_the_configuration_names(
    arguments: list[str], ports: list[int]
) -> None:
    found = _egress(LOCAL, *arguments)["daemon"]
    assert [port["port"] for rule in found for port in rule["ports"]] == ports
    there = "networkPolicy.configuredTo[0].ipBlock.cidr=10.0.0.0/8"
    for rule in _egress(LOCAL, *arguments, there)["daemon"]:
        assert rule["to"] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]


@pytest.mark.parametrize(
    ("values", "daemon", "executor"),
    [
        (S3, [443, 9000, 5432], [443, 9000]),
        (HIVE, [443, 9083], [443]),
        # The server lends keys, also to executors.
        (REST, [443, 8443], [443, 8443]),
    ],
    ids=lambda value: getattr(value, "stem", None),
)
def test_executors_are_let_out_to_stores_and_not_to_databases(
    values: Path, daemon: list[int], executor: list[int]
) -> None:
    found = _egress(values)
    named = {
        component: [[port["port"] for port in rule["ports"]] for rule in rules if "to" not in rule]
        for component, rules in found.items()
    }
    assert named["daemon"] == [daemon]
    assert named["executor"] == [executor]


@pytest.mark.parametrize(
    "option", ["uri=${env:DB}", r"s3\.endpoint=https://${env:HOST}:9000"], ids=lambda o: o[:8]
)
def test_what_is_named_by_reference_needs_an_egress_of_its_own(option: str) -> None:
    sets = ("config.catalogs.lake.metastore=jdbc", _STORE, f"config.catalogs.lake.options.{option}")
    with pytest.raises(ValueError, match=r"set networkPolicy\.extraEgress"):
        _egress(LOCAL, *sets)
    _egress(LOCAL, *sets, "networkPolicy.extraEgress[0].ports[0].port=5432")
    _egress(LOCAL, *sets, "networkPolicy.enabled=false")


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (LOCAL, ["On mounted file systems: lake.", "lets the pods out to DNS and each other"]),
        (
            S3,
            [
                "In object stores and HDFS: archive, lake.",
                "lets the daemon out to TCP 443, 9000, 5432, executors to TCP 443, 9000 at any",
            ],
        ),
        (EVERYTHING, ["On mounted file systems: lake.", "by reference: archive."]),
    ],
    ids=lambda value: getattr(value, "stem", ""),
)
def test_the_notes_say_what_is_true(values: Path, texts: list[str]) -> None:
    done = helm("install", "x", CHART, "--dry-run=client", "--values", values)
    notes = done.stdout.partition("\nNOTES:\n")[2]
    assert [text for text in texts if text not in notes] == []
    assert "not supported" not in notes


def test_two_daemons_never_run_at_a_time() -> None:
    spec = only("Deployment", LOCAL)["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_a_changed_configuration_reaches_the_daemon_without_a_restart() -> None:
    changed = ("--set", "config.log.level=debug")
    mounts = {mount["name"]: mount for mount in container_of(LOCAL)["volumeMounts"]}
    # With subPath the kubelet would never renew the file.
    assert mounts["config"] == {
        "name": "config",
        "mountPath": "/etc/compactord",
        "readOnly": True,
    }
    before, after = (only("Deployment", LOCAL, *more) for more in ((), changed))
    assert before == after
    restart = ("--set", "configReload=restart")
    before, after = (only("Deployment", LOCAL, *restart, *more) for more in ((), changed))
    assert before != after


def test_probes_and_the_service_follow_the_port_of_the_configuration() -> None:
    container = container_of(EVERYTHING)
    assert {"name": "http", "containerPort": 9500} in container["ports"]
    assert container["livenessProbe"]["httpGet"]["port"] == "http"


# -- alerts and dashboard


def test_the_rules_of_the_cluster_are_those_of_the_repository_with_runbooks_at_an_address() -> None:
    shipped = yaml.safe_load((ROOT / "deploy/prometheus/compactord.rules.yaml").read_text())
    groups = only("PrometheusRule", EVERYTHING)["spec"]["groups"]
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
    for arguments, kind in (((), "ServiceMonitor"), (POD_MONITOR, "PodMonitor")):
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
        for o in objects_of(EVERYTHING)
        if o["kind"] == "ConfigMap" and "compactord.json" in o["data"]
    ]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = json.loads((ROOT / "deploy/grafana/compactord.json").read_text())
    assert json.loads(found["data"]["compactord.json"]) == shipped
