"""Process 1 of a cluster's own namespaces: it starts the servers, and they end with it.

python -m tests.cluster.inside STATE-FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster.settings import NODE, NODE_NAME, SERVICES
from tests.tools.obtain import tool_path

# What servers write outside of the state's folder stays in here.
_PRIVATE = ("/run", "/var/log", "/var/lib/cni")


class Servers:
    def __init__(self, state: Path) -> None:
        self._state = state
        self._names: dict[int, str] = {}

    def start(self, name: str, *arguments: str | Path) -> None:
        with (self._state / "log" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(arguments, stdout=log, stderr=log)
        self._names[process.pid] = name

    def reap(self) -> None:
        """For as long as this process is; what pods leave ends here, too."""
        while True:
            pid, status = os.wait()
            if pid in self._names:
                code = os.waitstatus_to_exitcode(status)
                print(f"{self._names[pid]} ended with code {code}", flush=True)


def main(state: Path) -> None:
    _make_network()
    servers = Servers(state)
    servers.start(
        "etcd",
        "etcd",
        f"--data-dir={state}/etcd",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",
    )
    servers.start("kube-apiserver", tool_path("kube-apiserver"), *_api_server(state))
    _wait_until_ready(state)
    servers.start(
        "kube-controller-manager",
        tool_path("kube-controller-manager"),
        f"--kubeconfig={state}/kube-controller-manager.conf",
        f"--service-account-private-key-file={state}/pki/sa.key",
        f"--root-ca-file={state}/pki/ca.crt",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    )
    servers.start(
        "kube-scheduler",
        tool_path("kube-scheduler"),
        f"--kubeconfig={state}/kube-scheduler.conf",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    )
    servers.start("containerd", "containerd", f"--config={state}/containerd.toml")
    servers.start("kube-proxy", tool_path("kube-proxy"), f"--config={state}/kube-proxy.yaml")
    while not (state / "run" / "containerd.sock").exists():
        time.sleep(0.2)
    servers.start(
        "kubelet",
        tool_path("kubelet"),
        f"--config={state}/kubelet.yaml",
        f"--kubeconfig={state}/kubelet.conf",
        f"--root-dir={state}/kubelet",
        f"--node-ip={NODE}",
        f"--hostname-override={NODE_NAME}",
    )
    servers.start("policies", sys.executable, "-u", "-m", "tests.cluster.policies", state)
    servers.reap()


def _make_network() -> None:
    """Mounts, and a link whose both ends are here: the default route leads nowhere else."""
    commands = [
        "mount --make-rprivate /",
        *(f"mkdir -p {path} && mount -t tmpfs tmpfs {path}" for path in _PRIVATE),
        "mkdir -p /run/lock /run/netns /var/log/pods",
        "mount --make-rshared /",
        "ip link set lo up",
        "ip link add node0 type veth peer name node1",
        f"ip address add {NODE}/24 dev node0",
        "ip link set node0 up && ip link set node1 up",
        "ip route add default dev node0",
        "sysctl -q -w net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1",
    ]
    for command in commands:
        subprocess.run(["sh", "-c", command], check=True)


def _api_server(state: Path) -> tuple[str, ...]:
    pki = state / "pki"
    return (
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={NODE}",
        "--secure-port=6443",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--service-cluster-ip-range={SERVICES}",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        "--kubelet-preferred-address-types=InternalIP",
    )


def _wait_until_ready(state: Path) -> None:
    ask = [tool_path("kubectl"), f"--kubeconfig={state}/admin.conf", "get", "--raw", "/readyz"]
    while subprocess.run(ask, capture_output=True, check=False).returncode:
        time.sleep(0.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
