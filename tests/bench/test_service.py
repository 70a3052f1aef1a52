"""The benches of the daemon run at a tiny size, so that they cannot rot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.service_ingest import Ingestion
from tests.bench.targets import TARGETS
from tests.bench.test_bench import bench

pytestmark = pytest.mark.bench


@pytest.mark.parametrize(
    "case", [f"service-{case}" for case in ("idle", "memory", "latency", "load", "fleet")]
)
def test_every_promise_of_the_daemon_is_measured(case: str, tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", case)[case]
    wanted = {target.figure for target in TARGETS[case]}
    if case == "service-latency":
        wanted = {"latency_1s_max_s"}
        assert 0 < found["latency_1s_least_s"] <= found["latency_1s_max_s"]
    if case == "service-load":
        assert found["compactions_per_s"] > 0
    assert wanted <= found.keys()


def test_a_soak_counts_what_is_lost_and_what_is_left(tmp_path: Path) -> None:
    found = bench(tmp_path / "figures.json", "--soak", "--seconds", "8")["soak"]
    assert found["lost_rows_tables"] == found["stray_files"] == 0
    assert found["rows_per_s"] > 0
    assert {target.figure for target in TARGETS["soak"]} <= found.keys()


@pytest.mark.parametrize("name", ["keyed", "parts", "log"])
def test_a_soak_sees_lost_rows_and_stray_files(name: str, tmp_path: Path) -> None:
    job = Ingestion(
        tmp_path,
        name,
        seed=1,
        keys=2_000,
        rows=100,
        interval_s=1.0,
        is_keyed=name != "log",
        is_partitioned=name == "parts",
        options={"bucket": "-1" if name == "log" else "2"},
    )
    job.commit()
    job.commit()
    assert job.has_all_rows()
    assert job.stray_files() == set()
    assert job.seen().runs_max == (0 if name == "log" else 2)
    # As if the second commit had never been.
    (folder := Path(job.ref.location) / "snapshot").joinpath("snapshot-2").unlink()
    folder.joinpath("LATEST").write_text("1")
    assert not job.has_all_rows()
    assert len(job.stray_files()) >= 4
