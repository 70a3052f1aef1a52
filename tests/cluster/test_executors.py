"""Executors as pods that the daemon starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.cluster import Cluster, eventually
from tests.cluster.releases import EXECUTOR, Release, files_of

# Fits a node of two cores.
_SETTINGS = (
    "resources.requests.cpu=500m,resources.limits.cpu=1",
    "resources.requests.memory=2Gi,resources.limits.memory=2Gi",
    "executors.enabled=true,executors.instances=1,executors.cores=1",
    "executors.memory=512m,executors.memoryOverhead=1g",
)
_QUOTA = "limits.cpu=8,limits.memory=16Gi,requests.cpu=8"


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    release = Release(cluster=cluster, namespace="executors", settings=_SETTINGS)
    release.prepare()
    release.upgrade()
    yield release
    release.remove()


def test_a_merge_runs_in_an_executor_and_slots_are_its_cores(release: Release) -> None:
    pod = release.wait_until_ready()
    (executor,) = release.pods(EXECUTOR)
    # Of one core; Spark's default parallelism would be two.
    assert release.wait_for(pod, "spark_started")["slots"] == 1
    table = release.make_table("merged")
    release.wait_for(pod, "compaction_finished", database="merged")
    assert files_of(table) == 1
    assert release.pods(EXECUTOR) == [executor]


def test_executors_go_with_a_driver_that_is_deleted_by_force(release: Release) -> None:
    pod = release.wait_until_ready()
    old = release.names(EXECUTOR)
    gone = ("--force", "--grace-period=0")
    release.cluster.kubectl("delete", "pod", pod.name, "-n", release.namespace, *gone)
    eventually(lambda: not set(old) & set(release.names(EXECUTOR)), "its executors are gone", 120)
    assert release.wait_until_ready().name != pod.name


def test_under_a_quota_the_log_says_what_is_refused_and_a_limit_of_cpu_helps(
    release: Release,
) -> None:
    namespace = ("-n", release.namespace)
    release.cluster.kubectl("create", "quota", "all", *namespace, f"--hard={_QUOTA}")
    try:
        before = release.names()
        release.cluster.kubectl("rollout", "restart", "deployment/compactord", *namespace)

        def refusals() -> list[str]:
            return [
                one["error"]
                for pod in release.pods()
                if pod.name not in before
                for one in release.events(pod)
                if one["event"] == "spark_unavailable"
            ]

        assert "must specify limits.cpu" in eventually(refusals, "Spark is unavailable")[0]
        release.upgrade("executors.cpuLimit=1")
        pod = release.wait_until_ready()
        assert release.wait_for(pod, "spark_started")["slots"] == 1
        assert len(release.pods(EXECUTOR)) == 1
    finally:
        release.cluster.kubectl("delete", "quota", "all", *namespace)
        release.upgrade()
