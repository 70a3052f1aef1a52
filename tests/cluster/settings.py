"""What the servers of a cluster are told: keys, and files of settings, below one folder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

# All in the cluster's own network.
NODE = "10.99.0.1"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
PODS = "10.244.0.0/24"
DNS = "10.96.0.10"
NODE_NAME = "node1"
REGISTRY = "registry.example.com"
# Below each hierarchy of control groups.
CGROUP = "compactord-cluster"
USERS = ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
_SUBJECTS = {
    "apiserver": "/CN=kube-apiserver",
    "admin": "/O=system:masters/CN=admin",
    "kubelet": f"/O=system:nodes/CN=system:node:{NODE_NAME}",
}
_NAMES = {
    "apiserver": (
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,"
        f"DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:{NODE},IP:{API_SERVICE}"
    ),
    "kubelet": f"DNS:{NODE_NAME},IP:{NODE}",
}
_CONTAINERD = """\
version = 2
root = "{images}"
state = "{state}/run/containerd"
[grpc]
  address = "{state}/run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{registry}/pause:1"
  disable_apparmor = true
  # Root may lack CAP_SYS_RESOURCE: runc would end without a reason that says so.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{state}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def write_settings(state: Path, images: Path) -> None:
    """Fill `state`, an empty folder. `images` is where containerd keeps what it has imported."""
    for name in ("pki", "log", "run", "cni", "kubelet", "etcd", "home"):
        (state / name).mkdir(mode=0o700 if name == "etcd" else 0o755)
    _make_keys(state / "pki")
    for user in USERS:
        _write(state / f"{user}.conf", _kubeconfig(state / "pki", user))
    (state / "containerd.toml").write_text(
        _CONTAINERD.format(state=state, images=images, registry=REGISTRY)
    )
    (state / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    _write(state / "cni" / "10-pods.conflist", _pod_network())
    _write(state / "kubelet.yaml", _kubelet(state))
    _write(state / "kube-proxy.yaml", _kube_proxy(state))


def _write(path: Path, content: dict[str, Any]) -> None:
    # JSON is YAML.
    path.write_text(json.dumps(content, indent=1))


def _make_keys(folder: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, check=True)

    new = ("-newkey", "rsa:2048", "-nodes")
    authority = ("-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=compactord-cluster")
    openssl("req", "-x509", *new, "-days", "30", *authority)
    openssl("genrsa", "-out", "sa.key", "2048")
    openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    for name in ("apiserver", *USERS):
        subject = _SUBJECTS.get(name, f"/CN=system:{name}")
        (folder / f"{name}.ext").write_text(
            "extendedKeyUsage=clientAuth,serverAuth\n"
            f"subjectAltName={_NAMES.get(name, f'DNS:{name}')}\n"
        )
        openssl("req", *new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30")
        files = ("-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", f"{name}.ext")
        openssl("x509", "-req", *files, *signed)


def _kubeconfig(pki: Path, user: str) -> dict[str, Any]:
    server = {"server": "https://127.0.0.1:6443", "certificate-authority": f"{pki}/ca.crt"}
    keys = {"client-certificate": f"{pki}/{user}.crt", "client-key": f"{pki}/{user}.key"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": server}],
        "users": [{"name": user, "user": keys}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": user}}],
        "current-context": "here",
    }


def _pod_network() -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni",
        "ranges": [[{"subnet": PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": addresses},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def _kubelet(state: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{state}/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{state}/pki/kubelet.crt",
        "tlsPrivateKeyFile": f"{state}/pki/kubelet.key",
        "containerRuntimeEndpoint": f"unix://{state}/run/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failSwapOn": False,
        "clusterDNS": [DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{state}/resolv.conf",
        "podLogsDir": "/var/log/pods",
        "volumePluginDir": f"{state}/kubelet/plugins",
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "imageGCHighThresholdPercent": 100,
    }


def _kube_proxy(state: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": f"{state}/kube-proxy.conf"},
        "clusterCIDR": PODS,
        "hostnameOverride": NODE_NAME,
        "mode": "iptables",
        "iptables": {"minSyncPeriod": "200ms"},
        # The machine's limits are left alone.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
