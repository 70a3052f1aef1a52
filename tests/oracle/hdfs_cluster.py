"""An HDFS of this machine, from Hadoop's own jars: one JVM with name nodes and a data node."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.oracle.judge_jar import hdfs_jar
from tests.oracle.judge_jvm import JAVA_OPTIONS, JudgeJvm

SERVICE = "lake"
_PROGRAM = Path(__file__).with_name("HdfsCluster.java")
_PROPERTY = "<property><name>{}</name><value>{}</value></property>\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsCluster:
    """One that runs, on the loopback device."""

    java: JudgeJvm
    ports: Sequence[int]

    @property
    def root(self) -> str:
        """Of its first name node alone."""
        return f"hdfs://127.0.0.1:{self.ports[0]}"

    @property
    def settings(self) -> dict[str, str]:
        """Hadoop's properties, in which all name nodes are those of the name service `SERVICE`."""
        nodes = {f"nn{number}": port for number, port in enumerate(self.ports)}
        found = {f"dfs.ha.namenodes.{SERVICE}": ",".join(nodes)}
        for node, port in nodes.items():
            found[f"dfs.namenode.rpc-address.{SERVICE}.{node}"] = f"127.0.0.1:{port}"
        return found

    def write_site(self, folder: Path) -> None:
        """hdfs-site.xml with these settings."""
        text = "".join(_PROPERTY.format(*each) for each in self.settings.items())
        (folder / "hdfs-site.xml").write_text(f"<configuration>\n{text}</configuration>\n")

    def fail_over(self) -> None:
        """From the first name node to the second."""
        self.java.call("HdfsCluster", "failOver", None)


@contextlib.contextmanager
def hdfs_cluster(name_nodes: int = 1) -> Iterator[HdfsCluster]:
    """Raises `JudgeJarError` where its jars are not there."""
    java = JudgeJvm(time_zone="UTC", java_options=JAVA_OPTIONS, sources=(), jars=[hdfs_jar()])
    java.start()
    try:
        java.load(_PROGRAM)
        ports = json.loads(java.call("HdfsCluster", "start", name_nodes))
        yield HdfsCluster(java=java, ports=ports)
    finally:
        java.stop()
