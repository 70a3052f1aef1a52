"""One daemon over sound, spoilt and unmanaged tables, for tests of what it reports.

`lake` and `pond` are folders, `far` is a bucket behind a proxy that can hang, `down` is no folder.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from compactord.clock import SystemClock
from compactord.storage.open import STORES
from compactord_demo.writer import WriteOnlyWriter
from tests import builders
from tests.damage import DAMAGE, spoil
from tests.service.daemon_process import Service, Services, configuration
from tests.service.lakes import LARGE, LOCAL, WRITER, Keyed, Lake
from tests.store_servers import StoreServer, s3
from tests.tools.store_faults import Fault, How
from tests.tools.store_proxy import StoreProxy

IS_ROOT = os.geteuid() == 0
# A day on which the test does not run, also if it runs at midnight.
_OTHER_DAY = (datetime.now().astimezone() + timedelta(days=3)).strftime("%a").lower()
_PAUSED = {"mode": "paused"}
_RULES = [
    {"match": {"table": r"db\.paused"}, "set": _PAUSED},
    {
        "match": {"table": r"db\.late"},
        "set": {
            "windows": [{"days": _OTHER_DAY}],
            "windows_strict": True,
            "max_backlog_age": "1 s",
        },
    },
    LARGE,
    {"match": {"catalog": "down", "table": r"db\.named"}, "set": {"priority": 9}},
]
# Once the daemon has found what is wrong with the table.
_LATER_RULE = {"match": {"table": r"db\.stopped"}, "set": _PAUSED}
# Modes of folders count for a daemon without capabilities also when root starts it.
_BARE = ("setpriv", "--bounding-set=-all", "--inh-caps=-all", "--") if IS_ROOT else ()
_SERVE = (*_BARE, sys.executable, "-m", "tests.service.impatient")
_EXPIRING = {"snapshot.num-retained.min": "1", "snapshot.num-retained.max": "2"}
_DISK_BYTES = 2 << 20
_STORMY_ROWS = 100_000
# Compacted by others at the same time; its merges take seconds.
STORMY = "large_storm"
CONFLICTS = 3
Name = tuple[str, str]


# Makes a table and spoils it; what it returns removes the cause.
_Mend = Callable[[], object]
_Make = Callable[[Lake, str], _Mend]


def _nothing() -> None:
    """Nothing is wrong with the table itself."""


def _drop(lake: Lake, name: str) -> None:
    """In one step: a table without some of its snapshots is one that lost them."""
    lake.path(name).rename(lake.warehouse / f"dropped-{name}")


def _due(lake: Lake, name: str, **options: str) -> _Mend:
    lake.keyed(name, buckets=1, options=options).commit(6)
    return _nothing


def _appended(lake: Lake, name: str) -> _Mend:
    lake.appended(name).commit(3)
    return _nothing


def _empty(lake: Lake, name: str) -> _Mend:
    lake.keyed(name)
    return _nothing


def _large(lake: Lake, name: str) -> _Mend:
    lake.large(name, buckets=1)
    return _nothing


def _others(lake: Lake, name: str) -> _Mend:
    return _due(lake, name, **{"write-only": "false"})


def _refused(lake: Lake, name: str) -> _Mend:
    _due(lake, name)
    lake.alter(name, {"row-tracking.enabled": "true"})
    return partial(_drop, lake, name)


def _spoiling(pattern: str, content: bytes | None) -> _Make:
    """The newest file of this kind gets other content, or is missing."""

    def make(lake: Lake, name: str) -> _Mend:
        _due(lake, name)
        path = max(lake.path(name).glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        kept = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        return partial(path.write_bytes, kept)

    return make


def _newer_schema(lake: Lake, name: str) -> _Mend:
    lake.keyed(name)
    lake.alter(name, {})
    Keyed(lake.ref(name)).commit()
    (lake.path(name) / "schema" / "schema-1").unlink()
    return partial(_drop, lake, name)


def _overlap(lake: Lake, name: str) -> _Mend:
    # Two files of bucket 0 become one run: more runs than the trigger must be left.
    lake.keyed(name).commit(8)
    spoil(LOCAL, lake.ref(name), 0, DAMAGE["overlap"][0])
    return partial(_drop, lake, name)


def _denied(lake: Lake, name: str) -> _Mend:
    _due(lake, name)
    lake.path(name).chmod(0)
    return partial(lake.path(name).chmod, 0o755)


def _copied(lake: Lake, name: str) -> _Mend:
    lake.keyed(name, buckets=1, options=_EXPIRING)
    # Its clock is years behind that of the disk, as if the files had been copied just now.
    builders.fill_keyed(builders.writer(LOCAL, lake.ref(name)), commits=4)
    return _nothing


def _full_disk(lake: Lake, name: str) -> _Mend:
    folder = lake.path(name)
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    _due(lake, name)
    room = os.statvfs(folder)
    (folder / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize))
    return (folder / "ballast").unlink


@dataclass(frozen=True, slots=True)
class Case:
    """How a table is made, the state that all tell of it, and words of the reason.

    `alerts` are those that fire for it, without those that another one of them inhibits.
    """

    make: _Make
    state: str = "active"
    words: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()
    needs_root: bool = False


_HALTED = ("CompactordTableHalted",)
_DEGRADED = ("CompactordBucketsQuarantined",)
_PAUSE = ("CompactordTablePaused",)
_HOLE = Case(_spoiling("bucket-0/data-*", None), "halted", ("not exist",), _HALTED)


_LAKE: Mapping[str, Case] = {
    "healthy": Case(_due),
    "appended": Case(_appended),
    "empty": Case(_empty),
    "late": Case(_due, alerts=("CompactordBacklogOld",)),
    "paused": Case(_due, "paused", ("rules.0.set.mode",), _PAUSE),
    "stopped": Case(
        _overlap, "paused", ("rules.4.set.mode", "key range overlaps"), (*_PAUSE, *_DEGRADED)
    ),
    "refused": Case(_refused, "unsupported", ("row-tracking.enabled",), _HALTED),
    "schema": Case(_newer_schema, "unsupported", ("live files have schema 1",), _HALTED),
    "overlap": Case(_overlap, "degraded", ("key range overlaps",), _DEGRADED),
    "full": Case(_full_disk, "halted", ("No space left",), _HALTED, needs_root=True),
    "corrupt": Case(_spoiling("bucket-0/data-*", b"junk"), "halted", ("bucket 0",), _HALTED),
    "hole": _HOLE,
    "manifest": Case(
        _spoiling("manifest/manifest-list-*", None), "halted", ("manifest-list-",), _HALTED
    ),
    "snapshot": Case(_spoiling("snapshot/snapshot-6", b"{"), "halted", ("snapshot-6",), _HALTED),
    "denied": Case(_denied, "halted", ("denied",), _HALTED),
    "copied": Case(_copied),
    STORMY: Case(_large, alerts=("CompactordCommitConflictsHigh",)),
    "tmp_x": Case(_due, "excluded", ("excluding_tables",)),
    "own": Case(_others, "excluded", ("not write-only",)),
}
_POND: Mapping[str, Case] = {"healthy": _LAKE["healthy"], "hole": _HOLE}
_FAR: Mapping[str, Case] = {"calm": Case(_due, "error", ("has not answered",))}
# No table is there: a rule names it.
_DOWN: Mapping[str, Case] = {"named": Case(_empty, "error", ("unreachable", "does not exist"))}
CASES: Mapping[Name, Case] = {
    (catalog, name): case
    for catalog, cases in (("lake", _LAKE), ("pond", _POND), ("far", _FAR), ("down", _DOWN))
    for name, case in cases.items()
    if IS_ROOT or not case.needs_root
}


@dataclass(frozen=True, slots=True)
class Story:
    """The daemon with its catalogs. `mends` remove the causes of what is wrong with tables."""

    service: Service
    lake: Lake
    config: Mapping[str, Any]
    proxy: StoreProxy
    mends: Sequence[_Mend]

    def states(self) -> dict[Name, str]:
        tables = self.service.json("/v1/tables")["tables"]
        return {name_of(table): table["status"] for table in tables}

    def strike(self) -> None:
        """The far store hangs, and another compactor rewrites the files of each stormy merge."""
        self.proxy.fail(lambda request: Fault(how=How.HANG))
        ref, rows = self.lake.ref(STORMY), self.lake.rows(STORMY).slice(0, _STORMY_ROWS)
        writer = WriteOnlyWriter(LOCAL, ref, owner=WRITER, clock=SystemClock())
        fast = {"file.compression.zstd-level": "1"}
        while self.conflicts() < CONFLICTS:
            for _ in range(6):
                writer.write(rows)
            self.service.wait_until(
                lambda: self.service.table(STORMY)["running_tasks"] > 0, "a stormy merge runs"
            )
            builders.one_shot(LOCAL, ref, overrides=fast, clock=SystemClock()).run()
            self.service.wait_until(
                lambda: self.service.table(STORMY)["running_tasks"] == 0, "the merge has ended"
            )
        self.service.wait_until(self._is_silent, "the far store counts as silent")
        expected = {name: case.state for name, case in CASES.items()}
        self.service.wait_until(lambda: self.states() == expected, "all is found out")

    def conflicts(self) -> float:
        """Merges that were in vain."""
        scrape = self.service.metrics()
        return scrape.sum("compactions_total", table=STORMY, outcome="conflict")

    def _is_silent(self) -> bool:
        catalogs = self.service.json("/v1/status")["catalogs"]
        return any(each["name"] == "far" and each["store_silent_since_ms"] for each in catalogs)

    def mend(self) -> None:
        """Remove all causes; tables that cannot be mended are dropped."""
        self.proxy.fail(None)
        for mend in self.mends:
            mend()
        Path(self.config["catalogs"]["down"]["warehouse"]).mkdir()
        self.service.reconfigure({**self.config, "rules": [LARGE]})


def name_of(table: Mapping[str, Any]) -> Name:
    """A table of /v1."""
    return table["name"]["catalog"], table["name"]["table"]


@contextlib.contextmanager
def running(scratch: Path, store: StoreServer, port: int = 0) -> Iterator[Story]:
    """The daemon once it has listed all tables; everything ends with the context."""
    lakes = {name: Lake(scratch / name) for name in ("lake", "pond")}
    services = Services(scratch, [])
    with contextlib.ExitStack() as ends:
        ends.callback(_unmount, lakes["lake"].path("full"))
        ends.callback(_permit, lakes["lake"].path("denied"))
        ends.callback(lambda: [service.kill_family() for service in services.started])
        mends = [
            case.make(lakes[catalog], name)
            for (catalog, name), case in CASES.items()
            if catalog in lakes
        ]
        far, path = STORES.open(f"{store.root}/{scratch.name}", store.options)
        builders.fill_keyed(
            builders.writer(far, builders.keyed_table(far, f"{path}/db.db/calm")), commits=6
        )
        proxy = ends.enter_context(StoreProxy(("127.0.0.1", store.port)))
        options = s3(proxy.port).options
        config = _configuration(scratch, f"{store.root}/{scratch.name}", options, port)
        service = services.start(config, command=_SERVE).wait_started()
        story = Story(service, lakes["lake"], config, proxy, mends)
        early = {name: case.state for name, case in CASES.items()}
        early["lake", "stopped"], early["far", "calm"] = "degraded", "active"
        service.wait_until(lambda: story.states() == early, "all is found out but the last")
        service.reconfigure({**config, "rules": [*_RULES, _LATER_RULE]})
        yield story


def _configuration(
    scratch: Path, far: str, options: Mapping[str, str], port: int
) -> dict[str, Any]:
    guarded = {"unlocked_writers": "guarded", "settle": "1 s"}
    return configuration(
        scratch / "lake",
        service={"http": {"port": port}},
        catalogs={
            "pond": {"warehouse": f"{scratch}/pond"},
            "down": {"warehouse": f"{scratch}/no"},
            "far": {"warehouse": far, "options": dict(options), **guarded},
        },
        discovery={"excluding_tables": r"db\.tmp_.*"},
        retry={"halt_after_consecutive_failures": 3},
        rules=_RULES,
    )


def _permit(folder: Path) -> None:
    if folder.exists():
        folder.chmod(0o755)


def _unmount(folder: Path) -> None:
    if folder.is_mount():
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
