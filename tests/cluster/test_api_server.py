"""The chart and the plain manifests as an API server takes them; their pods need not start."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster import Cluster, eventually
from tests.deploy.rendered import EXECUTORS, LOCAL, every_values
from tests.deploy.rendering import CHART, ROOT
from tests.tools.obtain import tool_path

_ALL = "all,configmap,secret,serviceaccount,role,rolebinding,networkpolicy,pdb"
# Every namespace has them.
_KUBERNETES_OWN = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
_AMOUNTS = "requests.cpu=8,requests.memory=16Gi,limits.cpu=8,limits.memory=16Gi,pods=10"
_DISK = "requests.ephemeral-storage=64Gi,limits.ephemeral-storage=64Gi"


@pytest.fixture(scope="module")
def server(cluster: Cluster) -> Cluster:
    """With the definitions and classes that the values files name."""
    cluster.kubectl("apply", "--server-side", "-f", tool_path("operator-crds"))
    for name in ("low", "high"):
        cluster.kubectl("create", "priorityclass", name, "--value=1")
    return cluster


def _left(cluster: Cluster, namespace: str) -> set[str]:
    told = cluster.kubectl("get", _ALL, "-n", namespace, "-o", "name")
    return set(told.split()) - _KUBERNETES_OWN


def _wait_for_a_pod(cluster: Cluster, namespace: str) -> None:
    """One is admitted, by PodSecurity and by quotas."""
    eventually(
        lambda: (
            cluster.get("pods", namespace)
            or [
                e["message"]
                for e in cluster.get("events", namespace)
                if e["reason"] == "FailedCreate"
            ]
        ),
        "a pod is made or refused",
    )
    events = cluster.get("events", namespace)
    assert [e["message"] for e in events if e["reason"] == "FailedCreate"] == []
    assert len(cluster.get("pods", namespace)) == 1


@every_values
def test_a_release_is_installed_changed_and_rolled_back_and_leaves_nothing(
    server: Cluster, values: Path
) -> None:
    namespace = f"ci-{values.stem}"
    server.make_namespace(namespace)
    release = ("compactord", CHART, "-n", namespace, "-f", values)
    server.helm("install", *release, "--dry-run=server")
    done = server.run(tool_path("helm"), "install", *release)
    assert (done.returncode, "would violate" in done.stderr) == (0, False), done.stderr
    _wait_for_a_pod(server, namespace)
    server.helm("upgrade", *release)
    assert _generation(server, namespace) == 1
    server.helm("upgrade", *release, "--set", "config.metrics.top_n=7")
    restarts = yaml.safe_load(values.read_text()).get("configReload") == "restart"
    assert _generation(server, namespace) == (2 if restarts else 1)
    server.helm("rollback", "compactord", "1", "-n", namespace)
    server.helm("uninstall", "compactord", "-n", namespace)
    eventually(lambda: _left(server, namespace) == set(), f"nothing is left in {namespace}")
    server.kubectl("delete", "namespace", namespace, "--wait=false")


def _generation(cluster: Cluster, namespace: str) -> int:
    (deployment,) = cluster.get("deployment", namespace)
    generation: int = deployment["metadata"]["generation"]
    return generation


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy/kubernetes").glob("*.yaml")), ids=lambda p: p.stem
)
def test_a_plain_manifest_is_applied_once(server: Cluster, path: Path) -> None:
    # The namespace that it names is that of test_daemon.py.
    text = path.read_text().replace("namespace: compactord", "namespace: plain")
    server.kubectl("create", "namespace", "plain")
    server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text)
    server.kubectl("apply", "-f", "-", stdin=text)
    # Applied again it would change nothing.
    assert server.kubectl("diff", "-f", "-", stdin=text) == ""
    server.kubectl("delete", "namespace", "plain", "--wait=true")


@pytest.mark.parametrize(
    ("role", "values"), [("admin", LOCAL), ("admin", EXECUTORS), ("edit", LOCAL)]
)
def test_who_is_admin_of_a_namespace_alone_can_install(
    server: Cluster, role: str, values: Path
) -> None:
    """Who may only edit can, too, but for executors: they need a role."""
    namespace = f"team-{role}-{values.stem}"
    server.make_namespace(namespace)
    bound = (f"--clusterrole={role}", "--user=team", "-n", namespace)
    server.kubectl("create", "rolebinding", "team", *bound)
    team = ("-n", namespace, "--kube-as-user", "team")
    server.helm("install", "compactord", CHART, "-f", values, *team)
    server.helm("uninstall", "compactord", *team)
    server.kubectl("delete", "namespace", namespace, "--wait=false")


def test_a_quota_that_counts_everything_admits_the_daemon(server: Cluster) -> None:
    server.make_namespace("quota")
    server.kubectl("create", "quota", "all", "-n", "quota", f"--hard={_AMOUNTS},{_DISK}")
    server.helm("install", "compactord", CHART, "-n", "quota", "-f", LOCAL)
    _wait_for_a_pod(server, "quota")
    server.helm("uninstall", "compactord", "-n", "quota")
    server.kubectl("delete", "namespace", "quota", "--wait=false")


@pytest.mark.parametrize("name", ["x" * 53, "data-compactord-prod", "9lives", "a.b.c"])
def test_a_release_of_any_name_is_installed_whole_or_not_at_all(server: Cluster, name: str) -> None:
    namespace = f"name-{len(name)}"
    server.make_namespace(namespace)
    done = server.run(tool_path("helm"), "install", name, CHART, "-n", namespace, "-f", EXECUTORS)
    if name[0].isdigit() or "." in name:
        assert "set fullnameOverride" in done.stderr
        assert _left(server, namespace) == set()
    else:
        assert done.returncode == 0, done.stderr
        server.helm("uninstall", name, "-n", namespace)
    server.kubectl("delete", "namespace", namespace, "--wait=false")
