"""The daemon on a node: merges, reload, restarts and drains while a merge runs, kills."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, eventually
from tests.cluster.releases import Pod, Release, events_in, files_of
from tests.cluster.settings import CGROUP, NODE_NAME
from tests.tools.obtain import tool_path

_CONFIG = "/etc/compactord/compactord.yaml"
_CPU = "resources.requests.cpu=500m,resources.limits.cpu=1"
_MEMORY_MIB = 2048
_MEMORY = f"resources.requests.memory={_MEMORY_MIB}Mi,resources.limits.memory={_MEMORY_MIB}Mi"
# Takes memory, 16 MiB at a time, until something is killed for it.
_HOG = "import time\nheld = []\nwhile True: held.append(b'x' * (16 << 20)); time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def release(cluster: Cluster) -> Iterator[Release]:
    release = Release(cluster=cluster, namespace="compactord", settings=(_CPU, _MEMORY))
    release.prepare()
    release.upgrade()
    yield release
    release.remove()


@pytest.fixture
def pod(release: Release) -> Pod:
    return release.wait_until_ready()


def test_tables_are_compacted_and_the_doctor_finds_nothing_wrong(
    release: Release, pod: Pod
) -> None:
    table = release.make_table("quick")
    release.wait_for(pod, "compaction_finished", database="quick")
    assert files_of(table) == 1
    exec_ = ("exec", pod.name, "-n", release.namespace, "--")
    told = release.cluster.kubectl(*exec_, "compactord", "doctor", "--config", _CONFIG, "--json")
    checks = {check["check"]: check for check in json.loads(told)["checks"]}
    assert {name for name, check in checks.items() if check["verdict"] != "ok"} == set()
    # Not the node's disk.
    assert "of which this pod may use 2.0 GiB" in checks["scratch"]["found"]


def test_helm_test_succeeds_and_leaves_nothing(release: Release, pod: Pod) -> None:
    release.cluster.helm("test", "compactord", "-n", release.namespace)
    assert release.names("-lapp.kubernetes.io/component=test") == []


def test_a_changed_configuration_is_read_by_the_running_daemon(release: Release, pod: Pod) -> None:
    loaded = len([one for one in release.events(pod) if one["event"] == "config_loaded"])
    top = 7 + loaded
    release.upgrade(f"config.metrics.top_n={top}")
    eventually(
        lambda: len([e for e in release.events(pod) if e["event"] == "config_loaded"]) > loaded,
        "the daemon reads its new configuration",
    )
    assert release.wait_until_ready() == pod


@pytest.mark.parametrize("way", ["rollout", "drain"])
def test_a_stop_waits_for_a_merge_of_a_minute(release: Release, pod: Pod, way: str) -> None:
    """By `kubectl rollout restart` and by `kubectl drain`: the merge is committed, then it ends."""
    database = f"slow_{way}"
    table = release.make_slow_table(database)
    kubectl = release.cluster.kubectl
    where = ("-n", release.namespace)
    with release.followed(pod) as log:
        eventually(lambda: events_in(log, "compaction_started", database=database), "it begins")
        if way == "rollout":
            kubectl("rollout", "restart", "deployment/compactord", *where)
        else:
            _drain(release.cluster)
            kubectl("uncordon", NODE_NAME)
        eventually(lambda: pod.name not in release.names(), "it has ended", 1000)
    (draining,) = events_in(log, "service_draining")
    (finished,) = events_in(log, "compaction_finished", database=database)
    (stopped,) = events_in(log, "service_stopped")
    assert draining["ts"] < finished["ts"] <= stopped["ts"]
    assert finished["duration_s"] > 20, "it was no merge of a minute"
    assert stopped["exit_code"] == 0
    assert events_in(log, "tasks_cancelled") == []
    assert files_of(table) == 1
    after = release.wait_until_ready()
    # Never two at a time.
    (started,) = (one for one in release.events(after) if one["event"] == "service_started")
    assert stopped["ts"] < started["ts"]


def test_a_node_is_drained_of_a_daemon_that_is_not_ready(release: Release) -> None:
    """By default a budget keeps a pod that runs and is not ready, until the drain gives up."""
    # Nothing listens there.
    release.upgrade("config.spark.master=spark://127.0.0.1:1", "configReload=restart")
    try:

        def waits() -> list[Pod]:
            return [
                pod
                for pod in release.pods()
                if not pod.is_ready
                and any(one["event"] == "spark_unavailable" for one in release.events(pod))
            ]

        (pod,) = eventually(waits, "a daemon without Spark runs")
        _drain(release.cluster)
        eventually(lambda: pod.name not in release.names(), "it was evicted", 60)
    finally:
        release.cluster.kubectl("uncordon", NODE_NAME)
        release.upgrade()
        release.wait_until_ready()


@pytest.mark.parametrize("victim", ["worker", "jvm", "worker by the kernel"])
def test_a_merge_whose_process_is_killed_is_done_again_and_the_pod_stays(
    release: Release, pod: Pod, victim: str
) -> None:
    """With control groups of version 1 the kernel kills one process, as these signals do.

    With version 2 the kubelet has it kill all processes of the container: then the pod restarts.
    """
    database = victim.replace(" ", "_")
    table = release.make_slow_table(database)
    with release.followed(pod) as log:
        begun = eventually(
            lambda: events_in(log, "compaction_started", database=database), "it begins"
        )
        if victim == "worker by the kernel":
            _kill_for_memory(release, pod)
        else:
            wanted = "PythonGatewayServer" if victim == "jvm" else "-m pyspark"
            for pid in _matching(pod, wanted):
                os.kill(pid, signal.SIGKILL)
        finished = release.wait_for(pod, "compaction_finished", database=database)
    # A merge that was lost may be divided.
    assert files_of(table) == finished["output_files"] < finished["input_files"] == 6
    lost = [one for one in events_in(log, "spark_lost") if one["ts"] > begun[0]["ts"]]
    assert len(lost) == (1 if victim == "jvm" else 0)
    (after,) = release.pods()
    assert (after.name, after.restarts) == (pod.name, pod.restarts)
    verify = ("verify", "--config", _CONFIG, "--table", f"{database}.t")
    exec_ = ("exec", pod.name, "-n", release.namespace, "--")
    release.cluster.kubectl(*exec_, "compactord", *verify)


def _drain(cluster: Cluster) -> None:
    how = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=1000s")
    cluster.kubectl("drain", NODE_NAME, *how)


def _matching(pod: Pod, word: str) -> list[int]:
    def found() -> list[int]:
        return [pid for pid, line in pod.processes.items() if word in line]

    matching: list[int] = eventually(found, f"{pod.name} has a process with {word}")
    return matching


def _kill_for_memory(release: Release, pod: Pod) -> None:
    """Use up the container's memory, with its workers as those that the kernel is to kill first."""
    for pid in _matching(pod, "-m pyspark"):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
    before = _oom_kills(pod)
    hog = ("exec", pod.name, "-n", release.namespace, "--", "/opt/compactord/bin/python", "-c")
    command = (tool_path("kubectl"), *hog, _HOG)
    with release.cluster.running(release.cluster.state / "hog.log", *command):
        eventually(lambda: _oom_kills(pod) > before, "the kernel kills for memory")
        # It may be among the killed; if not, it has to go.
        for pid, line in pod.processes.items():
            if "held.append" in line:
                os.kill(pid, signal.SIGKILL)


def _oom_kills(pod: Pod) -> int:
    """How many processes of the pod's containers the kernel has killed for memory."""
    groups = Path("/sys/fs/cgroup/memory", CGROUP).rglob(f"*pod{pod.uid}/*/memory.oom_control")
    words = [line.split() for path in groups for line in path.read_text().splitlines()]
    return sum(int(number) for name, number in words if name == "oom_kill")
