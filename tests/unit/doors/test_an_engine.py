"""A kind of engine is one value and one line of a registry; the master chooses it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from compactord.cli.command import main
from compactord.engine.kinds import ENGINES, EngineKind
from compactord.paimon.snapshot import snapshot_ids
from tests import builders
from tests.inline_engine import InlineEngine
from tests.unit.cli.warehouses import LOCAL, configuration
from tests.unit.doors.command import registered

_STARTED: list[tuple[str | None, Mapping[str, str]]] = []


def _start(master: str | None, settings: Mapping[str, str]) -> InlineEngine:
    _STARTED.append((master, settings))
    return InlineEngine()


TOY = EngineKind(
    name="toy",
    masters="toy://N",
    takes=lambda master: master.startswith("toy://"),
    start=_start,
    instead=lambda setting, _: "toys have no cores" if setting == "spark.cores.max" else None,
)
# The line of the registry.
run = partial(main, registries=registered(engines={**ENGINES, TOY.name: TOY}))


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """The configuration of a warehouse with a table that is due."""
    table = builders.keyed_table(LOCAL, f"{tmp_path}/wh/db.db/t", buckets=1)
    builders.fill_keyed(builders.writer(LOCAL, table), commits=6)
    _STARTED.clear()
    return configuration(tmp_path, "catalogs: {lake: {warehouse: WH}}\n")


def test_its_master_starts_it(lake: str, tmp_path: Path) -> None:
    of_toy = ["--master", "toy://2", "--spark-conf", "spark.toy.color=red"]
    assert run(["compact", "--all", "--config", lake, *of_toy]) == 0
    ((master, settings),) = _STARTED
    assert (master, settings["spark.toy.color"]) == ("toy://2", "red")
    assert snapshot_ids(LOCAL, f"{tmp_path}/wh/db.db/t") == (*range(1, 8),)


@pytest.mark.parametrize(
    ("master", "setting", "error"),
    [
        ("tin://2", "spark.x", "k8s://… or yarn, or toy://N"),
        ("toy://2", "spark.cores.max", "toys have no cores"),
    ],
)
def test_what_it_refuses(
    master: str, setting: str, error: str, lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--master", master, "--spark-conf", f"{setting}=1"]
    assert run(["compact", "--all", "--config", lake, *asked]) == 2
    assert error in capsys.readouterr().err
    asked = [f"--set=spark.master={master}", f"--set=spark.conf={{{setting}: 1}}"]
    assert run(["config", "check", "--config", lake, *asked]) == 2
    assert error in capsys.readouterr().err
    assert not _STARTED


def test_without_its_line_its_master_is_unknown(
    lake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", "--all", "--config", lake, "--master", "toy://2"], registered()) == 2
    assert "'toy://2' is not a Spark master" in capsys.readouterr().err
