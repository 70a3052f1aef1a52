"""`compactord doctor`: one line for each thing that it needs, with what to do; nothing is left."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import timezone
from pathlib import Path
from typing import Any

import pytest

from compactord.catalog.base import Check, Verdict
from compactord.catalog.filesystem import FilesystemCatalog
from compactord.catalog.publishing import probe
from compactord.cli import doctor
from compactord.cli.doctor import catalog_checks, poll_check
from compactord.clock import Clock
from compactord.config.model import ServiceConfig
from compactord.engine.jvm import Java
from compactord.errors import AccessDenied, EngineUnavailable, StorageError, UsageError
from compactord.paimon.options.table_options import parse_options
from compactord.paimon.schema import TableRef, latest_schema
from compactord.storage.base import Creation, Storage
from compactord_demo.writer import create_table
from tests.builders import FIELDS, NOW_MS, VirtualClock
from tests.e2e.tables import digest
from tests.storages import Call, HookedStorage, MemoryStorage
from tests.unit.cli.warehouses import answered, configuration, keyed, said

_MINUTE = {"continuous.discovery-interval": "1 min"}
_LOOKUP = {"changelog-producer": "lookup"}


def _verdicts(found: Mapping[str, Any]) -> dict[str, str]:
    return {each["check"]: each["verdict"] for each in found["checks"]}


def test_all_is_well_on_this_machine_and_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keyed(tmp_path / "wh", "d.t", commits=1)
    before = digest(tmp_path)
    found = answered(capsys, "doctor", "--warehouse", f"{tmp_path}/wh")
    assert found["failed"] == 0
    assert _verdicts(found).keys() >= {
        *("python", "spark", "java", "cores", "memory", "scratch", "time zone"),
        *("warehouse: tables", "warehouse: permissions"),
        *("warehouse: commits", "warehouse: clock"),
    }
    assert digest(tmp_path) == before
    assert [path.name for path in (tmp_path / "wh").iterdir()] == ["d.db"]


def test_what_is_missing_is_told_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    text = f"""\
    catalogs: {{lake: {{warehouse: WH}}}}
    spark: {{master: "spark://127.0.0.1:{port}"}}
    """
    config = configuration(tmp_path, text)
    found = answered(capsys, "doctor", "--config", config, code=3)
    verdicts = _verdicts(found)
    assert (verdicts["lake: warehouse"], verdicts["master"]) == ("failed", "failed")
    assert found["failed"] == 2
    lines = said(capsys, "doctor", "--config", config, code=3).splitlines()
    assert len(lines) == len(found["checks"])
    (line,) = (line for line in lines if "lake: warehouse" in line)
    assert line.startswith("FAILED")
    assert line.endswith(
        f"does not exist: {tmp_path}/wh -> create or mount it, or correct the path"
    )
    assert not (tmp_path / "wh").exists()


def test_a_master_that_listens_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = doctor.master_check(f"sc://127.0.0.1:{port}/;token=secret")
    assert found is not None
    assert (found.verdict, "secret" in found.found) == (Verdict.OK, False)
    assert doctor.master_check("local[2]") is None


@pytest.mark.parametrize(
    "arguments",
    [["--set", "limits.task_slots=1"], ["--config", "none.yaml"], ["--warehouse", "s3://b/wh"]],
    ids=" ".join,
)
def test_arguments_that_mean_nothing_end_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "doctor", *arguments, code=2)


def _config(**sections: Any) -> ServiceConfig:
    return ServiceConfig.model_validate({"catalogs": {"lake": {"warehouse": "/w"}}, **sections})


def _no_java() -> Java:
    raise EngineUnavailable("Spark 4.3.0 needs a Java between 17 and 25; found: none. Install one")


def _no_zone() -> timezone:
    raise UsageError("this machine's time zone has no name: set service.timezone")


@pytest.mark.parametrize(
    ("check", "verdict", "text"),
    [
        (doctor.spark_check(None, connect=True), Verdict.FAILED, "pip install pyspark"),
        (doctor.spark_check("4.3.0", connect=False), Verdict.FAILED, "pyspark[connect]"),
        (doctor.spark_check("4.3.0", connect=True), Verdict.OK, "pyspark 4.3.0"),
        (doctor.java_check(_no_java), Verdict.FAILED, "Install one"),
        (
            doctor.java_check(
                lambda: Java(home=Path("/j"), executable=Path("/j/bin/java"), version=17)
            ),
            Verdict.OK,
            "Java 17, /j",
        ),
        (doctor.cores_check(2, _config()), Verdict.OK, "2 cores"),
        (doctor.cores_check(1, _config()), Verdict.OK, "1 core for"),
        (doctor.cores_check(2, _config(limits={"task_slots": 9})), Verdict.WARNING, "to 2 or less"),
        (doctor.memory_check(_config(limits={"memory": "4 gb"})), Verdict.OK, "room for 6 merges"),
        (doctor.memory_check(_config(limits={"memory": "99 mb"})), Verdict.FAILED, "raise limits"),
        (doctor.scratch_check("/", least_bytes=0), Verdict.OK, "free in /"),
        (doctor.scratch_check("/", least_bytes=1 << 60), Verdict.WARNING, "set TMPDIR"),
        (doctor.scratch_check("/", "4096", least_bytes=4096), Verdict.OK, "pod may use 4.0 KiB"),
        (
            doctor.scratch_check("/", "4095", least_bytes=4096),
            Verdict.WARNING,
            "scratchSize to 4.0",
        ),
        (doctor.scratch_check("/", "9" * 20, least_bytes=0), Verdict.OK, "free in /"),
        (doctor.scratch_check("/", "2Gi", least_bytes=0), Verdict.OK, "free in /"),
        (doctor.zone_check(_no_zone), Verdict.FAILED, "set service.timezone"),
        (doctor.zone_check(lambda: timezone.utc), Verdict.OK, "UTC"),
    ],
    # Not what was found: the free space of a disk differs from one process to the next.
    ids=lambda value: value.name if isinstance(value, Check) else "",
)
def test_each_thing_that_is_needed_has_a_line(check: Check, verdict: Verdict, text: str) -> None:
    assert check.verdict is verdict
    assert text in check.found + check.advice
    assert (check.advice == "") == (verdict is Verdict.OK)


def _lake(clock_ms: int = NOW_MS, **options: str) -> MemoryStorage:
    storage = MemoryStorage()
    ref = TableRef(database="d", name="t", location="/w/d.db/t")
    create_table(storage, ref, FIELDS, options={"bucket": "-1", **options})
    storage.write_new("/w/d.db/t/snapshot/LATEST", b"")
    storage.now_ms = clock_ms
    return storage


def _of_catalog(storage: Storage, clock: Clock | None = None) -> dict[str, Check]:
    catalogs = {"lake": FilesystemCatalog(storage, "/w")}
    found = catalog_checks(catalogs, clock or VirtualClock(), _config())
    return {check.name.removeprefix("lake: "): check for check in found}


class _Replacing(MemoryStorage):
    """Has no create-if-absent: a second creation replaces the first, as a rename does."""

    def create_if_absent(self, path: str, data: bytes, *, temporary: str) -> Creation:
        self.overwrite(path, data)
        return Creation.CREATED


class _Foreign(MemoryStorage):
    """Belongs to somebody else."""

    def may_write(self, folder: str) -> bool | None:
        return False


def test_a_store_that_replaces_is_found_out_and_left_as_it_was() -> None:
    storage = _Replacing(_lake().objects)
    found = _of_catalog(storage)["commits"]
    assert (found.verdict, "would lose snapshots" in found.found) == (Verdict.FAILED, True)
    assert storage.objects == _lake().objects


def test_folders_that_may_not_be_written_are_named() -> None:
    found = _of_catalog(_Foreign(_lake().objects))["permissions"]
    assert found.verdict is Verdict.FAILED
    assert "may not write in 1 folder, first: /w/d.db/t/snapshot" in found.found
    assert "read and write permission" in found.advice


def test_a_warehouse_folder_that_is_closed_is_only_a_warning() -> None:
    def refuse(call: Call) -> None:
        if call.method == "create_if_absent":
            raise AccessDenied(call.path, "publish failed")

    found = _of_catalog(HookedStorage(_lake(), before=refuse))
    assert found["commits"].verdict is Verdict.WARNING
    assert found["tables"].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("off_ms", "text"), [(90_000, "1 min 30 s ahead of"), (-3_600_000, "1 h behind"), (2_000, "")]
)
def test_a_clock_of_the_store_that_differs_is_told(off_ms: int, text: str) -> None:
    found = _of_catalog(_lake(NOW_MS + off_ms))["clock"]
    assert (found.verdict, text in found.found) == (
        Verdict.WARNING if text else Verdict.OK,
        True,
    )


def test_a_table_that_cannot_be_read_is_named() -> None:
    storage = _lake()
    storage.overwrite("/w/d.db/t/schema/schema-0", b"{")
    found = _of_catalog(storage)["tables"]
    assert (found.verdict, "schema-0" in found.found) == (Verdict.FAILED, True)


def test_a_probe_that_fails_removes_what_it_made() -> None:
    def fail(call: Call) -> None:
        if call.method == "read":
            raise StorageError(call.path, "read failed")

    storage = _lake()
    with pytest.raises(StorageError):
        probe(HookedStorage(storage, before=fail), "/w")
    assert storage.objects == _lake().objects


@pytest.mark.parametrize(
    ("count", "own", "defaults", "verdict", "text"),
    [
        (100, None, {}, Verdict.OK, "polls take 30.0 requests a second"),
        (5000, {}, {}, Verdict.WARNING, "1,500.0 requests a second; set max_quiet_interval: 5 min"),
        (5000, {}, {}, Verdict.WARNING, "which saves 1,450.0 of them"),
        (5000, {}, {"max_quiet_interval": "5 min"}, Verdict.OK, "50.0 requests a second"),
        (1000, _MINUTE, {}, Verdict.OK, "50.0 requests a second"),
        (1000, {}, {"discovery_interval": "1 min"}, Verdict.OK, "50.0 requests a second"),
        (600, _MINUTE, {"discovery_interval": "2 min"}, Verdict.OK, "15.0 requests a second"),
        (100, _LOOKUP, {"max_quiet_interval": "5 min"}, Verdict.OK, "30.0 requests a second"),
        (5000, _LOOKUP, {}, Verdict.OK, "1,500.0 requests a second; "),
    ],
)
def test_what_polls_of_quiet_tables_cost_is_told(
    count: int,
    own: dict[str, str] | None,
    defaults: dict[str, str],
    verdict: Verdict,
    text: str,
) -> None:
    options = None
    if own is not None:
        storage, ref = MemoryStorage(), TableRef(database="d", name="t", location="/w")
        create_table(storage, ref, FIELDS, primary_keys=["k"], options=own)
        options = parse_options(latest_schema(storage, "/w"))
    tables = [TableRef(database="d", name=f"t{n}", location="/w") for n in range(count)]
    check = poll_check("lake", dict.fromkeys(tables, options), _config(defaults=defaults))
    assert check.verdict is verdict
    assert text in f"{check.found}; {check.advice}"


def test_options_of_tables_count() -> None:
    found = _of_catalog(_lake(**{"continuous.discovery-interval": "1 s"}))["polls"].found
    assert found.endswith("3.0 requests a second")
