"""A real Kubernetes of one node on this machine, and the chart on it: `make test-cluster`, as root.

etcd, containerd, runc and the CNI's plug-ins are Debian's, Kubernetes' own servers are built by
`make cluster-tools`. Two stand-ins are ours, and prove nothing of Kubernetes: `dns` answers for
CoreDNS, `policies` enforces network policies by iptables.
"""
