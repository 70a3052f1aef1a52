"""Builds the servers of Kubernetes from its published Go modules.

Its go.mod requires v0.0.0 of its own parts, which exist in its repository only, so a module of ours
replaces each by its release. No module may require a part by its release: Go would compile all of
it once more under another key. So Kubernetes' own commands are built, and no program of ours that
imports them.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from tests.tools.workbench import ToolError, Workbench

VERSION = "1.33.4"
_H1 = "T1d5FLUYm3/KyUeV7YJhKTR980zHCHb7K2xhCSo3lE8="
# Checksum of the go.sum for everything that is compiled.
_SUMS_SHA256 = "f57767eab21bfe67fb7ee99004d6cc9329d0826c4a0c5f7dfd0e6df0b29f2a6a"
PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
# The first program of a pod: it waits, and reaps. With an argument it shows that it starts.
_PAUSE = """\
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 {
		return
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			if pid, _ := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 {
				break
			}
		}
	}
}
"""


def make(bench: Workbench) -> None:
    """The servers, `kubectl`, and `pause`. Raises `ToolError` if the sources have another
    checksum.
    """
    source = bench.go_module(f"k8s.io/kubernetes@v{VERSION}", _H1)
    module = bench.scratch / "module"
    module.mkdir()
    (module / "go.mod").write_text(_module(source))
    sums = module / "go.sum"
    sums.write_bytes((source / "go.sum").read_bytes())
    packages = [f"k8s.io/kubernetes/cmd/{program}" for program in PROGRAMS]
    bench.go("list", "-mod=mod", "-deps", *packages, cwd=module)
    found = hashlib.sha256(sums.read_bytes()).hexdigest()
    if found != _SUMS_SHA256:
        raise ToolError(
            f"go.sum of Kubernetes {VERSION} has sha256 {found}, expected {_SUMS_SHA256}"
        )
    major, minor, _ = VERSION.split(".")
    variables = {
        "k8s.io/component-base/version.gitVersion": f"v{VERSION}",
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
        "k8s.io/client-go/pkg/version.gitVersion": f"v{VERSION}",
    }
    # One by one: each command may take long, and Go's cache keeps its results.
    for package in packages:
        bench.go_build(module, package, variables=variables)
    pause = bench.scratch / "pause"
    pause.mkdir()
    (pause / "go.mod").write_text("module compactord.test/pause\n")
    (pause / "main.go").write_text(_PAUSE)
    bench.go_build(pause, ".")


def _module(source: Path) -> str:
    """A go.mod whose only requirement is Kubernetes, its parts replaced by their releases."""
    text = (source / "go.mod").read_text()
    release = "v0." + VERSION.split(".", 1)[1]
    parts = sorted(set(re.findall(r"^\t(k8s\.io/[\w-]+) v0\.0\.0(?:\s|$)", text, re.MULTILINE)))
    (go,) = re.findall(r"^go .*$", text, re.MULTILINE)
    (godebug,) = re.findall(r"^godebug .*$", text, re.MULTILINE)
    return "\n".join(
        [
            "module compactord.test/cluster",
            go,
            godebug,
            f"require k8s.io/kubernetes v{VERSION}",
            *(f"replace {part} => {part} {release}" for part in parts),
            "",
        ]
    )
