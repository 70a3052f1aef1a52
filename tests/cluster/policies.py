"""Enforces NetworkPolicies by iptables, in the cluster's own network: a stand-in for a CNI's.

    python -m tests.cluster.policies STATE-FOLDER

It knows what the chart's policies say: pods and namespaces by labels, blocks of addresses, ports by
number and by name. A policy applies after the translation of services' addresses.
"""

from __future__ import annotations

import ipaddress
import json
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Object = dict[str, Any]
_SECONDS_BETWEEN = 0.5


class World:
    """Pods that have addresses, namespaces' labels, and policies, as they are now."""

    def __init__(self, ask: Callable[[str], list[Object]]) -> None:
        self.labels = {
            found["metadata"]["name"]: found["metadata"].get("labels", {})
            for found in ask("/api/v1/namespaces")
        }
        self.pods = [
            pod
            for pod in ask("/api/v1/pods")
            if pod["status"].get("podIP")
            and not pod["spec"].get("hostNetwork")
            and pod["status"].get("phase") in ("Pending", "Running")
        ]
        self.policies = ask("/apis/networking.k8s.io/v1/networkpolicies")

    def chains(self) -> dict[str, list[str]]:
        """Rules of iptables by the name of their chain; NETPOL leads to the others."""
        top = ["-m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"]
        found = {"NETPOL": top}
        for pod in self.pods:
            address = pod["status"]["podIP"]
            for kind, own in (("Egress", "-s"), ("Ingress", "-d")):
                policies = [policy for policy in self.policies if _is_for(policy, pod, kind)]
                if policies:
                    name = f"NP-{kind[0]}-{address}"
                    top.append(f"{own} {address} -j {name}")
                    found[name] = [rule for p in policies for rule in self._rules(p, pod, kind)]
                    found[name].append("-j DROP")
        return found

    def _rules(self, policy: Object, pod: Object, kind: str) -> Iterator[str]:
        key, other = ("to", "-d") if kind == "Egress" else ("from", "-s")
        for rule in policy["spec"].get(kind.lower()) or []:
            for address, peer in self._peers(policy, rule.get(key)):
                where = f"{other} {address} " if address else ""
                for port in _ports(rule.get("ports"), peer if kind == "Egress" else pod):
                    yield f"{where}{port}-j RETURN"

    def _peers(
        self, policy: Object, entries: list[Object] | None
    ) -> Iterator[tuple[str, Object | None]]:
        """Address and, where it is one's, pod of each that is allowed; no address: anybody."""
        if not entries:
            yield "", None
        for entry in entries or []:
            if "ipBlock" in entry:
                for network in _networks(entry["ipBlock"]):
                    yield network, None
                continue
            for pod in self.pods:
                space = pod["metadata"]["namespace"]
                if "namespaceSelector" in entry:
                    is_there = matches(entry["namespaceSelector"], self.labels.get(space, {}))
                else:
                    is_there = space == policy["metadata"]["namespace"]
                if is_there and matches(entry.get("podSelector", {}), _labels(pod)):
                    yield pod["status"]["podIP"], pod


def matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    for one in selector.get("matchExpressions") or []:
        value, values = labels.get(one["key"]), one.get("values", [])
        holds = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not holds[one["operator"]]:
            return False
    return True


def _labels(pod: Object) -> dict[str, str]:
    labels: dict[str, str] = pod["metadata"].get("labels", {})
    return labels


def _is_for(policy: Object, pod: Object, kind: str) -> bool:
    return (
        policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and kind in policy["spec"]["policyTypes"]
        and matches(policy["spec"]["podSelector"], _labels(pod))
    )


def _networks(block: Object) -> list[str]:
    networks = [ipaddress.ip_network(block["cidr"])]
    for text in block.get("except", []):
        hole: Any = ipaddress.ip_network(text)
        networks = [
            part
            for network in networks
            for part in (network.address_exclude(hole) if hole.subnet_of(network) else [network])
        ]
    return [str(network) for network in networks]


def _ports(entries: list[Object] | None, pod: Object | None) -> Iterator[str]:
    """What matches each; a port by name is one of the pod that listens."""
    if not entries:
        yield ""
    for entry in entries or []:
        port, protocol = entry.get("port"), entry.get("protocol", "TCP").lower()
        numbers = [port]
        if isinstance(port, str):
            containers = pod["spec"]["containers"] if pod else []
            declared = [found for each in containers for found in each.get("ports", [])]
            numbers = [found["containerPort"] for found in declared if found.get("name") == port]
        for number in numbers:
            yield f"-p {protocol} " + (f"--dport {number} " if number else "")


def _enforce(chains: Mapping[str, list[str]]) -> None:
    heads = [f":{name} - [0:0]" for name in chains]
    rules = [f"-A {name} {rule}" for name, found in chains.items() for rule in found]
    text = "\n".join(["*filter", *heads, *rules, "COMMIT", ""])
    subprocess.run(["iptables-restore", "--noflush"], input=text, text=True, check=True)
    # INPUT for what pods ask of the node. What the node asks of pods is never held up: probes.
    for hook in ("FORWARD", "INPUT"):
        rule = [hook, "-j", "NETPOL"]
        if subprocess.run(["iptables", "-C", *rule], capture_output=True, check=False).returncode:
            subprocess.run(["iptables", "-I", *rule], check=True)


def main(state: Path) -> None:
    context = ssl.create_default_context(cafile=f"{state}/pki/ca.crt")
    context.load_cert_chain(f"{state}/pki/admin.crt", f"{state}/pki/admin.key")

    def ask(path: str) -> list[Object]:
        address = f"https://127.0.0.1:6443{path}"
        with urllib.request.urlopen(address, timeout=10, context=context) as answer:
            items: list[Object] = json.load(answer)["items"]
        return items

    before: dict[str, list[str]] = {}
    while True:
        try:
            chains = World(ask).chains()
            if chains != before:
                _enforce(chains)
                print(json.dumps(chains, indent=1), flush=True)
                before = chains
        except (OSError, subprocess.CalledProcessError) as error:
            print(error, flush=True)
        time.sleep(_SECONDS_BETWEEN)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
