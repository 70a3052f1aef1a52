"""A release of the chart in a namespace of its own, and the warehouse on its volume."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from compactord.paimon.schema import TableRef
from compactord.state.table_state import load_state
from compactord.storage.local import LocalStorage
from tests import builders
from tests.cluster import machine
from tests.cluster.cluster import MANIFESTS, Cluster, Object, eventually
from tests.deploy.rendering import CHART
from tests.tools.obtain import tool_path

DAEMON = "-lapp.kubernetes.io/component=daemon"
EXECUTOR = "-lapp.kubernetes.io/component=executor"
# As uid and gid in the image.
_USER = 10001
_LOCAL = LocalStorage()
# A merge of so many rows takes about a minute of a core where it compresses as hard as it can.
_SLOW_ROWS = 600_000
_AS_HARD_AS_IT_CAN = {"file.compression.zstd-level": "22"}
_SETTINGS = (
    "config.catalogs.lake.warehouse=/warehouse",
    "config.discovery.catalog_list_interval=5 s",
    "config.log.format=json",
    # A crowded machine takes its time for a merge.
    "config.shutdown.grace=900 s",
    "warehouse.existingClaim=warehouse",
)


@dataclass(frozen=True, slots=True)
class Pod:
    name: str
    uid: str
    restarts: int
    is_ready: bool

    @property
    def processes(self) -> Mapping[int, str]:
        """Command lines by process, as this machine numbers them."""
        found = {pid: machine.command_line(pid) for pid in machine.processes(f"pod{self.uid}")}
        return {pid: line for pid, line in found.items() if line}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Called `compactord`, as is its namespace unless `namespace` says otherwise."""

    cluster: Cluster
    namespace: str
    settings: tuple[str, ...]

    @property
    def warehouse(self) -> Path:
        return self.cluster.state / self.namespace

    def prepare(self) -> None:
        """The namespace, and an empty warehouse as its volume."""
        self.cluster.make_namespace(self.namespace)
        self.warehouse.mkdir()
        text = (MANIFESTS / "warehouse.yaml").read_text()
        text = text.replace("NAMESPACE", self.namespace).replace("FOLDER", str(self.warehouse))
        self.cluster.kubectl("apply", "-f", "-", stdin=text)

    def upgrade(self, *settings: str) -> None:
        """Install, or upgrade to, the usual settings and these."""
        values = self.cluster.values(*_SETTINGS, *self.settings, *settings)
        which = ("upgrade", "--install", "compactord", CHART, "-n", self.namespace)
        self.cluster.helm(*which, *values)

    def wait_until_ready(self) -> Pod:
        where = ("-n", self.namespace, "--timeout=900s")
        self.cluster.kubectl("rollout", "status", "deployment/compactord", *where)
        (pod,) = self.pods()
        return pod

    def pods(self, which: str = DAEMON) -> list[Pod]:
        """Those that are not on their way out."""
        found = self.cluster.get("pods", self.namespace, which)
        return [_pod(one) for one in found if "deletionTimestamp" not in one["metadata"]]

    def names(self, which: str = DAEMON) -> list[str]:
        """Of all pods, those included that are being stopped."""
        return [one["metadata"]["name"] for one in self.cluster.get("pods", self.namespace, which)]

    def remove(self) -> None:
        self.cluster.helm("uninstall", "compactord", "-n", self.namespace, "--wait")

    def events(self, pod: Pod) -> list[Object]:
        """What the daemon has logged up to now; nothing while its container is being made."""
        asked = ("logs", pod.name, "-n", self.namespace, "-c", "compactord")
        return list(_events(self.cluster.run(tool_path("kubectl"), *asked).stdout))

    def wait_for(self, pod: Pod, event: str, **fields: str) -> Object:
        """The last event of the name with these fields."""

        def found() -> list[Object]:
            return [
                one for one in self.events(pod) if one.items() >= {"event": event, **fields}.items()
            ]

        last: Object = eventually(found, f"{pod.name} logs {event} {fields}")[-1]
        return last

    @contextlib.contextmanager
    def followed(self, pod: Pod) -> Iterator[Path]:
        """A file that receives the pod's log, which is gone when the pod is."""
        path = self.cluster.state / f"{pod.name}.log"
        command = (tool_path("kubectl"), "logs", "-f", pod.name, "-n", self.namespace)
        with self.cluster.running(path, *command):
            yield path

    def make_table(self, database: str, *, rows: int = 2_000, **options: str) -> TableRef:
        """`database.t` with six level-0 files that overlap, of the image's user."""
        made = self.warehouse.with_name(f"{self.namespace}-{database}.db")
        table = builders.keyed_table(_LOCAL, f"{made}/t", buckets=1)
        writer = builders.writer(_LOCAL, table)
        chance = np.random.default_rng(1)
        for _ in range(6):
            keys = chance.choice(2 * rows, rows, replace=False)
            writer.write(pa.table({"k": keys, "v": chance.integers(0, 2**40, rows)}))
        builders.set_options(_LOCAL, table, options)
        for folder, _, files in os.walk(made):
            for path in (folder, *(f"{folder}/{name}" for name in files)):
                os.chown(path, _USER, _USER)
        # The daemon finds it whole.
        there = made.rename(self.warehouse / f"{database}.db")
        return TableRef(database=database, name="t", location=f"{there}/t")

    def make_slow_table(self, database: str) -> TableRef:
        """One whose merge takes about a minute."""
        return self.make_table(database, rows=_SLOW_ROWS, **_AS_HARD_AS_IT_CAN)


def events_in(path: Path, event: str, **fields: str) -> list[Object]:
    return [
        one
        for one in _events(path.read_text())
        if one.items() >= {"event": event, **fields}.items()
    ]


def files_of(table: TableRef) -> int:
    """Data files of the newest snapshot."""
    state = load_state(_LOCAL, table)
    return len(list(builders.live_paths(_LOCAL, table, state)))


def _events(text: str) -> Iterator[Object]:
    for line in text.splitlines():
        if line.startswith("{"):
            yield json.loads(line)


def _pod(found: Object) -> Pod:
    meta, status = found["metadata"], found["status"]
    containers = status.get("containerStatuses", [])
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        restarts=sum(one["restartCount"] for one in containers),
        is_ready=all(one["ready"] for one in containers) if containers else False,
    )
